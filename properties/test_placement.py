"""Placement: where a packed call puts queries and keys, and what it says beside their lengths, changes no answer."""

from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.presentations.packing.packed_descales import OF_KEYS
from attn_spec.kernels.presentations.placement import LONGEST, PAGE_SIZES, TAILS
from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_unchanged, assert_within_bound, compares_bits
from attn_spec.search.drawing.strategies import can_use, named, problems
from attn_spec.search.property import attention_property

PAGED = "Kwon et al. 2023, arXiv 2309.06180, 4.1: a table maps the pages of a sequence to pages of the cache"
SHARED = "Zheng et al. 2023, arXiv 2312.07104, 3: sequences share the cache of a common prefix"
LONGEST_SOURCE = (
    "Dao-AILab/flash-attention, flash_attn_varlen_func: max_seqlen_k is the maximum key length in the batch"
)

#: Numbers of sequences, mostly several.
BATCH = st.sampled_from((2, 3, 1, 4))
#: Lengths of keys, most of which leave some keys out.
KEYS = named(("ragged", "one_less", "last_shorter", "edges", "but_one", "full"), axes="B111")
#: Lengths with which two sequences or more have nearly all keys.
NEARLY_ALL = named(("one_less", "last_shorter", "full"), axes="B111")


def of_sequences(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems with lengths of keys."""
    drawn = {"needs": ("seqused_k",), "without": ("empty",), "batch": BATCH, "seqused_k": KEYS, **drawn}
    return problems(subject, **drawn)


def with_common_prefixes(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems in which sequences have the keys and values of the first one, the last key of the axis excepted.

    So it is with descales that have a number for each key. There are more keys than the smallest page has, so that a
    page is shared.
    """
    smallest = min(sizes_of_pages(subject))

    def drawn(**asked: Any) -> SearchStrategy[Problem]:
        few = {"batch": st.sampled_from((2, 3, 4)), "seqused_k": NEARLY_ALL}
        return of_sequences(subject, where=lambda recipe: recipe.key_length > smallest, **few, **asked)

    def prefixed(problem: Problem) -> Problem:
        common = {}
        for name in ("k", "v", *OF_KEYS):
            if (x := getattr(problem, name)) is not None:
                x = x.copy()
                x[1:, :, :-1] = x[:1, :, :-1]
                common[name] = x
        return problem.replace(**common)

    long: dict[str, Any] = {}
    if smallest > max(PAGE_SIZES):  # few problems are so long
        long["key_length"] = st.sampled_from((smallest + 1, 2 * smallest, 2 * smallest + 3))
    either = [drawn(**long)]
    if takes_chunks(subject):
        lengths = {"key_length": st.sampled_from((smallest + 6, 2 * smallest + 5, 5 * smallest + 7)), "query_length": 5}
        # A sink must be in one part alone, of common keys or of others.
        beside = ((), *((("sinks",),) if can_use(subject, "sinks") else ()))
        needs = ("seqused_k", "causal", "cross")
        either += [drawn(needs=(*needs, *also), without=("empty", "window"), **lengths) for also in beside]
    return st.one_of(either).map(prefixed)


def sizes_of_pages(subject: Subject) -> tuple[int, ...]:
    """Return the numbers of keys that pages of a kernel may have, of which problems are drawn."""
    return subject.kernel.limits.page_sizes or PAGE_SIZES


def takes_chunks(subject: Subject) -> bool:
    """Return whether the last few queries of a sequence may be those of a causal call, without a window."""
    limits = subject.kernel.limits
    able = all(can_use(subject, name) for name in ("causal", "cross")) and "window" not in limits.needed
    return able and limits.query_lengths is None and limits.step("QK") == 1 and not limits.equal_lengths


def without_pages(own: Subject) -> str:
    """Return why a property of tables of pages does not apply to a subject; empty if it does."""
    return "" if own.presentation.has_pages else "its keys lie in no pages"


def without_tails(own: Subject) -> str:
    """Return why a property of what follows the pages of a sequence does not apply to a subject; empty if it does."""
    return without_pages(own) or ("" if own.presentation.has_tails else "its lists of pages end with the last page")


def of_one_size(own: Subject) -> str:
    """Return why a property of the sizes of pages does not apply to a subject; empty if it does."""
    if not own.presentation.has_page_sizes:
        return "its keys lie in no pages of several sizes"
    return "it takes pages of one size" if len(sizes_of_pages(own)) == 1 else ""


def states_no_longest(own: Subject) -> str:
    """Return why a property of stated largest lengths does not apply to a subject; empty if it does."""
    stated = (name.startswith("max_seqlen") for name in own.presentation.says_where)
    return "" if any(stated) else "its calls state no largest length"


def placed(subject: Subject, problem: Problem, **choices: Any) -> Answer:
    """Return the answer to a problem with some choices of its call made, see ``kernels.presentations.placement``."""
    return replace(subject, choices=choices)(problem)


def assert_placed_alike(
    subject: Subject, problem: Problem, before: Answer, what: str, *, has_bits: bool = True, **choices: Any
) -> None:
    """Raise :class:`Refutation` unless a call with these choices has the answer ``before``.

    Its bits are compared if the kernel declares that equal inputs have equal bits, and such calls ``has_bits`` in
    common; else it must be within its bound.
    """
    after = placed(subject, problem, **choices)
    if has_bits and compares_bits(subject):
        assert_unchanged(before, after, what)
    else:
        assert_within_bound(subject, problem, after)


@attention_property(
    source=PAGED,
    hunts="pages that are taken for neighbours, or are read in the order of the cache",
    needs=("seqused_k",),
    problems=of_sequences,
    not_applicable=without_pages,
)
def test_pages_may_lie_in_any_order(subject: Subject, problem: Problem) -> None:
    """Other pages of the cache for the same keys change no bit of the answer."""
    before = subject(problem)
    assert_placed_alike(subject, problem, before, "after pages were moved", redrawn=frozenset({"pages"}))


@attention_property(
    source=PAGED,
    hunts="a tile that must lie inside one page, a size that is built in, a table that is read as one of keys",
    needs=("seqused_k",),
    problems=of_sequences,
    not_applicable=of_one_size,
)
def test_pages_may_have_any_size(subject: Subject, problem: Problem) -> None:
    """The answer is within its bound for every size of pages that the kernel takes."""
    for size in sizes_of_pages(subject):
        assert_within_bound(subject, problem, placed(subject, problem, page_sizes=(size,)))


@attention_property(
    source="problem.Conventions.table_tail; vllm-project/vllm#42494",
    hunts="a page behind the last one that is loaded, a table that is read past the end of a sequence",
    needs=("seqused_k",),
    problems=of_sequences,
    not_applicable=without_tails,
)
def test_what_a_table_has_behind_the_last_page_changes_nothing(subject: Subject, problem: Problem) -> None:
    """A page of no sequence, or of another one, behind the pages of a sequence changes no bit of the answer.

    Nor do -1 and the largest integer, if table_tail="any" is declared.
    """
    first, *others = TAILS[subject.conventions.table_tail]
    before = placed(subject, problem, tails=(first,))
    for tail in others:
        assert_placed_alike(subject, problem, before, f"after the tail of the table became {tail}", tails=(tail,))


@attention_property(
    source=SHARED,
    hunts="a page that is taken for that of one sequence alone, slots that are counted by sequence",
    needs=("seqused_k",),
    problems=with_common_prefixes,
    not_applicable=without_pages,
)
def test_sequences_may_share_pages(subject: Subject, problem: Problem) -> None:
    """Sequences with equal keys at their beginning may have common pages.

    A kernel may attend to these once for all sequences, in another order. So the answer has the same bits as with pages
    of their own if the kernel is batch invariant, and else it is within its bound.
    """
    where = {"page_sizes": tuple(size for size in sizes_of_pages(subject) if size < problem.key_length)}
    before = placed(subject, problem, **where)
    invariant, what = subject.conventions.batch_invariant, "after sequences shared pages"
    assert_placed_alike(subject, problem, before, what, has_bits=invariant, shares_pages=True, **where)


@attention_property(
    source=LONGEST_SOURCE,
    hunts="a stated largest length that decides the diagonal, or how many keys a sequence has",
    needs=("seqused_k",),
    problems=partial(of_sequences, batch=st.sampled_from((1, 2, 3))),
    not_applicable=states_no_longest,
)
def test_a_stated_largest_length_may_be_larger(subject: Subject, problem: Problem) -> None:
    """The answer is within its bound whether largest lengths are exact, those of the buffer, or multiples of 128."""
    for way in LONGEST:
        assert_within_bound(subject, problem, placed(subject, problem, longest=(way,)))
