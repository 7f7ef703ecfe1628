"""A layer of multi-head attention in NumPy, forward and backward, around the tiles of ``numpy_tiled``.

    q_h = q W_Q^T + b_Q    k_h = k W_K^T + b_K    v_h = v W_V^T + b_V    out = sum_h o_h W_O^T + b_O

for each head h, whose W_Q, W_K, W_V and W_O are its own slices of the matrices of a model. Vaswani et al., "Attention
is all you need" (2017), section 3.2.2. The backward pass is that of a product, y = x W^T + b, before and after that of
attention:

    dx = dy W    dW = dy^T x    db = sum of the rows of dy

What a projection makes is rounded to the dtype of q, as a model stores it; sums over heads are not.
"""

from typing import Any

import numpy as np

from attn_spec import kernel

from . import numpy_tiled
from .numpy_tiled import tiled_attention, tiled_gradients, wide

SIDES = ("query", "key", "value")
PROJECTIONS = tuple(f"{side}_projection" for side in (*SIDES, "output"))
BIASES = tuple(f"{name}_bias" for name in PROJECTIONS)
#: Options of the attention between the projections.
INNER = ("scale", "causal", "causal_alignment", "window", "mask", "bias", "alibi_slopes", "softcap")
DROPOUT = ("dropout_keep", "dropout_p")


Heads = tuple[np.ndarray, np.ndarray, np.ndarray]


def projected(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, heads: int) -> np.ndarray:
    """Compute x W^T + b of each head, rounded to the dtype of x: [B, 1, S, D], [1, H or 1, A, D] -> [B, H, S, A]."""
    y = wide(x) @ wide(np.broadcast_to(weight, (1, heads, *weight.shape[2:]))).swapaxes(-1, -2)
    return (y if bias is None else y + wide(bias)).astype(x.dtype)


def summed_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum ``x`` over the axes along which an array of ``shape`` was broadcast."""
    axes = tuple(axis for axis, length in enumerate(shape) if length == 1 and x.shape[axis] != 1)
    return x.sum(axis=axes, keepdims=True) if axes else x


def pulled_back(dy: np.ndarray, x: np.ndarray, name: str, options: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """Compute dx [B, 1, S, D] of the projection ``name``, and its parameters' gradients, for dy [B, H, S, A]."""
    weight, bias, dy, x = options[name], options.get(f"{name}_bias"), wide(dy), wide(x)
    found = {f"d{name}": summed_to(dy.swapaxes(-1, -2) @ x, weight.shape)}
    if bias is not None:
        found[f"d{name}_bias"] = summed_to(dy.sum(axis=2, keepdims=True), bias.shape)
    return (dy @ wide(weight)).sum(axis=1, keepdims=True), found


def heads(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> tuple[Heads, dict[str, Any]]:
    """Return q, k and v of every head, and the options of the attention between them."""
    inner = {name: value for name, value in options.items() if name not in (*PROJECTIONS, *BIASES)}
    count, given = options["query_projection"].shape[1], zip((q, k, v), SIDES, strict=True)
    q, k, v = (projected(x, options[f"{s}_projection"], options.get(f"{s}_projection_bias"), count) for x, s in given)
    return (q, k, v), inner


@kernel(
    framework="numpy",
    dtypes=("float64", "float32", "float16"),
    contract=numpy_tiled.DECLARED["contract"],
    supports=(*PROJECTIONS, *BIASES, *INNER, *DROPOUT, *("head_widths", "dv", "cross", "empty", "lse", "lse_backward")),
    always=PROJECTIONS,
    conventions={"empty_row": "zero"},
)
@np.errstate(over="ignore", invalid="ignore")
def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Map q [B, 1, Sq, D], k [B, 1, Sk, D], v [B, 1, Sk, Dv] to out [B, 1, Sq, O], lse [B, H, Sq]."""
    every, inner = heads(q, k, v, options)
    o, lse = tiled_attention(*every, **inner)
    out = (wide(o) @ wide(options["output_projection"]).swapaxes(-1, -2)).sum(axis=1, keepdims=True)
    bias = options.get("output_projection_bias")
    return (out if bias is None else out + wide(bias)).astype(q.dtype), lse


@attention.backward
@np.errstate(over="ignore", invalid="ignore")
def gradients(
    dout: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, _: np.ndarray, lse: np.ndarray, **options: Any
) -> dict[str, np.ndarray]:
    """Compute the gradients of all inputs by name; the outputs of heads, which are not stored, are computed again."""
    dlse = options.pop("dlse", None)
    every, inner = heads(q, k, v, options)
    o, _ = tiled_attention(*every, **inner)
    of_o = (wide(dout) @ wide(options["output_projection"])).astype(q.dtype)
    of_heads = tiled_gradients(of_o, *every, o, lse, dlse=dlse, **inner)
    found = {"dbias": of_heads[3]} if inner.get("bias") is not None else {}
    for side, x, dy in zip(SIDES, (q, k, v), of_heads, strict=False):
        found[f"d{side[0]}"], of_parameters = pulled_back(dy, x, f"{side}_projection", options)
        found |= of_parameters
    found["doutput_projection"] = wide(dout).swapaxes(-1, -2) @ wide(o)
    found["doutput_projection"] = summed_to(found["doutput_projection"], options["output_projection"].shape)
    if (bias := options.get("output_projection_bias")) is not None:
        found["doutput_projection_bias"] = summed_to(wide(dout), bias.shape)
    return {name: x.astype(q.dtype) for name, x in found.items()}
