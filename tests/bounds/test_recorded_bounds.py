"""The bounds are what they were when they were last examined; `pytest --snapshot-update` records them anew.

A bound that changes is a theorem that changes: the adversary, the witnesses and `make validate` say whether it may.
"""

from collections.abc import Iterable
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
from attn_spec.reports.proof.adversary.attack import Attack, allowed
from attn_spec.reports.proof.adversary.cases import STAGES, stages
from attn_spec.reports.proof.adversary.presets import presets
from attn_spec.reports.proof.validation.random_kernels import random_kernel

from attn_spec.bounds.backward.gradient_bounds import gradient_bound
from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.forward.product_bounds import descales_operands
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.presets import EAGER, FUSED, SPLIT_KV, TF32, UNDECLARED
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe


def recorded(attacks: Iterable[tuple[str, str, Attack]]) -> str:
    """Write a line for each attack: the sums of the bounds of its quantities; NaN is outside the domain."""
    lines = []
    for stage, way, attack in attacks:
        sums = (f"{name} {shown(np.sum(bound))}" for name, bound in allowed(attack).items())
        lines.append(f"{stage}, {way}: {', '.join(sums)}")
    return "\n".join(lines)


def shown(total: float) -> str:
    """Write six digits, or two of float64's own roundoff, whose last digits depend on the machine's BLAS."""
    return f"{total:.1e}" if 1e-18 < total < 1e-12 else f"{total:.5e}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stage", STAGES)
def test_bounds_of_one_narrow_stage_are_as_recorded(stage, snapshot):
    """Half of the ways, chosen by their names, so that another way leaves the others' lines alone."""
    half = [case for case in stages() if case[0] == stage and crc32(f"{stage}, {case[1]}".encode()) % 2]

    assert recorded(half) == snapshot


def test_bounds_of_presets_are_as_recorded(snapshot):
    assert recorded(presets()) == snapshot


#: Problems where other terms decide than on small random ones: hulls, exact scores, rows that see nothing, constants.
RECIPES = {
    "activations": {"regime": "activations", "causal": True},
    "huge": {"regime": "huge+v_offset"},
    "integers": {"regime": "integers", "scale": 1.0},
    "one hot": {"regime": "one_hot", "softcap": 20.0},
    "beyond float16": {"regime": "overflow_float16", "key_length": 20},
    "biased": {"bias": "normal@11QK", "window": (3, 0)},
    "grouped": {"query_heads": 4, "kv_heads": 2, "scale": 0.7, "mask": "random"},
    "batches": {"batch": 2, "query_heads": 2, "kv_heads": 1, "bias": "normal@1HQK"},
}
CONTRACTS = {
    "fused": FUSED,
    "cast": replace(FUSED, row_sum_of="cast", score_gradients_of="cast", kv_tile=4, scale_on="operands"),
    "eager": EAGER,
    "stored": replace(FUSED, backward_weights="stored", delta="probabilities", row_sum_of="cast", exponent="natural"),
    "split": replace(SPLIT_KV, merging="difference", partial_outputs="input", reference_slack=2.0),
    "every tile": replace(TF32, normalize="every_tile", exp_of_zero_is_one=False, summation_depth=6),
    "undeclared": UNDECLARED,
}


@np.errstate(over="ignore")  # outside the domain a bound may be as large as float64 goes
@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bounds_of_other_problems_are_as_recorded(dtype, name, snapshot):
    """With cotangents on both outputs; the last number is of the places in the domain."""
    lines, c = [], CONTRACTS[name].at(dtype)
    for kind, options in RECIPES.items():
        sizes = {"query_length": 4, "key_length": 9, "head_dim": 8, "value_dim": 3} | options
        problem = Recipe(dtypes=dtype, seed=1, **sizes).problem()
        x = intermediates(problem)
        rng = np.random.default_rng(1)
        dO = bits.nearest(rng.standard_normal((*problem.score_shape[:3], 3)), dtype)
        forward = forward_bound(x, c)
        backward = gradient_bound(x, gradient_intermediates(x, dO, rng.integers(-8, 8, problem.score_shape[:3]) / 8), c)
        found = forward.allowed | backward.allowed
        sums = (f"{name} {shown(np.nansum(bound))}" for name, bound in found.items())
        lines.append(f"{kind}: {', '.join(sums)}; {forward.in_domain.sum()} {backward.rows.sum()}")

    assert "\n".join(lines) == snapshot


#: Options of drawn problems, each in three of ten.
OPTIONS = {
    "causal": True,
    "scale": 1.0,
    "softcap": 20.0,
    "bias": "normal@11QK",
    "alibi_slopes": "random@1H11",
    "sinks": "normal@1H11",
    "dropout_keep": "half@BHQK",
    "q_descale": "spread@1G11",
    "k_descale": "tiny@1G11",
    "v_descale": "spread@1G11",
}
#: Sizes of their tensors: of small ones much underflows.
SIZES = (1.0, 1.0, 2.0**-7, 2.0**-12)


def drawn(rng: np.random.Generator, dtype: str) -> Recipe:
    options = {name: value for name, value in OPTIONS.items() if rng.random() < 0.3}
    if "dropout_keep" in options:
        options["dropout_p"] = 0.3
    shape = {"query_heads": 2, "query_length": 3, "key_length": 7, "head_dim": 4, "value_dim": 3}
    regime = str(rng.choice(["normal", "near_ties", "large", "rising"]))
    size, value_size = (float(each) for each in rng.choice(SIZES, 2))
    return Recipe(
        dtypes=dtype, regime=regime, seed=int(rng.integers(99)), **shape, **options, size=size, value_size=value_size
    )


@np.errstate(all="ignore")
@pytest.mark.parametrize("part", range(4))
def test_bounds_of_drawn_arithmetics_are_as_recorded(part, snapshot):
    """Geometric means of the bounds of random kernels' arithmetics, where stages and conventions meet."""
    lines = []
    for seed in range(part, 240, 4):
        made, rng = random_kernel(seed), np.random.default_rng(seed)
        if made.dtype not in ("float32", "float16", "bfloat16"):
            continue
        problem, c = drawn(rng, made.dtype).problem(), made.executes.at(made.dtype)
        x, dO = intermediates(problem), rng.standard_normal(problem.output_shape) * rng.choice(SIZES)
        found = dict(forward_bound(x, c).allowed)
        if not descales_operands(x, c):  # no theorem is about gradients of those
            found |= gradient_bound(x, gradient_intermediates(x, bits.nearest(dO, made.dtype), None), c).allowed
        means = (f"{name} {shown(geometric_mean(bound))}" for name, bound in found.items())
        lines.append(f"{seed}: {', '.join(means)}")

    assert "\n".join(lines) == snapshot


def geometric_mean(bound: np.ndarray) -> float:
    """Return the geometric mean of all finite elements above 0: each counts as much, however small it is."""
    found = bound[(bound > 0) & np.isfinite(bound)]
    return float(np.exp(np.log(found).sum() / max(found.size, 1)))
