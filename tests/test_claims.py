"""Claims compare what they say they compare, and refute with the element and both numbers."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import claims
from attn_spec.property import Refutation, listening
from attn_spec.regimes import Recipe
from attn_spec.resolve import resolve
from attn_spec.subject import Answer, Subject

SUBJECT = Subject(resolve("numpy_naive"), "float32")
PROBLEM = Recipe(query_length=4, key_length=6, head_dim=8, value_dim=2, mask="random").problem()


def answer(*values):
    return Answer(np.array(values, dtype=float).reshape(1, 1, 1, -1), np.zeros((1, 1, 1)))


def with_function(function, **conventions):
    """The subject with another function behind the same declarations."""
    agreed = replace(SUBJECT.conventions, **conventions)
    return replace(SUBJECT, kernel=replace(SUBJECT.kernel, function=function, conventions=agreed))


def test_a_right_answer_is_within_its_bound_and_its_ratio_is_heard():
    with listening() as heard:
        assert claims.within_bound(SUBJECT, PROBLEM, SUBJECT(PROBLEM)).exercised
    assert 0 < heard["error / bound"] < 1


def test_a_wrong_answer_is_refuted_with_its_worst_element():
    right = SUBJECT(PROBLEM)
    wrong = replace(right, output=right.output + np.eye(4, 2))
    with pytest.raises(
        Refutation, match=r"output\[0, 0, [01], [01]\] is .* the truth is .* 2 of 8 are outside"
    ) as error:
        claims.within_bound(SUBJECT, PROBLEM, wrong)
    assert error.value.measurement.outside.sum() == 2
    claims.within_bound(SUBJECT, PROBLEM, wrong, "lse")


def test_zeros_of_either_sign_and_nan_are_the_same_numbers():
    claims.unchanged(answer(0.0, np.nan, np.inf), answer(-0.0, -np.nan, np.inf), "afterwards")


@pytest.mark.parametrize("after", [np.nextafter(1.0, 2.0), np.nan])
def test_one_bit_is_a_change(after):
    with pytest.raises(
        Refutation, match=r"after a change, output\[0, 0, 0, 1\] 1 \(0x1.0+p\+0\) became .*; 1 of 2 changed"
    ):
        claims.unchanged(answer(2.0, 1.0), answer(2.0, after), "after a change")


def test_rows_that_are_not_compared_may_change():
    claims.unchanged(answer(1.0), answer(2.0), "afterwards", np.zeros((1, 1, 1), dtype=bool))


def test_bits_are_claimed_for_deterministic_kernels_that_rescale_at_once():
    assert claims.compares_bits(SUBJECT)
    assert not claims.compares_bits(with_function(SUBJECT.kernel.function, deterministic=False))
    lazy = replace(SUBJECT.contract, reference_slack=8.0)
    assert not claims.compares_bits(replace(SUBJECT, kernel=replace(SUBJECT.kernel, contract=lazy)))


def test_randomness_depends_on_the_values_alone():
    again = Recipe(query_length=4, key_length=6, head_dim=8, value_dim=2).problem()
    other = Recipe(query_length=4, key_length=6, head_dim=8, value_dim=2, seed=1).problem()
    first, second, third = (claims.randomness(problem).random() for problem in (PROBLEM, again, other))
    assert first == second != third


@pytest.mark.parametrize("matters", [np.isfinite, lambda x: np.abs(x) > 5e3, lambda x: ~np.isfinite(x)])
def test_a_leak_of_hidden_values_is_refuted_whatever_it_takes_to_see_it(matters):
    """A leak of 2^-20 of a hidden value: of any, of those above a threshold, of Inf and NaN only."""

    def leaky(q, k, v, **options):
        out, lse = SUBJECT.kernel(q, k, v, **options)
        hidden = v[:, :, 0].mean(dtype=np.float32)
        return out + (2.0**-20 * hidden if matters(hidden) else 0), lse

    problem = Recipe(query_length=1, key_length=6, head_dim=8, value_dim=2, mask="leading_hidden").problem()
    claims.hidden_keys_have_no_influence(SUBJECT, problem)
    with pytest.raises(Refutation, match="after hidden keys and values were replaced by"):
        claims.hidden_keys_have_no_influence(with_function(leaky), problem)


def test_an_influence_of_visible_keys_is_no_leak():
    problem = Recipe(query_length=5, key_length=5, head_dim=8, value_dim=2, causal=True).problem()
    claims.hidden_keys_have_no_influence(SUBJECT, problem)


def test_a_kernel_that_is_not_deterministic_is_held_to_its_bound():
    def noisy(q, k, v, **options):
        out, lse = SUBJECT.kernel(q, k, v, **options)
        return np.nextafter(out, np.float32(np.random.default_rng().choice([-9.0, 9.0]))), lse

    claims.hidden_keys_have_no_influence(with_function(noisy, deterministic=False), PROBLEM)
