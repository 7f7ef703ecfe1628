"""Properties compare what they say they compare, and refute with the element and both numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES
from attn_spec.search import assertions, hidden_keys
from attn_spec.search.drawing import cotangents
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.strategies import named
from attn_spec.search.property import Refutation, recording

SUBJECT = Subject(resolve("numpy_naive"), "float32")
PROBLEM = Recipe(query_length=4, key_length=6, head_dim=8, value_dim=2, mask="random").problem()


def answer(*values):
    return {"output": np.array(values, dtype=float).reshape(1, 1, 1, -1), "lse": np.zeros((1, 1, 1))}


def with_function(function, **conventions):
    """Return the subject with another function behind the same declarations."""
    agreed = replace(SUBJECT.conventions, **conventions)
    return replace(SUBJECT, kernel=replace(SUBJECT.kernel, function=function, conventions=agreed))


def test_a_right_answer_is_within_its_bound_and_its_ratio_is_observed():
    with recording() as observations:
        assert assertions.measured_within_bound(SUBJECT, PROBLEM, SUBJECT(PROBLEM)).exercised
    assert 0 < observations.ratios["error / bound"] < 1


def test_a_wrong_answer_is_refuted_with_its_worst_element():
    right = SUBJECT(PROBLEM)
    wrong = right | {"output": right["output"] + np.eye(4, 2)}
    with pytest.raises(
        Refutation, match=r"output\[0, 0, [01], [01]\] is .* the truth is .* 2 of 8 are outside"
    ) as error:
        assertions.assert_within_bound(SUBJECT, PROBLEM, wrong)
    assert error.value.measurement.outside.sum() == 2
    assertions.assert_within_bound(SUBJECT, PROBLEM, wrong, "lse")


def test_a_mean_of_v_is_that_of_all_keys_of_the_call():
    """A row without a key among six, held against the problem of the first three of them."""
    fewer = PROBLEM.take("K", range(3)).replace(mask=np.zeros((1, 1, 4, 3), dtype=bool))
    means = replace(
        SUBJECT, kernel=replace(SUBJECT.kernel, conventions=replace(SUBJECT.conventions, empty_row="mean_of_v"))
    )
    given = {"output": np.broadcast_to(PROBLEM.v.mean(axis=2, keepdims=True), (1, 1, 4, 2))}

    assertions.assert_rows_within_bound(means, fewer, given)
    with pytest.raises(Refutation):
        assertions.assert_rows_within_bound(SUBJECT, fewer, given)
    with pytest.raises(Refutation):
        assertions.assert_rows_within_bound(means, PROBLEM, {"output": given["output"] + 1})


def test_zeros_of_either_sign_and_nan_are_the_same_numbers():
    assertions.assert_unchanged(answer(0.0, np.nan, np.inf), answer(-0.0, -np.nan, np.inf), "afterwards")


@pytest.mark.parametrize("after", [np.nextafter(1.0, 2.0), np.nan])
def test_one_bit_is_a_change(after):
    with pytest.raises(
        Refutation, match=r"after a change, output\[0, 0, 0, 1\] 1 \(0x1.0+p\+0\) became .*; 1 of 2 changed"
    ):
        assertions.assert_unchanged(answer(2.0, 1.0), answer(2.0, after), "after a change")


def test_rows_that_are_not_compared_may_change():
    assertions.assert_unchanged(answer(1.0), answer(2.0), "afterwards", np.zeros((1, 1, 1), dtype=bool))


def test_bits_are_compared_for_deterministic_kernels_that_rescale_at_once():
    assert assertions.compares_bits(SUBJECT)
    assert not assertions.compares_bits(with_function(SUBJECT.kernel.function, deterministic=False))
    lazy = replace(SUBJECT.contract, reference_slack=8.0)
    assert not assertions.compares_bits(replace(SUBJECT, kernel=replace(SUBJECT.kernel, contract=lazy)))


def test_randomness_depends_on_the_values_alone():
    again = Recipe(query_length=4, key_length=6, head_dim=8, value_dim=2).problem()
    other = Recipe(query_length=4, key_length=6, head_dim=8, value_dim=2, seed=1).problem()
    first, second, third = (cotangents.randomness(problem).random() for problem in (PROBLEM, again, other))
    assert first == second != third


@pytest.mark.parametrize("matters", [np.isfinite, lambda x: np.abs(x) > 5e3, lambda x: ~np.isfinite(x)])
def test_a_leak_of_hidden_values_is_refuted_whatever_it_takes_to_see_it(matters):
    """A leak of 2^-20 of a hidden value: of any, of those above a threshold, of Inf and NaN only."""

    def leaky(q, k, v, **options):
        out, lse = SUBJECT.kernel(q, k, v, **options)
        hidden = v[:, :, 0].mean(dtype=np.float32)
        return out + (2.0**-20 * hidden if matters(hidden) else 0), lse

    problem = Recipe(query_length=1, key_length=6, head_dim=8, value_dim=2, mask="leading_hidden").problem()
    hidden_keys.assert_hidden_keys_have_no_influence(SUBJECT, problem)
    with pytest.raises(Refutation, match="after masked keys and values were replaced by"):
        hidden_keys.assert_hidden_keys_have_no_influence(with_function(leaky), problem)


def test_an_influence_of_visible_keys_is_no_leak():
    problem = Recipe(query_length=5, key_length=5, head_dim=8, value_dim=2, causal=True).problem()
    hidden_keys.assert_hidden_keys_have_no_influence(SUBJECT, problem)


def test_a_kernel_that_is_not_deterministic_is_held_to_its_bound():
    def noisy(q, k, v, **options):
        out, lse = SUBJECT.kernel(q, k, v, **options)
        return np.nextafter(out, np.float32(np.random.default_rng().choice([-9.0, 9.0]))), lse

    hidden_keys.assert_hidden_keys_have_no_influence(with_function(noisy, deterministic=False), PROBLEM)


def test_a_kernel_whose_bits_are_not_compared_must_keep_nan_out_as_well():
    """Masked values that are not finite reach only rows that see them, in whatever order a kernel adds."""

    def spreading(q, k, v, **options):
        out, lse = SUBJECT.kernel(q, k, v, **options)
        return out + 0 * v[:, :, :1], lse

    problem = Recipe(query_length=1, key_length=6, head_dim=8, value_dim=2, mask="leading_hidden").problem()
    right, wrong = (with_function(function, deterministic=False) for function in (SUBJECT.kernel, spreading))
    hidden_keys.assert_hidden_keys_have_no_influence(right, problem)
    with pytest.raises(Refutation, match="is nan; the truth is"):
        hidden_keys.assert_hidden_keys_have_no_influence(wrong, problem)
    allowed = with_function(spreading, deterministic=False, masked_nonfinite="may_leak")
    hidden_keys.assert_hidden_keys_have_no_influence(allowed, problem)


def test_a_reference_by_norms_of_keys_leaves_out_those_that_are_not_finite():
    contract = replace(PRECISE, reference="upper_bound", reference_range=60.0)
    made = emulate("by_norms", contract, supports=("mask", "cross", "dv", "lse"))
    subject = Subject(made, "float32")

    assert not assertions.compares_bits(subject)
    hidden_keys.assert_hidden_keys_have_no_influence(subject, PROBLEM)


# Gradients.

BACKWARD = Subject(resolve("torch_eager"), "float32")


def with_gradients(change, **conventions):
    """Return the subject with gradients, by name, that ``change`` alters before they are compared."""

    class Changed(Subject):
        def gradients(self, problem, cotangent, **arguments):
            return change(super().gradients(problem, cotangent, **arguments), problem)

    agreed = replace(BACKWARD.conventions, **conventions)
    return Changed(replace(BACKWARD.kernel, conventions=agreed), "float32")


def examples(strategy):
    found = []

    @settings(max_examples=50, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(problem):
        found.append(problem)

    collect()
    return found


def test_right_gradients_are_within_their_bounds_and_their_ratio_is_observed():
    dO = cotangents.cotangent(BACKWARD, PROBLEM)
    with recording() as observations:
        judgement = assertions.assert_gradients_within_bound(BACKWARD, PROBLEM, dO, BACKWARD.gradients(PROBLEM, dO))
    assert [m.name for m in judgement.measurements] == ["dq", "dk", "dv"]
    assert 0 < observations.ratios["error / bound"] < 1


def test_a_wrong_gradient_is_refuted_with_its_worst_element():
    dO = cotangents.cotangent(BACKWARD, PROBLEM)
    found = BACKWARD.gradients(PROBLEM, dO)
    found["dk"][0, 0, 2, 3] += 1.0
    with pytest.raises(Refutation, match=r"dk\[0, 0, 2, 3\] is .* the truth is .* 1 of 48 are outside") as error:
        assertions.assert_gradients_within_bound(BACKWARD, PROBLEM, dO, found)
    assert error.value.measurement.name == "dk"


def test_the_errors_allowed_without_the_truth_are_those_allowed_with_it():
    problem = Recipe(query_heads=2, query_length=4, key_length=6, head_dim=8, value_dim=2, bias="normal@B1QK").problem()
    dO = cotangents.cotangent(BACKWARD, problem)
    judgement = assertions.assert_gradients_within_bound(BACKWARD, problem, dO, BACKWARD.gradients(problem, dO))
    allowed = assertions.gradient_errors_allowed(BACKWARD, problem, dO)
    assert list(allowed) == ["dq", "dk", "dv", "dbias"]
    for m in judgement.measurements:
        np.testing.assert_array_equal(m.allowed, allowed[m.name])


def test_nothing_is_asked_of_gradients_that_may_overflow():
    problem = Recipe(query_heads=2, kv_heads=2, key_length=2, regime="normal+v_huge").problem()
    dO = np.array([1.0, 2.0**20]).reshape(1, 2, 1, 1)
    allowed = assertions.gradient_errors_allowed(BACKWARD, problem, dO)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal((allowed[name] == np.inf).all(axis=(0, 2, 3)), [False, True])


def test_cotangents_depend_on_the_problem_alone_are_numbers_of_the_output_dtype_and_take_every_form():
    subject = replace(BACKWARD, dtype="bfloat16")
    forms = set()
    for seed in range(40):
        problem = Recipe(
            query_heads=2, query_length=3, key_length=2, value_dim=2, dtypes="bfloat16", seed=seed
        ).problem()
        dO = cotangents.cotangent(subject, problem)
        np.testing.assert_array_equal(dO, cotangents.cotangent(subject, problem))
        assert bits.is_representable(dO, "bfloat16")
        forms.add((dO != 0).sum(axis=(2, 3)).max() if len(np.unique(dO)) <= 2 else "normal")
    assert forms == {"normal", 1, 6}


def test_cotangents_of_no_queries_are_empty():
    empty = Recipe(query_length=1, key_length=2).problem().replace(q=np.zeros((1, 1, 0, 1)))
    assert cotangents.cotangent(BACKWARD, empty).shape == (1, 1, 0, 1)
    assert cotangents.lse_cotangent(empty).shape == (1, 1, 0)


def test_the_cotangent_of_the_log_sum_exp_is_exact_in_every_dtype():
    dL = cotangents.lse_cotangent(PROBLEM)
    assert all(bits.is_representable(dL, dtype) for dtype in DTYPES)
    assert len(np.unique(dL)) > 1


def test_problems_with_empty_rows_have_agreed_gradients_only_where_those_rows_are_zero():
    for empty_row, drawn in (("zero", True), ("mean_of_v", False), ("nan", False)):
        subject = with_function(SUBJECT.kernel.function, empty_row=empty_row)
        strategy = assertions.differentiable(subject, needs=("mask",), mask=named(["empty_first_rows", "random"]))
        assert any(problem.blind_queries.any() for problem in examples(strategy)) == drawn


def test_one_bit_of_a_gradient_is_a_change():
    before = {"dq": np.array([1.0, np.nan])}
    assertions.assert_gradients_unchanged(before, {"dq": np.array([1.0, -np.nan])}, "afterwards")
    with pytest.raises(Refutation, match=r"afterwards, dq\[0\] 1 \(0x1.0+p\+0\) became .*; 1 of 2 changed"):
        assertions.assert_gradients_unchanged(before, {"dq": np.array([np.nextafter(1.0, 2.0), np.nan])}, "afterwards")


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_leak_of_unseen_values_into_a_gradient_is_refuted(deterministic):
    def leak(found, problem):
        return {**found, "dq": found["dq"] + 2.0**-16 * problem.v[0, 0, 0, 0]}

    problem = Recipe(query_length=2, key_length=20, head_dim=8, value_dim=2, mask="leading_hidden").problem()
    dO = cotangents.cotangent(BACKWARD, problem)
    hidden_keys.assert_unseen_keys_reach_no_gradient(BACKWARD, problem, dO)
    with pytest.raises(Refutation):
        hidden_keys.assert_unseen_keys_reach_no_gradient(with_gradients(leak, deterministic=deterministic), problem, dO)


@pytest.mark.parametrize(("tile", "keys", "tiles"), [(16, 16, 2), (16, 40, 5), (16, 3, 3), (1, 4, 4), (None, 9, 1)])
def test_rows_among_others_may_be_cut_into_one_tile_more(tile, keys, tiles):
    contract = replace(SUBJECT.contract, kv_tile=tile, alternatives=(replace(SUBJECT.contract, kv_tile=tile),))

    more = assertions._one_tile_more(contract, keys)

    assert more.tiles(keys) == tiles
    assert more.alternatives[0].tiles(keys) == tiles


def test_what_is_written_into_hidden_keys_is_random_and_bounded():
    written = list(hidden_keys._contents(SUBJECT, PROBLEM, np.random.default_rng(0)))

    assert [what for what, _, _ in written] == ["N(0, 1) values", "values of size 1e4", "Inf and NaN"]
    for (_, k, v), size in zip(written[:2], (1.0, 1e4), strict=True):
        for x in (k, v):
            assert len(np.unique(x)) > x.size / 2
            assert 0.5 * size < np.abs(x).max() <= 4 * size
            assert (x < 0).any()
            assert (x > 0).any()


def test_what_is_written_into_hidden_keys_lies_within_four_deviations_on_both_sides():
    large = Recipe(key_length=400, head_dim=128, value_dim=128, mask="random").problem()
    what, k, v = next(hidden_keys._contents(SUBJECT, large, np.random.default_rng(0)))

    assert what == "N(0, 1) values"
    assert all(-4 <= x.min() < -3.5 and 3.5 < x.max() <= 4 for x in (k, v))


def hints(problem, found):
    with pytest.raises(Refutation) as refuted:
        assertions.measured_within_bound(SUBJECT, problem, found)
    return refuted.value.hints


def test_a_convention_that_explains_the_answer_is_the_hint():
    blind = PROBLEM.replace(mask=np.zeros((1, 1, 4, 6), dtype=bool))
    right = SUBJECT(blind)
    empty = {name: np.full(x.shape, np.nan) for name, x in right.items() if name == "output"}

    assert hints(blind, right | empty) == ("right with conventions={'empty_row': 'nan'}",)
    assert hints(blind, right | {"output": right["output"] + 1.5}) == (
        "this query sees no key; if that answer is meant, declare a convention (now empty_row='zero')",
    )


def test_a_convention_of_rows_without_keys_is_no_hint_where_another_row_is_wrong():
    blind = PROBLEM.replace(mask=np.arange(4)[None, None, :, None] > np.zeros((1, 1, 1, 6)))  # the first row sees none
    right = SUBJECT(blind)
    wrong = right["output"] + np.array([8.0, 0.5, 0.0, 0.0])[:, None]

    assert not any("convention" in hint for hint in hints(blind, right | {"output": wrong}))


def test_a_gradient_that_is_zero_everywhere_is_the_first_hint():
    zeros, dO = np.zeros(PROBLEM.v.shape), np.ones(PROBLEM.output_shape)
    says = "dv is zero everywhere, as where no gradient reaches it"

    for dv, expected in ((zeros, True), (np.where(np.arange(zeros.size).reshape(zeros.shape) == 0, 8.0, 0.0), False)):
        with pytest.raises(Refutation) as refuted:
            assertions.assert_gradients_within_bound(SUBJECT, PROBLEM, dO, {"dv": dv})
        assert (refuted.value.hints[:1] == (says,)) == expected


def test_the_base_of_a_log_sum_exp_is_a_hint():
    problem = PROBLEM.replace(mask=None)
    right = SUBJECT(problem)
    assert "lse" in right

    assert "right with conventions={'lse_base': '2'}" in hints(problem, right | {"lse": right["lse"] / np.log(2)})
