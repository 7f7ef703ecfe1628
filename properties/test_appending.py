"""Appending: a call writes new keys and values to the caches that it is given, and attends to all keys in them."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.presentations.appending import quantised_writes, rounded_writes
from attn_spec.kernels.presentations.packing.packed_descales import OF_KEYS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.options import FACTORS, OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import TAME, named, problems
from attn_spec.search.property import attention_property, quantises

FRAME = "frame condition of an update in place; tenstorrent/tt-metal#54742, ollama/ollama#6831"
#: Numbers of sequences, mostly several.
BATCH = st.sampled_from((2, 3, 1))
#: Lengths of keys, most of which differ among sequences.
KEYS = named(("ragged", "one_less", "last_shorter", "edges", "but_one", "full"), axes="B111")
#: Numbers of keys, and of those that are appended, up to a size and past tiles and pages.
MOST_KEYS, MOST_NEW = (5, 9, 3, 17, 65), (2, 3, 1, 4, 18)
#: Patterns of the descales of keys and values that a call rounds.
SPREAD = ("near_one", "power_of_two", "ordinary", "spread", "one_huge")
#: Calls that append to one cache; of a kernel that is compiled for each length, fewer.
CALLS, CALLS_COMPILED = 4, 2


def without_appending(own: Subject) -> str:
    """Return why a property of calls that append does not apply to a subject; empty if it does."""
    return "" if own.presentation.appends else "its calls append nothing"


def without_growth(own: Subject) -> str:
    """Return why a property of a growing cache does not apply to a subject; empty if it does."""
    aligned = own.conventions.causal_alignment == "bottom_right" or own.supports("causal_alignment")
    return without_appending(own) or ("" if aligned else "its diagonal starts at the first key")


def without_rounding(own: Subject) -> str:
    """Return why a property of new numbers that are rounded does not apply to a subject; empty if it does."""
    if quantises(own):
        return "its calls make the descales of what they append"
    rounds = any(rounded_writes.rounds(own.dtypes, name) for name in "kv")
    return without_appending(own) or ("" if rounds else "its caches have the dtype of the new keys and values")


def without_scales(own: Subject) -> str:
    """Return why a property of appended scales does not apply to a subject; empty if it does."""
    makes = quantised_writes.of_contract(own.contract)
    return "" if makes else "its contract has no quantiser of what a call appends"


def appended(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems of several sequences, in half of which all begin alike, so that they may share pages."""
    cheap = subject.dtype == "float64" or subject.kernel.slowness > 1
    drawn = {
        "needs": ("seqused_k", "cross"),
        "without": ("empty",),
        "batch": BATCH,
        "seqused_k": KEYS,
        "regimes": TAME,
        "key_length": st.sampled_from(MOST_KEYS[: 4 if cheap else None]),
        "query_length": st.sampled_from(MOST_NEW[: 4 if cheap else None]),
        **drawn,
    }
    found = problems(subject, **drawn)
    return st.one_of(found, found.map(alike)) if subject.presentation.has_pages else found


def alike(problem: Problem) -> Problem:
    """Return a problem in which sequences have the keys and values of the first one but those that are appended."""
    old = np.arange(problem.key_length) < problem.end_keys[:, None] - problem.query_length
    old = old[:, None, :, None]
    by_key = [name for name in OF_KEYS if (x := getattr(problem, name)) is not None and x.shape[2] == old.shape[2]]
    return problem.replace(
        **{name: np.where(old, (x := getattr(problem, name))[:1], x) for name in ("k", "v", *by_key)}
    )


