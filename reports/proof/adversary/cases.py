"""Cases that the adversary attacks: every stage of a contract alone narrow, in every way of computing, and presets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import Contract
from attn_spec.contract.coverage import silence_of_gradients
from attn_spec.contract.presets import FP64
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import DifferentiatedProduct, StoredWeights
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.passes import Renormalized, TwoPasses
from attn_spec.emulation.split import NormalizedSplitAttention, RingAttention, SplitAttention
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

from .attack import Attack
from .layers import LAYERS
from .problems import NARROW, additive, bilinear, cosine, rotary, small_problem
from .way import Way

#: float64 without errors of elementary functions: a stage that is changed is the only error left to see.
FINE = replace(
    FP64, exp_error=0.0, log_error=0.0, tanh_error=0.0, exponent="natural", matrix_rounding=None, gradient_stores=16
)
#: Stages of both passes; of operands in a layer.
STAGES = (
    *("operands", "rotary_tables", "alibi_terms"),
    *("multiplicands", "score_accumulation", "stored_scores", "softmax", "row_sum", "probabilities"),
    *("output_accumulation", "output", "lse", "partial_outputs"),
    *("weight_gradients", "score_gradients", "gradient_accumulation", "partial_gradients", "gradients"),
)


#: Fields of contracts that many ways have, and those of problems and orders.
STORED: dict[str, Any] = {
    "backward_weights": "stored",
    "normalize": "before_product",
    "kv_tile": None,
    "delta": "probabilities",
}
EAGER: dict[str, Any] = {"contract": STORED, "order": {"kv_tile": None}, "gradients": StoredWeights}
ALIBI: dict[str, Any] = {"slopes": 0.7, "causal": True, "Sq": 5}
POSITIONS: dict[str, Any] = {"alibi": "positions"}
OPERANDS: dict[str, Any] = {"scale_on": "operands"}
MERGES: dict[str, Any] = {"lse_merges": 2, "kv_tile": 1}
LIGHT: dict[str, Any] = {"spread": 4.0, "queries": 4.0, "scale": 0.6}
TINY: dict[str, Any] = {"value_spread": 2.0**-15, "value": 2.0**-16}
ONE: dict[str, Any] = {"n": 1, "D": 1}
TWO: dict[str, Any] = {"n": 2, "queries": 2.0**-5, "value": 1.0}
WHOLE: dict[str, Any] = {"kv_tile": None}
_BY_LSE: dict[str, Any] = {"contract": {"normalize": "by_lse"}, "steps": TwoPasses}
_EVERY_TILE: dict[str, Any] = {"contract": {"normalize": "every_tile"}, "steps": Renormalized}
_DIFFERENTIATED: dict[str, Any] = {
    "contract": {"backward_weights": "stored", "kv_tile": None},
    "order": {"kv_tile": None},
    "gradients": DifferentiatedProduct,
}
SINK: dict[str, Any] = {"sink": 0.5}
_SINKS: tuple[tuple[str, dict[str, Any], dict[str, Any], float], ...] = (
    ("", {}, {}, 0.0),
    ("base 2, ", {"exponent": "base2"}, {}, 0.0),
    ("by LSE, ", {"normalize": "by_lse"}, {}, 0.0),
    ("dL, ", {}, {}, 1.0),
    ("above the scores, ", {}, {"sink": 6.0}, 0.0),
    ("grouped heads, ", {}, {"Hq": 2, "Sq": 2}, 0.0),
)
DROPOUT: dict[str, Any] = {"dropped": 0.3, "Sq": 2}
_SPLIT: dict[str, Any] = {"steps": NormalizedSplitAttention, "contract": MERGES, "problem": {"n": 6}}

WAYS = (
    Way(name="plain"),
    Way(name="another seed", problem={"seed": 5, "spread": 2.0}),
    Way(name="scale 1", problem={"scale": 1.0}),
    Way(name="scale 1/8", problem={"scale": 0.125}),
    Way(name="large scores", problem={"spread": 4.0}),
    Way(name="V = 1", problem={"value": 1.0}),
    Way(name="V = 8 and little more", problem={"value": 8.0, "value_spread": 2.0**-4}),
    Way(name="equal scores", problem={"queries": 0.0}),
    Way(name="one key", problem={"n": 1}),
    Way(name="D = 1", problem={"D": 1}),
    Way(name="softcap", problem={"softcap": 2.0}),
    Way(name="bias", problem={"bias": True}),
    Way(name="bias and softcap", problem={"bias": True, "softcap": 3.0}),
    Way(name="bias first", problem={"bias": True}, order={"bias_first": True}),
    Way(name="bias first, base 2", problem={"bias": True}, order={"bias_first": True}, contract={"exponent": "base2"}),
    Way(name="bias rounded", problem={"bias": True, "bias_format": "float64"}, order={"bias_rounded": True}),
    Way(
        name="tiny bias rounded",
        problem={"bias": True, "biases": 2.0**-16, "bias_format": "float64", "queries": 0.0, "value": 1.0},
        contract={"float16_subnormals": "kept"},
        order={"bias_rounded": True},
    ),
    Way(name="ALiBi", problem=ALIBI),
    Way(name="ALiBi and bias", problem=ALIBI | {"bias": True}),
    Way(name="ALiBi, base 2", problem=ALIBI, contract={"exponent": "base2"}),
    Way(name="ALiBi first", problem=ALIBI, order={"bias_first": True}),
    Way(name="ALiBi first, base 2", problem=ALIBI, order={"bias_first": True}, contract={"exponent": "base2"}),
    Way(name="ALiBi from the first key", problem=ALIBI, contract=POSITIONS, order={"alibi_from": "first"}),
    Way(
        name="ALiBi from the first key, base 2",
        problem=ALIBI,
        contract=POSITIONS | {"exponent": "base2"},
        order={"alibi_from": "first"},
    ),
    Way(name="ALiBi from the last key", problem=ALIBI, contract=POSITIONS, order={"alibi_from": "last"}),
    Way(
        name="ALiBi from the first key, by LSE",
        problem=ALIBI,
        contract=POSITIONS | {"normalize": "by_lse"},
        order={"alibi_from": "first"},
        steps=TwoPasses,
    ),
    *(
        Way(
            name=f"dropout, {kind}{what}",
            **dict(way, problem=DROPOUT, order={**way.get("order", {}), "dropout_on": what}),
        )
        for kind, way in (("", {}), ("eager, ", EAGER), ("by LSE, ", _BY_LSE), ("every tile, ", _EVERY_TILE))
        for what in ("weights", "values", "output", "gradients")
    ),
    Way(
        name="dropout, eager, probabilities",
        **dict(EAGER, problem=DROPOUT, order={"kv_tile": None, "dropout_on": "probabilities"}),
    ),
    Way(name="dropout, row sum of the cast", problem=DROPOUT, contract={"row_sum_of": "cast"}),
    *(
        Way(
            name=f"sink, {kind}{place}",
            problem=SINK | problem,
            contract=contract,
            order={"sink": tile},
            steps=TwoPasses if contract.get("normalize") == "by_lse" else TiledAttention,
            lse_cotangent=size,
        )
        for kind, contract, problem, size in _SINKS
        for tile, place in (("with_keys", "with keys"), ("first", "first"), ("last", "last"))
    ),
    Way(name="sink, eager", **EAGER, problem=SINK),
    Way(name="sink, of the keys' maximum", problem=SINK, contract={"sink_reference": "keys"}, order={"sink": "last"}),
    Way(name="sink alone", problem=SINK | {"n": 1, "causal": True, "Sq": 2}),
    Way(name="grouped heads", problem={"Hq": 2, "Sq": 2}),
    Way(name="base 2", contract={"exponent": "base2"}),
    Way(name="base 2, softcap", contract={"exponent": "base2"}, problem={"softcap": 2.0}),
    Way(name="base 2, bias", contract={"exponent": "base2"}, problem={"bias": True}),
    Way(name="base 2 inside the exponent", contract={"exponent": "base2"}, order={"exponent_folded": True}),
    Way(name="roots of the scale", contract=OPERANDS),
    Way(name="scaled query", contract=OPERANDS, order={"scaling": "query"}),
    Way(name="scaled query, softcap", contract=OPERANDS, order={"scaling": "query"}, problem={"softcap": 2.0}),
    Way(name="softcap folded", contract=OPERANDS, order={"scaling": "folded"}, problem={"softcap": 2.0}),
    Way(name="roots, base 2", contract=OPERANDS | {"exponent": "base2"}),
    Way(name="log2(e) folded", contract=OPERANDS | {"exponent": "base2"}, order={"scaling": "folded"}),
    Way(
        name="log2(e) folded, scale 1",
        contract=OPERANDS | {"exponent": "base2"},
        order={"scaling": "folded"},
        problem={"scale": 1.0},
    ),
    Way(name="one tile", contract={"kv_tile": None}, order={"kv_tile": None}),
    Way(name="tiles of 2", contract={"kv_tile": 2}, order={"kv_tile": 2}),
    Way(name="division", order={"divides": True}),
    Way(name="row sum of the cast", contract={"row_sum_of": "cast"}),
    Way(name="exp(0) is not 1", contract={"exp_of_zero_is_one": False}),
    Way(name="eager", **EAGER),
    Way(name="differentiated product", **_DIFFERENTIATED),
    Way(name="differentiated product, many keys", **_DIFFERENTIATED, problem={"n": 9, "queries": 0.5}),
    Way(name="differentiated product, tiny cotangents", **_DIFFERENTIATED, problem={"n": 7}, cotangent=2.0**-14),
    Way(name="bilinear", made_by=bilinear),
    Way(name="bilinear, queries first", made_by=bilinear, order={"matrix_on": "queries"}),
    Way(name="cosine", made_by=cosine),
    Way(name="cosine, eager", **EAGER, made_by=cosine, problem={"gamma": 8.0}),
    Way(name="cosine, division", made_by=cosine, order={"divides": True}),
    Way(name="cosine, divided first", made_by=cosine, order={"divides_first": True}),
    Way(name="additive", made_by=additive),
    Way(name="additive, eager, bias", **EAGER, made_by=additive, problem={"biases": True, "Sq": 2}),
    Way(name="rotary", made_by=rotary),
    Way(name="rotary, results stored", made_by=rotary, order={"results_stored": True}),
    Way(name="cosine, results stored", made_by=cosine, order={"results_stored": True}),
    Way(name="rotary, one pair", made_by=rotary, problem={"D": 2, "n": 2, "queries": 0.25}),
    Way(name="rotary, interleaved, eager", **EAGER, made_by=rotary, problem={"layout": "interleaved", "n": 3}),
    Way(name="dL", lse_cotangent=1.0),
    Way(name="dL alone, eager", **EAGER, cotangent=0.0, lse_cotangent=1.0),
    Way(name="eager, V = 1", **EAGER, problem={"value": 1.0}),
    Way(name="eager, softcap and bias", **EAGER, problem={"bias": True, "softcap": 2.0}),
    Way(name="eager, division", **dict(EAGER, order={"kv_tile": None, "divides": True})),
    Way(name="eager, P dP - P D", **dict(EAGER, order={"kv_tile": None, "expands_dS": True})),
    Way(name="eager, delta of O", **dict(EAGER, contract=STORED | {"delta": "output"})),
    Way(name="eager, cast P in dS", **dict(EAGER, contract=STORED | {"score_gradients_of": "cast"})),
    Way(
        name="normalized weights, tiles",
        contract={"normalize": "before_product"},
        steps=TwoPasses,
        problem={"n": 6},
    ),
    Way(name="weights exp(s - LSE)", **_BY_LSE),
    Way(
        name="weights exp(s - LSE), base 2",
        contract={"normalize": "by_lse", "exponent": "base2"},
        steps=TwoPasses,
    ),
    Way(name="delta of P", contract={"delta": "probabilities"}),
    Way(name="delta of P, V = 8", contract={"delta": "probabilities"}, problem={"value": 8.0, "value_spread": 0.1}),
    Way(name="cast P in dS", contract={"score_gradients_of": "cast"}),
    Way(name="scaled dS", order={"gradient_scaling": "dS"}),
    Way(name="scaled slope", order={"gradient_scaling": "slope"}, problem={"scale": 0.3, "softcap": 9.0}),
    Way(name="parts by accumulators", steps=SplitAttention, problem={"n": 6}),
    Way(name="parts by LSE", **_SPLIT),
    Way(name="parts by LSE, V = 1", **dict(_SPLIT, problem={"n": 6, "value": 1.0})),
    Way(name="parts of one key", **dict(_SPLIT, problem={"n": 3})),
    Way(name="parts of one key, V = 1", **dict(_SPLIT, problem={"n": 3, "value": 1.0})),
    Way(name="parts of one key, equal scores", **dict(_SPLIT, problem={"n": 3, "value": 1.0, "queries": 0.0})),
    Way(name="parts by LSE, base 2", **dict(_SPLIT, contract=MERGES | {"exponent": "base2"})),
    Way(name="ring", **dict(_SPLIT, steps=RingAttention)),
    Way(name="ring of single keys, V = 1", steps=RingAttention, contract=MERGES, problem={"n": 3, "value": 1.0}),
    Way(name="ring by difference", **dict(_SPLIT, steps=RingAttention, contract=MERGES | {"merging": "difference"})),
    Way(
        name="ring by difference, light keys",
        steps=RingAttention,
        contract=MERGES | {"merging": "difference"},
        problem=LIGHT | {"n": 6, "seed": 4},
    ),
    Way(
        name="ring of single keys by difference, V = 1",
        steps=RingAttention,
        contract=MERGES | {"merging": "difference"},
        problem={"n": 3, "value": 1.0},
    ),
    Way(name="normalized after every tile", **_EVERY_TILE),
    Way(
        name="normalized after every tile, falling scores",
        contract={"normalize": "every_tile"},
        steps=Renormalized,
        problem={"value": 1.0, "spread": 2.0, "seed": 8, "n": 6},
    ),
    Way(name="lazy rescaling", contract={"reference_slack": 3.0}, problem={"spread": 2.0}),
    Way(name="no maximum", contract={"reference": "zero", "reference_range": 8.0}),
    Way(name="no maximum, base 2", contract={"reference": "zero", "reference_range": 8.0, "exponent": "base2"}),
    Way(name="upper bound", contract={"reference": "upper_bound", "reference_range": 16.0}),
    Way(name="two pieces", contract={"multiplicand_pieces": 2}, problem={"dtype": "float64"}),
    Way(name="three pieces", contract={"multiplicand_pieces": 3}),
    Way(name="products", contract={"products": NARROW}),
    Way(name="products of one column", contract={"products": NARROW}, problem=ONE),
    Way(
        name="tiny products",
        contract={"products": NARROW, "float16_subnormals": "kept"},
        problem={"queries": 2.0**-9, "spread": 2.0**-6, "value": 2.0**-16, "value_spread": 2.0**-15},
    ),
    Way(name="inner accumulator", contract={"inner_accumulation": NARROW, "inner_terms": 2}, problem={"n": 6, "D": 5}),
    Way(
        name="matrix unit",
        contract={"multiplicands": NARROW, "matrix_rounding": "toward_zero", "matrix_block": 4},
        problem={"D": 8, "n": 9, "Sq": 3},
    ),
    Way(
        name="matrix unit, extra bits",
        contract={"multiplicands": NARROW, "matrix_rounding": "toward_zero", "matrix_block": 8, "matrix_extra_bits": 1},
        problem={"D": 16, "n": 9},
    ),
    Way(
        name="matrix unit, fewer bits",
        contract={
            "multiplicands": NARROW,
            "matrix_rounding": "toward_zero",
            "matrix_block": 4,
            "matrix_extra_bits": -3,
        },
        problem={"D": 8, "n": 9},
    ),
    Way(
        name="matrix unit, one by one",
        contract={"multiplicands": NARROW, "matrix_rounding": "toward_zero", "matrix_block": 1},
        problem={"D": 8, "n": 6},
    ),
    *(
        Way(
            name=f"{what}, {kept}",
            problem=sizes,
            cotangent=size,
            contract={"float16_subnormals": kept} | contract,
            steps=TwoPasses if contract.get("normalize") == "by_lse" else TiledAttention,
        )
        for kept in ("kept", "flushed")
        for what, sizes, size, contract in (
            ("tiny values", TINY, 1.0, {}),
            ("tiny values, by LSE", TINY, 1.0, {"normalize": "by_lse"}),
            ("tiny cotangents", {}, 2.0**-15, {}),
            ("tiny queries", {"queries": 2.0**-14, "spread": 2.0**6, "scale": 2.5}, 1.0, {}),
            ("tiny scaled queries", {"queries": 2.0**-3, "spread": 2.0**9, "scale": 2.0**-11}, 1.0, OPERANDS),
            ("tiny scores", {"queries": 2.0**-9, "spread": 2.0**-6, "value": 1.0, "value_spread": 2.0**-6}, 1.0, {}),
            ("light keys", LIGHT, 1.0, {}),
            ("light keys, softcap", {"spread": 4.0, "queries": 4.0, "scale": 0.6, "softcap": 9.0}, 2.0**-8, {}),
            ("tiny bias", {"bias": True, "biases": 2.0**-14, "queries": 0.0, "value": 1.0}, 1.0, {}),
        )
    ),
    Way(name="toward zero", contract={"rounding": "toward_zero"}),
    Way(name="operands cut", contract={"entry_rounding": "toward_zero", "multiplicands": "bfloat16"}),
    *LAYERS,
)


def stages(ways: tuple[Way, ...] = WAYS, seed: int = 0) -> Iterator[tuple[str, str, Attack]]:
    """Yield every stage alone narrow, in every way: the stage, the way and the attack."""
    for stage in STAGES:
        for way in ways:
            merges = way.contract.get("lse_merges", FINE.lse_merges)
            has_stage = {
                "partial_outputs": merges > 0,
                "operands": way.made_by is not small_problem,
                "rotary_tables": way.made_by is rotary,
                "alibi_terms": "slopes" in way.problem,
            }
            divides = way.gradients is DifferentiatedProduct  # in the format of dP, narrow by "weight_gradients" alone
            if has_stage.get(stage, stage == "weight_gradients" or not divides) and stage not in way.contract:
                yield stage, way.name, narrowed(way, (stage,), seed)


def narrowed(way: Way, narrow: Iterable[str], seed: int = 0) -> Attack:
    """Return the attack, in one way of computing, on stages that are narrow together."""
    problem = way.made_by(**way.problem)
    contract = replace(FINE, **dict.fromkeys(narrow, NARROW) | way.contract)
    rng = np.random.default_rng(seed + 7)
    dO = bits.nearest(way.cotangent * rng.standard_normal(problem.output_shape), NARROW)
    dL = bits.nearest(way.lse_cotangent * rng.standard_normal(problem.score_shape[:3]), NARROW)
    found = attack(way, problem, contract, dO, seed)
    return replace(found, lse_cotangent=dL) if way.lse_cotangent else found


def attack(way: Way, problem: Problem, contract: Contract, dO: np.ndarray, seed: int) -> Attack:
    """Return the attack of one way of computing; without gradients if the contract says nothing of them."""
    return Attack(
        problem=problem,
        contract=contract,
        order=Order(**{"kv_tile": 1, "fused": False} | way.order),
        steps=way.steps,
        gradients=way.gradients,
        layer=way.layer,
        cotangent=None if silence_of_gradients(contract) or problem.o_scale is not None else dO,
        elements=2,
        seed=seed,
    )
