"""PaddlePaddle: ``paddle.nn.functional.scaled_dot_product_attention`` on a CPU."""

from __future__ import annotations

from typing import Any

from paddle import to_tensor
from paddle.nn.functional import scaled_dot_product_attention

from attn_spec import kernel


@kernel(
    framework="numpy",
    dtypes=("float32",),
    contract="eager",
    presentation="BSHD",
    supports=("scale", "causal", "mask", "bias", "gqa", "cross", "dv"),
    conventions={"empty_row": "nan"},
    exclusive=(("causal", "mask"), ("causal", "bias"), ("mask", "bias")),
    least_keys=1,
)
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, **more: Any) -> Any:
    """Call the function, which takes either a mask or a bias."""
    seen = bias if mask is None else mask
    named = {"is_causal": more.get("causal", False), "scale": more.get("scale")}
    given = map(to_tensor, (q, k, v) if seen is None else (q, k, v, seen))
    return scaled_dot_product_attention(*given, **named).numpy()
