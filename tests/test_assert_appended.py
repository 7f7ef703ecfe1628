"""assert_attention on caches after a call that appends: their rows, pages and rotated keys."""

import math

import pytest
import torch

from attn_spec.kernels.calls.call import CallError
from attn_spec.testing import NotAttention, assert_attention
from tests.test_assert_packed import BOTTOM, DV, HKV, D, H, attention


def appended(size=None):
    """Return the output, q [B, n, H, D], caches after a call that appended 2 keys to each, and their lengths."""
    generator = torch.Generator().manual_seed(0)
    q, ends = torch.randn(3, 2, H, D, generator=generator), [4, 2, 9]
    rows, table = [3, 0, 2], torch.tensor([[5, 1, -1], [2, -1, -1], [7, 0, 3]])
    shape = (4, 12) if size is None else (8, size)
    caches = [torch.full((*shape, HKV, width), math.nan) for width in (D, DV)]
    out = torch.empty(3, 2, H, DV)
    for b, e in enumerate(ends):
        j = torch.arange(e)
        at = (rows[b], j) if size is None else (table[b, j // size], j % size)
        for cache in caches:
            cache[at] = torch.randn(e, HKV, cache.shape[-1], generator=generator)
        out[b], _ = attention(q[b], *(cache[at] for cache in caches))
    where = {"cache_batch_idx": torch.tensor(rows)} if size is None else {"block_table": table}
    return (out, q, *caches), {"cache_seqlens": torch.tensor(ends), **where, **BOTTOM}


@pytest.mark.parametrize("size", [None, 4])
def test_caches_after_a_call_that_appends(size):
    tensors, words = appended(size)

    assert assert_attention(*tensors, **words, contract="fp32").of == 3 * H * 2
    with pytest.raises(NotAttention, match="this is not the attention"):
        assert_attention(*tensors, **{**words, "cache_seqlens": words["cache_seqlens"] - 2}, contract="fp32")


def test_keys_of_a_cache_are_rotated_already():
    tensors, words = appended()

    with pytest.raises(CallError, match="holds keys that are rotated already; leave rotary out, and give the queries"):
        assert_attention(*tensors, **words, rotary="half")


def test_rows_of_a_cache_without_an_index():
    (out, q, *caches), words = appended()
    rows = words.pop("cache_batch_idx")

    assert_attention(out, q, *(cache[rows] for cache in caches), **words, presentation="append", contract="fp32")
    with pytest.raises(CallError, match="k has 4 batch entries, and other arguments are of 3 sequences"):
        assert_attention(out, q, *caches, **words, presentation="append")


def test_a_sequence_in_a_row_that_no_cache_has():
    tensors, words = appended()

    with pytest.raises(CallError, match="keys of sequence 0 are in row 4 of k, which has 4 rows"):
        assert_attention(*tensors, **{**words, "cache_batch_idx": torch.tensor([4, 0, 2])})
