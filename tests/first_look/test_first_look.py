"""A first look reports each known misfit once, with a remedy that mends it, and leaves all else to the properties."""

import time

import pytest
import torch

from attn_spec import Contract, kernel
from attn_spec.first_look.first_look import explain_failure, first_look
from attn_spec.first_look.misfit import MisfitError
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.resolve import in_tree, resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.preflight import PlainCallError, preflight
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from tests.first_look.callables import (
    adding,
    attend,
    bshd,
    bshd_with_lse,
    causal,
    declared,
    hiding,
    of_jax,
    one_head,
    subjects,
    wide,
    window_passed_on,
    windowed,
    with_lse,
)

#: Known misfits: for each the kernel, the cause, the remedy, and the kernel mended so.
MISFITS = {
    "heads and lengths": (
        declared(bshd, supports=("cross",)),
        "it takes tensors [B, S, H, D], batch, length, heads, dimension, and is given [B, H, S, D]",
        "Add presentation='BSHD' to its @kernel(...)",
        declared(bshd, supports=("cross",), presentation="BSHD"),
    ),
    "lengths and heads": (
        declared(attend, presentation="BSHD"),
        "it takes tensors [B, H, S, D], batch, heads, length, dimension, and is given [B, S, H, D]",
        "Add presentation='BHSD' to its @kernel(...)",
        declared(attend),
    ),
    "heads and lengths of the log-sum-exp": (
        declared(bshd_with_lse, supports=("lse",)),
        "it takes tensors [B, S, H, D], batch, length, heads, dimension, and is given [B, H, S, D]",
        "Add presentation='BSHD' to its @kernel(...)",
        declared(bshd_with_lse, supports=("lse",), presentation="BSHD"),
    ),
    "heads and lengths of the output": (
        declared(lambda q, k, v: attend(q, k, v).swapaxes(1, 2)),
        "its output has its axes in another order: it is right as BSHD, and must be [B, H, S, D] as q is",
        "Return out.swapaxes(1, 2)",
        declared(lambda q, k, v: attend(q, k, v).swapaxes(1, 2).swapaxes(1, 2)),
    ),
    "diagonal": (
        declared(causal("bottom_right"), supports=("causal", "cross")),
        "with more keys than queries its causal diagonal ends in the bottom right corner, not at the top left",
        "Add conventions={'causal_alignment': 'bottom_right'} to its @kernel(...)",
        declared(
            causal("bottom_right"), supports=("causal", "cross"), conventions={"causal_alignment": "bottom_right"}
        ),
    ),
    "base of the log-sum-exp": (
        declared(with_lse(2), supports=("lse",)),
        "its log-sum-exp is to the base 2, not e",
        "Add conventions={'lse_base': '2'} to its @kernel(...)",
        declared(with_lse(2), supports=("lse",), conventions={"lse_base": "2"}),
    ),
    "no log-sum-exp": (
        declared(attend, supports=("lse",)),
        "the kernel declares lse but returned no (out, lse) pair",
        "Return (out, lse), or take 'lse' out of supports",
        declared(attend),
    ),
    "window": (
        declared(windowed, supports=("window",)),
        "its window has -1 for a side without bound, and is given None",
        "Wrap it in a function that passes window=tuple(-1 if side is None else side for side in window)",
        declared(window_passed_on, supports=("window",)),
    ),
    "additive mask": (
        declared(adding, supports=("mask",)),
        "its mask is added to scores, -inf masks a key; it is given a bool mask, True = attend",
        "Rename mask to bias, and add merge='bias' to its @kernel(...): masks are then added to scores",
        declared(lambda q, k, v, *, bias=None: adding(q, k, v, mask=bias), supports=("mask",), merge="bias"),
    ),
    "mask of what is hidden": (
        declared(hiding, supports=("mask",)),
        "its mask masks a key where it is True; it is given a bool mask, True = attend",
        "Wrap it in a function that passes mask=~mask",
        declared(
            lambda q, k, v, *, mask=None: hiding(q, k, v, mask=None if mask is None else ~mask), supports=("mask",)
        ),
    ),
    "type": (
        declared(lambda q, k, v: [attend(q, k, v)]),
        "out is a list; it must be a Tensor",
        "Return out, a Tensor of the shape of q, or (out, lse)",
        declared(attend),
    ),
    "three results": (
        declared(lambda q, k, v: (attend(q, k, v), None, None)),
        "the kernel returned a tuple of 3; it must return out or (out, lse)",
        "Return out alone, or (out, lse)",
        declared(lambda q, k, v: (attend(q, k, v), None)),
    ),
    "shape": (
        declared(lambda q, k, v: attend(q, k, v)[..., 0]),
        "out has shape (1, 2, 8); it must be (1, 2, 8, 16)",
        "Return out in the shape (1, 2, 8, 16) for these inputs",
        declared(attend),
    ),
    "dtype": (
        declared(wide),
        "out has dtype float64; it must be float32, the inputs' dtype unless another one is declared",
        "Cast it to that, or declare contract=Contract(output='float64', ...) if it is meant to be float64",
        declared(wide, contract=Contract(output="float64")),
    ),
    "device": (
        declared(lambda q, k, v: attend(q, k, v).to("meta")),
        "out is on device meta; it must be on cpu, the inputs' device",
        "Return it on the device of q",
        declared(attend),
    ),
    "framework": (
        declared(of_jax, framework="numpy"),
        "out is an ArrayImpl; it must be a ndarray",
        "Declare framework='jax', or return a ndarray",
        declared(of_jax, framework="jax"),
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_misfit_is_told_in_two_lines_and_its_remedy_mends_it(name):
    made, cause, remedy, mended = MISFITS[name]

    with pytest.raises(MisfitError) as told:
        first_look(subjects(made))
    assert str(told.value) == f"mine: {cause}\n{remedy}"
    first_look(subjects(mended))


def test_an_undecorated_callable_is_told_the_whole_declaration():
    dtypes = ("float32", "bfloat16")
    with pytest.raises(MisfitError) as told:
        first_look(preflight(from_callable(bshd, framework="torch", dtypes=dtypes)).subjects)

    declaration = f"@kernel(framework='torch', dtypes={dtypes}, supports=(), presentation='BSHD') of attn_spec"
    assert str(told.value).endswith(f"\nDeclare it with {declaration}, and add what else it supports")


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return attend(q, k, v)


class Applied(torch.autograd.Function):
    @staticmethod
    def forward(_, *tensors):
        return attend(*tensors)

    @staticmethod
    def backward(_, *gradients):
        raise NotImplementedError


def no_driver(q, k, v):
    raise RuntimeError("0 active drivers ([]). There should only be one.")


@pytest.mark.parametrize(
    ("function", "cause", "remedy"),
    [
        (Layer, "it is a class: calling it makes an instance", "Make an instance in its file, mine = "),
        (Applied, "it is a class: calling it makes an instance", "Write a function that calls Applied."),
        (no_driver, "Triton finds no driver of a GPU", "Set TRITON_INTERPRET=1 to interpret it on the CPU, or "),
        (one_head, "it takes tensors [S, D], one head at a time: length, dimension, and is given [B, H, S, D]", "Decl"),
    ],
)
def test_a_call_that_cannot_work_is_told_by_its_reason(function, cause, remedy):
    def look_at(function):
        try:
            first_look(preflight(from_callable(function, framework="torch")).subjects)
        except PlainCallError as failed:
            explain_failure(failed.subjects, failed.failures)

    with pytest.raises(MisfitError) as told:
        look_at(function)

    assert told.value.cause == cause
    assert str(told.value).partition("\n")[2].startswith(remedy)


def test_calls_that_fail_for_no_known_reason_are_left_to_the_text_of_the_failure():
    with pytest.raises(
        KernelError, match="float32, float16, bfloat16: the kernel's call raised ZeroDivisionError"
    ) as no:
        preflight(from_callable(lambda q, k, v: 1 / 0, framework="torch"))

    explain_failure(no.value.subjects, no.value.failures)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in in_tree() if "cpu" in resolve(name).devices])
