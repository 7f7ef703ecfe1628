"""A subject hands out fresh, exact tensors in the kernel's own words, and refuses what no attention kernel may do."""

import functools
import time

import numpy as np
import pytest
import torch

from attn_spec import Problem, kernel
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import CallFailed, Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits

RNG = np.random.default_rng(0)


def problem(dtype="float32", heads=(2, 2), lengths=(3, 4), **options):
    (hq, hkv), (sq, sk) = heads, lengths
    shapes = {"q": (2, hq, sq, 5), "k": (2, hkv, sk, 5), "v": (2, hkv, sk, 6)}
    tensors = {name: bits.nearest(RNG.standard_normal(shape), dtype) for name, shape in shapes.items()}
    return Problem(**tensors, dtypes=dtype, **options)


def subject(function, framework="numpy", dtype="float32", call_limit=60.0, **declared):
    made = kernel(framework=framework, dtypes=(dtype,), contract="fused", **declared)(function)
    return Subject(made, dtype, call_limit=call_limit)


def zeros(q, v):
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_values_pass_both_ways_bit_for_bit(dtype):
    p = problem(dtype, lengths=(4, 4))
    answer = subject(lambda q, k, v: (v, q[..., 0]), "torch", dtype, supports=("lse",))(p)

    assert bits.identical(answer["output"], p.v).all()
    assert bits.identical(answer["lse"], p.q[..., 0]).all()


def test_every_call_gets_fresh_tensors():
    seen = []

    def hold(q, k, v):
        seen.append(q)
        return zeros(q, v)

    p, s = problem(), subject(hold)
    s(p)
    s(p)
    assert seen[0] is not seen[1]
    assert not np.shares_memory(seen[0], seen[1])
    assert not np.shares_memory(seen[0], p.q)


def test_only_options_that_are_used_and_supported_are_passed():
    seen = []

    def note(q, k, v, **options):
        seen.append(options)
        return zeros(q, v)

    s = subject(note, supports=("scale", "causal", "window", "softcap", "causal_alignment"))
    s(problem())
    s(problem(scale=0.5, causal=True, window=(None, 0), softcap=3.0))
    s(problem(causal=True, causal_alignment="bottom_right"))

    assert seen == [
        {},
        {"scale": 0.5, "causal": True, "window": (None, 0), "softcap": 3.0},
        {"causal": True, "causal_alignment": "bottom_right"},
    ]


def test_the_other_layout_is_swapped_both_ways():
    def transposed(q, k, v):
        assert q.shape == (2, 4, 2, 5)
        return v.copy()

    p = problem(lengths=(4, 4))
    assert bits.identical(subject(transposed, presentation="BSHD")(p)["output"], p.v).all()


class Callable:
    def __init__(self, function):
        self.function = function

    def __call__(self, q, k, v, *, enable_gqa=False):
        return self.function(q, k, v, enable_gqa=enable_gqa)


@pytest.mark.parametrize("kind", [lambda f: f, functools.partial, torch.no_grad(), Callable])
def test_a_callable_that_wants_to_be_told_of_grouped_heads_is_told(kind):
    seen = []

    def sdpa(q, k, v, *, enable_gqa=False):
        seen.append(enable_gqa)
        return zeros(q, v)

    s = subject(kind(sdpa), supports=("gqa",), name="sdpa")
    s(problem(heads=(4, 2)))
    s(problem(heads=(2, 2)))
    assert seen == [True, False]


def test_tensors_may_be_laid_out_anew():
    def strided(q, k, v):
        assert not v.is_contiguous()
        return v

    def views(tensor):
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)

    p = problem(lengths=(4, 4))
    assert bits.identical(subject(strided, "torch")(p, arrange=views)["output"], p.v).all()


def mutate(q, k, v):
    k[0, 0, 0, 0] += 1
    return zeros(q, v)


def evade(q, k, v):
    raise NotTaken("no problem is mine")


def leave(q, k, v):
    raise SystemExit("bye")


