"""Small problems for arbitrary precision, and what it means that an enclosure or a definition is right about them."""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.enclosure import Enclosed
from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES, FORMATS
from attn_spec.problem.problem import Problem

PRECISIONS = (53, 113, 200)
#: Precision in which differences of mpf are taken: wider than any score of float64 inputs.
EXACT = 6000

#: Kinds of values: (generator, shape) -> float64.
KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "ties": lambda rng, shape: rng.integers(-1, 2, shape).astype(float),
    "shifted": lambda rng, shape: rng.standard_normal(shape) + rng.choice([30.0, -1e3, 6e4]),
    "large": lambda rng, shape: 1e9 * rng.standard_normal(shape),
    "wide": lambda rng, shape: rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(-1074, 1023, shape)),
    "subnormal": lambda rng, shape: 2.0**-1074 * rng.integers(-9, 9, shape),
}
TAME = ("normal", "ties", "shifted")


def examples(count):
    """Return settings for ``count`` draws of problems that no deadline and no health check interrupts."""
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@st.composite
def problems(draw, kinds=tuple(KINDS)):
    """Draw small problems with every option, in every dtype, of lengths from 0; each tensor of a kind of its own."""
    dtype = draw(st.sampled_from(DTYPES))
    batch, kv_heads, group, D, Dv = (draw(st.integers(1, n)) for n in (2, 2, 3, 5, 3))
    Sq, Sk = draw(st.sampled_from([1, 2, 3, 0])), draw(st.sampled_from([1, 2, 3, 6, 0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def tensor(*shape):
        largest = FORMATS[dtype].largest
        return bits.nearest(np.clip(KINDS[draw(st.sampled_from(kinds))](rng, shape), -largest, largest), dtype)

    heads = kv_heads * group
    bias = None
    if draw(st.booleans()):
        broadcast = draw(st.sets(st.integers(0, 3)))
        bias = tensor(*(1 if axis in broadcast else n for axis, n in enumerate((batch, heads, Sq, Sk))))
        bias[rng.random(bias.shape) < 0.2] = -np.inf
    return Problem(
        q=tensor(batch, heads, Sq, D),
        k=tensor(batch, kv_heads, Sk, D),
        v=tensor(batch, kv_heads, Sk, Dv),
        dtypes=dtype,
        scale=draw(st.none() | st.sampled_from([1.0, 0.1, -2.5, 1e9])),
        causal=draw(st.booleans()),
        causal_alignment=draw(st.sampled_from(["top_left", "bottom_right"])),
        window=draw(st.none() | st.tuples(*2 * [st.none() | st.integers(0, 3)])),
        mask=rng.random((batch, 1, Sq, Sk)) < 0.7 if draw(st.booleans()) else None,
        bias=bias,
        softcap=draw(st.none() | st.sampled_from([0.5, 30.0, 1e10])),
    )


@st.composite
def backward_problems(draw, kinds=tuple(KINDS), lse=True):
    """Draw (problem, dO, dL): a problem and its cotangents; dL is None in half the draws, and in all unless ``lse``."""
    problem = draw(problems(kinds))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dO, dL = (
        KINDS[draw(st.sampled_from(kinds))](rng, (*problem.score_shape[:3], *columns))
        for columns in ((problem.value_dim,), ())
    )
    return problem, dO, dL if lse and draw(st.booleans()) else None


def outside(enclosed: Enclosed, truth: np.ndarray, slack=0):
    """Return the indices where ``truth``, an array of mpf correct within ``slack``, is not inside."""
    missed = []
    slack = np.broadcast_to(slack, truth.shape)
    with mp.workprec(EXACT):
        for at in np.ndindex(truth.shape):
            value, low, radius = (mp.convert(float(x[at])) for x in (enclosed.value, enclosed.low, enclosed.radius))
            inside = value == truth[at] or radius == mp.inf or abs(truth[at] - value - low) <= radius + slack[at]
            if not inside:
                missed.append(at)
    return missed


def magnitudes(problem, dO, dL=None):
    """Evaluate the formulas of gradients with factors replaced by magnitudes, and differences by sums, as mpf."""
    q, k, v, dO = (np.abs(definition.exact(x)) for x in (problem.q, problem.k, problem.v, dO))
    k, v = (x.repeat(problem.group, axis=1) for x in (k, v))
    dL = 0 if dL is None else np.abs(definition.exact(dL))[..., None]
    P, scale = definition.weights(problem, 30), abs(definition.real_scale(problem))
    dP = contract("bhic,bhjc->bhij", dO, v)
    delta = contract("bhij,bhij->bhi", P, dP)[..., None]
    dA = P * (dP + delta + dL)
    dk, dv = (
        x.reshape(*problem.k.shape[:2], problem.group, *x.shape[2:]).sum(axis=2)
        for x in (contract("bhij,bhid->bhjd", dA, q), contract("bhij,bhic->bhjc", P, dO))
    )
    found = {"dq": scale * contract("bhij,bhjd->bhid", dA, k), "dk": scale * dk, "dv": dv}
    return (
        found if problem.bias is None else found | {"dbias": dA.sum(axis=problem.broadcast_axes("bias"), keepdims=True)}
    )


def contract(subscripts, x, y):
    """Run numpy.einsum on two object arrays."""
    return np.einsum(subscripts, x, y, optimize=False)