def test_a_failing_call_is_tried_in_every_presentation_that_the_kernel_can_have(name):
    made = resolve(name)

    with pytest.raises(PlainCallError, match="the kernel's call raised ZeroDivisionError") as no:
        preflight(made.wrapped(lambda *tensors, **options: 1 / 0), made.dtypes)
    explain_failure(no.value.subjects, no.value.failures)


def test_a_failing_call_is_not_tried_in_a_presentation_beyond_the_kernels_limits():
    """A call that decodes has one query."""
    made = kernel(framework="torch", dtypes=("float32",), contract="eager", supports=("cross",), query_lengths=(4,))

    with pytest.raises(PlainCallError) as no:
        preflight(made(lambda q, k, v: 1 / 0), ["float32"])
    explain_failure(no.value.subjects, no.value.failures)


def test_a_kernel_that_hangs_in_another_call_too_is_tried_no_further():
    calls = []
    hanging = from_callable(lambda q, k, v: (calls.append(q.shape), time.sleep(60)), framework="torch")

    explain_failure([Subject(hanging, "float32", call_limit=0.05)], {"float32": "it did not return"})

    assert len(calls) == 1


def test_a_log_sum_exp_of_another_shape_is_left_to_the_properties():
    padded = declared(lambda q, k, v: (attend(q, k, v), q.new_zeros(*q.shape[:2], 48)), supports=("lse",))
    (subject,) = subjects(padded)

    first_look([subject])
    row, _ = search(load_all()["accuracy.output_is_within_its_bound"], subject, PROFILES["smoke"], seed=0)

    assert row.verdict is Verdict.REFUTED
    assert "lse has shape" in row.message