def rounded(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose new keys and values are rounded over descales, or as they are if the kernel takes none.

    In half of them new values, and new keys in half of these, are any numbers of the cache.
    """
    of_keys = [name for name in FACTORS if "K" in OPTIONS[name].axes and subject.supports(name)]
    descales = {name: named(SPREAD, OPTIONS[name].axes) for name in of_keys}
    ways = [appended(subject, needs=("seqused_k", "cross", *of_keys), **descales)] if of_keys else []
    if set(FACTORS).isdisjoint(subject.kernel.limits.needed):
        ways.append(appended(subject, without=("empty", *FACTORS)))
    found = st.one_of(ways)
    return st.one_of(found, found.map(partial(of_any_size, names="v")), found.map(partial(of_any_size, names="kv")))


def of_any_size(problem: Problem, names: str) -> Problem:
    """Return a problem whose new keys or values are any numbers of their caches, the largest and 0 more often."""
    at, rng = np.arange(problem.key_length), randomness(problem)
    is_new = (at >= problem.end_keys[:, None] - problem.query_length) & (at < problem.end_keys[:, None])
    found = {}
    for name in names:
        x, known = getattr(problem, name), bits.finite(problem.dtype_of(name))
        often = np.concatenate([known, np.repeat(known[[0, -1]], len(known) // 4)])
        signs = np.where(rng.random(x.shape) < 0.5, -1.0, 1.0)
        drawn = bits.as_stored(signs * rng.choice(often, x.shape), problem.dtype_of(name))
        found[name] = np.where(is_new[:, None, :, None], drawn, x)
    return problem.replace(**found)


def quantised(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose calls make the scales of what they append.

    In some of them new tokens have any numbers of the cache times scales, or some are all zeros.
    """
    of_keys = [f"{name}_descale" for name in quantised_writes.of_contract(subject.contract)]
    scales = {name: st.sampled_from([f"{one}@BGK1" for one in SPREAD]) for name in of_keys}
    found = appended(subject, needs=("seqused_k", "cross", *of_keys), **scales)
    return st.one_of(found, found.map(partial(of_any_size, names="kv")), found.map(with_zeros))


def with_zeros(problem: Problem) -> Problem:
    """Return a problem in which some tokens are all zeros in some heads: half of the keys, and other values."""
    rng = randomness(problem)
    drawn = {name: getattr(problem, name) for name in "kv"}
    return problem.replace(**{name: np.where(rng.random((*x.shape[:3], 1)) < 0.5, 0.0, x) for name, x in drawn.items()})


def growing(subject: Subject) -> SearchStrategy[Problem]:
    """Draw causal problems of which each query is aligned with the key that is appended with it."""
    needs = ("seqused_k", "cross", "causal")
    return appended(subject, needs=needs, causal=True, causal_alignment="bottom_right")


def grown(problem: Problem, edges: Iterable[int]) -> list[Problem]:
    """Return the problems of chunks of queries between these edges, each with the keys up to its last query."""
    first = problem.end_keys - problem.query_length
    return [
        problem.take("Q", range(start, stop)).replace(seqused_k=(first + stop).reshape(-1, 1, 1, 1))
        for start, stop in itertools.pairwise(edges)
    ]


def decoded(problem: Problem, steps: int) -> list[Problem]:
    """Return problems of one query whose sequences grow by one key at each of so many steps, up to all keys."""
    ends = problem.end_keys.reshape(-1, 1, 1, 1)
    return [problem.replace(seqused_k=ends - steps + step) for step in range(1, steps + 1)]


def assert_grown(subject: Subject, problem: Problem, calls: list[Problem]) -> None:
    """Raise :class:`Refutation` unless calls that append to one cache, one after the other, have right answers.

    The contents of the caches are compared after each call, bit for bit, with those that one call must leave.
    """
    if any(subject.kernel.limits.refusal(call) for call in calls):
        return
    shapes = (*problem.k.shape, *problem.v.shape)
    one_cache = replace(subject, choices={"shapes": shapes})
    for solved, answer in one_cache.in_turn(calls):
        assert_within_bound(subject.of_caches, solved, answer)


@attention_property(
    source=FRAME,
    hunts="a neighbour's slot overwritten, a wrong position, a key that is added and not written, a shared page",
    needs=("seqused_k", "cross"),
    problems=appended,
    not_applicable=without_appending,
    each_call=True,
)
def test_new_keys_are_in_the_cache_and_nothing_else_changes(subject: Subject, problem: Problem) -> None:
    """After a call the new slots hold the new keys and values, and every other slot holds the bits that it held.

    Sequences that begin alike have pages of their own in one call, and share their first pages in another.
    """
    ways = (False, True) if subject.presentation.has_pages else (False,)
    for shares_pages in ways:
        placed = replace(subject, choices={"shares_pages": shares_pages})
        assert_within_bound(subject, problem, placed(problem))


@attention_property(
    source="Su et al., arXiv 2104.09864, equation 16; flash-attention's with_kvcache, which rotates q and new keys",
    hunts="positions of a chunk that count from 0, columns paired as in another layout, cached keys rotated again",
    needs=("seqused_k", "cross", "rotary"),
    problems=partial(appended, needs=("seqused_k", "cross", "rotary")),
    not_applicable=without_appending,
)
def test_new_keys_are_rotated_once_on_their_way_to_the_cache(subject: Subject, problem: Problem) -> None:
    """A call rotates its queries and new keys by their positions, and no key that is rotated in the cache already."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="OCP OFP8 1.0, section 5; vllm-project/vllm, reshape_and_cache_flash: a cache of 8 bits holds k / k_scale",
    hunts="a descale that is left out, multiplied by, of another head or tensor; numbers cut, or NaN for large ones",
    needs=("seqused_k", "cross"),
    problems=rounded,
    not_applicable=without_rounding,
)
def test_new_numbers_are_rounded_once_over_their_descales(subject: Subject, problem: Problem) -> None:
    """A cache of 8 bits gets the nearest numbers to new ones over their descales, and queries attend to these."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="vllm-project/vllm, triton_reshape_and_cache_flash_per_token_head_quant: max |k| / 127 is the scale of k",
    hunts="one scale for all heads, that of another token or of keys for values, one that is not written, 0 / 0",
    needs=("seqused_k", "cross"),
    problems=quantised,
    not_applicable=without_scales,
    each_call=True,
)
def test_new_tokens_are_quantised_as_declared(subject: Subject, problem: Problem) -> None:
    """Caches get the codes and the scale of each new token and head, as the contract says, and queries attend to these.

    A token of zeros has codes of 0 and any scale. The truth is attention of what the caches hold after the call, so
    that nothing of it is open where several codes are right.
    """
    ((solved, answer),) = subject.in_turn([problem])
    assert_within_bound(subject.of_caches, solved, answer)


