"""Kernels that write their results into tensors they are given are called, judged and recognised so."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.evidence.recording import recorded
from attn_spec.first_look.first_look import explain_failure
from attn_spec.first_look.misfit import MisfitError
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.plain_calls import plain
from attn_spec.search.preflight import preflight
from tests.kernels.presentations.packing.test_plain_packed_kernels import ACCURATE, ALONE, verdict

BOTH = {"output": "out", "lse": "lse"}
SUPPORTS = ("causal", "gqa", "cross", "dv", "lse", "seqused_k")
RECIPE = Recipe(batch=2, query_length=3, key_length=4, causal=True, seqused_k="one_less@B111", seed=2)


def attend(q, k, v):
    """Return the output [B, H, S, Dv] and the LSE [B, H, S]."""
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return p / total @ v, (np.log(total) + top)[..., 0]


#: Results that a call may return beside those that it writes.
RETURNED = {"nothing": lambda out, lse: None, "both": lambda out, lse: (out, lse), "equal": lambda out, lse: out.copy()}


def writing(returns=RETURNED["nothing"], **declared):
    """Return a kernel that writes its output and LSE."""

    def attention(q, k, v, *, out, lse):
        assert np.isnan(out).all()
        assert np.isnan(lse).all()
        out[...], lse[...] = attend(q, k, v)
        return returns(out, lse)

    facts = {"supports": ("lse", "dv", "cross"), "destinations": BOTH, "contract": "eager", **declared}
    return kernel(framework="numpy", dtypes=("float32",), name="k", **facts)(attention)


@pytest.mark.parametrize("returns", RETURNED)
def test_what_is_written_is_judged(returns):
    assert verdict(writing(RETURNED[returns]), ACCURATE, 3) == ("held", "")


def test_another_tensor_than_the_one_written_is_told():
    with pytest.raises(Misbehaviour, match="returned another out than it wrote into the tensor for it; it must return"):
        Subject(writing(lambda out, lse: out + 1), "float32")(plain(writing(), "float32"))


def test_one_result_may_be_written_and_the_other_returned():
    def attention(q, k, v, *, o):
        o[...], lse = attend(q, k, v)
        return o, lse

    facts = {"supports": ("lse",), "destinations": {"output": "o"}, "contract": "eager"}
    assert verdict(kernel(framework="numpy", dtypes=("float32",), **facts)(attention), ACCURATE, 2) == ("held", "")


@pytest.mark.parametrize("presentation", ["BHSD", "BS(HD)", "HSD", "THD", "BSHD_lengths"])
def test_an_emulated_kernel_writes_what_it_would_return(presentation):
    """Rows that are not there keep what the tensors held, which nobody looks at."""
    supports = [each for each in SUPPORTS if "seqused" not in each or presentation in ("BHSD", "BS(HD)", "HSD")]
    returning = emulate("k", PRECISE, presentation=presentation, supports=supports)
    problem = RECIPE.problem()

    expected = Subject(returning, "float32")(problem)
    found = Subject(emulate("k", PRECISE, presentation=presentation, supports=supports, destinations=BOTH), "float32")(
        problem
    )
    assert all(bits.identical(found[name], expected[name]).all() for name in ("output", "lse"))


def test_a_packed_kernel_need_not_write_what_no_query_is():
    right = emulate("k", PRECISE, presentation="THD", supports=("gqa", "cross", "dv", "lse"), destinations=BOTH)

    def attention(*tensors, out, lse, cu_seqlens_q, **options):
        end = int(cu_seqlens_q[-1])
        written, its_lse = out.clone(), lse.clone()
        right.function(*tensors, out=written, lse=its_lse, cu_seqlens_q=cu_seqlens_q, **options)
        out[:end], lse[:, :end] = written[:end], its_lse[:, :end]

    assert verdict(replace(right, function=attention), ALONE, 4) == ("held", "")


def test_a_tensor_holds_no_nan_where_nan_may_be_the_answer():
    seen = []

    def attention(q, k, v, *, out):
        seen.extend(np.unique(out).tolist())
        out[...] = attend(q, k, v)[0]

    facts = {"conventions": {"empty_row": "nan"}, "destinations": {"output": "out"}, "contract": "eager"}
    own = kernel(framework="numpy", dtypes=("float32",), **facts)(attention)
    Subject(own, "float32")(plain(own, "float32"))

    assert len(seen) == 1
    assert np.isfinite(seen).all()


def test_a_recorded_call_has_what_it_wrote():
    subject, calls = recorded(Subject(writing(), "float32"))
    answer = subject(plain(writing(), "float32"))

    assert [bits.identical(part, answer[name]).all() for part, name in zip(calls[0].parts, BOTH, strict=True)] == [1, 1]


def test_a_call_that_writes_has_no_gradients_of_its_framework():
    own = emulate("k", PRECISE, destinations=BOTH, supports=("lse", "backward"))

    assert not Subject(own, "float32").supports("autograd")
    with pytest.raises(KernelError, match="a tensor that a call is given to write into carries no gradients; define"):
        preflight(own)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"destinations": {"dq": "dq"}}, "destinations must be of output, lse, not {'dq': 'dq'}"),
        ({"destinations": {"output": "result"}}, "destinations names result, which is no parameter of the function"),
        ({"supports": ()}, "destinations has lse, which supports has not; declare both"),
    ],
)
def test_what_cannot_be_a_destination_is_an_error(declared, message):
    with pytest.raises(KernelError, match=message):
        writing(**declared)


def test_a_framework_whose_tensors_do_not_change_has_no_destinations():
    pytest.importorskip("jax")
    own = kernel(framework="jax", dtypes=("float32",), destinations={"output": "out"})(lambda q, k, v, *, out: out)
    with pytest.raises(KernelError, match="tensors of jax cannot be written into; return the results instead"):
        preflight(own)


def test_an_undeclared_callable_is_given_what_it_cannot_be_called_without():
    def attention(q, k, v, out, scale=None):
        out[...] = attend(q, k, v)[0]

    def optional(q, k, v, out=None):
        return attend(q, k, v)[0]

    found = from_callable(attention)
    assert found.destinations == {"output": "out"}
    assert "parameter out" not in preflight(found).declined
    assert preflight(found).subjects
    assert from_callable(optional).destinations == {}


def test_a_first_look_names_the_destinations_of_a_declared_kernel():
    def attention(q, k, v, *, out):
        out[...] = attend(q, k, v)[0]

    own = Subject(kernel(framework="numpy", dtypes=("float32",), contract="eager", name="k")(attention), "float32")
    with pytest.raises(MisfitError) as told:
        explain_failure([own], {"float32": "missing a required keyword-only argument: 'out'"})
    assert str(told.value) == (
        "k: it has out without a default, to write its results into\n"
        "Add destinations={'output': 'out'} to its @kernel(...)"
    )
