"""Kernels of plain NumPy, which read each packed call by hand, are right; twins that misread one argument are not."""

import itertools

import numpy as np
import pytest
import torch

from attn_spec import kernel
from attn_spec.kernels.calls.sequence_arguments import packed_rows
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search

PROPERTIES = load_all()
ACCURATE = "accuracy.output_is_within_its_bound"
ALONE = "lengths.each_sequence_is_solved_as_if_it_were_alone"
#: A handful of properties that packed calls concern most.
ASKED = (ACCURATE, ALONE, "accuracy.log_sum_exp_is_within_its_bound", "lengths.the_diagonal_is_that_of_each_sequence")


def spans(bounds, starts=None):
    """Return the slots of each sequence, from bounds [B + 1], and from where they begin if there are gaps."""
    starts = bounds if starts is None else starts
    return [slice(first, first + n) for first, n in zip(starts[:-1], np.diff(bounds), strict=True)]


def table(block_table, seqused_k, size):
    """Return the page and the place in it of each key, for each sequence."""
    for pages, length in zip(block_table, seqused_k, strict=True):
        j = np.arange(length)
        yield pages[j // size], j % size


def listed(kv_indptr, kv_indices, last, size):
    """Return the page and the place in it of each key, from compressed rows of pages."""
    for entry, span in enumerate(spans(kv_indptr)):
        pages = kv_indices[span]
        j = np.arange((len(pages) - 1) * size + last[entry])
        yield pages[j // size], j % size


def inputs(*tensors):
    """Return q, k and v from the tensors of a call, one of which may hold several inputs along its second axis."""
    found = []
    for tensor, count in zip(tensors, {1: (3,), 2: (1, 2), 3: (1, 1, 1)}[len(tensors)], strict=True):
        found += [tensor[:, each] for each in range(count)] if count > 1 else [tensor]
    return found


def segments(ids, every):
    """Return which places have each id but 0, up to the largest id of queries or keys."""
    most = max(every["q_segment_ids"].max(), every["kv_segment_ids"].max())
    return [ids == each for each in range(1, most + 1)]


def rows_behind(q, cu_seqlens_q=None, cu_seqlens_q_padded=None, seqused_q=None, qo_indptr=None, **further):
    """Return where the queries of each sequence lie in q."""
    cu_seqlens_q = further.get("cu_seqlens", cu_seqlens_q)
    if "q_segment_ids" in further:
        return segments(further["q_segment_ids"], further)
    if seqused_q is not None:
        return [(entry, slice(length)) for entry, length in enumerate(seqused_q)]
    bounds = qo_indptr if cu_seqlens_q is None else cu_seqlens_q
    return [slice(b, b + 1) for b in range(len(q))] if bounds is None else spans(bounds, cu_seqlens_q_padded)


def keys_of(k, *, block_table=None, kv_indptr=None, kv_indices=None, seqused_k=None, **further):
    """Return where the keys of each sequence lie in k, as an index of it."""
    if block_table is not None:
        return list(table(block_table, seqused_k, k.shape[1]))
    if kv_indptr is not None:
        last = further.get("kv_last_page_len")
        ones = np.ones(len(kv_indptr), dtype=int)
        places = listed(kv_indptr, kv_indices, ones if last is None else last, 1 if last is None else k.shape[1])
        return [pages if last is None else (pages, place) for pages, place in places]
    if seqused_k is not None:
        return [(entry, slice(length)) for entry, length in enumerate(seqused_k)]
    if "kv_segment_ids" in further:
        return segments(further["kv_segment_ids"], further)
    return spans(further.get("cu_seqlens", further.get("cu_seqlens_k")), further.get("cu_seqlens_k_padded"))


def attend(q, k, v, scale, causal):
    """Return the output [n, Hq, Dv] and the LSE [n, Hq] of one sequence, its diagonal in the bottom-right corner."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) * np.float32(scale)
    unseen = np.arange(len(k)) > np.arange(len(q))[:, None] + len(k) - len(q)
    s[:, unseen & causal] = -np.inf
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top[np.isinf(top)] = 0
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top
    return np.einsum("hij,jhd->ihd", p / np.where(total == 0, 1, total), v), lse[..., 0].T


def made(name, misread=lambda **arguments: arguments):
    """Return a kernel of a presentation that attends sequence by sequence; ``misread`` may change the arguments."""
    heads_first = name == "paged_hnd"

    @kernel(
        name=f"plain_{name}",
        framework="numpy",
        dtypes=("float32",),
        contract="eager",
        supports=[x for x in ("scale", "causal", "gqa", "dv", "cross", "lse") if PRESENTATIONS[name].can_say(x)],
        conventions={"causal_alignment": "bottom_right", "unused": "unread"},
        presentation=name,
    )
    def attention(*tensors, scale=None, causal=False, **arguments):
        q, k, v = inputs(*tensors)
        arguments = misread(q=q, k=k, v=v, **arguments)
        q, k, v = (arguments.pop(each) for each in "qkv")
        if heads_first:
            k, v = (x.swapaxes(1, 2) for x in (k, v))
        out = np.full((*q.shape[:-1], v.shape[-1]), np.nan, dtype=np.float32)
        lse = np.full(out.shape[:-1], np.nan, dtype=np.float32)
        rows, keys = rows_behind(q, **arguments), keys_of(k, **arguments)
        for there, seen in zip(rows, keys, strict=True):
            scaled = q.shape[-1] ** -0.5 if scale is None else scale
            out[there], lse[there] = attend(q[there], k[seen], v[seen], scaled, causal)
        return out, lse if "decode" in name else lse.swapaxes(-1, -2)

    return attention


def verdict(made_kernel, name, examples, dtype="float32"):
    profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=0)
    row, _ = search(PROPERTIES[name], Subject(made_kernel, dtype), profile, seed=0)
    return str(row.verdict), row.message


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*(name for name, row in packed_rows().items() if not row.appends), "segments"])
def test_a_kernel_that_reads_the_call_by_hand_is_right(name):
    for asked in ASKED:
        assert verdict(made(name), asked, 4) == ("held", "")


def of_the_first(argument):
    return lambda **arguments: {**arguments, argument: np.full_like(arguments[argument], arguments[argument][0])}


def of_the_first_length(**arguments):
    bounds = arguments["cu_seqlens"]
    return {**arguments, "cu_seqlens": np.minimum(np.arange(len(bounds)) * bounds[1], bounds[-1])}


def without_gaps(**arguments):
    return {**arguments, "cu_seqlens_k_padded": arguments["cu_seqlens_k"]}


def nothing_in_a_full_page(**arguments):
    """Return the arguments with the length of a last page modulo its size, as where a full page counts as empty."""
    size = arguments["k"].shape[1]
    return {**arguments, "kv_last_page_len": arguments["kv_last_page_len"] % size}


def pads_seen(**arguments):
    """Return the arguments with padding of keys as a part of the first sequence."""
    ids = arguments["kv_segment_ids"]
    return {**arguments, "kv_segment_ids": np.where(ids == 0, 1, ids)}


def swapped(**arguments):
    return {**arguments, "k": arguments["v"], "v": arguments["k"]}


def in_order(**arguments):
    return {**arguments, "kv_indices": np.arange(len(arguments["kv_indices"]))}


def places_first(**arguments):
    """Return a cache [pages, heads, size, D] whose memory is taken for [pages, size, heads, D]."""
    pages, heads, size, D = arguments["k"].shape
    return {**arguments, "k": arguments["k"].reshape(pages, size, heads, D).swapaxes(1, 2)}


@pytest.mark.parametrize(
    ("name", "misread"),
    [
        ("BSHD_lengths", of_the_first("seqused_k")),
        ("THD_gaps", without_gaps),
        ("THD_qkv", of_the_first_length),
        ("THD_kv", swapped),
        ("paged_joined", swapped),
        ("segments", pads_seen),
        ("decode", of_the_first("seqused_k")),
        ("decode_paged", of_the_first("seqused_k")),
        ("paged_hnd", places_first),
        ("paged_csr", nothing_in_a_full_page),
        ("token_pool", in_order),
        ("decode_csr", nothing_in_a_full_page),
        ("decode_token_pool", in_order),
    ],
)
def test_a_twin_that_misreads_an_argument_is_refuted(name, misread):
    assert verdict(made(name, misread), ALONE, 40)[0] == "refuted"


def test_a_mask_of_ids_and_places_is_right_for_sequences_of_as_many_queries_as_keys():
    @kernel(
        framework="numpy",
        dtypes=("float32",),
        contract="eager",
        supports=("causal", "scale", "seqused_q"),
        presentation="segments",
        equal_lengths=True,
    )
    def attention(q, k, v, *, q_segment_ids, kv_segment_ids, scale=None, causal=False):
        s = np.einsum("ihd,jhd->hij", q, k) * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
        seen = (q_segment_ids[:, None] == kv_segment_ids) & (q_segment_ids > 0)[:, None]
        s[:, ~(np.tril(seen) if causal else seen)] = -np.inf
        p = np.exp(s - np.maximum(s.max(-1, keepdims=True), np.float32(-1e30)))
        total = p.sum(-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", p / np.where(total == 0, 1, total), v)

    for asked in (ALONE, "lengths.the_diagonal_is_that_of_each_sequence"):
        assert verdict(attention, asked, 4) == ("held", "")


def test_a_framework_differentiates_a_tensor_that_holds_all_inputs():
    @kernel(framework="torch", dtypes=("float32",), contract="eager", supports=("backward",), presentation="THD_qkv")
    def attention(qkv, *, cu_seqlens, max_seqlen):
        del max_seqlen
        out = []
        for first, end in itertools.pairwise(cu_seqlens.tolist()):
            q, k, v = qkv[first:end].unbind(1)
            s = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
            out.append(torch.einsum("hij,jhd->ihd", s.softmax(-1), v))
        behind = qkv.new_zeros(len(qkv) - end, *qkv.shape[2:])
        return torch.cat([*out, behind])

    assert verdict(attention, "lengths.gradients_with_lengths_are_within_their_bounds", 4) == ("held", "")