@attention_property(
    source="Pope et al. 2022, arXiv 2211.05102: keys that a step has appended are those of all later steps",
    hunts="new tokens that are read before they are quantised, a scale that the next call finds elsewhere",
    needs=("seqused_k", "cross", "causal"),
    problems=growing,
    not_applicable=lambda own: without_scales(own) or without_growth(own),
    each_call=True,
)
def test_later_calls_attend_to_what_earlier_ones_have_quantised(subject: Subject, problem: Problem) -> None:
    """Calls that append to one cache attend to its codes and scales, as the calls before have left them."""
    most, count = CALLS if subject.kernel.signatures is None else CALLS_COMPILED, problem.query_length
    cuts = randomness(problem).integers(1, count, size=most - 1) if count > 1 else []
    assert_grown(subject, problem, grown(problem, sorted({0, *map(int, cuts), count})))


@attention_property(
    source="Pope et al. 2022, arXiv 2211.05102: decoding with a cache computes what one pass over all tokens does",
    hunts="an off-by-one between the lengths before and after, a position that stays that of the first step",
    needs=("seqused_k", "cross", "causal"),
    problems=growing,
    not_applicable=without_growth,
)
def test_steps_of_one_token_give_what_one_call_does(subject: Subject, problem: Problem) -> None:
    """Steps that append one token each to one cache, and one call with all tokens, give the same answers and cache."""
    most, count = CALLS if subject.kernel.signatures is None else CALLS_COMPILED, problem.query_length
    if count == 1:
        least = int((problem.end_keys - problem.first_keys).min(initial=most))
        assert_grown(subject, problem, decoded(problem, min(most, least)))
        return
    assert_within_bound(subject, problem, subject(problem))
    assert_grown(subject, problem, grown(problem, [0, *range(max(count - most, 0) + 1, count + 1)]))


@attention_property(
    source="Agrawal et al. 2023, arXiv 2308.16369, 4.1: chunks of a prompt compute what the whole prompt does",
    hunts="the length of the cache before a chunk, a plan that is kept from the first chunk, a chunk for itself alone",
    needs=("seqused_k", "cross", "causal"),
    problems=growing,
    not_applicable=without_growth,
)
def test_chunks_of_any_sizes_give_what_one_chunk_does(subject: Subject, problem: Problem) -> None:
    """A cache that grows by chunks of any sizes, and one that grows by one chunk, give the same answers and cache."""
    most, count = CALLS if subject.kernel.signatures is None else CALLS_COMPILED, problem.query_length
    cuts = randomness(problem).integers(1, count, size=most - 1) if count > 1 else []
    assert_within_bound(subject, problem, subject(problem))
    assert_grown(subject, problem, grown(problem, sorted({0, *map(int, cuts), count})))
