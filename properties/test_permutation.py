"""Permutation: attention does not know the order of keys, and carries the order of queries, heads and batch along."""

import numpy as np

from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import randomness, within_bound
from attn_spec.search.property import attention_property
from attn_spec.search.strategies import SCORE_OPTIONS, problems


def taken(array: np.ndarray | None, order: np.ndarray, axis: int) -> np.ndarray | None:
    """Put an axis in another order; an axis of length 1 broadcasts and has none."""
    return array if array is None or array.shape[axis] == 1 else np.take(array, order, axis=axis)


def reordered(answer: Answer, order: np.ndarray, axis: int) -> Answer:
    """Put batch (0), heads (1) or queries (2) of an answer in another order."""
    return Answer(np.take(answer.output, order, axis), None if answer.lse is None else np.take(answer.lse, order, axis))


@attention_property(
    source="a sum does not depend on the order of its terms; the softmax weight of a key depends on its score only",
    hunts="a running maximum or rescale factor that is right for one order of scores only",
    problems=lambda subject: problems(subject, without=("causal", "window", "empty")),
)
def test_keys_may_come_in_any_order(subject: Subject, problem: Problem) -> None:
    """Keys sorted by rising, then by falling scores give every query the answer it had.

    Keys, values, mask and bias move together, so the truth stays. The kernel's rounding may change with the order;
    each answer is held against the bound, which no order exceeds.
    """
    scores = (problem.q[0, 0, 0] @ problem.k[0, 0].T) if problem.query_length else np.zeros(problem.key_length)
    rising = np.argsort(scores, kind="stable")
    for order in (rising, rising[::-1]):
        moved = problem.replace(
            k=problem.k[:, :, order],
            v=problem.v[:, :, order],
            mask=taken(problem.mask, order, 3),
            bias=taken(problem.bias, order, 3),
        )
        within_bound(subject, problem, subject(moved))


@attention_property(
    source="each output row is a function of its own query only",
    hunts="a row index taken from the wrong tile, a mask or bias read at another row, the first or last tile of rows",
    problems=lambda subject: problems(subject, without=("causal", "window", "empty")),
)
def test_queries_carry_their_answers_along(subject: Subject, problem: Problem) -> None:
    """Queries in reversed order get the same answers in reversed order."""
    order = np.arange(problem.query_length)[::-1]
    moved = problem.replace(
        q=problem.q[:, :, order], mask=taken(problem.mask, order, 2), bias=taken(problem.bias, order, 2)
    )
    within_bound(subject, problem, reordered(subject(moved), order, 2))


@attention_property(
    source="query head h reads kv head h // (Hq // Hkv) (Ainslie et al., GQA, arXiv 2305.13245)",
    hunts="division or remainder by the group size where the number of kv heads is meant, or the reverse",
    needs=("gqa",),
    problems=lambda subject: problems(subject, needs=("gqa",), without=("empty",)),
)
def test_kv_heads_carry_their_groups_along(subject: Subject, problem: Problem) -> None:
    """Moving kv heads together with their groups of query heads moves the answers, and nothing else."""
    heads = randomness(problem).permutation(problem.kv_heads)
    order = (heads[:, None] * problem.group + np.arange(problem.group)).ravel()
    moved = problem.replace(
        q=problem.q[:, order],
        k=problem.k[:, heads],
        v=problem.v[:, heads],
        mask=taken(problem.mask, order, 1),
        bias=taken(problem.bias, order, 1),
    )
    within_bound(subject, problem, reordered(subject(moved), np.argsort(order), 1))


@attention_property(
    source="batch entries are separate problems",
    hunts="the mask or bias of another batch entry read when the head axis is broadcast",
    problems=lambda subject: problems(subject, without=("empty",), batch=3),
)
def test_batch_entries_carry_their_answers_along(subject: Subject, problem: Problem) -> None:
    """Batch entries in another order get the same answers in that order."""
    order = np.roll(np.arange(problem.batch), 1)
    moved = problem.replace(
        q=problem.q[order],
        k=problem.k[order],
        v=problem.v[order],
        mask=taken(problem.mask, order, 0),
        bias=taken(problem.bias, order, 0),
    )
    within_bound(subject, problem, reordered(subject(moved), np.argsort(order), 0))


@attention_property(
    source="grouped-query attention is attention with each kv head repeated (Ainslie et al., arXiv 2305.13245)",
    hunts="a grouped path that disagrees with the ungrouped one, a causal limit divided by the group size",
    needs=("gqa",),
    problems=lambda subject: problems(subject, needs=("gqa",), without=("empty", *SCORE_OPTIONS[1:])),
)
def test_grouped_heads_equal_repeated_heads(subject: Subject, problem: Problem) -> None:
    """Repeating every kv head for each query head of its group gives the answer of the grouped problem."""
    repeated = {name: np.repeat(getattr(problem, name), problem.group, axis=1) for name in ("k", "v")}
    ungrouped = problem.replace(**repeated)
    within_bound(subject, ungrouped, subject(problem))
    within_bound(subject, problem, subject(ungrouped))
