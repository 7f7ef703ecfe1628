"""Plain layers of multi-head attention, as models have them: in einsums, head by head, packed, absorbed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from attn_spec import Contract, kernel

from .parts import HALVES, hidden

PROJECTIONS = ("query_projection", "key_projection", "value_projection", "output_projection")
BIASES = tuple(f"{name}_bias" for name in PROJECTIONS)
LAYER: dict[str, Any] = {"framework": "torch", "always": PROJECTIONS}
#: Whole rows of weights, normalized before they meet values.
EAGER = Contract(normalize="before_product", kv_tile=None, backward_weights="stored", delta="probabilities")
WIDE = {"dtypes": ("float32", "float64"), "contract": EAGER}


def weights(q: Tensor, k: Tensor, **seen: Any) -> Tensor:
    """Return the softmax of scores over the visible keys."""
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden(q, k, **seen), -torch.inf).softmax(-1)


@kernel(**LAYER, **WIDE, supports=(*PROJECTIONS, "causal", "head_widths", "dv", "cross", "backward"))
def einsums(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Project by einsums with weights by head, [H, A, D], as in Mesh TensorFlow and Flax."""
    W = {name: options.pop(name)[0] for name in PROJECTIONS}
    every = [
        torch.einsum("bsd,had->bhsa", x.squeeze(1), W[f"{side}_projection"].expand(len(W["query_projection"]), -1, -1))
        for x, side in ((q, "query"), (k, "key"), (v, "value"))
    ]
    o = weights(*every[:2], **options) @ every[2]
    return torch.einsum("bhsu,hou->bso", o, W["output_projection"]).unsqueeze(1)


@kernel(
    **LAYER,
    dtypes=HALVES,
    contract="eager",
    supports=(*PROJECTIONS, *BIASES, "causal", "dv", "cross", "backward"),
)
def head_by_head(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run a loop over heads in half, each with a W_O of its own, whose outputs are added up in float32."""
    given = {name: options.pop(name, None) for name in (*PROJECTIONS, *BIASES)}
    total: Any = 0.0

    def of(name: str, head: int) -> Any:
        tensor = given[name]
        return None if tensor is None else tensor[0, min(head, tensor.shape[1] - 1)]

    for head in range(given["query_projection"].shape[1]):
        of_head = []
        for x, side in ((q, "query"), (k, "key"), (v, "value")):
            bias = of(f"{side}_projection_bias", head)
            of_head.append(linear(x, of(f"{side}_projection", head), None if bias is None else bias[0]))
        o = weights(*of_head[:2], **options) @ of_head[2]
        total = total + o.float() @ of("output_projection", head).float().mT
    bias = given["output_projection_bias"]
    return (total if bias is None else total + bias.float()).to(q.dtype)


@kernel(**LAYER, **WIDE, supports=(*PROJECTIONS, "causal", "head_widths", "dv", "cross"))
def absorbed_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Multiply queries by W_K, so that scores are products with the given keys, as DeepSeek-V2 decodes."""
    W = {name: options.pop(name) for name in PROJECTIONS}
    absorbed = (q @ W["query_projection"].mT) @ W["key_projection"]
    s = absorbed @ k.mT * W["query_projection"].shape[2] ** -0.5
    P = s.masked_fill(hidden(absorbed, k, **options), -torch.inf).softmax(-1)
    o = P @ (v @ W["value_projection"].mT)
    return (o @ W["output_projection"].mT).sum(1, keepdim=True)
