"""Kernels of MLX, and calls of MLX in tests, are judged as those of other libraries; its own function is right."""

import threading
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from attn_spec import assert_attention, kernel, watch
from attn_spec.contract.presets import UNDECLARED
from attn_spec.isolation.foreign import isolated
from attn_spec.kernels.calls.call import CallError
from attn_spec.kernels.dropping import dropping
from attn_spec.kernels.frameworks.framework import FrameworkError, framework
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.testing import NotAttention, assert_attention_gradients

PROPERTIES = load_all()
LIBRARY = "mlx.core.fast:scaled_dot_product_attention"
DTYPES = [
    "float32",
    pytest.param("float16", marks=pytest.mark.exhaustive),
    pytest.param("bfloat16", marks=pytest.mark.exhaustive),
]
#: Properties of what a call of MLX may ask for: groups of heads, masks, biases, a diagonal, sinks, and gradients.
ASKED = (
    "accuracy.output_is_within_its_bound",
    "gradients.query_and_key_gradients_are_within_their_bounds",
    "independence.old_answers_are_not_given_again",
    "gradients.bias_gradients_are_within_their_bounds",
    "masking.queries_whose_bias_is_minus_infinity_follow_the_convention",
    "sinks.a_sink_takes_its_share_of_the_weight",
)


