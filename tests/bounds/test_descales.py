"""Descales: the truth is attention of the products, and what a contract says of them bounds emulated kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import kernel
from attn_spec.attention import definition
from attn_spec.bounds.backward.score_gradient_bounds import score_gradient_error
from attn_spec.bounds.forward.product_bounds import dot_product_error
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.contract import Contract
from attn_spec.contract.coverage import says_nothing
from attn_spec.contract.presets import FP32, FUSED
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import SUPPORTS, emulate, emulate_both
from attn_spec.emulation.passes import steps_of
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.abilities import DESCALE_AXES
from attn_spec.problem.handled import NotHandledError
from attn_spec.problem.options import FACTORS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search import property as properties
from attn_spec.search.drawing.regimes import Recipe

PATTERNS = {
    "q_descale": ("near_one@1G11", "spread@1111"),
    "k_descale": ("blocks@BGK1", "one_huge@1GK1", "tiny@1G11"),
    "v_descale": ("spread@1G11", "near_one@BGK1", "power_of_two@1111"),
}


def recipe(seed, dtype="float32", **options):
    shape = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 5, "key_length": 18}
    return Recipe(**shape, head_dim=8, value_dim=3, seed=seed, dtypes=dtype, **options)


def descaled(seed, dtype="float32", regime="normal"):
    rng = np.random.default_rng(seed)
    drawn = {name: str(rng.choice(known)) for name, known in PATTERNS.items()}
    return recipe(seed, dtype, regime=regime, **drawn).problem()


@pytest.mark.parametrize("stages", [("operands",), ("score_accumulation",), ("operands", "score_accumulation")])
@pytest.mark.parametrize("scale", [1.0, 4.0, 0.5])
def test_a_power_of_two_on_values_leaves_them_the_roundings_of_products_and_operands(scale, stages):
    """One visible key gives its value times the scale, which tf32 rounds once; nothing else is off."""
    v = np.full((1, 1, 1, 1), 1 + 2.0**-11 - 2.0**-40)
    problem = Problem(q=np.ones(v.shape), k=np.ones(v.shape), v=v, dtypes="float64")
    problem = problem.replace(v_descale=np.full(v.shape, scale))
    contract = replace(FUSED, value_descale_on="operands", **dict.fromkeys(stages, "tf32"))
    made = emulate("descaled", contract, supports=(*SUPPORTS, *FACTORS, *DESCALE_AXES), dtypes=("float64",))
    answer = Subject(made, "float64")(problem)

    judgement = judge(problem, contract.at("float64"), output=answer["output"])

    assert answer["output"].item() == scale
    assert 0.9 < judgement.measurements[0].ratio <= 1


@pytest.mark.parametrize("stage", ["operands", "score_accumulation"])
def test_a_power_of_two_on_tiny_values_leaves_them_the_underflow_of_products_and_operands(stage):
    """The least subnormal number of float32 is none of tf32's."""
    contract = replace(FUSED, value_descale_on="operands", subnormals="kept", **{stage: "tf32"})
    v = np.full((1, 1, 1, 1), 2.0**-149)
    problem = Problem(q=np.ones(v.shape), k=np.ones(v.shape), v=v, v_descale=np.ones(v.shape), dtypes="float32")

    judgement = judge(problem, contract.at("float32"), output=np.zeros(v.shape))

    assert judgement.measurements[0].ratio < 0.1


