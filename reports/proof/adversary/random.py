"""Attacks drawn at random: any arithmetic that the random sound kernels execute, a few stages of it narrow.

``cases`` attacks chosen contracts; here random fields of the contract meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import Contract
from attn_spec.contract.roundoff import elementary_error
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.layers import Layer
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

from ..validation.random_kernels import (
    drawn_gradients,
    drawn_order,
    drawn_steps,
    executed_arithmetic,
    may_differentiate,
    with_sinks,
)
from ..validation.random_options import drawn_sinks, one_of
from .attack import Attack
from .cases import FINE, STAGES
from .layer_steps import BiasFirst, HeadByHead, InOneSum
from .problems import NARROW, small_layer, small_problem

#: Share of attacks on layers, of those whose dP is narrow, and of those whose products are rounded before their sums.
LAYERS = 0.2
#: Stages that are drawn apart, or are those of other members; and those of which some are narrow.
_APART = ("weight_gradients", "alibi_terms", "rotary_tables")
_STAGES = tuple(stage for stage in STAGES if stage not in _APART)
#: Formats of narrow stages, NARROW as often as all others.
_FORMATS = (NARROW, NARROW, "bfloat16", "tf32")
#: Dtypes of the stages whose numbers a kernel returns.
_DTYPES = (NARROW, NARROW, "bfloat16", "float32")


def random_attacks(count: int, seed: int = 0) -> Iterator[tuple[str, str, Attack]]:
    """Yield ``count`` attacks, each with "random" and the call of :func:`random_attack` that draws it again."""
    for number in range(seed * 10**6, seed * 10**6 + count):
        yield "random", f"random_attack({number})", random_attack(number)


def random_attack(seed: int) -> Attack:
    """Draw the attack of a seed."""
    rng = np.random.default_rng(seed)
    # The adversary has no fused operations, and no order of additions but one after the other.
    order = replace(
        drawn_order(rng),
        kv_tile=one_of(rng, (1, 1, 2, 3, None)),
        sums="sequential",
        fused=False,
        inaccuracy=0.0,
    )
    contract = _contract(rng, order)
    problem, layer = _problem(rng), Layer
    if (apart := np.random.default_rng([seed, 1])).random() < LAYERS:  # other draws stay as they are
        problem, layer = _layer(apart), one_of(apart, (Layer, HeadByHead, BiasFirst, InOneSum))
        contract = replace(contract, operands=one_of(apart, ("float64", "float64", *_FORMATS)))
        order = replace(order, bias_rounded=bool(apart.random() < 0.3), results_stored=bool(apart.random() < 0.3))
    if (of_dP := np.random.default_rng([seed, 2])).random() < LAYERS:
        contract = replace(contract, weight_gradients=one_of(of_dP, _FORMATS))
        contract = replace(contract, alibi_terms=one_of(of_dP, ("float64", *_FORMATS)))
        if may_differentiate(contract.at("float64"), order):
            contract = replace(contract, backward_weights="stored")
    if (of_products := np.random.default_rng([seed, 4])).random() < LAYERS:
        contract = replace(contract, products=one_of(of_products, _FORMATS), multiplicand_pieces=1)
    of_sinks = np.random.default_rng([seed, 3])
    sinks = drawn_sinks(of_sinks, contract, order)
    contract, order = replace(contract, sink_reference=sinks.reference), replace(order, sink=sinks.tile)
    if sinks.options:
        problem = problem.replace(
            sinks=np.full((1, problem.query_heads, 1, 1), one_of(of_sinks, (0.0, 0.5, -4.0, 6.0)))
        )
    dO, dL = (rng.standard_normal(shape) for shape in (problem.output_shape, (*problem.score_shape[:3], 1)))
    return Attack(
        problem=problem,
        contract=contract,
        order=order,
        steps=with_sinks(drawn_steps(rng, contract, order), order, sinks.options),
        gradients=drawn_gradients(contract),
        layer=layer,
        cotangent=bits.nearest(dO * one_of(rng, (1.0, 1.0, 1.0, 0.0)), NARROW),
        lse_cotangent=bits.nearest(dL[..., 0], NARROW) if rng.random() < 0.3 else None,
        elements=2,
        seed=seed,
    )


def _contract(rng: np.random.Generator, order: Order) -> Contract:
    """Draw an arithmetic whose only errors are those of one to three stages, and of the functions."""
    narrow = rng.choice(_STAGES, size=one_of(rng, (1, 1, 1, 2, 3)), replace=False)
    formats: dict[str, Any] = {stage: getattr(FINE, stage) for stage in STAGES}
    formats |= {str(stage): one_of(rng, _DTYPES if stage in ("output", "gradients") else _FORMATS) for stage in narrow}
    unit = elementary_error(replace(FINE, **formats, exp_error=1.0).at("float64"), "exp_error")
    errors = {name: one_of(rng, (0.0, 0.0, 2.0**-12 / unit)) for name in ("exp_error", "log_error", "tanh_error")}
    drawn = executed_arithmetic(rng, "float64", order)
    contract = replace(drawn, **formats | errors, gradient_stores=FINE.gradient_stores, kv_tile=order.kv_tile)
    if contract.matrix_rounding:
        contract = replace(contract, multiplicands=NARROW)
    return replace(contract, inner_accumulation=NARROW) if contract.inner_accumulation else contract


def _problem(rng: np.random.Generator) -> Problem:
    """Draw a small problem, with options."""
    options: dict[str, Any] = {
        "softcap": one_of(rng, (None, None, 2.0, 9.0)),
        "causal": bool(rng.random() < 0.3),
        "bias": bool(rng.random() < 0.3),
        "slopes": one_of(rng, (None, None, None, 0.7, 3.0)),
    }
    return small_problem(
        seed=int(rng.integers(2**31)),
        n=int(rng.integers(1, 9)),
        Sq=one_of(rng, (1, 1, 3)),
        Hq=one_of(rng, (1, 1, 2)),
        D=int(rng.integers(1, 6)),
        scale=one_of(rng, (0.125, 0.3, 0.6, 1.0)),
        spread=one_of(rng, (0.5, 1.0, 4.0)),
        queries=one_of(rng, (0.0, 1.0, 2.0, 4.0)),
        value=one_of(rng, (0.0, 0.0, 1.0, 8.0)),
        value_spread=one_of(rng, (0.0, 2.0**-4, 1.0)),
        **options,
    )


def _layer(rng: np.random.Generator) -> Problem:
    """Draw a small layer."""
    names = ("inputs", "queries", "keys", "values", "outputs")
    return small_layer(
        seed=int(rng.integers(2**31)),
        heads=one_of(rng, (1, 2, 3, 6)),
        n=int(rng.integers(1, 5)),
        Sq=one_of(rng, (1, 1, 3)),
        width=one_of(rng, (1, 2, 3)),
        head_width=one_of(rng, (1, 2, 3)),
        biases=one_of(rng, (0.0, 1.0, 8.0, 2.0**-12)),
        shared=bool(rng.random() < 0.3),
        form=one_of(rng, (NARROW, NARROW, "float64")),
        causal=bool(rng.random() < 0.3),
        **{name: one_of(rng, (1.0, 1.0, 1.0, 4.0, 0.125, 2.0**-15)) for name in names},
    )
