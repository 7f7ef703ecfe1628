"""Dropout by chance: a kernel that is given p alone draws a keep mask, which its answers show."""

import numpy as np
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.strategies import SearchStrategy

from attn_spec.chance.mask_statistics import FALSE_ALARM, likenesses, shares, translations
from attn_spec.kernels.dropping import dropping
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import changes_weights, projects
from attn_spec.search.assertions import assert_within_bound, differentiable
from attn_spec.search.drawing.cotangents import cotangent, randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.drawn_masks import (
    assert_differentiated,
    assert_likely,
    assert_solved,
    assume_equal_scores,
    calls,
    chance,
    columns_of_keys,
    is_shown,
    long_rows,
    masks_of_calls,
    not_counted,
    not_shown,
    showing,
    shown_by,
    together,
    with_mask,
)
from attn_spec.search.property import Refutation, attention_property

SRIVASTAVA = "Srivastava et al., Dropout (2014), section 10: each is kept with probability 1 - p, by itself"
RNG = "Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011): a counter that no two weights share"
#: Calls whose masks are looked at together: of statistics, and of long rows.
CALLS, LONG_CALLS = 2, 4
#: Keys of gradients, most of them more than a tile holds.
PAST_TILES = (2, 17, 65, 80, 100, 129)


def any_scores(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose answers show which weights are kept."""
    return showing(subject, without=("empty", changes_weights, projects), regimes=TAME)


def differentiable_scores(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with gradients whose answers show which weights are kept; no weight underflows."""
    without = ("bias", "empty", changes_weights, projects)
    return showing(subject, PAST_TILES, draw=differentiable, without=without, regimes=["normal", "ties"])


def forgets_its_mask(subject: Subject) -> str:
    """Say why a backward pass cannot know which weights the forward pass dropped; empty when it can."""
    alone = subject.kernel.backward_function is not None and not subject.supports("dropout_seed")
    return "its backward function is given no seed by which to draw the mask again" if alone else ""


@attention_property(
    source=f"{SRIVASTAVA}; products with 0 do not round",
    hunts="1 / (1 - p) forgotten, or 1 / p; weights dropped before the softmax; hidden keys that come back",
    needs=("dropout_by_chance",),
    problems=any_scores,
)
def test_the_output_is_that_of_the_mask_it_shows(subject: Subject, problem: Problem) -> None:
    """The answer is that of attention with the keep mask that it shows where values are the identity, within bounds."""
    p, shown = chance(problem), columns_of_keys(problem)
    (asked,) = calls(subject, problem, p, 1)
    answer = asked(shown)
    assert_solved(subject, shown_by(shown, p, answer), answer)


@attention_property(
    source="Dao et al., FlashAttention (2022), appendix B.4: the backward pass drops what the forward pass dropped",
    hunts="a mask drawn again in the backward pass, a generator that has moved on, a factor missing in dP or dV",
    needs=("dropout_by_chance", "backward"),
    problems=differentiable_scores,
    not_applicable=forgets_its_mask,
)
def test_gradients_are_those_of_the_mask_that_the_output_shows(subject: Subject, problem: Problem) -> None:
    """Every element of every gradient is within its bound for the mask that the output of the same call shows."""
    p, shown, dO = chance(problem), columns_of_keys(problem), cotangent(subject, problem)
    if not is_shown(subject, problem, p):
        raise UnsatisfiedAssumption("a weight may underflow")
    (asked,) = calls(subject, problem, p, 1, seeded=True)
    answer, found = asked.both_passes(shown, dO)
    assert_differentiated(subject, shown_by(shown, p, answer), dO, found)


@attention_property(
    source="a weight is dropped with probability 0",
    hunts="a default in place of 0, a comparison that lets a random 0 through, a factor of another p",
    needs=("dropout_by_chance",),
    problems=lambda subject: problems(subject, without=(changes_weights,)),
)
def test_p_of_zero_drops_nothing(subject: Subject, problem: Problem) -> None:
    """Asked for dropout_p=0, the kernel returns attention without dropout, within the bound."""
    (asked,) = calls(subject, problem, 0.0, 1)
    assert_within_bound(subject, problem, asked(problem))


@attention_property(
    source=f"{SRIVASTAVA}; Hoeffding (1963), theorem 1",
    hunts="p taken for the share that is kept, p rounded to a few bits, a row or a key dropped as a whole, a lane",
    needs=("dropout_by_chance",),
    problems=together,
    not_applicable=not_shown,
    false_alarm=FALSE_ALARM,
)
def test_each_part_keeps_its_share(subject: Subject, problem: Problem) -> None:
    """A share of 1 - p is kept: of the whole, of every call, batch entry, head, query, key, and where they meet.

    Independent weights fail on one problem with probability at most 1e-12. Of two calls for 32 queries, 64 keys, four
    heads and two batch entries, p = 1/2 is distinguished from 0.525, and 0.1 from 0.115. A p of 8 bits is within
    that: bytes up to floor(255 (1 - p)) keep in FlashAttention-2, at rates at most 1/640 from 1 - p for these p.
    """
    kept, seen = masks_of_calls(problem, calls(subject, problem, p := chance(problem), CALLS))
    assert_likely(subject, shares(kept, seen, 1 - p), p)


@attention_property(
    source=f"{RNG}; Hoeffding (1963), theorem 1",
    hunts="one mask for all heads, entries, tiles or calls, a number for two neighbours, counters that overlap",
    needs=("dropout_by_chance",),
    problems=together,
    not_applicable=not_shown,
    false_alarm=FALSE_ALARM,
)
def test_weights_are_kept_independently(subject: Subject, problem: Problem) -> None:
    """No two calls, batch entries, heads, queries or keys keep alike, nor the first head and another that is moved.

    Weights agree as often as independent ones, in p^2 + (1 - p)^2 of all pairs. Independent weights fail on one problem
    with probability at most 1e-12. A mask that heads or batch entries share by design is refuted too: a known defect
    says so, with its reason (``kernels.defects``).
    """
    kept, seen = masks_of_calls(problem, calls(subject, problem, p := chance(problem), CALLS))
    assert_likely(subject, [*likenesses(kept, seen, 1 - p), *translations(kept, seen, 1 - p)], p)


@attention_property(
    source="kernels.ABILITIES: equal seeds drop equal weights",
    hunts="a seed that is ignored or read from elsewhere, a call that moves it on, bits of it that are cut off",
    needs=("dropout_by_chance", "dropout_seed"),
    problems=together,
    not_applicable=not_shown,
    false_alarm=FALSE_ALARM,
)
def test_seeds_choose_the_mask(subject: Subject, problem: Problem) -> None:
    """Two calls with one seed keep the same weights, and calls with seeds that differ in one bit independent ones.

    Masks of different seeds are taken for independent, as are the weights of one. A presentation that calls for each
    head and entry alone gives these seeds from one on; so the bit that differs lies above their number, and no two
    parts that are compared have a seed in common. Independent weights fail on one problem with probability at most
    1e-12.
    """
    p, rng = chance(problem), randomness(problem)
    lowest = 0 if subject.presentation.calls_once else (problem.batch * problem.query_heads).bit_length()
    seed = int(rng.integers(2**31 >> lowest)) << lowest  # what is added to it for a part changes lower bits alone
    low, high = (int(rng.integers(*bounds)) for bounds in ((lowest, 16), (16, 31)))
    seeds = (seed, seed, seed ^ 1 << low, seed ^ 1 << high)
    kept, seen = masks_of_calls(problem, [dropping(subject, p, number) for number in seeds])
    if (differs := (kept[0] != kept[1]) & seen[0]).any():
        count = f"{int(differs.sum())} of {int(seen[0].sum())} weights"
        raise Refutation(f"for dropout_p={p:g}, two calls with the seed {seed} drop different weights: {count}")
    assert_likely(subject, likenesses(kept[1:], seen[1:], 1 - p), p)


@attention_property(
    source=f"E c_ij = 1, so that E O = P V; {SRIVASTAVA}; Hoeffding (1963), theorem 1",
    hunts="a counter that wraps, a mask that ends before the keys do, a tail that is dropped and not multiplied",
    needs=("dropout_by_chance",),
    problems=long_rows,
    not_applicable=not_counted,
    false_alarm=FALSE_ALARM,
)
def test_outputs_of_long_rows_are_on_average_those_without_dropout(subject: Subject, problem: Problem) -> None:
    """Outputs of equal scores over many keys stand for whole numbers of kept keys, and average to the plain output.

    Keys share columns of values, so an output is N / (n (1 - p)) for N kept keys of a column, n in all. Its bound makes
    N certain. The mean of outputs is the plain output if that of N is what a binomial of 1 - p has, of all rows, and of
    each row, column, head and call. Independent weights fail on one problem with probability at most 1e-12.
    """
    assume_equal_scores(problem)
    p, columns = chance(problem), columns_of_keys(problem)
    outputs = np.stack([asked(columns)["output"] for asked in calls(subject, problem, p, LONG_CALLS)])
    every = columns.v[0, 0].sum(axis=0)
    numbers = np.nan_to_num(np.rint(outputs * problem.key_length * (1 - p))).clip(0, every)
    first = (np.cumsum(columns.v[0, 0], axis=0) * columns.v[0, 0]).sum(axis=1)  # which key of its column, from 1 on
    for output, kept in zip(outputs, numbers, strict=True):
        keep = first <= kept @ columns.v[0, 0].T
        judgement = assert_solved(subject, with_mask(columns, p, keep), {"output": output})
        if not (judgement.measurements[0].allowed * problem.key_length * (1 - p) < 1 / 2).all():
            raise UnsatisfiedAssumption("the bound leaves the number of keys open")
    assert_likely(subject, shares(numbers, np.broadcast_to(every, numbers.shape), 1 - p), p)
