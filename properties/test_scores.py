"""Score functions other than q.k: what bilinear, cosine and additive scores do not see, and what they become."""

from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers.bits import is_representable
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import ties_values
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.property import attention_property


def chosen(subject: Subject, option: str, **fixed: Any) -> SearchStrategy[Problem]:
    """Draw problems of the score that an option chooses, in which k may change alone."""
    return problems(subject, needs=(option,), without=("empty", ties_values), **fixed)


def permuting_weights(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose W permutes the axes of k, all heads alike, and may multiply them by powers of two."""
    drawn = chosen(subject, "score_weight", score_weight="permutation@11DD")
    return drawn.filter(lambda problem: is_representable(changed_keys(problem)[1], problem.dtype_of("k")))


def changed_keys(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the problem's W with rows times powers of two, and the keys W k."""
    sizes = 2.0 ** randomness(problem).integers(-1, 2, size=(problem.head_dim, 1))
    W = sizes * np.asarray(problem.score_weight)
    return W, problem.k @ W.swapaxes(-1, -2)


def cosines(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose q and k may be multiplied by powers of two."""
    drawn = chosen(subject, "score_gamma", regimes=TAME)
    return drawn.filter(
        lambda problem: all(is_representable(x, problem.dtype_of(name)) for name, x in lengthened(problem).items())
    )


def lengthened(problem: Problem) -> dict[str, np.ndarray]:
    """Return q and k, each vector multiplied by a power of two of its own."""
    rng = randomness(problem)
    return {
        name: tensor * 2.0 ** rng.integers(-4, 5, size=(*tensor.shape[:3], 1))
        for name, tensor in (("q", problem.q), ("k", problem.k))
    }


@attention_property(
    source="q.(W k) = q^T W k (Luong et al., arXiv 1508.04025, section 3.1)",
    hunts="W transposed, applied twice or on the wrong side, read at another head, or a scale of its own",
    needs=("score_weight",),
    problems=permuting_weights,
)
def test_a_bilinear_score_is_the_product_with_keys_that_the_weight_has_changed(
    subject: Subject, problem: Problem
) -> None:
    """Keys W k have the same answer: W permutes axes and multiplies by powers of two, so that they are exact.

    Both answers are held against that truth, each by the bound of what rounds on its way; a kernel that always has W
    gives one.
    """
    W, k = changed_keys(problem)
    changed, plain = problem.replace(score_weight=W), problem.replace(score_weight=None, k=k)
    for same in (changed,) if "score_weight" in subject.kernel.limits.always else (changed, plain):
        assert_within_bound(subject, same, subject(same))


@attention_property(
    source="cos(a q, b k) = cos(q, k) for a, b > 0",
    hunts="a norm forgotten, of the wrong axis or of all heads; an epsilon that is added to it; squares that overflow",
    needs=("score_gamma",),
    problems=cosines,
)
def test_a_cosine_does_not_see_the_lengths_of_q_and_k(subject: Subject, problem: Problem) -> None:
    """Each query and each key is multiplied by a power of two of its own, from 1/16 to 16; the answer stays.

    Both answers are held against that truth, each by its own bound: squares may overflow in one of them.
    """
    for same in (problem, problem.replace(**lengthened(problem))):
        assert_within_bound(subject, same, subject(same))


@attention_property(
    source="tanh(-x) = -tanh(x): without b the additive score of -q and -k is minus that of q and k",
    hunts="the sign lost in a tanh that is made of exp(-2|x|), an offset inside it, a bias that is never left out",
    needs=("score_vector", "score_key_weight", "score_query_weight"),
    problems=lambda subject: chosen(subject, "score_vector", score_bias=None),
)
def test_an_additive_score_without_a_bias_is_odd(subject: Subject, problem: Problem) -> None:
    """-q and -k give the answer of q and k with -w."""
    negated = problem.replace(q=-problem.q, k=-problem.k)
    assert_within_bound(subject, problem.replace(score_vector=-np.asarray(problem.score_vector)), subject(negated))
