"""assert_attention on packed and paged calls: the test's own buffers, judged sequence by sequence."""

import math
import tracemalloc
from functools import cached_property

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from attn_spec.kernels.calls.call import CallError
from attn_spec.problem.problem import Problem
from attn_spec.testing import NotAttention, assert_attention, assert_attention_gradients

H, HKV, D, DV = 4, 2, 8, 6
#: Queries and keys of each sequence: more keys, none of either, more queries, and one query.
QUERIES, KEYS = [3, 0, 5, 1], [4, 2, 5, 9]
BOTTOM = {"causal": True, "causal_alignment": "bottom_right"}
UNPACKED = {"empty_row": "zero"}


def bounds(lengths):
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


def attention(q, k, v, *, sinks=None):
    """Return causal attention of one sequence, q [n, H, D], and its LSE [H, n]; the last query sees the last key."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    hidden = torch.arange(len(k)) > torch.arange(len(q))[:, None] + len(k) - len(q)
    s = (torch.einsum("nhd,ehd->hne", q, k) * D**-0.5).masked_fill(hidden, -math.inf)
    whole = s if sinks is None else torch.cat([s, sinks[:, None, None].expand(-1, len(q), 1)], -1)
    lse = whole.logsumexp(-1)
    return torch.einsum("hne,ehd->nhd", torch.exp(s - lse[..., None]), v), lse


def packed(queries=QUERIES, keys=KEYS, *, sinks=None, rest=math.nan):
    """Return q, k, v, the output and the LSE of a packed call, whose buffers end in places of nobody, and its words."""
    generator = torch.Generator().manual_seed(0)
    cu_q, cu_k = bounds(queries), bounds(keys)
    lengths = ((sum(queries) + 2, H, D), (sum(keys) + 3, HKV, D), (sum(keys) + 3, HKV, DV))
    q, k, v = (torch.randn(shape, generator=generator) for shape in lengths)
    for x, cu in ((q, cu_q), (k, cu_k), (v, cu_k)):
        x[cu[-1] :] = rest
    out, lse = torch.full((len(q), H, DV), math.nan), torch.full((H, len(q)), math.nan)
    for b in range(len(queries)):
        rows, of = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        out[rows], lse[:, rows] = attention(q[rows], k[of], v[of], sinks=sinks)
    words = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": max(queries), "max_seqlen_k": 128}
    return (out, q, k, v), lse, {**words, **BOTTOM}


def paged(size=4, *, rest=math.nan, tail=-1):
    """Return a paged call of the same numbers: pages in an order of chance, and ``rest`` where no key is."""
    (out, q, k, v), lse, words = packed()
    cu_k, order = words.pop("cu_seqlens_k"), torch.randperm(24, generator=torch.Generator().manual_seed(1)).tolist()
    cache = torch.full((24, 2, size, HKV, D), rest)
    table = torch.full((len(KEYS), 10), tail, dtype=torch.int32)
    for b, e in enumerate(KEYS):
        for place in range(-(-e // size)):
            page, first = order.pop(), place * size
            table[b, place] = page
            count = min(size, e - first)
            keys = slice(cu_k[b] + first, cu_k[b] + first + count)
            cache[page, 0, :count], cache[page, 1, :count, :, :DV] = k[keys], v[keys]
    del words["max_seqlen_k"]
    words |= {"block_table": table, "seqused_k": torch.tensor(KEYS, dtype=torch.int32)}
    return (out, q, cache[:, 0], cache[:, 1, ..., :DV]), lse, words


def test_a_failure_names_the_sequence_whose_keys_were_read():
    """Sequences have 4 and 9 keys; the last query of the first one reads the keys of the second."""
    (out, q, k, v), _, words = packed([2, 1], [4, 9])
    out[1:2] = attention(q[1:2], k[4:13], v[4:13])[0]

    with pytest.raises(NotAttention, match="right for the same tensors with the keys and values of batch entry 1"):
        assert_attention(out, q, k, v, **words, contract="fp32")


def test_a_packed_call_is_recognised_by_its_words():
    tensors, lse, words = packed()

    found = assert_attention(*tensors, lse=lse, **words, block_table=None, contract="fp32")

    assert (found.rows, found.of) == (sum(QUERIES) * H, sum(QUERIES) * H)
    assert assert_attention(*tensors, **words, presentation="THD").of == found.of


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("tail", [0, -1, 2**31 - 1])
def test_a_paged_call_reads_no_page_behind_a_sequence(size, tail):
    tensors, lse, words = paged(size, tail=tail)

    assert_attention(*tensors, lse=lse, **words, contract="fp32")
    assert_attention(*tensors, lse=lse, **words, presentation="paged", contract="fp32")


def test_names_of_other_libraries():
    tensors, _, words = paged()
    of_fa3 = {"page_table": words.pop("block_table"), "cache_seqlens": words.pop("seqused_k")}
    of_fa2 = {"block_table": of_fa3["page_table"], "cu_seqlens_k": bounds(KEYS)}
    of_torch = {"cu_seq_q": bounds(QUERIES), "cu_seq_k": bounds(KEYS), "max_q": 5, "max_k": torch.tensor(9)}

    for other in (of_fa3, of_fa2):
        assert_attention(*tensors, **words, **other)
    assert_attention(*packed()[0], **of_torch, **BOTTOM)


@pytest.mark.parametrize("tensor", [np.asarray, jnp.asarray, lambda x: x.to(torch.bfloat16)])
def test_tensors_of_any_framework_and_dtype(tensor):
    for (out, *inputs), _, words in (packed(), paged()):
        whole = [tensor(x) if x.is_floating_point() else x for x in inputs]
        where = {name: jnp.asarray(x) if hasattr(x, "shape") else x for name, x in words.items()}
        if tensor(out).dtype == torch.bfloat16:
            with pytest.raises(NotAttention):
                assert_attention(tensor(out + 1), *whole, **where)
        else:
            assert_attention(tensor(out), *whole, **where, contract="fp32")


def test_the_worst_element_is_named_in_the_buffer_and_in_its_sequence():
    (out, *inputs), lse, words = packed()
    wrong, wrong_lse = out.clone(), lse.clone()
    wrong[6, 2, 1] += 0.1
    wrong_lse[3, 8] += 0.1

    with pytest.raises(NotAttention, match=r"element   output\[6, 2, 1\]") as raised:
        assert_attention(wrong, *inputs, **words)
    assert "batch entry 2, head 2, row 3, column 1" in str(raised.value)
    assert "sequences 4, of 0 to 5 queries and 2 to 9 keys" in str(raised.value)
    with pytest.raises(NotAttention, match=r"element   lse\[3, 8\]") as raised:
        assert_attention(out, *inputs, lse=wrong_lse, **words)
    assert "batch entry 3, head 3, row 0" in str(raised.value)


def test_a_diagonal_of_another_corner_is_the_hint():
    tensors, _, words = packed()

    with pytest.raises(NotAttention, match="right for the same tensors with causal_alignment='bottom_right'"):
        assert_attention(*tensors, **{**words, "causal_alignment": "top_left"})


def test_a_key_of_another_sequence_is_refuted():
    (_, q, k, v), _, words = packed()
    moved = words["cu_seqlens_k"].clone()
    moved[1] += 1  # the first sequence reads a key of the second
    out = torch.full((len(q), H, DV), math.nan)
    for b, n in enumerate(QUERIES):
        rows = slice(words["cu_seqlens_q"][b], words["cu_seqlens_q"][b] + n)
        out[rows] = attention(q[rows], k[moved[b] : moved[b + 1]], v[moved[b] : moved[b + 1]])[0]

    with pytest.raises(NotAttention, match="batch entry 0"):
        assert_attention(out, q, k, v, **words)
    assert_attention(out, q, k, v, **{**words, "cu_seqlens_k": moved})


def test_two_sequences_may_share_pages():
    q, cache = torch.randn(4, H, D), torch.randn(3, 4, HKV, D)
    table = torch.tensor([[2, 0], [2, 1]], dtype=torch.int32)
    words = {"block_table": table, "seqused_k": torch.tensor([6, 7]), "cu_seqlens_q": torch.tensor([0, 2, 4])}
    parts = [(q[2 * b : 2 * b + 2], cache[table[b]].reshape(8, HKV, D)[: 6 + b]) for b in range(2)]
    out = torch.cat([attention(rows, keys, keys)[0] for rows, keys in parts])

    assert_attention(out, q, cache, cache, **words, **BOTTOM)
    with pytest.raises(CallError, match="two sequences share keys"):
        assert_attention_gradients({"dk": cache}, out, q, cache, cache, **words, **BOTTOM)


def test_options_of_heads_and_sequences():
    sinks = torch.tensor([0.5, -1.0, -math.inf, 3.0])
    tensors, lse, words = packed(sinks=sinks)

    assert_attention(*tensors, lse=lse, **words, sinks=sinks)
    assert_attention(*tensors, **words, sinks=sinks, window_size=(20, 0), alibi_slopes=torch.zeros(4, H))
    with pytest.raises(NotAttention):
        assert_attention(*tensors, **words, sinks=sinks, window_size=(1, 0))
    with pytest.raises(NotAttention):
        assert_attention(*tensors, **words, sinks=sinks, alibi_slopes=torch.arange(16.0).reshape(4, H))


def test_lengths_within_packed_sequences():
    (out, q, k, v), _, words = packed()
    used = torch.tensor([2, 1, 4, 9])
    for b, n in enumerate(QUERIES):
        rows, first = slice(words["cu_seqlens_q"][b], words["cu_seqlens_q"][b] + n), words["cu_seqlens_k"][b]
        keys = slice(first, first + used[b])
        out[rows] = attention(q[rows], k[keys], v[keys])[0]
        k[first + used[b] : words["cu_seqlens_k"][b + 1]] = math.nan

    assert_attention(out, q, k, v, **words, seqused_k=used)


def differentiated(*, sinks=None):
    """Return the arguments of a call with gradients, whose unread places hold NaN, and its words."""
    (_, *inputs), _, words = packed(sinks=sinks)
    leaves = [x.requires_grad_() for x in (*inputs, *([] if sinks is None else [sinks]))]
    q, k, v = leaves[:3]
    dout, dlse = torch.randn(len(q), H, DV), torch.randn(H, len(q))
    total = torch.zeros(())
    for b in range(len(QUERIES)):
        rows, of = (slice(words[f"cu_seqlens_{side}"][b], words[f"cu_seqlens_{side}"][b + 1]) for side in "qk")
        out, lse = attention(q[rows], k[of], v[of], sinks=sinks)
        total = total + (out * dout[rows]).sum() + (lse * dlse[:, rows]).sum()
    found = dict(zip(("dq", "dk", "dv", "dsinks"), torch.autograd.grad(total, leaves), strict=False))
    for name, used in (("dq", sum(QUERIES)), ("dk", sum(KEYS)), ("dv", sum(KEYS))):
        found[name][used:] = math.nan
    dout[sum(QUERIES) :], dlse[:, sum(QUERIES) :] = math.nan, math.nan
    return found, (dout, *(x.detach() for x in (q, k, v))), {**words, "dlse": dlse}


def test_gradients_of_a_packed_call():
    found, tensors, words = differentiated()
    judgement = assert_attention_gradients(found, *tensors, **words, contract="fp32")
    wrong = {**found, "dk": found["dk"].clone()}
    wrong["dk"][13, 1, 2] += 0.1

    assert (judgement.of, judgement.of_keys) == (sum(QUERIES) * H, sum(KEYS) * HKV)
    with pytest.raises(NotAttention, match=r"element   dk\[13, 1, 2\]") as raised:
        assert_attention_gradients(wrong, *tensors, **words)
    assert "batch entry 3, kv head 1, key 2, column 2" in str(raised.value)


def test_a_gradient_that_is_a_sum_over_sequences():
    sinks = torch.tensor([0.5, -1.0, 0.0, 3.0])
    found, tensors, words = differentiated(sinks=sinks)

    assert_attention_gradients(found, *tensors, **words, sinks=sinks.detach())
    found["dsinks"] = found["dsinks"] + torch.tensor([0, 0, 0.1, 0])
    with pytest.raises(NotAttention, match=r"dsinks\[0, 2, 0, 0\]"):
        assert_attention_gradients(found, *tensors, **words, sinks=sinks.detach())


def test_rows_are_sampled_of_each_sequence():
    tensors, _, words = packed([40, 3, 1], [40, 3, 50])

    found = assert_attention(*tensors, **words, rows=4)

    assert (found.rows, found.of) == ((4 + 3 + 1) * H, 44 * H)


def test_power_is_that_of_the_sequence_with_the_most_pairs():
    tensors, lse, words = packed()

    assert assert_attention(*tensors, lse=lse, **words, power=True).power is not None


def test_one_long_sequence_among_short_ones_costs_what_its_tokens_cost():
    queries = keys = [2048] + [1] * 31
    tensors, _, words = packed(queries, keys)
    del words["max_seqlen_k"]
    rectangle = 8 * 32 * 2048 * (H * D + HKV * (D + DV))  # q, k and v as float64
    tracemalloc.start()
    assert_attention(*tensors, **words, rows=8, memory=2**20)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < rectangle / 4


REFUSED = {
    "falls": ({"cu_seqlens_k": [0, 4, 3, 11, 20]}, r"cu_seqlens_k must not fall, but cu_seqlens_k\[2\] is 3, behind 4"),
    "negative": ({"cu_seqlens_q": [-1, 3, 3, 8, 9]}, r"cu_seqlens_q\[0\] is -1; bounds of sequences must be 0 or more"),
    "empty": ({"cu_seqlens_q": []}, "cu_seqlens_q must have a bound before the first sequence and one behind each"),
    "beyond": ({"cu_seqlens_k": [0, 4, 6, 11, 24]}, "keys of sequence 3 are in token 23 of k, which has 23 tokens"),
    "counts": ({"cu_seqlens_k": [0, 4, 6]}, "cu_seqlens_q is of 4 sequences, cu_seqlens_k is of 2 sequences"),
    "axes": ({"cu_seqlens_k": [[0, 4]]}, r"cu_seqlens_k must have one axis, not the shape \(1, 2\)"),
    "numbers": ({"cu_seqlens_k": torch.ones(5)}, "cu_seqlens_k must be a tensor of integers, not of torch.float32"),
    "missing": (
        {"cu_seqlens_k": None},
        "cu_seqlens_q do not say where all sequences lie; THD needs",
    ),
    "named": ({"cu_seqlens_k": None, "presentation": "THD"}, "in the presentation THD needs cu_seqlens_k"),
    "longest": ({"max_seqlen_q": 4}, "max_seqlen_q is 4, but a sequence has 5 queries"),
    "no number": ({"max_seqlen_q": 2.5}, "max_seqlen_q must be an integer of 0 or more, not 2.5"),
    "twice": ({"cu_seq_q": [0]}, "cu_seq_q gives cu_seqlens_q a second time; leave one out"),
    "mask": (
        {"mask": torch.ones(5, 9, dtype=torch.bool)},
        "in the presentation THD cannot pass mask, which has numbers",
    ),
    "corner": ({"causal_alignment": None}, "causal of 3 queries and 4 keys needs causal_alignment="),
    "unused": (
        {"unused_rows": "zero"},
        "is about rows behind the end of a sequence, which a packed call has only with",
    ),
    "used": ({"seqused_k": [5, 2, 5, 9]}, r"seqused_k\[0\] is 5, and the sequence has 4 keys"),
    "others": (
        {"kv_indptr": [0]},
        "cu_seqlens_k, cu_seqlens_q, kv_indptr do not say where all sequences",
    ),
    "views": ({"presentation": "BHSD"}, r"q must be a tensor with the axes BHSD, not of shape \(11, 4, 8\)"),
    "no name": ({"presentation": "TDH"}, "presentation must be one of BHSD, BSHD, BSHD_lengths, THD"),
}
REFUSED_PAGED = {
    "page": ({"block_table": [[1], [24], [2], [3]]}, "keys of sequence 1 are in page 24 of k, which has 24 pages"),
    "no page": ({"block_table": [[1], [-1], [2], [3]]}, "keys of sequence 1 are in page -1 of k, which has 24 pages"),
    "longer": ({"seqused_k": [4, 2, 17, 9]}, "sequence 2 has 17 keys, and its 1 pages in block_table hold 16"),
    "negative": ({"seqused_k": [4, -2, 5, 9]}, r"seqused_k\[1\] is -2, and a sequence has 0 or more"),
    "axes": ({"block_table": [1, 2, 3, 4]}, r"block_table must have two axes, not the shape \(4,\)"),
    "both": ({"cu_seqlens_k": [0, 4, 6, 11, 20]}, "takes seqused_k or cu_seqlens_k, and both are given; leave one out"),
    "lengths": ({"seqused_k": None}, "block_table, cu_seqlens_q do not say where all sequences lie; paged needs"),
}


def changed(words, change):
    """Return the words of a call with some changed, or left out for None."""
    given = {name: torch.tensor(x, dtype=torch.int32) if isinstance(x, list) else x for name, x in change.items()}
    return {name: x for name, x in (words | given).items() if x is not None}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_packed_call_is_refused(change, says):
    tensors, _, words = packed()

    with pytest.raises(CallError, match=says):
        assert_attention(*tensors, **changed(words, change))


@pytest.mark.parametrize(("change", "says"), REFUSED_PAGED.values(), ids=REFUSED_PAGED)
def test_what_is_no_paged_call_is_refused(change, says):
    tensors, _, words = paged(16)

    with pytest.raises(CallError, match=says):
        assert_attention(*tensors, **changed(words | {"block_table": words["block_table"][:, :1]}, change))


def listed(tensors, words):
    """Return a paged call as one whose pages are listed in compressed rows."""
    size, table = tensors[2].shape[1], words["block_table"]
    needed = [-(-e // size) for e in KEYS]
    rows = [table[b, :count] for b, count in enumerate(needed)]
    last = torch.tensor([e - (count - 1) * size for e, count in zip(KEYS, needed, strict=True)], dtype=torch.int32)
    where = {"kv_indptr": bounds(needed), "kv_indices": torch.cat(rows), "kv_last_page_len": last}
    return {"qo_indptr": bounds(QUERIES), **where, **BOTTOM}


def test_every_other_row_of_the_table():
    tensors, lse, words = paged()
    out, q, k, v = tensors
    csr = listed(tensors, words)
    pool, _, of_pool = paged(1)
    slots = {name: x for name, x in listed(pool, of_pool).items() if name != "kv_last_page_len"}
    of_hnd = (out, q, k.swapaxes(1, 2), v.swapaxes(1, 2))

    assert_attention(*tensors, lse=lse, **csr)
    assert_attention(*pool[:2], pool[2][:, 0], pool[3][:, 0], **slots)
    assert_attention(*of_hnd, **words, presentation="paged_hnd")
    for change, says in (
        ({"kv_last_page_len": [4, 2, 5, 1]}, r"kv_last_page_len\[2\] is 5, and a last page has from 1 to 4 keys"),
        ({"kv_indices": [3, 1]}, "kv_indptr ends at 7, and kv_indices lists 2 places"),
    ):
        with pytest.raises(CallError, match=says):
            assert_attention(*tensors, **changed(csr, change))


def test_one_bound_for_queries_and_keys():
    tensors, lse, words = packed(QUERIES, QUERIES)

    assert_attention(*tensors, lse=lse, cu_seqlens=words["cu_seqlens_q"], max_seqlen=5, **BOTTOM)
    with pytest.raises(CallError, match="max_seqlen is 4, but a sequence has 5 queries"):
        assert_attention(*tensors, cu_seqlens=words["cu_seqlens_q"], max_seqlen=4, **BOTTOM)
    with pytest.raises(CallError, match=r"a call in the presentation THD_qkv needs cu_seqlens$"):
        assert_attention(*tensors, **words, presentation="THD_qkv")


def test_sequences_with_gaps():
    (out, *inputs), lse, words = packed()
    spread = {}
    for name, x, lengths in (("q", inputs[0], QUERIES), ("k", inputs[1], KEYS), ("v", inputs[2], KEYS)):
        spread[name] = torch.full((len(x) + 8, *x.shape[1:]), math.nan)
        for b, n in enumerate(lengths):
            start = sum(lengths[:b])
            spread[name][start + 2 * b : start + 2 * b + n] = x[start : start + n]
    wide, wide_lse = torch.full((len(spread["q"]), H, DV), math.nan), torch.full((H, len(spread["q"])), math.nan)
    for b, n in enumerate(QUERIES):
        rows, at = (slice(sum(QUERIES[:b]) + place, sum(QUERIES[:b]) + place + n) for place in (0, 2 * b))
        wide[at], wide_lse[:, at] = out[rows], lse[:, rows]
    padded = {f"cu_seqlens_{side}_padded": bounds([n + 2 for n in x]) for side, x in (("q", QUERIES), ("k", KEYS))}

    assert_attention(wide, **spread, lse=wide_lse, **words, **padded)
    with pytest.raises(CallError, match="two sequences have a query in one place of q"):
        assert_attention(wide, **spread, **words, **padded | {"cu_seqlens_q_padded": bounds([1, 2, 3, 4])})


def test_decoding_from_a_rectangle_and_from_pages():
    q, cache = torch.randn(3, H, D), torch.randn(6, 4, HKV, D)
    used, table = torch.tensor([3, 8, 0], dtype=torch.int32), torch.tensor([[5, 9], [0, 3], [7, 7]], dtype=torch.int32)
    rectangle = cache[torch.minimum(table, torch.tensor(5))].reshape(3, 8, HKV, D)
    parts = [attention(q[b : b + 1], rectangle[b, : used[b]], rectangle[b, : used[b]]) for b in range(3)]
    out, lse = torch.cat([part for part, _ in parts]), torch.cat([part.T for _, part in parts])
    wrong = out.clone()
    wrong[1, 2, 3] += 0.1

    assert_attention(out, q, cache, cache, lse=lse, presentation="decode_paged", block_table=table, seqused_k=used)
    assert_attention(out, q, rectangle, rectangle, lse=lse, presentation="decode", seqused_k=used)
    with pytest.raises(NotAttention, match=r"output\[1, 2, 3\]"):
        assert_attention(wrong, q, rectangle, rectangle, presentation="decode", cache_seqlens=used)
    with pytest.raises(CallError, match=r"seqused_k\[1\] is 9, and k has 8 keys of each sequence"):
        assert_attention(out, q, rectangle, rectangle, presentation="decode", seqused_k=torch.tensor([3, 9, 0]))
    with pytest.raises(CallError, match="q has 3 batch entries, and other arguments are of 2 sequences"):
        assert_attention(out, q, rectangle, rectangle, presentation="decode", seqused_k=used[:2])


def test_tensors_of_other_shapes_are_refused():
    (out, q, k, v), lse, words = packed()
    table = {"block_table": torch.zeros(4, 1, dtype=torch.int32), "seqused_k": torch.zeros(4, dtype=torch.int32)}
    of_pages = {name: x for name, x in words.items() if not name.endswith("_k")} | table

    for change, says in (
        ({"lse": lse.T}, r"lse must have the shape \(4, 11\) here, not \(11, 4\); that is its shape with its last two"),
        ({"out": out[:9]}, r"output must have the shape \(11, 4, 6\) here, not \(9, 4, 6\)"),
        ({"v": v[1:]}, r"q \[.., Hq, D\], k \[.., Hkv, D\] and v \[.., Hkv, Dv\], Hq a multiple of Hkv, do not go"),
        ({"k": k.double()}, "inputs of several dtypes, q:float32,k:float64,v:float32, need a contract"),
        ({"q": q[None]}, "cu_seqlens_k is of a call whose q has the axes .tokens, heads, dimension., and q has 4"),
    ):
        with pytest.raises(CallError, match=says):
            assert_attention(**{"out": out, "q": q, "k": k, "v": v, **words, **change})
    with pytest.raises(CallError, match=r"k must have the axes \[pages, size, H, D\] as paged, not the"):
        assert_attention(out, q, k, v, **of_pages)


def test_a_cache_of_latent_keys_is_judged_with_its_first_columns_as_values():
    rng = np.random.default_rng(0)
    q, cache = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4, 6), (5, 2, 1, 6)))
    table, ends = np.array([[4, 1], [2, 0], [3, 0]]), np.array([3, 1, 0])
    out = np.zeros((3, 4, 4), dtype=np.float32)
    for b, end in enumerate(ends):
        keys = cache[table[b]].reshape(-1, 6)[:end].astype(np.float64)
        p = np.exp(0.3 * q[b].astype(np.float64) @ keys.T)
        out[b] = p @ keys[:, :4] / p.sum(-1, keepdims=True) if end else 0
    where = {"cu_seqlens_q": np.arange(4), "block_table": table, "seqused_k": ends}
    options = {"latent": True, "scale": 0.3, "empty_row": "zero", "contract": "fused"}

    assert_attention(out, q, cache, cache[..., :4], **where, **options)
    with pytest.raises(AssertionError, match=r"output\["):
        assert_attention(out, q, cache, cache[..., :4], **where, **{**options, "scale": 6**-0.5})


def of_equal_values(lengths):
    """Return the output, q, k and v of a packed call whose keys are 0 and whose values are 1, and its words."""
    count = sum(lengths)
    q, k, v = (np.full((count, 1, 2), x, dtype=np.float32) for x in (1, 0, 1))
    where = np.cumsum([0, *lengths])
    return (v, q, k, v), {"cu_seqlens_q": where, "cu_seqlens_k": where, **UNPACKED}


def test_no_matrix_of_all_pairs_of_a_batch_is_formed(monkeypatch):
    """32 sequences of 4,096 queries and keys have 2^29 pairs: no part of the judgement asks which of all are seen."""
    sizes, visible = [], Problem.visible.func

    def noting(problem):
        sizes.append(math.prod(problem.score_shape))
        return visible(problem)

    noted = cached_property(noting)
    noted.__set_name__(Problem, "visible")
    monkeypatch.setattr(Problem, "visible", noted)
    tensors, words = of_equal_values([4096] * 32)
    assert_attention(*tensors, **words, rows=1, memory=2**20)

    assert sizes
    assert max(sizes) <= 2**20
