"""Emulated kernels that obey the contracts they declare: the suite must accuse none of them.

They cover what contracts allow and no CPU kernel at hand does: tf32, truncation, flushed subnormals, lazy rescaling,
narrow accumulators, exponentials as bad as permitted, in several tilings and orders of summation.
"""

from __future__ import annotations

from dataclasses import replace

from attn_spec.contract import EAGER, Contract
from attn_spec.formats import DTYPES
from attn_spec.kernels import Kernel

from .arithmetic import Order
from .emulated import emulate

#: Elementary functions that are right to far below one rounding of float32, as float64's are.
PRECISE = Contract(
    scale_on="scores",
    exponent="natural",
    subnormals="kept",
    row_sum_of="uncast",
    exp_error=2.0**-20,
    log_error=2.0**-20,
    tanh_error=2.0**-20,
)
#: The same in float64 itself, where NumPy's functions are within 4 units.
PRECISE64 = replace(PRECISE, exp_error=4.0, log_error=4.0, tanh_error=4.0)

_BY_DTYPE = dict.fromkeys(DTYPES, PRECISE) | {"float64": PRECISE64}
_HALVES = ("float16", "bfloat16")
_NARROW_EAGER = replace(
    EAGER,
    scale_on="scores",
    exponent="natural",
    subnormals="kept",
    row_sum_of="uncast",
    exp_error=2.0**-20,
    log_error=2.0**-20,
    tanh_error=2.0**-20,
)

_KERNELS = (
    emulate("sequential", _BY_DTYPE, dtypes=DTYPES),
    emulate("random_order", _BY_DTYPE, Order(tiles="random", sums="random", kv_tile=8, seed=3), dtypes=DTYPES),
    emulate("pairwise", _BY_DTYPE, Order(tiles="reverse", sums="pairwise", kv_tile=64), dtypes=DTYPES),
    emulate("base2", replace(PRECISE, exponent="base2"), dtypes=("float32", *_HALVES)),
    emulate("toward_zero", replace(PRECISE, rounding="toward_zero"), dtypes=("float32", *_HALVES)),
    emulate("flushed", replace(PRECISE, subnormals="flushed"), dtypes=("float32", "bfloat16")),
    emulate("lazy_rescale", replace(PRECISE, reference_slack=5.5), dtypes=("float32", *_HALVES)),
    emulate("one_key_tiles", PRECISE, Order(kv_tile=1), dtypes=("float32", "float16")),
    emulate("worst_elementary", replace(PRECISE, exp_error=8.0, log_error=4.0, tanh_error=8.0), Order(inaccuracy=1.0)),
    emulate("scaled_operands", replace(PRECISE, scale_on="operands"), dtypes=("float32", *_HALVES)),
    emulate("tf32", replace(PRECISE, multiplicands="tf32", probabilities="tf32")),
    emulate("tf32_toward_zero", replace(PRECISE, multiplicands="tf32", rounding="toward_zero")),
    emulate("row_sum_of_cast", replace(PRECISE, row_sum_of="cast"), dtypes=_HALVES),
    emulate("eager", _NARROW_EAGER, Order(kv_tile=None), dtypes=_HALVES),
    emulate("eager_float32", replace(PRECISE, normalize="before_product"), Order(kv_tile=None)),
    emulate("bfloat16_probabilities", replace(PRECISE, probabilities="bfloat16"), dtypes=("float32", "float16")),
    emulate("bfloat16_accumulator", replace(PRECISE, output_accumulation="bfloat16"), dtypes=("bfloat16",)),
    emulate("bfloat16_row_sum", replace(PRECISE, row_sum="bfloat16"), dtypes=("bfloat16",)),
    emulate("float16_scores", replace(PRECISE, score_accumulation="float16"), dtypes=("float16",)),
    emulate("float16_stored_scores", replace(PRECISE, stored_scores="float16"), dtypes=("float32", "float16")),
    emulate("float16_accumulator", replace(PRECISE, output_accumulation="float16"), dtypes=("float16",)),
)

#: Kernels by name.
SOUND: dict[str, Kernel] = {one.name: one for one in _KERNELS}
