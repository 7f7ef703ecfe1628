"""Attention of one query of each sequence over pages of int8 in JAX, with caches of scales, one page after another.

Key j of sequence b is in the page block_table[b, j // size], at the place j % size. A step of the scan folds the pages
in one column of the table, one of each sequence, by an online softmax. Codes are numbers of the dtype of q, and what a
key beyond the length of its sequence holds is left out: its score is -inf, and its scale is 0.

Compiled anew for every shape, as a whole.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from attn_spec import kernel
from attn_spec.contract.presets import FUSED

#: Descales of which the kernel takes a number for each key.
SCALE_CACHES = ("k_descale", "v_descale")


@kernel(
    framework="jax",
    dtypes=({"q": "float32", "kv": "int8"}, {"q": "bfloat16", "kv": "int8"}),
    contract=replace(FUSED, kv_tile=1, value_descale_on="probabilities"),
    supports=("scale", *SCALE_CACHES, "descale_by_head", "descale_by_key", "gqa", "dv", "lse"),
    option_dtypes=dict.fromkeys(SCALE_CACHES, "float32"),
    conventions={"empty_row": "zero", "unused": "unread", "table_tail": "any"},
    presentation="decode_paged",
    signatures=2,
)
@partial(jax.jit, static_argnames=("scale",))
def int8_pages(
    q: Array,
    k: Array,
    v: Array,
    *,
    block_table: Array,
    seqused_k: Array,
    scale: float | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
) -> tuple[Array, Array]:
    """Map q [B, Hq, D] and caches [pages, size, Hkv, D], [pages, size, Hkv, Dv] to out [B, Hq, Dv] and lse [B, Hq].

    A descale is a cache of scales [pages, size, Hkv], one of each key and kv head. Weights are multiplied by those of
    values, rounded to the dtype of q, and multiplied by codes of values in that dtype; sums are in float32.
    """
    (B, Hq, D), (_, size, Hkv, Dv) = q.shape, v.shape
    factor = D**-0.5 if scale is None else scale
    rows = (B, Hkv, Hq // Hkv)
    queries = q.reshape(*rows, D)

    def visit(state: tuple[Array, ...], column: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        m, l, acc = state
        pages, first = column
        seen = (first + jnp.arange(size) < seqused_k[:, None])[:, None]  # [B, 1, size]
        of_keys, of_values = (
            1.0 if x is None else jnp.where(seen, x[pages].swapaxes(1, 2), 0)[:, :, None]
            for x in (k_descale, v_descale)
        )
        s = _product("bghd,bjgd->bghj", queries, k[pages].astype(q.dtype)) * factor * of_keys
        s = jnp.where(seen[:, :, None], s, -jnp.inf)
        m_new = jnp.maximum(m, s.max(-1))
        reference = jnp.where(m_new == -jnp.inf, 0, m_new)
        p, alpha = jnp.exp(s - reference[..., None]), jnp.exp(m - reference)
        weighted = _product("bghj,bjgc->bghc", (p * of_values).astype(q.dtype), v[pages].astype(q.dtype))
        return (m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + weighted), None

    start = (jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros((*rows, Dv)))
    columns = block_table.T, size * jnp.arange(block_table.shape[1])
    (m, l, acc), _ = lax.scan(visit, start, columns)
    out = (acc / jnp.where(l == 0, 1, l)[..., None]).astype(q.dtype)
    lse = jnp.where(l == 0, -jnp.inf, m + jnp.log(l))
    return out.reshape(B, Hq, Dv), lse.reshape(B, Hq)


def _product(subscripts: str, x: Array, y: Array) -> Array:
    """Multiply in the dtype of both, on a GPU too, and add in float32."""
    return jnp.einsum(subscripts, x, y, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
