"""Causality: a query attends to the keys up to its own position and to none after it."""

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import hides_keys, moves_diagonal, positional, positional_absolutely
from attn_spec.search.assertions import assert_rows_within_bound, assert_within_bound, selected
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.hidden_keys import assert_hidden_keys_have_no_influence
from attn_spec.search.property import attention_property

VASWANI = "Vaswani et al., Attention Is All You Need (arXiv 1706.03762), section 3.2.3"


def causal_problems(subject: Subject) -> SearchStrategy[Problem]:
    """Draw causal problems of at least one query, without a window."""
    return problems(subject, needs=("causal",), without=("window", "empty"))


def of_whole_sequences(subject: Subject) -> SearchStrategy[Problem]:
    """Draw causal problems whose sequences have all queries and keys, so that they share one diagonal."""
    return problems(subject, needs=("causal",), without=("window", "empty", moves_diagonal))


def prefilled(subject: Subject) -> SearchStrategy[Problem]:
    """Draw causal problems of which a decoding step can be taken out.

    Its one query is aligned with the last key from the bottom-right corner, and with the first from the other.
    """
    last = subject.conventions.causal_alignment == "bottom_right"
    moved = positional_absolutely if last else positional
    return problems(subject, needs=("causal", "cross"), without=("empty", hides_keys, moved), regimes=TAME)


@attention_property(
    source=VASWANI,
    hunts="a key after the query read at all: masking after the softmax, a finite fill, a hidden tile of V loaded",
    needs=("causal",),
    problems=causal_problems,
)
def test_future_keys_change_nothing(subject: Subject, problem: Problem) -> None:
    """Rewriting the keys and values after a query does not change one bit of what it or any query before it gets.

    Hidden keys have weight 0, and 0 times a finite value adds nothing. The future is rewritten with other values,
    with values of size 1e4, and, for kernels that keep non-finite values out, with Inf and NaN.
    """
    assert_hidden_keys_have_no_influence(subject, problem)


@attention_property(
    source=VASWANI,
    hunts="a diagonal that starts in the wrong corner, or is off by one",
    needs=("causal",),
    problems=of_whole_sequences,
    each_call=True,
)
def test_the_diagonal_is_where_the_convention_says(subject: Subject, problem: Problem) -> None:
    """Causal attention is attention under the mask j <= i, or j <= i + Sk - Sq for bottom-right alignment.

    The mask is written out here key by key, on purpose not by attn_spec.problem.masks: a verifier that shares its idea
    of the diagonal with the kernel agrees with any mistake in it.
    """
    Sq, Sk = problem.query_length, problem.key_length
    first = Sk - Sq if problem.causal_alignment == "bottom_right" else 0
    triangle = np.array([[j <= i + first for j in range(Sk)] for i in range(Sq)]).reshape(1, 1, Sq, Sk)
    mask = triangle if problem.mask is None else triangle & problem.mask
    assert_within_bound(subject, problem.replace(causal=False, mask=mask), subject(problem))


@attention_property(
    source="Pope et al., Efficiently Scaling Transformer Inference (arXiv 2211.05102): prefill and decode agree",
    hunts="a decoding path (one query, grouped heads, split keys) that disagrees with the whole sequence",
    needs=("causal", "cross"),
    problems=prefilled,
)
def test_decoding_one_query_gives_its_row_of_the_whole(subject: Subject, problem: Problem) -> None:
    """A query alone with the keys up to it gets what it gets inside the whole causal sequence.

    Both answers are held against the same truth, that of the query alone, which no mask enters.
    """
    first = problem.key_length - problem.query_length if problem.causal_alignment == "bottom_right" else 0
    rows = [i for i in range(problem.query_length) if i + first >= 0]
    if not rows or subject.kernel.limits.step("QK") > 1:
        return
    i = int(randomness(problem).choice(rows))
    keys = min(i + first + 1, problem.key_length)
    alone = problem.take("Q", [i]).take("K", range(keys)).replace(causal=False)
    assert_within_bound(subject, alone, subject(alone))
    assert_rows_within_bound(subject, alone, selected(subject(problem), np.s_[:, :, i : i + 1]))
