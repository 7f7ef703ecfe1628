"""Properties of gradients draw the problems that independent normal numbers never reach, and enough of them."""

import contextlib
from functools import cache

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given

from attn_spec.bounds.intermediates import intermediates
from attn_spec.emulation.sound import SOUND
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing import cotangents
from attn_spec.search.drawing.draws import of_the_seed_alone
from attn_spec.search.property import load_all
from attn_spec.search.search import DRAWS, OutOfBudget

PROPERTIES = load_all()
SUBJECT = Subject(SOUND["sequential"], "float32")
SHIFTED = "gradient_laws.a_constant_added_to_all_scores_changes_no_gradient"
STRUCTURED = "gradients.gradients_of_structured_activations_are_within_their_bounds"
EXAMPLES = 200


@cache
def drawn(property_id):
    """Return the different problems that a search of a property would check."""
    found = {}

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=DRAWS * EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(PROPERTIES[property_id].problems(SUBJECT))
    def collect(problem):
        found.setdefault(problem.digest(), problem)
        if len(found) == EXAMPLES:
            raise OutOfBudget

    with contextlib.suppress(OutOfBudget), of_the_seed_alone():  # as a search draws
        collect()
    return list(found.values())


def lowest_lse(problem):
    L = intermediates(problem).L
    return L[np.isfinite(L)].min(initial=np.inf)


def largest_score(problem):
    return np.abs(intermediates(problem).s).max(initial=0.0)


def is_low_rank(problem):
    """Return whether one direction holds most of the size of the queries."""
    q = problem.q.reshape(-1, problem.head_dim)
    singular = np.linalg.svd(q, compute_uv=False)
    return problem.head_dim > 1 and len(q) > 1 and singular[0] ** 2 > 0.8 * (singular**2).sum()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("property_id", "reached", "at_least"),
    [
        (SHIFTED, lambda p: lowest_lse(p) < -88.7 and p.key_length % 64 != 0, 40),
        (SHIFTED, lambda p: lowest_lse(p) < -88.7 and p.key_length % 16 != 0 and p.key_length > 16, 8),
        (STRUCTURED, lambda p: is_low_rank(p) and largest_score(p) > 88.7, 10),
        (STRUCTURED, lambda p: p.batch > 1 and p.group > 1, 10),
        ("gradients.hidden_keys_have_gradient_zero", lambda p: p.empty_rows.any(), 10),
        ("gradients.keys_that_no_query_sees_change_no_gradient", lambda p: (~p.visible.any(axis=(1, 2))).any(), 60),
    ],
)
def test_a_search_draws_enough_of_the_problems_that_matter(property_id, reached, at_least):
    assert sum(map(reached, drawn(property_id))) >= at_least


def test_a_search_draws_every_broadcast_of_a_bias():
    problems = drawn("gradients.bias_gradients_are_within_their_bounds")
    kept = {tuple(length > 1 for length in p.bias.shape) for p in problems}
    assert len(kept) >= 7


@pytest.mark.parametrize("size", [2.0**n for n in range(-3, 4)])
def test_cotangents_of_every_size_are_drawn(size):
    problems = drawn("gradients.query_and_key_gradients_are_within_their_bounds")
    assert any(size / 2 < np.abs(cotangents.cotangent(SUBJECT, p)).max(initial=0.0) <= 2 * size for p in problems)
