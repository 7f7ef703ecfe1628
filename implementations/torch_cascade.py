"""Cascade attention: a prefix of the keys and the rest are attended apart, and the two states are merged.

The parts are the attention of ``torch_tiled``, whose output is rounded to the dtype of the inputs. The merge is that of
``torch_states``. Engines share the states of a common prefix so, and split-KV decoding cuts its keys so.
"""

import torch
from torch import Tensor

from attn_spec import Contract, kernel

from .torch_states import merged
from .torch_tiled import Scores, online_softmax


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract=Contract(lse_merges=1, partial_outputs="input", kv_tile=16),
    supports=("scale", "mask", "gqa", "dv", "cross", "empty", "lse"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    cut = k.shape[2] // 2
    states = []
    for keys in (slice(0, cut), slice(cut, None)):
        seen = mask if mask is None or mask.shape[-1] == 1 else mask[..., keys]
        scores = Scores(q, k[:, :, keys], None, scale=scale, mask=seen)
        states.append(online_softmax(scores, v[:, :, keys], None))
    outputs, lses = zip(*states, strict=True)
    return merged(torch.stack(outputs), torch.stack(lses))
