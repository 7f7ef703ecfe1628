"""A kernel that attends once to the pages that sequences share is sound, and wrong in ways that no other call shows."""

import inspect

import numpy as np
import pytest

from attn_spec import Contract, kernel
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTY = load_all()["placement.sequences_may_share_pages"]
PARTS = Contract(lse_merges=1, probabilities="work")


def part(q, k, v, seen, sinks):
    """Return the output [H, Sq, Dv] of the keys that are seen, bool [Sq, Sk], and its log-sum-exp [H, Sq, 1]."""
    s = np.where(seen, q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5), np.float32(-np.inf))
    top = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), sinks)
    top = np.where(np.isfinite(top), top, np.float32(0))
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True) + np.exp(sinks - top)
    with np.errstate(divide="ignore"):
        return p @ v / np.where(total == 0, 1, total), top + np.log(total)


def merged(first, second):
    top = np.maximum(first[1], second[1])
    top = np.where(np.isfinite(top), top, np.float32(0))
    a, b = np.exp(first[1] - top), np.exp(second[1] - top)
    return (a * first[0] + b * second[0]) / np.where(a + b == 0, 1, a + b)


def cascade(
    q, k, v, *, cu_seqlens_q, block_table, seqused_k, max_seqlen_q, max_seqlen_k, causal=False, sinks=None, wrong=""
):
    """Attend to pages that all sequences have in common apart from those of their own, and merge both outputs."""
    size, lengths, ends = k.shape[1], seqused_k.tolist(), cu_seqlens_q.tolist()
    out = np.zeros((*q.shape[:2], v.shape[-1]), np.float32)
    live = [b for b in range(len(lengths)) if ends[b + 1] > ends[b]]
    own = {b: ends[b + 1] - ends[b] if causal and wrong != "masks no common key" else 0 for b in live}
    most, common = min((lengths[b] - own[b] for b in live), default=0) // size, 0
    while len(live) > 1 and common < most and len({int(block_table[b, common]) for b in live}) == 1:
        common += 1
    first = common * size
    nothing = np.full((q.shape[1], 1, 1), -np.inf, np.float32)
    sinks = nothing if sinks is None else np.broadcast_to(sinks.reshape(-1, 1, 1), nothing.shape)
    for b in live:
        rows, n = slice(ends[b], ends[b + 1]), lengths[b]
        pages = block_table[b, : -(-n // size)]
        keys, values = (x[pages].reshape(-1, *x.shape[2:])[:n].swapaxes(0, 1) for x in (k, v))
        keys, values = (np.repeat(x, q.shape[1] // len(x), 0) for x in (keys, values))
        places = np.arange(ends[b + 1] - ends[b])[:, None] + n - (ends[b + 1] - ends[b])
        seen = np.arange(n) <= places if causal else np.ones((len(places), n), dtype=bool)
        one = q[rows].swapaxes(0, 1)
        whole = part(one, keys, values, seen, sinks)[0]
        if first:
            of_rest = sinks if wrong == "adds the sink to both parts" else nothing
            rest = seen[:, : n - first] if wrong == "counts own keys from 0" else seen[:, first:]
            parts = part(one, keys[:, :first], values[:, :first], np.ones((len(places), first), dtype=bool), sinks)
            whole = merged(parts, part(one, keys[:, first:], values[:, first:], rest, of_rest))
        out[rows] = whole.swapaxes(0, 1)
    return out


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        ("", Verdict.HELD),
        ("counts own keys from 0", Verdict.REFUTED),
        ("masks no common key", Verdict.REFUTED),
        ("adds the sink to both parts", Verdict.REFUTED),
    ],
)
def test_common_pages_may_be_attended_once(wrong, verdict):
    facts = {"framework": "numpy", "dtypes": ("float32",), "presentation": "paged", "contract": PARTS}
    supports, agreed = ("causal", "cross", "gqa", "dv", "sinks"), {"causal_alignment": "bottom_right"}

    def attention(q, k, v, **call):
        return cascade(q, k, v, **call, wrong=wrong)

    attention.__signature__ = inspect.signature(cascade)
    made = kernel(**facts, supports=supports, conventions=agreed)(attention)

    row, case = search(PROPERTY, Subject(made, "float32"), PROFILES["smoke"], 0)

    assert row.verdict is verdict, case
