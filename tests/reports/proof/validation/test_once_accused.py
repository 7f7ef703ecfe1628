"""Sound kernels that random search once saw accused: by a property that asked too much, or a bound without a term."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn.functional import elu

from attn_spec.contract.presets import PRESETS
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import SUPPORTS, emulate, emulate_both
from attn_spec.emulation.passes import Renormalized, TwoPasses
from attn_spec.emulation.sound import PRECISE, PRECISE64
from attn_spec.emulation.split import NormalizedSplitAttention
from attn_spec.kernels.declarations.declaration import from_callable, kernel
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Refutation, load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

#: A bound on all scores of the row, those of hidden keys included, is subtracted from them.
BOUNDED = replace(PRECISE, reference="upper_bound", reference_range=4.0)
#: Every tile normalizes again, tiles without a visible key too.
RENORMALIZED = replace(PRECISE, normalize="every_tile", softmax="bfloat16", kv_tile=1)
KERNELS = {
    "masking.the_bias_at_masked_keys_changes_nothing": emulate("bounded", BOUNDED),
    "scaling.scaled_scores_of_unit_variance_inputs_have_variance_one": emulate(
        "bounded_half", replace(BOUNDED, softmax="float16", float16_subnormals="flushed")
    ),
    "masking.a_padded_sequence_is_solved_as_the_shorter_one": emulate(
        "bounded_by_lse",
        replace(BOUNDED, normalize="by_lse", log_error=2.0**10),
        Order(inaccuracy=1.0),
        steps=TwoPasses,
    ),
    "causality.decoding_one_query_gives_its_row_of_the_whole": emulate(
        "renormalized", RENORMALIZED, Order(kv_tile=1), steps=Renormalized
    ),
    "scores.a_bilinear_score_is_the_product_with_keys_that_the_weight_has_changed": emulate(
        "half_operands", replace(PRECISE, operands="float16"), supports=(*SUPPORTS, "score_weight")
    ),
    "scores.a_cosine_does_not_see_the_lengths_of_q_and_k": emulate(
        "half_sums", replace(PRECISE, score_accumulation="float16"), supports=(*SUPPORTS, "score_gamma")
    ),
    "gradient_laws.scaling_the_cotangent_by_a_power_of_two_scales_the_gradients": emulate_both(
        "half_operands",
        replace(PRECISE, operands="float16"),
        supports=(*SUPPORTS, "score_weight"),
        always=("score_weight",),
    ),
    "masking.a_mask_is_a_bias_of_minus_infinity": emulate(
        "narrow_scores", replace(PRECISE, stored_scores="bfloat16", exponent="base2", rounding="toward_zero")
    ),
}


def profile(examples):
    return Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=0)


FLUSHED = Subject(emulate("flushed", replace(PRECISE, float16_subnormals="flushed"), dtypes=("float16",)), "float16")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("examples", [8, pytest.param(30, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("property_id", KERNELS)
def test_a_property_asks_only_what_the_contract_promises(property_id, examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # cases in flight are written there

    row, _ = search(load_all()[property_id], Subject(KERNELS[property_id], "float32"), profile(examples), seed=0)

    assert row.verdict is not Verdict.REFUTED, row.message


def test_sums_of_gradients_of_float64_may_overflow_in_the_law_that_adds_them_up():
    """Keys of 188 times gradients of 1e307."""
    property_ = load_all()["gradient_laws.q_and_k_have_one_inner_product_with_their_gradients"]
    sizes = {"query_length": 15, "key_length": 15}
    problem = Recipe(regime="normal+v_huge", dtypes="float64", shift=12000.0, **sizes).problem()

    property_.check(Subject(resolve("torch_sdpa:math"), "float64"), problem)


def test_a_sum_of_values_may_overflow_before_it_is_divided_by_the_row_sum():
    """Two values of 4e4 have a mean that float16 holds, and a sum that it does not."""
    kernel = emulate("narrow_softmax", replace(PRECISE, softmax="float16"))
    problem = Recipe(key_length=2, regime="uniform").problem()
    large = problem.replace(v=np.full(problem.v.shape, 4e4))

    answer = (subject := Subject(kernel, "float32"))(large)

    assert np.isinf(answer["output"]).all()
    assert_within_bound(subject, large, answer)


@settings(max_examples=50, database=None, deadline=None)
@given(load_all()["online_rescaling.scaling_v_by_a_power_of_two_scales_the_output"].problems(FLUSHED))
def test_values_that_a_power_of_two_scales_do_not_underflow(problem):
    """N(0, 1) holds numbers that a kernel flushes as float16, and eight times which it does not."""
    assert (problem.v == np.rint(problem.v)).all()


def linear_as_usual(q, k, v, *, feature_map="elu_plus_one"):
    """Run linear attention as repositories have it: 1 / N, and the state sum b v^T, in the inputs' dtype."""
    a, b = elu(q) + 1, elu(k) + 1
    inverse = 1 / torch.einsum("bhld,bhd->bhl", a, b.sum(dim=2))
    return torch.einsum("bhld,bhmd,bhl->bhlm", a, torch.einsum("bhnd,bhnm->bhmd", b, v), inverse)


