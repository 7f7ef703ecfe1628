"""Multi-head latent attention (MLA) in its absorbed form, as engines decode with it.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.2. A key of the cache is a compressed vector of width Dv, which is
its value too, beside a rotated part that all heads share. The projections of keys and values are absorbed by those of
queries and of the output. So a query is as wide as a key, and the scale is not 1/sqrt(D): it belongs to the width of a
head before it absorbed a projection.
"""

from typing import Any

from torch import Tensor

from attn_spec import Contract, kernel

from .lengths import LENGTHS
from .torch_eager import from_scores
from .visibility import OPTIONS as BY_POSITION

#: All in float32, whatever the inputs are, and rounded in the end.
WIDE = Contract(
    **dict.fromkeys(("multiplicands", "softmax", "probabilities"), "float32"), normalize="before_product", kv_tile=None
)
#: Widths (D, Dv) of keys and of their values: small ones, and those of DeepSeek.
WIDTHS = ((24, 16), (80, 64), (576, 512))


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract=WIDE,
    supports=("latent", "scale", "softcap", *BY_POSITION, "mask", *LENGTHS, "gqa", "dv", "cross", "empty", "lse"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "unused_rows": "zero"},
    head_dims=WIDTHS,
    kv_heads=(1,),
    always=("latent", "scale"),
)
def attention(q: Tensor, k: Tensor, v: Tensor, *, latent: bool, scale: float, **options: Any) -> tuple[Tensor, Tensor]:
    """Map q [B, Hq, Sq, D] and keys k [B, 1, Sk, D] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq].

    The values are the first Dv columns of the keys. Of v nothing is read but its width.
    """
    del latent
    (q_nope, q_pe), (ckv, kpe) = (x.float().tensor_split([v.shape[-1]], dim=-1) for x in (q, k))
    scores = q_nope @ ckv.transpose(-1, -2) + q_pe @ kpe.transpose(-1, -2)
    out, lse = from_scores(scores * scale, ckv, **options)
    return out.to(q.dtype), lse
