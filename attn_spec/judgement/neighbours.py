"""Neighbouring problems: each differs from a problem in one respect, as a wrong kernel would solve it, with words for
it.

``other_problems`` looks among them for an explanation of a refuted answer. ``power`` gives their answers to the
judgement, to find which errors a verdict would have refuted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from attn_spec.problem.masks import ALIGNMENTS
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

#: Words for a change of some fields, and the new values of the fields.
Change = tuple[str, dict[str, object]]
#: Lengths of tiles at whose edge the keys past the last full tile may be lost.
TILES = (16, 32, 64, 128)


def made(problem: Problem, changes: Iterable[Change]) -> Iterator[tuple[str, Problem]]:
    """Yield the problems of some changes; a change that gives no valid problem is skipped."""
    for words, fields in changes:
        try:
            yield words, problem.replace(**fields)
        except ProblemError:
            continue


def without_options(problem: Problem) -> Iterator[Change]:
    """Yield changes that leave out one option each; in a layer the projections stay."""
    for name, row in OPTIONS.items():
        makes_layer = any(one.projects_values for one in parameters(name))
        if row.changes_answers and row.is_used(getattr(problem, name)) and not makes_layer:
            yield f"without {name}", {name: row.off} | {one.name: one.off for one in parameters(name)}


def other_scales(problem: Problem) -> Iterator[Change]:
    """Yield changes to the scales that kernels mistake for one another."""
    scale = problem.scale_value
    inverse = 1 / scale if scale else scale
    for words, other in (("1", 1.0), ("its inverse", inverse), ("its square", scale**2)):
        if other != scale:
            yield f"with {words} for its scale", {"scale": other}


def other_edges(problem: Problem) -> Iterator[Change]:
    """Yield changes of the mask: the diagonal or a window's edge moved by one key, another alignment, a mask inverted.

    Each change is made alone.
    """
    seen = problem.visible
    if problem.causal:
        yield "with the diagonal a key earlier", {"mask": seen & (problem.distances < 0)}
        beyond = problem.replace(causal=False).visible
        yield "with the diagonal a key later", {"causal": False, "mask": beyond & (problem.distances <= 1)}
    left, right = problem.window or (None, None)
    for step in (-1, 1):
        for window in ((_moved(left, step), right), (left, _moved(right, step))):
            if window != (left, right):
                yield f"with window={window}", {"window": window}
    if problem.mask is not None:
        yield "with its mask inverted", {"mask": ~problem.mask}
    for alignment in ALIGNMENTS:
        if alignment != problem.causal_alignment and _has_corners(problem):
            yield f"with causal_alignment={alignment!r}", {"causal_alignment": alignment}


def with_diagonal(problem: Problem) -> Iterator[Change]:
    """Yield changes that mask later keys if the problem shows them: from either corner if the lengths differ."""
    if problem.causal:
        return
    if not _has_corners(problem) or problem.diagonal is not None:
        yield "with causal=True", {"causal": True}
        return
    for alignment in ALIGNMENTS:
        fields = {"causal": True, "causal_alignment": alignment}
        yield f"with causal=True, causal_alignment={alignment!r}", fields


def _has_corners(problem: Problem) -> bool:
    """Return whether the diagonals from both corners of some sequence differ."""
    return bool((problem.end_keys - problem.used_queries != problem.first_keys).any())


def _moved(edge: int | None, step: int) -> int | None:
    """Return an edge of a window moved by ``step`` keys; None, an unbounded edge, stays None."""
    return None if edge is None else edge + step


def ends_lost(problem: Problem) -> Iterator[Change]:
    """Yield changes that mask the last or the first keys: one key, or as many as follow the last full tile."""
    seen, keys = problem.visible, np.arange(problem.key_length)
    for lost in sorted({1, *(problem.key_length % tile for tile in TILES)} - {0}):
        if lost < problem.key_length:
            what = "key" if lost == 1 else f"{lost} keys"
            yield f"without its last {what}", {"mask": seen & (keys < problem.key_length - lost)}
            yield f"without its first {what}", {"mask": seen & (keys >= lost)}


def share_lost(problem: Problem, share: float, *, where: str) -> dict[str, object]:
    """Return the change that masks a share of each query's visible keys, at the "start", "middle" or "end".

    At least one key is masked, but never all.
    """
    seen = problem.visible
    count = seen.sum(axis=-1, keepdims=True)
    place = np.cumsum(seen, axis=-1)  # the first visible key has place 1
    lost = np.clip(np.round(share * count), 1, np.maximum(count - 1, 0))
    first = {"start": 0 * lost, "middle": (count - lost) // 2, "end": count - lost}[where]
    return {"mask": seen & ~((place > first) & (place <= first + lost))}


def other_kv_heads(problem: Problem) -> Iterator[Change]:
    """Yield the change after which query head h reads kv head h % Hkv."""
    kv_heads = problem.k.shape[1]
    if problem.group > 1 and kv_heads > 1 and not problem.projects:
        read = np.arange(problem.q.shape[1]) % kv_heads
        yield "with query head h reading kv head h % Hkv", {"k": problem.k[:, read], "v": problem.v[:, read]}


def next_along(problem: Problem, axis: str) -> dict[str, object]:
    """Return the change to the keys and values of the next batch entry ("B") or kv head ("H"), the first after the
    last.
    """
    at = "BH".index(axis)
    return {name: np.roll(getattr(problem, name), -1, at) for name in ("k", "v")}