def test_values_may_overflow_when_they_are_multiplied_by_8():
    """100 * 100 * 8 is beyond float16, of which the contract says nothing."""
    subject = Subject(from_callable(linear_as_usual, framework="torch"), "float16")
    given = {name: np.full((1, 1, 1, 1), x) for name, x in (("q", 99.0), ("k", 99.0), ("v", 1.0))}
    problem = Problem(**given, dtypes="float16", feature_map="elu_plus_one")

    load_all()["online_rescaling.scaling_v_by_a_power_of_two_scales_the_output"].check(subject, problem)

    assert np.isinf(subject(problem.replace(v=8 * problem.v))["output"]).all()


def test_a_bias_over_a_power_of_two_may_have_more_bits_than_the_quotient():
    """The scale is 1/8, so only the bias, cut to the accumulator's eleven bits, is rounded."""
    kernel = emulate("bias_first", replace(PRECISE, score_accumulation="float16"), Order(bias_first=True))
    problem = Recipe(regime="tiny", bias="normal@11QK").problem()

    assert_within_bound(subject := Subject(kernel, "float32"), problem, subject(problem))


def test_an_output_that_waits_may_underflow_where_weights_are_as_good_as_unknown():
    contract = replace(PRECISE64, lse_merges=2, partial_outputs="float16", score_accumulation="bfloat16")
    kernel = emulate("split", contract, Order(kv_tile=1), steps=NormalizedSplitAttention, dtypes=("float64",))
    problem = Recipe(regime="normal+v_tiny", dtypes="float64", head_dim=16, value_dim=16).problem()

    assert_within_bound(subject := Subject(kernel, "float64"), problem, subject(problem))


def test_a_backward_pass_that_may_recompute_starts_from_the_log_sum_exp_as_it_is_declared():
    executed = replace(PRECISE, lse="bfloat16")
    kernel = emulate_both("coarse", executed, contract=replace(executed, backward_weights="either"))
    problem = Recipe(head_dim=64, value_dim=64, shift=30.0).problem()
    dO = cotangent(subject := Subject(kernel, "float32"), problem)

    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))


def test_score_gradients_may_wait_for_their_products_divided_by_the_softcap():
    """FlashAttention-2: dS is scaled by 1/200 before its cast to half, where it underflows; the products by 50."""
    order = Order(gradient_scaling="slope")
    kernel = emulate_both("scaled_slope", PRECISE, order, dtypes=("float16",))
    sizes = {"query_length": 2, "key_length": 2, "head_dim": 16, "value_dim": 16}
    problem = Recipe(regime="large", dtypes="float16", softcap=50.0, **sizes).problem()
    dO = cotangent(subject := Subject(kernel, "float16"), problem)

    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))


@kernel(
    framework="torch",
    dtypes=("float16",),
    contract="eager",
    supports=("mask", "score_gamma", "backward"),
    always=("score_gamma",),
    conventions={"masked_nonfinite": "may_leak"},
)
def cosine(q, k, v, *, score_gamma, mask=None):
    q, k = (x / (x * x).sum(-1, keepdim=True).sqrt() for x in (q, k))
    s = q @ (score_gamma * k).mT
    return (s if mask is None else s.masked_fill(~mask, -math.inf)).softmax(-1) @ v


def test_an_operand_that_nobody_sees_may_be_infinite():
    """The squares of a key of 1e-5 are 0 in float16, and so is its norm: 1e-5 / 0, times a score gradient of 0."""
    one = Recipe(key_length=2, head_dim=2, value_dim=2, score_gamma="one", dtypes="float16").problem()
    problem = one.replace(mask=np.array([[[[True, False]]]]), k=np.array([[[[1.0, 1.0], [2.0**-17, 2.0**-17]]]]))
    dO = np.ones((1, 1, 1, 2))

    found = (subject := Subject(cosine, "float16")).gradients(problem, dO)

    assert np.isnan(found["dq"]).all()
    assert_gradients_within_bound(subject, problem, dO, found)


