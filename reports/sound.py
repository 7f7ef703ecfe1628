"""Emulated kernels that obey the contracts they declare: the suite must accuse none of them.

They cover what contracts allow and no CPU kernel at hand does: tf32, truncation, flushed subnormals, lazy rescaling,
narrow accumulators, exponentials as bad as permitted, in several tilings and orders of summation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attn_spec.contract import Contract
from attn_spec.formats import DTYPES
from attn_spec.kernels import Kernel
from attn_spec.presets import EAGER, WHOLE_ROW

from .arithmetic import Order
from .emulated_backward import StoredWeights, emulate_both
from .emulated_split import NormalizedSplitAttention

#: No more than rounding to the formats, and elementary functions that are right to far below one rounding of float32,
#: as float64's are.
_NO_MORE: dict[str, Any] = {
    "exponent": "natural",
    "subnormals": "kept",
    "matrix_rounding": None,
    "kv_tile": 1,
    **dict.fromkeys(("exp_error", "log_error", "tanh_error"), 2.0**-20),
}
PRECISE = Contract(**_NO_MORE)
#: The same in float64 itself, where NumPy's functions are within 4 units.
PRECISE64 = replace(PRECISE, exp_error=4.0, log_error=4.0, tanh_error=4.0)

_BY_DTYPE = dict.fromkeys(DTYPES, PRECISE) | {"float64": PRECISE64}
_HALVES = ("float16", "bfloat16")
_STORED = {"backward_weights": "stored", "delta": "probabilities"}
_NARROW_EAGER = replace(EAGER, **_NO_MORE | {"kv_tile": WHOLE_ROW})

#: The first of three splits is merged twice.
_SPLIT = replace(PRECISE, lse_merges=2)

_KERNELS = (
    emulate_both("sequential", _BY_DTYPE, dtypes=DTYPES),
    emulate_both("random_order", _BY_DTYPE, Order(tiles="random", sums="random", kv_tile=8, seed=3), dtypes=DTYPES),
    emulate_both("pairwise", _BY_DTYPE, Order(tiles="reverse", sums="pairwise", kv_tile=64), dtypes=DTYPES),
    emulate_both("base2", replace(PRECISE, exponent="base2"), dtypes=("float32", *_HALVES)),
    emulate_both("toward_zero", replace(PRECISE, rounding="toward_zero"), dtypes=("float32", *_HALVES)),
    emulate_both("flushed", replace(PRECISE, subnormals="flushed"), dtypes=("float32", "bfloat16")),
    emulate_both("lazy_rescale", replace(PRECISE, reference_slack=5.5), dtypes=("float32", *_HALVES)),
    emulate_both("one_key_tiles", PRECISE, Order(kv_tile=1), dtypes=("float32", "float16")),
    emulate_both(
        "worst_elementary", replace(PRECISE, exp_error=8.0, log_error=4.0, tanh_error=8.0), Order(inaccuracy=1.0)
    ),
    emulate_both("scaled_operands", replace(PRECISE, scale_on="operands"), dtypes=("float32", *_HALVES)),
    emulate_both("tf32", replace(PRECISE, multiplicands="tf32", probabilities="tf32")),
    emulate_both("tf32_toward_zero", replace(PRECISE, multiplicands="tf32", rounding="toward_zero")),
    emulate_both("row_sum_of_cast", replace(PRECISE, row_sum_of="cast"), dtypes=_HALVES),
    emulate_both("eager", _NARROW_EAGER, Order(kv_tile=None), dtypes=_HALVES, gradients=StoredWeights),
    emulate_both(
        "eager_float32",
        replace(PRECISE, normalize="before_product", kv_tile=WHOLE_ROW, **_STORED),
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
    emulate_both("split_kv", _SPLIT, Order(kv_tile=8), dtypes=("float32", *_HALVES), steps=NormalizedSplitAttention),
    emulate_both(
        "split_kv_base2",
        replace(_SPLIT, exponent="base2"),
        Order(kv_tile=8),
        dtypes=_HALVES,
        steps=NormalizedSplitAttention,
    ),
)

#: Kernels by name.
SOUND: dict[str, Kernel] = {one.name: one for one in _KERNELS}