def test_the_truth_is_attention_of_the_products():
    problem = descaled(3)
    of_heads = {name: getattr(problem, name).repeat(4 // getattr(problem, name).shape[1], axis=1) for name in FACTORS}
    products = {
        "q": problem.q * of_heads["q_descale"],
        "k": problem.per_query_head(problem.k) * of_heads["k_descale"],
        "v": problem.per_query_head(problem.v) * of_heads["v_descale"],
    }
    plain = Problem(**products, dtypes="float64")

    for found, right in zip(
        (definition.attention(problem, 80), definition.log_sum_exp(problem, 80)),
        (definition.attention(plain, 80), definition.log_sum_exp(plain, 80)),
        strict=True,
    ):
        assert np.abs((found - right).astype(float)).max() < 2.0**-60


CONTRACTS = [
    {"descale_on": scores, "value_descale_on": values, "stored_scores": stored}
    for scores, stored in (("scores", "work"), ("operands", "work"), ("scores", "input"))
    for values in ("output", "probabilities", "operands")
]


@pytest.mark.parametrize("words", CONTRACTS, ids=lambda words: "-".join(words.values()))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_emulated_kernels_are_within_their_bounds_and_not_far_within(words, dtype):
    contract, reached = Contract(**words), 0.0
    for seed, order in enumerate((Order(), Order(descales_first=True, tiles="random"))):
        made = emulate("emulated", contract, order, supports=(*SUPPORTS, *FACTORS, *DESCALE_AXES), dtypes=(dtype,))
        for regime in ("normal", "large", "tiny+v_tiny"):
            problem, subject = descaled(seed, dtype, regime), Subject(made, dtype)
            found = judge(problem, subject.contract, **subject(problem))
            assert not found.refuted, (words, order, regime)
            reached = max(reached, *(one.ratio for one in found.measurements))
    assert 0.05 < reached <= 1


@pytest.mark.parametrize("values", ["output", "probabilities", "operands"])
def test_gradients_of_emulated_kernels_are_within_their_bounds(values):
    for seed, first in enumerate((False, True)):
        contract, order = Contract(value_descale_on=values), Order(descales_first=first)
        made = emulate_both(
            "emulated", contract, order, steps=steps_of(contract, order), supports=(*SUPPORTS, *FACTORS, *DESCALE_AXES),
            dtypes=("float16",),
        )  # fmt: skip
        problem, subject = descaled(seed + 7, "float16"), Subject(made, "float16")
        dO = bits.nearest(np.random.default_rng(seed).standard_normal(problem.output_shape), "float16")
        found = judge_gradients(problem, subject.contract, dO, subject.gradients(problem, dO))
        assert not found.refuted
        assert max(one.ratio for one in found.measurements) > 0.02


def test_parts_of_a_problem_have_the_descales_of_their_heads_and_keys():
    problem = recipe(1, k_descale="spread@BGK1", q_descale="spread@BG11").problem()

    head = problem.head(3)
    assert np.array_equal(head.k_descale, problem.k_descale[:, 1:])
    assert np.array_equal(head.q_descale, problem.q_descale[:, 1:])
    some = problem.take("K", [4, 2]).take("B", [1]).take("H", [1])
    assert np.array_equal(some.k_descale, problem.k_descale[1:, 1:, [4, 2]])
    assert np.array_equal(problem.by_pair("k_descale")[:, 2], problem.k_descale[:, 1].swapaxes(1, 2))


@pytest.mark.parametrize("option", ["score_gamma", "score_vector", "query_projection"])
def test_scores_that_are_not_linear_exclude_factors_of_their_operands(option):
    given = {"score_gamma": np.ones((1, 1, 1, 1)), "score_vector": np.ones((1, 1, 1, 2))}
    given |= {"query_projection": np.ones((1, 2, 2, 2))}
    x, needed = np.ones((1, 1, 2, 2)), {}
    if option == "score_vector":
        needed = {name: np.ones((1, 1, 2, 2)) for name in ("score_key_weight", "score_query_weight")}
    if option == "query_projection":
        names = ("key_projection", "value_projection", "output_projection")
        needed = {name: np.ones((1, 2, 2, 2)) for name in names}

    with pytest.raises(ProblemError, match="k_descale: a factor of its operands is none of the score"):
        Problem(q=x, k=x, v=x, k_descale=np.ones((1, 1, 1, 1)), **{option: given[option]}, **needed)


def test_a_descale_is_above_zero():
    x = np.ones((1, 1, 2, 2))

    with pytest.raises(ProblemError, match="k_descale must not contain a number that is not above 0"):
        Problem(q=x, k=x, v=x, k_descale=np.zeros((1, 1, 1, 1)))


def test_what_has_no_theorem_is_refused():
    """Gradients beside descales of operands, and such operands behind a rotation."""
    contract = Contract(**{**vars(FUSED), "descale_on": "operands"})
    problem = descaled(2)
    x = intermediates(problem)
    grad = gradient_intermediates(x, np.ones(problem.output_shape))

    with pytest.raises(NotHandledError, match="q_descale, k_descale"):
        score_gradient_error(x, grad, contract.at("float32"), 0.0)
    with pytest.raises(KernelError, match="says nothing of gradients beside q_descale and k_descale"):
        emulate_both("both", contract, supports=("lse", *FACTORS, *DESCALE_AXES))
    with pytest.raises(KernelError, match="rotary out of supports"):
        emulate("turned", contract, supports=("lse", "k_descale", "rotary"))
    assert says_nothing(contract, recipe(2, rotary="half", k_descale="half@1111").problem())
    assert not says_nothing(contract, recipe(2, rotary="half", v_descale="half@1111").problem())
    assert not says_nothing(FP32, recipe(2, rotary="half", k_descale="half@1111").problem())


@kernel(
    framework="torch",
    dtypes=("float16",),
    contract=Contract(exponent="natural", operands="input", descale_on="operands", value_descale_on="operands"),
    supports=("scale", "causal", "dv", "cross", *FACTORS, *DESCALE_AXES),
)
def adds_a_mask(q, k, v, *, scale=1.0, causal=False, **descales):
    """Multiply operands by their descales when they are loaded, and add a mask to the scores."""
    q, k, v = ((x * descales.get(name, 1.0)).float() for x, name in zip((q, k, v), FACTORS, strict=True))
    unseen = torch.full((q.shape[2], k.shape[2]), -torch.inf).triu(1) if causal else 0.0
    return (torch.softmax(q @ k.mT * scale + unseen, -1).half().float() @ v).half()


@pytest.mark.parametrize("descale", ["k_descale", "v_descale"])
def test_what_is_written_into_hidden_keys_fits_with_its_descale(descale):
    """Operands are stored in float16 with their descales, and a mask of -inf is added: an infinity would be NaN."""
    shape = {"query_length": 3, "key_length": 3, "head_dim": 16, "value_dim": 8, "causal": True, "scale": 1.0}
    drawn = Recipe(dtypes="float16", **shape).problem()
    problem = drawn.replace(q=np.zeros(drawn.q.shape), **{descale: np.full((1, 1, 3, 1), 64.0)})

    properties.load_all()["causality.future_keys_change_nothing"].check(Subject(adds_a_mask, "float16"), problem)


def test_the_bound_of_a_product_is_the_same_if_queries_and_keys_change_places():
    """Both are 0 here, so that the product of their underflows decides, with a small descale and a large one."""
    zero, small, large = np.zeros((1, 1, 1, 2)), np.full((1, 1, 1, 1), 2.0**-6), np.full((1, 1, 1, 1), 3.0)
    contract = replace(FUSED, descale_on="operands", operands="float16").at("float16")
    plain = Problem(q=zero, k=zero, v=zero, dtypes="float16")

    found, other = (
        dot_product_error(intermediates(plain.replace(q_descale=of_q, k_descale=of_k)), contract)
        for of_q, of_k in ((small, large), (large, small))
    )

    assert found == other > 0