def test_a_zero_that_nobody_sees_has_the_cosine_0():
    """torch.nn.functional.normalize makes NaN of it: its epsilon, 1e-12, is 0 in float16."""
    one = Recipe(query_length=2, key_length=2, head_dim=2, value_dim=2, dtypes="float16", score_gamma="one").problem()
    problem = one.replace(mask=np.array([[[[True, True], [False, False]]]]), q=one.q * np.array([[1.0], [0.0]]))
    dO = np.ones((1, 1, 2, 2))
    sound = Subject(resolve("torch_scores:cosine"), "float16")

    assert_gradients_within_bound(sound, problem, dO, sound.gradients(problem, dO))
    for name, found in sound.gradients(problem, dO).items():
        with pytest.raises(Refutation):
            assert_gradients_within_bound(sound, problem, dO, {name: found * np.nan})


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract=replace(PRESETS["fp32"], backward_weights="stored", weight_gradients="work", kv_tile=None),
    supports=("backward",),
)
def divided_last(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    p = torch.exp(s - s.max(-1, keepdim=True).values)
    return p @ v / p.sum(-1, keepdim=True)


def test_the_gradient_of_a_cosine_may_be_divided_by_the_norm_before_its_terms_cancel():
    """Vectors of one column: what lies across them is 0, made of terms over the norm that overflow."""
    one = Recipe(key_length=2, head_dim=1, value_dim=1, dtypes="float64", score_gamma="one").problem()
    problem = one.replace(
        q=np.full((1, 1, 1, 1), 0.05), k=np.array([[[[0.5], [-0.5]]]]), v=np.array([[[[1e307], [-1e307]]]])
    )
    sound, dO = Subject(resolve("torch_scores:cosine"), "float64"), np.full((1, 1, 1, 1), 4.0)

    found = sound.gradients(problem, dO)

    assert np.isnan(found["dq"]).all()
    assert_gradients_within_bound(sound, problem, dO, found)


def test_rounding_leaves_something_of_the_gradient_of_a_maximum():
    """The key that attains it gets what the sums p v and l make of - sum P (dP - D), which is 0 in exact arithmetic."""
    one = Recipe(query_length=1, key_length=64, head_dim=2, value_dim=1, dtypes="float32").problem()
    problem = one.replace(q=bits.nearest(one.q / 128, "float32"), v=bits.nearest(100 + one.v / 64, "float32"))
    dO = bits.nearest(np.random.default_rng(0).standard_normal(problem.output_shape), "float32")
    subject = Subject(divided_last, "float32")

    found = subject.gradients(problem, dO)

    assert_gradients_within_bound(subject, problem, dO, found)
    with pytest.raises(Refutation):
        assert_gradients_within_bound(subject, problem, dO, {"dv": np.zeros(problem.v.shape)})


LSE = ("lse", "cross", "causal", "causal_alignment", "scale")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "declared",
    [{"presentation": "decode"}, {"query_lengths": (1, 2)}, {"query_heads": (4,)}],
    ids=lambda x: next(iter(x)),
)
def test_random_signs_give_as_many_scores_whatever_a_kernel_takes(declared):
    """A kernel of one query a sequence gave 40 scores in place of 640, and their mean square is 0.49 by chance."""
    few = Subject(emulate("few", PRECISE, supports=LSE, **declared), "float32")

    row, _ = search(
        load_all()["scaling.scaled_scores_of_unit_variance_inputs_have_variance_one"], few, profile(12), seed=0
    )

    assert row.verdict is Verdict.HELD, row.message
    assert row.examples > 10


@pytest.mark.parametrize(
    "property_id", [name for name in load_all() if name.startswith("states.")], ids=lambda name: name.partition(".")[2]
)
def test_states_are_not_asked_for_of_a_kernel_that_takes_no_single_query(property_id):
    """The property failed in itself: the merges of four queries were read as four states."""
    supports = (*LSE, "states", "bias", "mask", "empty", "gqa", "dv")
    fours = Subject(emulate("fours", PRECISE, supports=supports, multiples={"Q": 4, "K": 4}), "float32")

    row, case = search(load_all()[property_id], fours, profile(3), seed=0)

    assert case is None, row.message
    assert row.verdict in (Verdict.NOT_DECLARED, Verdict.NOT_EXERCISED)
    assert "it takes no single query" in row.message


def test_a_token_without_states_may_have_the_mean_of_all_outputs_in_two_merges():
    agreed = {"empty_row": "mean_of_v"}
    merge = Subject(
        emulate("merge", PRECISE, supports=(*LSE, "states", "bias", "empty"), conventions=agreed), "float32"
    )
    problem = Recipe(bias="all_minus_inf@11QK", key_length=4, states=True).problem()

    load_all()["states.merged_states_merge_again"].check(merge, problem)
