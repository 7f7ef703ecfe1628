"""Permutation: attention does not know the order of keys, and carries the order of queries, heads and batch along."""

import numpy as np

from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import all_but, positional, projects
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import attention_property

#: Leaves only options that kernels combine with a path of its own for grouped heads.
PLAIN = all_but("causal", "causal_alignment", "scale")


def reordered(answer: Answer, order: np.ndarray, axis: int) -> Answer:
    """Put batch (0), heads (1) or queries (2) of an answer in another order."""
    return {name: np.take(values, order, axis) for name, values in answer.items()}


@attention_property(
    source="a sum does not depend on the order of its terms; the softmax weight of a key depends on its score only",
    hunts="a running maximum or rescale factor that is right for one order of scores only",
    problems=lambda subject: problems(subject, without=(positional, "empty")),
)
def test_keys_may_come_in_any_order(subject: Subject, problem: Problem) -> None:
    """Keys sorted by rising, then by falling scores give every query the answer it had.

    Keys, values and what lies along them move together, so the truth stays. The kernel's rounding may change with the
    order; each answer is held against the bound, which no order exceeds.
    """
    scores = (problem.q[0, 0, 0] @ problem.k[0, 0].T) if problem.query_length else np.zeros(problem.key_length)
    rising = np.argsort(scores, kind="stable")
    for order in (rising, rising[::-1]):
        assert_within_bound(subject, problem, subject(problem.take("K", order)))


@attention_property(
    source="each output row is a function of its own query only",
    hunts="a row index taken from the wrong tile, a mask or bias read at another row, the first or last tile of rows",
    problems=lambda subject: problems(subject, without=(positional, "empty")),
)
def test_queries_carry_their_answers_along(subject: Subject, problem: Problem) -> None:
    """Queries in reversed order get the same answers in reversed order."""
    order = np.arange(problem.query_length)[::-1]
    assert_within_bound(subject, problem, reordered(subject(problem.take("Q", order)), order, 2))


@attention_property(
    source="query head h reads kv head h // (Hq // Hkv) (Ainslie et al., GQA, arXiv 2305.13245)",
    hunts="division or remainder by the group size where the number of kv heads is meant, or the reverse",
    needs=("gqa",),
    problems=lambda subject: problems(subject, needs=("gqa",), without=("empty", projects)),
    each_call=True,
)
def test_kv_heads_carry_their_groups_along(subject: Subject, problem: Problem) -> None:
    """Moving kv heads together with their groups of query heads moves the answers, and nothing else."""
    heads = randomness(problem).permutation(problem.kv_heads)
    order = (heads[:, None] * problem.group + np.arange(problem.group)).ravel()
    assert_within_bound(subject, problem, reordered(subject(problem.take("H", heads)), np.argsort(order), 1))


@attention_property(
    source="the heads of multi-head attention are separate problems (Vaswani et al. (2017), section 3.2.2)",
    hunts="heads split or joined by a view without a transpose, summed, or normalized together",
    problems=lambda subject: problems(subject, without=("empty", "gqa"), query_heads=3, kv_heads=3),
    each_call=True,
)
def test_heads_carry_their_answers_along(subject: Subject, problem: Problem) -> None:
    """Three heads in another order get the same answers in that order; those of a layer, the same sum."""
    order = np.roll(np.arange(problem.query_heads if problem.projects else problem.kv_heads), 1)
    answer = subject(problem.take("H", order))
    together = {"output": answer.pop("output")} if problem.projects else {}
    assert_within_bound(subject, problem, reordered(answer, np.argsort(order), 1) | together)


@attention_property(
    source="batch entries are separate problems",
    hunts="the mask or bias of another batch entry read when the head axis is broadcast",
    problems=lambda subject: problems(subject, without=("empty",), batch=3),
    each_call=True,
)
def test_batch_entries_carry_their_answers_along(subject: Subject, problem: Problem) -> None:
    """Batch entries in another order get the same answers in that order."""
    order = np.roll(np.arange(problem.batch), 1)
    assert_within_bound(subject, problem, reordered(subject(problem.take("B", order)), np.argsort(order), 0))


@attention_property(
    source="grouped-query attention is attention with each kv head repeated (Ainslie et al., arXiv 2305.13245)",
    hunts="a grouped path that disagrees with the ungrouped one, a causal limit divided by the group size",
    needs=("gqa",),
    problems=lambda subject: problems(subject, needs=("gqa",), without=("empty", PLAIN)),
    each_call=True,
)
def test_grouped_heads_equal_repeated_heads(subject: Subject, problem: Problem) -> None:
    """Repeating every kv head for each query head of its group gives the answer of the grouped problem."""
    repeated = {name: np.repeat(getattr(problem, name), problem.group, axis=1) for name in ("k", "v")}
    ungrouped = problem.replace(**repeated)
    assert_within_bound(subject, ungrouped, subject(problem))
    assert_within_bound(subject, problem, subject(ungrouped))