REFUSED = {
    "none": (lambda q, k, v: None, {}, "out is a NoneType; it must be a ndarray"),
    "subclass": (
        lambda q, k, v: np.ma.array(zeros(q, v)),
        {},
        "out is a MaskedArray",
    ),
    "shape": (lambda q, k, v: zeros(q, v)[:1], {}, r"out has shape \(1, 2, 3, 6\); it must be \(2, 2, 3, 6\)"),
    "dtype": (lambda q, k, v: zeros(q, v).astype("float64"), {}, "out has dtype float64; it must be float32"),
    "no lse": (lambda q, k, v: zeros(q, v), {"supports": ("lse",)}, r"declares lse but returned no \(out, lse\) pair"),
    "lse shape": (
        lambda q, k, v: (zeros(q, v),) * 2,
        {"supports": ("lse",)},
        r"lse has shape \(2, 2, 3, 6\); it must be \(2, 2, 3\)",
    ),
    "three": (
        lambda q, k, v: (zeros(q, v),) * 3,
        {},
        r"the kernel returned a tuple of 3; it must return out or \(out, lse\)",
    ),
    "mutation": (mutate, {}, "the kernel changed its input k in place; it must leave its inputs alone"),
    "way out": (evade, {}, "the kernel's call raised NotTaken: no problem is mine"),
    "exit": (leave, {}, "the kernel's call raised SystemExit: bye"),
    "raise": (lambda q, k, v: q["x"], {}, "the kernel's call raised IndexError: .*test_subject.py"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_misbehaviour_is_named(name):
    function, declared, text = REFUSED[name]

    with pytest.raises(Misbehaviour, match=text):
        subject(function, **declared)(problem())


def test_a_kernel_that_asks_to_end_the_process_failed():
    def leaving(q, k, v):
        raise SystemExit("bye")

    with pytest.raises(CallFailed, match=r"the kernel's call raised SystemExit: bye \(.*test_subject.py:\d+\)"):
        subject(leaving)(problem())


@pytest.fixture
def alone(monkeypatch):
    """Have no other process on the machine, so that limits of time are as they are asked."""
    monkeypatch.setattr("attn_spec.kernels.subject.crowding", lambda: 1.0)


@pytest.mark.usefixtures("alone")
def test_a_kernel_of_few_signatures_has_time_to_compile():
    def compiled(q, k, v):
        time.sleep(0.2)
        return zeros(q, v)

    assert subject(compiled, call_limit=0.1, signatures=2).seconds == 0.5
    subject(compiled, call_limit=0.1, signatures=2)(problem())
    with pytest.raises(CallFailed, match=r"did not return within 0\.1 s"):
        subject(compiled, call_limit=0.1)(problem())


@pytest.mark.usefixtures("alone")
def test_a_call_that_takes_too_long_is_ended_even_if_it_swallows_exceptions():
    def stubborn(q, k, v):
        try:
            time.sleep(5)
        except Exception:
            time.sleep(5)
        return zeros(q, v)

    start = time.monotonic()
    with pytest.raises(CallFailed, match=r"within 0.1 s; if calls are slow and do not hang, raise --call-limit, or"):
        subject(stubborn, call_limit=0.1)(problem())
    assert time.monotonic() - start < 2


def test_gradients_are_those_of_autograd():
    def product(q, k, v, *, bias=None):
        return (q @ k.transpose(-1, -2) + bias) @ v

    p = problem("float64", bias=np.ones((1, 1, 3, 4)))
    cotangent = RNG.standard_normal((2, 2, 3, 6))
    found = subject(product, "torch", "float64", supports=("bias", "backward")).gradients(p, cotangent)

    score = p.q @ p.k.swapaxes(-1, -2) + p.bias
    np.testing.assert_allclose(found["dv"], score.swapaxes(-1, -2) @ cotangent)
    np.testing.assert_allclose(found["dq"], cotangent @ p.v.swapaxes(-1, -2) @ p.k)
    np.testing.assert_allclose(found["dbias"], (cotangent @ p.v.swapaxes(-1, -2)).sum((0, 1), keepdims=True))


def test_an_input_without_influence_has_gradient_zero():
    found = subject(lambda q, k, v: v * 2, "torch", supports=("backward",)).gradients(
        problem(lengths=(4, 4)), np.ones((2, 2, 4, 6))
    )

    assert not found["dq"].any()
    assert (found["dv"] == 2).all()


class Unfinished(torch.autograd.Function):
    @staticmethod
    def forward(_, v):
        return v.clone()

    @staticmethod
    def backward(_, *cotangents):
        raise NotImplementedError("backward of tile 3")


@pytest.mark.parametrize("returns", [lambda out: out, lambda out: (out, None)], ids=["out", "out and None"])
def test_a_backward_of_a_kernel_without_a_log_sum_exp_gets_the_whole_output(returns):
    """Even if there are two batch entries, into which the output could be unpacked."""
    s = subject(lambda q, k, v: returns(v), name="identity", supports=("backward",))

    @s.kernel.backward
    def back(dout, *saved):
        q, k, _, out, lse = saved
        assert out.shape == (2, 2, 4, 6)
        assert lse is None
        return np.zeros_like(q), np.zeros_like(k), dout

    dO = np.ones((2, 2, 4, 6))
    assert (s.gradients(problem(lengths=(4, 4)), dO)["dv"] == dO).all()


def test_a_backward_may_return_gradients_by_name():
    s = subject(lambda q, k, v: v, name="identity", supports=("backward",))
    dO = np.ones((2, 2, 4, 6))

    s.kernel.backward(lambda dout, q, k, *_: {"dv": dout, "dq": np.zeros_like(q), "dk": np.zeros_like(k), "extra": 1})
    found = s.gradients(problem(lengths=(4, 4)), dO)

    assert {name: x.sum() for name, x in found.items()} == {"dq": 0.0, "dk": 0.0, "dv": dO.sum()}


@pytest.mark.parametrize(
    ("returns", "text"),
    [
        (lambda q, k, v: None, r"backward returned a NoneType; it must return \(dq, dk, dv\)"),
        (lambda q, k, v: v, r"backward returned a ndarray; it must return \(dq, dk, dv\)"),
        (lambda q, k, v: (q, k), r"backward returned a tuple of 2; it must return \(dq, dk, dv\), or a dict of them"),
        (lambda q, k, v: {"dq": q, "k": k}, r"backward returned a dict of dq, k, without dk, dv"),
        (lambda q, k, v: (q, k, 0.0), "dv is a float; it must be a ndarray"),
        (lambda q, k, v: (q, k[:1], v), r"dk has shape \(1, 2, 4, 5\); it must be \(2, 2, 4, 5\)"),
    ],
)
def test_a_backward_that_returns_no_gradients_is_named(returns, text):
    s = subject(lambda q, k, v: v.copy(), name="identity", supports=("backward",))
    s.kernel.backward(lambda dout, q, k, v, *saved: returns(q, k, v))

    with pytest.raises(Misbehaviour, match=text):
        s.gradients(problem(lengths=(4, 4)), np.ones((2, 2, 4, 6)))


def test_a_backward_may_return_more_than_a_problem_asks_for_and_no_less():
    s = subject(lambda q, k, v, bias=None: v.copy(), name="identity", supports=("backward", "bias"))
    s.kernel.backward(lambda dout, q, k, v, *saved, **options: (q, k, v, None))
    assert set(s.gradients(problem(lengths=(4, 4)), np.ones((2, 2, 4, 6)))) == {"dq", "dk", "dv"}

    s.kernel.backward(lambda dout, q, k, v, *saved, **options: (q, k, v))
    with pytest.raises(Misbehaviour, match=r"a tuple of 3; it must return \(dq, dk, dv, dbias\)"):
        s.gradients(problem(lengths=(4, 4), bias=np.zeros((2, 2, 4, 4))), np.ones((2, 2, 4, 6)))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_gradients_of_three_results_are_named_too(framework):
    with pytest.raises(Misbehaviour, match="the kernel returned a tuple of 3"):
        subject(lambda q, k, v: (v * 2,) * 3, framework).gradients(problem(lengths=(4, 4)), np.ones((2, 2, 4, 6)))


def test_a_backward_that_raises_is_named():
    unfinished = subject(lambda q, k, v: Unfinished.apply(v), "torch")

    with pytest.raises(CallFailed, match="the kernel's backward raised NotImplementedError: backward of tile 3"):
        unfinished.gradients(problem(lengths=(4, 4)), np.ones((2, 2, 4, 6)))


def test_results_on_another_device_are_refused():
    with pytest.raises(Misbehaviour, match="out is on device meta; it must be on cpu, the inputs' device"):
        subject(lambda q, k, v: torch.empty((*q.shape[:3], v.shape[3]), device="meta"), "torch")(problem())
