"""Linear attention: weights that are products of features over their sum, as scores or as states, both passes."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import adds_to_row_sum
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound, differentiable
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.property import attention_property

KATHAROPOULOS = "Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236"


def linear(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems of linear attention."""
    return problems(subject, needs=("feature_map",), without=("empty",), **drawn)


def without_epsilon(subject: Subject) -> SearchStrategy[Problem]:
    """Draw linear problems with features that a factor comes out of, and nothing added to their sum."""
    maps = st.sampled_from(("relu", "exp"))
    without = ("empty", adds_to_row_sum)
    return problems(subject, needs=("feature_map",), without=without, feature_map=maps, regimes=("normal", "offset_q"))


def in_order(subject: Subject) -> SearchStrategy[Problem]:
    """Draw causal problems of lengths around the edges of tiles."""
    lengths = [length * subject.kernel.limits.step("K") for length in (1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 129)]
    drawn = {"key_length": st.sampled_from(lengths), "regimes": TAME}
    return problems(subject, needs=("feature_map", "causal"), without=("empty", "window", "mask"), **drawn)


@attention_property(
    source=f"{KATHAROPOULOS}, equations 4 to 7",
    hunts="another feature map, or one on one side only; no sum below, that of other keys, epsilon in the wrong place",
    needs=("feature_map",),
    problems=linear,
)
def test_weights_are_products_of_features(subject: Subject, problem: Problem) -> None:
    """The output is the mean of the values by weights phi(q).phi(k), in either order of the sums, within its bound."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="max(x, 0) of c x is c max(x, 0), and exp(x + c) is exp(c) exp(x): numerator and sum have the same factor",
    hunts="an epsilon or a least sum that nobody asked for; a factor of the numerator alone",
    needs=("feature_map",),
    problems=without_epsilon,
)
def test_a_factor_of_the_features_of_a_query_cancels(subject: Subject, problem: Problem) -> None:
    """Features of queries 2^-12 times as large leave the output within the bound of the problem that they make."""
    q = problem.q - 8.0 if problem.feature_map == "exp" else problem.q * 2.0**-12
    changed = problem.replace(q=bits.nearest(q, problem.dtype_of("q")))
    assert_within_bound(subject, changed, subject(changed))


@attention_property(
    source=f"{KATHAROPOULOS}, section 3.3: a causal state is that of the keys so far",
    hunts="a state with keys of its own tile, or without those of the last; a state that is not cleared between heads",
    needs=("feature_map", "causal"),
    problems=in_order,
)
def test_a_causal_state_holds_the_keys_so_far(subject: Subject, problem: Problem) -> None:
    """With any number of keys around the edges of tiles each query has the mean of those up to its own."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="the chain rule: dw = (dO.v - dO.o) / N, da = sum dw b, dq = phi'(q) da",
    hunts="a sum held constant, gradients not divided by it, the slope of the feature map left out, one state for both",
    needs=("feature_map", "backward"),
    problems=lambda subject: differentiable(subject, needs=("feature_map",), without=("empty",)),
)
def test_gradients_pass_features_and_their_sum(subject: Subject, problem: Problem) -> None:
    """Gradients of q, k and v lie within their bounds."""
    dO = cotangent(subject, problem)
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))
