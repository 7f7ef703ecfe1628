"""The table of presentations: the ways in which a call hands over a problem, by the name that a kernel declares."""

from __future__ import annotations

from attn_spec.kernels.layout import Layout
from attn_spec.kernels.packed import Packed
from attn_spec.kernels.pages import Pages
from attn_spec.kernels.places import Bounds, Places
from attn_spec.kernels.presentation import Presentation


def _presentation(says: str, *axes: str) -> Presentation:
    return Presentation(says=says, layout=Layout(axes))


def _packed(says: str, queries: Places, keys: Places) -> Packed:
    return Packed(says=says, layout=Layout(queries.axes), queries=queries, keys=keys)


#: Queries of sequences one behind the other.
_QUERIES = Bounds(side="q")

#: Every presentation by the name a kernel declares.
PRESENTATIONS: dict[str, Presentation] = {
    "BHSD": _presentation("batch, heads, length, dimension", "B", "H", "S", "D"),
    "BSHD": _presentation("batch, length, heads, dimension", "B", "S", "H", "D"),
    "BS(HD)": _presentation("batch, length, the dimensions of all heads side by side", "B", "S", "HD"),
    "HSD": _presentation("one batch entry at a time: heads, length, dimension", "H", "S", "D"),
    "SD": _presentation("one head at a time: length, dimension", "S", "D"),
    "THD": _packed(
        "sequences one behind the other: tokens of all, heads, dimension; cu_seqlens_q and cu_seqlens_k say where",
        _QUERIES,
        Bounds(side="k"),
    ),
    "paged": _packed(
        "queries as in THD; caches of pages, page size, heads, dimension; block_table lists pages", _QUERIES, Pages()
    ),
}
