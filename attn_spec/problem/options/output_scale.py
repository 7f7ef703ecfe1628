"""Option of quantized outputs: the real factor by which the numbers of a stored output are multiplied.

The truth is attention, as without the option. A kernel stores the output divided by the factor, and the stored number
x stands for the real number o_scale x. What is compared with the truth is that product. It is exact in float64 for
factors of float32 and outputs of at most 29 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.problem import patterns
from attn_spec.problem.options.option import OUTPUT
from attn_spec.problem.options.option_fields import descale


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputScale:
    """Option that says what real numbers the stored output stands for."""

    #: Scale of the output, [1, 1, 1, 1]: the output is divided by it, then rounded to the output's dtype. Sources: vLLM
    #: ``unified_attention``, ``output_scale``; FlashInfer ``trtllm_batch_decode_with_kv_cache``, ``o_scale`` of its
    #: tests.
    o_scale: Any = descale(
        says="takes the scale of the output, [1, 1, 1, 1]: the output is divided by it before its last rounding",
        kind=OUTPUT,
        axes="1111",
        values=patterns.OUTPUT_SCALES,
        wanted="a number that is not above 0, NaN, an infinity, or a number that float32 does not have",
        accepts=lambda value: bool(
            np.isfinite(value).all() and (value > 0).all() and (value == np.float32(value)).all()
        ),
        spellings=("o_scale", "output_scale"),
    )