def attention(q, k, v, *, scale=None, mask=None):
    """Return attention, with the mean of all values where a query sees no key."""
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (mx.repeat(x, group, axis=1) for x in (k, v))
    s = (q @ k.swapaxes(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if mask is None else mx.where(mask, s, mx.finfo(s.dtype).min)
    return mx.softmax(s, axis=-1) @ v


def verdict(made, property_id, dtype="float32", examples=4):
    profile = replace(PROFILES["smoke"], examples=examples, floor=1, shrink_seconds=0)
    row, _ = search(PROPERTIES[property_id], Subject(made, dtype), profile, seed=0)
    return str(row.verdict), row.message


def qkv(dtype=mx.float32, heads=(4, 2), lengths=(5, 7)):
    mx.random.seed(3)
    shapes = [(2, heads[0], lengths[0], 8), (2, heads[1], lengths[1], 8), (2, heads[1], lengths[1], 8)]
    return [mx.random.normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("property_id", ASKED)
def test_the_librarys_own_function_is_right_by_its_signature(property_id, dtype):
    asked = ("cross", "gqa", "dv", "scale", "causal", "mask", "bias", "sinks", "backward")
    declared = {"signature": "mlx", "contract": UNDECLARED, "supports": asked, "dtypes": (dtype,)}
    made = kernel(**declared)(mx.fast.scaled_dot_product_attention)

    assert made.framework == "mlx"
    assert verdict(made, property_id, dtype) == ("held", "")


def test_a_kernel_that_is_wrong_is_refuted():
    def inverted(q, k, v, *, mask=None):
        return attention(q, k, v, mask=None if mask is None else ~mask)

    declared = {"framework": "mlx", "dtypes": ("float32",), "supports": ("cross", "gqa", "mask", "backward")}
    declared |= {"contract": "eager", "conventions": {"empty_row": "mean_of_v"}}
    for function, expected in ((attention, "held"), (inverted, "refuted")):
        assert verdict(kernel(**declared)(function), ASKED[0], examples=10)[0] == expected


def test_a_wrong_gradient_is_refuted():
    @mx.custom_function
    def halved(x):
        return x * 1

    halved.vjp(lambda _, cotangent, __: cotangent * 0.5)

    declared = {"framework": "mlx", "dtypes": ("float32",), "contract": "eager", "supports": ("cross", "backward")}
    for function, expected in ((attention, "held"), (lambda q, k, v: attention(q, halved(k), v), "refuted")):
        assert verdict(kernel(**declared)(function), ASKED[1])[0] == expected


def test_a_kernel_that_stores_answers_by_the_array_is_refuted_in_a_process_of_its_own_too(folder):
    folder.joinpath("mine.py").write_text(
        "import mlx.core as mx\n"
        "ANSWERS = {}\n"
        "def attention(q, k, v):\n"
        "    if id(q) not in ANSWERS or ANSWERS[id(q)][0] is not q:\n"
        "        ANSWERS[id(q)] = q, mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5)\n"
        "    return ANSWERS[id(q)][1]\n"
    )
    for made in (resolve("mine.py:attention"), isolated("mine.py:attention")):
        assert made.framework == "mlx"
        assert verdict(made, ASKED[0])[0] == "held"
        assert verdict(made, ASKED[2])[0] == "refuted"


def test_results_may_be_written_into_arrays_of_the_call():
    def writing(q, k, v, *, out):
        out[...] = attention(q, k, v)

    declared = {"framework": "mlx", "dtypes": ("float32",), "contract": "eager", "supports": ("cross",)}
    made = kernel(**declared, destinations={"output": "out"})(writing)

    assert verdict(made, ASKED[0]) == ("held", "")


def test_gradients_are_those_of_the_weights_that_the_answer_shows():
    """A backward pass calls the kernel again, which then draws the same numbers."""

    def dropped(q, k, v, *, dropout_p=0.0):
        return v * mx.random.bernoulli(1 - dropout_p, v.shape)

    made = kernel(framework="mlx", dtypes=("float32",), supports=("dropout_by_chance", "backward"))(dropped)
    problem = Recipe(query_length=8, key_length=8).problem()
    problem = problem.replace(v=np.ones_like(problem.v))
    for passes in (1, 2):
        subject = dropping(Subject(made, "float32", passes=passes), 0.5)
        answer, gradients = subject.both_passes(problem, np.ones(problem.output_shape))
        assert 0 < answer["output"].mean() < 1
        assert (gradients["dv"] == answer["output"]).all()


def test_numbers_are_there_for_another_thread_once_they_are_waited_for():
    own, found = framework("mlx"), []
    x = mx.ones(3) * 2
    own.wait("cpu", (x, None, {"weights": x + 1}))
    other = threading.Thread(target=lambda: found.append(own.take(x)))
    other.start()
    other.join()

    assert found[0].tolist() == [2.0, 2.0, 2.0]


def test_a_dtype_that_mlx_has_not_is_named():
    with pytest.raises(FrameworkError, match=r"^mlx has no float8_e4m3fn; leave float8_e4m3fn out$"):
        framework("mlx").give(np.ones(1), "float8_e4m3fn")


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_call_in_a_test_is_judged(dtype):
    q, k, v = qkv(dtype)
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=8**-0.5, mask="causal")

    for how in ({}, {"rows": 2}):
        assert_attention(out, q, k, v, causal=True, causal_alignment="bottom_right", **how)
        assert_attention(out, q, k, v, signature="mlx", scale=8**-0.5, mask="causal", **how)
        with pytest.raises(NotAttention, match=r"output\["):
            assert_attention(out[:, ::-1], q, k, v, signature="mlx", scale=8**-0.5, mask="causal", **how)


def test_a_call_with_a_mask_and_sinks_is_judged():
    q, k, v = qkv()
    sinks, mask = mx.array([0.5, -1.0, 2.0, 0.0]), mx.arange(7) % 3 > 0
    call = {"scale": 0.25, "mask": mask, "sinks": sinks}
    out = mx.fast.scaled_dot_product_attention(q, k, v, **call)

    assert_attention(out, q, k, v, signature="mlx", **call)
    with pytest.raises(NotAttention):
        assert_attention(out, q, k, v, signature="mlx", **{**call, "sinks": sinks[::-1]})
    with pytest.raises(CallError, match="mask must be 'causal' or an array, not 'full'"):
        assert_attention(out, q, k, v, signature="mlx", **{**call, "mask": "full"})


def test_a_query_whose_bias_is_minus_infinity_is_nan():
    q, k, v = qkv()
    mask = mx.where(mx.arange(5)[:, None] == 2, -mx.inf, mx.arange(7) / 4)
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=mask)

    assert mx.isnan(out[:, :, 2]).all().item()
    assert_attention(out, q, k, v, signature="mlx", scale=0.25, mask=mask)
    with pytest.raises(NotAttention, match=r"output\[0, 0, 2, 0\]"):
        assert_attention(mx.nan_to_num(out), q, k, v, signature="mlx", scale=0.25, mask=mask)


def test_a_packed_call_is_judged():
    mx.random.seed(4)
    q, k, v = (mx.random.normal((9, 2, 8)) for _ in range(3))
    bounds = mx.array([0, 4, 9])
    parts = [[x[a:b].swapaxes(0, 1)[None] for x in (q, k, v)] for a, b in ((0, 4), (4, 9))]
    out = mx.concatenate([attention(*part)[0].swapaxes(0, 1) for part in parts])

    assert_attention(out, q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds)
    with pytest.raises(NotAttention):
        assert_attention(out, q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=mx.array([0, 5, 9]))


def test_gradients_of_a_test_are_judged():
    q, k, v = qkv(heads=(2, 2))
    dout = mx.ones(q.shape)
    _, (dq, dk, dv) = mx.vjp(lambda *x: [attention(*x)], [q, k, v], [dout])

    assert_attention_gradients({"dq": dq, "dk": dk, "dv": dv}, dout, q, k, v)
    with pytest.raises(NotAttention, match=r"dk\["):
        assert_attention_gradients({"dq": dq, "dk": 2 * dk, "dv": dv}, dout, q, k, v)


@pytest.mark.parametrize("traced", [mx.compile, mx.vmap])
def test_an_array_without_values_is_refused(traced):
    q, _, _ = qkv()
    with pytest.raises(CallError, match="q must be a dense tensor with values, not a traced array; assert outside of"):
        traced(lambda x: assert_attention(x, x, x, x))(q)


def test_a_watched_function_is_judged():
    q, k, v = qkv()
    with watch(LIBRARY) as (tally,):
        mx.fast.scaled_dot_product_attention(q, k, v, scale=8**-0.5)

    assert (tally.signature, tally.calls, tally.judged) == ("mlx", 1, 1)
    assert not tally.refuted
