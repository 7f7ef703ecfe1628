"""Emulated kernels that obey the contracts they declare: the suite must accuse none of them.

They cover arithmetic that contracts allow and no available CPU kernel has:

- formats and rounding: tf32, truncation, flushed subnormals, narrow accumulators;
- products: matrix units that truncate, products of pieces;
- softmax: lazy rescaling, references that are no maximum, exponentials as inaccurate as permitted;
- attention sinks, in the maximum or added last, alone or by a factor of the output;
- every kind of backward pass, in several tilings and orders of summation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import EAGER
from attn_spec.kernels.kernel import Kernel
from attn_spec.numbers.formats import DTYPES
from attn_spec.problem.traits import named_by, replaces_score, weighs_linearly

from .arithmetic import Order
from .backward import DifferentiatedProduct, StoredWeights
from .dropout import BY_CHANCE, DROPOUT
from .kernels import LONG_CONTEXT, SINKS, SUPPORTS, emulate_both
from .linear import SUPPORTS as LINEAR
from .linear import LinearAttention, LinearGradients, StateAttention
from .passes import Renormalized, TwoPasses
from .scores import TIES
from .sequences import LENGTHS
from .sinks import SinkFactor
from .split import NormalizedSplitAttention, RingAttention

#: Contract fields without any freedom beyond rounding to the formats: elementary functions are accurate far below one
#: rounding of float32, as float64's are.
_NO_MORE: dict[str, Any] = {
    "exponent": "natural",
    "subnormals": "kept",
    "matrix_rounding": None,
    "kv_tile": 1,
    **dict.fromkeys(("exp_error", "log_error", "tanh_error", "sine_error"), 2.0**-20),
}
PRECISE = Contract(**_NO_MORE)
#: Precise contract for float64 itself, where NumPy's functions are within 4 units in the last place.
PRECISE64 = replace(PRECISE, exp_error=4.0, log_error=4.0, tanh_error=4.0, sine_error=4.0)

_BY_DTYPE = dict.fromkeys(DTYPES, PRECISE) | {"float64": PRECISE64}
_HALVES = ("float16", "bfloat16")
_STORED = {"backward_weights": "stored", "delta": "probabilities"}
_EAGER_FLOAT32 = replace(PRECISE, normalize="before_product", kv_tile=None, **_STORED)
_NARROW_EAGER = replace(EAGER, **_NO_MORE | {"kv_tile": None})

_NOT_64 = ("float32", *_HALVES)
_BASE2 = replace(PRECISE, exponent="base2")
_TF32 = replace(PRECISE, multiplicands="tf32", probabilities="tf32", score_gradients="tf32")
_PIECES: dict[str, Any] = {"multiplicand_pieces": 2, "probabilities": "work", "score_gradients": "work"}

#: Contract of three splits: the first split passes two merges.
_SPLIT = replace(PRECISE, lse_merges=2)


def _far(reference: str) -> dict[str, Contract]:
    """Return contracts with a reference that is no maximum, as far from the maximum as weights fit their format."""
    return {
        dtype: replace(PRECISE, reference=reference, reference_range=8.0 if dtype == "float16" else 60.0)
        for dtype in _NOT_64
    }


def _cutting(block: int, extra_bits: int) -> dict[str, Any]:
    """Return fields of a matrix unit that aligns and truncates products (Khattak and Mikaitis, arXiv 2512.07004)."""
    return {"matrix_rounding": "toward_zero", "matrix_block": block, "matrix_extra_bits": extra_bits}


def _promoted(form: str, terms: int) -> dict[str, Any]:
    """Return fields of an inner accumulator that is added to the outer one after this many products."""
    return {"inner_accumulation": form, "inner_terms": terms}


_ALL = (*SUPPORTS, *LONG_CONTEXT, *DROPOUT, *BY_CHANCE, *SINKS, *LENGTHS, *TIES)
_SCORES = named_by([replaces_score]) - named_by([weighs_linearly])
_LINEAR: dict[str, Any] = {"supports": LINEAR, "always": ("feature_map",)}
_KERNELS = (
    emulate_both("sequential", _BY_DTYPE, dtypes=DTYPES, supports=_ALL),
    emulate_both(
        "random_order",
        _BY_DTYPE,
        Order(tiles="random", sums="random", kv_tile=8, seed=3, dropout_on="values"),
        dtypes=DTYPES,
        supports=_ALL,
    ),
    emulate_both(
        "pairwise",
        _BY_DTYPE,
        Order(tiles="reverse", sums="pairwise", kv_tile=64, dropout_on="output"),
        dtypes=DTYPES,
        supports=_ALL,
    ),
    emulate_both("base2", _BASE2, dtypes=_NOT_64, supports=(*SUPPORTS, *LENGTHS)),
    emulate_both(
        "other_scores",
        _BY_DTYPE,
        Order(dropout_on="gradients"),
        supports=(*_ALL, *_SCORES, "head_widths"),
        dtypes=DTYPES,
    ),
    emulate_both("toward_zero", replace(PRECISE, rounding="toward_zero"), dtypes=_NOT_64),
    emulate_both("flushed", replace(PRECISE, subnormals="flushed"), dtypes=("float32", "bfloat16")),
    emulate_both("lazy_rescale", replace(PRECISE, reference_slack=5.5), dtypes=_NOT_64),
    emulate_both(
        "one_key_tiles", PRECISE, Order(kv_tile=1), dtypes=("float32", "float16"), supports=(*SUPPORTS, *LENGTHS)
    ),
    emulate_both(
        "worst_elementary", replace(PRECISE, exp_error=8.0, log_error=4.0, tanh_error=8.0), Order(inaccuracy=1.0)
    ),
    emulate_both("scaled_operands", replace(PRECISE, scale_on="operands"), dtypes=_NOT_64),
    emulate_both("tf32", replace(PRECISE, multiplicands="tf32", probabilities="tf32")),
    emulate_both("tf32_toward_zero", replace(PRECISE, multiplicands="tf32", rounding="toward_zero")),
    emulate_both("rounded_products", replace(PRECISE, products="input"), dtypes=_HALVES),
    emulate_both("row_sum_of_cast", replace(PRECISE, row_sum_of="cast"), dtypes=_HALVES),
    emulate_both("eager", _NARROW_EAGER, Order(kv_tile=None), dtypes=_HALVES, gradients=StoredWeights),
    emulate_both(
        "eager_float32",
        _EAGER_FLOAT32,
        Order(kv_tile=None),
        gradients=StoredWeights,
    ),
    emulate_both("bfloat16_probabilities", replace(PRECISE, probabilities="bfloat16"), dtypes=("float32", "float16")),
    emulate_both("bfloat16_accumulator", replace(PRECISE, output_accumulation="bfloat16"), dtypes=("bfloat16",)),
    emulate_both("bfloat16_row_sum", replace(PRECISE, row_sum="bfloat16"), dtypes=("bfloat16",)),
    emulate_both("float16_scores", replace(PRECISE, score_accumulation="float16"), dtypes=("float16",)),
    emulate_both("float16_stored_scores", replace(PRECISE, stored_scores="float16"), dtypes=("float32", "float16")),
    emulate_both(
        "narrow_partial_gradients", replace(PRECISE, partial_gradients="input", gradient_stores=32), dtypes=_HALVES
    ),
    emulate_both("float16_accumulator", replace(PRECISE, output_accumulation="float16"), dtypes=("float16",)),
    emulate_both("split_kv", _SPLIT, Order(kv_tile=8), dtypes=_NOT_64, steps=NormalizedSplitAttention),
    emulate_both(
        "split_kv_base2",
        replace(_SPLIT, exponent="base2"),
        Order(kv_tile=8),
        dtypes=_HALVES,
        steps=NormalizedSplitAttention,
    ),
    # Ways to add a sink.
    *(
        emulate_both(name, replace(PRECISE, **changes), order, supports=(*SUPPORTS, *SINKS), dtypes=_NOT_64)
        for name, changes, order in (
            ("sink_first", {"sink_reference": "maximum"}, Order(kv_tile=8, sink="first")),
            ("sink_last", {"sink_reference": "maximum"}, Order(kv_tile=8, sink="last")),
            ("sink_by_keys", {"exponent": "base2"}, Order(kv_tile=8, sink="last")),
        )
    ),
    emulate_both(
        "sink_by_factor",
        replace(PRECISE, lse_merges=1),
        Order(kv_tile=8),
        supports=(*SUPPORTS, *SINKS),
        dtypes=_NOT_64,
        steps=SinkFactor,
    ),
    # Places of the scale and of log2(e).
    emulate_both("scaled_query", replace(PRECISE, scale_on="operands"), Order(scaling="query"), dtypes=_NOT_64),
    emulate_both("log2e_folded", replace(_BASE2, scale_on="operands"), Order(scaling="folded"), dtypes=_NOT_64),
    emulate_both(
        "log2e_in_the_exponent",
        replace(PRECISE, exponent="base2_fused"),
        Order(exponent_folded=True),
        dtypes=_NOT_64,
    ),
    emulate_both("bias_first", PRECISE, Order(bias_first=True), dtypes=_NOT_64),
    # References that are subtracted, and ways to normalize weights.
    emulate_both("no_maximum", _far("zero"), dtypes=_NOT_64),
    emulate_both("upper_bound", _far("upper_bound"), dtypes=_NOT_64),
    emulate_both("weights_by_lse", replace(PRECISE, normalize="by_lse"), steps=TwoPasses, dtypes=_NOT_64),
    emulate_both("online_row_sum", replace(PRECISE, normalize="before_product"), steps=TwoPasses, dtypes=_NOT_64),
    emulate_both("divided", PRECISE, Order(divides=True), dtypes=("float32",)),
    emulate_both(
        "ring", replace(_SPLIT, partial_outputs="input"), Order(kv_tile=8), dtypes=_NOT_64, steps=RingAttention
    ),
    emulate_both(
        "ring_by_difference",
        replace(_SPLIT, merging="difference"),
        Order(kv_tile=8),
        dtypes=_NOT_64,
        steps=RingAttention,
    ),
    emulate_both("every_tile", replace(PRECISE, normalize="every_tile"), steps=Renormalized, dtypes=_NOT_64),
    # Ways to make products.
    emulate_both("tf32_cut", replace(PRECISE, multiplicands="tf32", entry_rounding="toward_zero")),
    emulate_both("volta", replace(PRECISE, **_cutting(4, 0)), dtypes=_HALVES),
    emulate_both("ampere", replace(PRECISE, **_cutting(8, 1)), dtypes=_HALVES),
    emulate_both("hopper", replace(PRECISE, **_cutting(16, 2)), dtypes=_HALVES),
    emulate_both("fourteen_bits", replace(PRECISE, **_cutting(32, -10), **_promoted("float32", 128)), dtypes=_HALVES),
    emulate_both("promoted_float16", replace(PRECISE, **_promoted("float16", 16)), dtypes=_HALVES),
    emulate_both("bf16x3", replace(PRECISE, multiplicands="bfloat16", **_PIECES)),
    emulate_both("tf32x3", replace(_TF32, **_PIECES)),
    emulate_both("flushed_on_entry", replace(PRECISE, float16_subnormals="flushed_on_entry"), dtypes=("float16",)),
    # Linear attention, without softmax.
    *(
        emulate_both(name, _BY_DTYPE, order, dtypes=DTYPES, steps=steps, gradients=LinearGradients, **_LINEAR)
        for name, steps, order in (
            ("linear", LinearAttention, Order()),
            ("linear_states", StateAttention, Order(kv_tile=8, sums="pairwise")),
        )
    ),
    emulate_both(
        "linear_narrow_states",
        replace(PRECISE, partial_outputs="input", operands="input", stored_scores="input", probabilities="input"),
        Order(kv_tile=4, sums="random", seed=5),
        dtypes=_HALVES,
        steps=StateAttention,
        gradients=LinearGradients,
        **_LINEAR,
    ),
    # Choices of the backward pass.
    emulate_both("delta_of_probabilities", replace(PRECISE, delta="probabilities"), dtypes=_NOT_64),
    emulate_both("cast_weights_in_dS", replace(PRECISE, score_gradients_of="cast"), dtypes=_HALVES),
    emulate_both("narrow_weight_gradients", replace(PRECISE, weight_gradients="input"), dtypes=_HALVES),
    emulate_both(
        "differentiated_eager",
        replace(_EAGER_FLOAT32, weight_gradients="input"),
        Order(kv_tile=None),
        dtypes=_HALVES,
        gradients=StoredWeights,
    ),
    emulate_both(
        "differentiated_product",
        replace(PRECISE, weight_gradients="input", backward_weights="stored"),
        Order(kv_tile=None),
        dtypes=_HALVES,
        gradients=DifferentiatedProduct,
    ),
    emulate_both("scaled_dS", PRECISE, Order(gradient_scaling="dS"), dtypes=_NOT_64),
    emulate_both("scaled_slope", PRECISE, Order(gradient_scaling="slope"), dtypes=_NOT_64),
    emulate_both(
        "eager_expanded",
        _EAGER_FLOAT32,
        Order(kv_tile=None, expands_dS=True),
        gradients=StoredWeights,
    ),
)

#: Kernels by name.
SOUND: dict[str, Kernel] = {one.name: one for one in _KERNELS}
