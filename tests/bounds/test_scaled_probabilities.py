"""Probabilities in 8 bits, times a scale: errors reach their bounds, what saturates, and contracts that are refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec.bounds.forward.cast_bounds import largest_cast_weight
from attn_spec.bounds.forward.weight_bounds import log_weight_error
from attn_spec.bounds.intermediates import intermediates
from attn_spec.bounds.theorems import forward_bound
from attn_spec.contract.contract import Contract, ContractError
from attn_spec.contract.presets import FUSED
from attn_spec.contract.products import probability_cast
from attn_spec.contract.readings import gradient_readings
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.passes import steps_of
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.measure import judge
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search import property as properties
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import Profile
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTIES = properties.load_all()
#: Probabilities times 2^8 in float8_e4m3fn, whose cast saturates, as FlashAttention-3 has them.
EIGHT = {"probabilities": "float8_e4m3fn", "probability_scale": 2.0**8, "overflow": "saturates"}
SHAPE = {"batch": 2, "query_length": 5, "key_length": 37, "head_dim": 8, "value_dim": 6}
TILE = 16


@kernel(framework="torch", contract=replace(FUSED, **EIGHT), dtypes=("float32",), supports=("scale", "cross", "lse"))
def eight_bits(q, k, v, *, scale=None):
    """Attend in tiles of 16 keys; exponents have an offset of 8, and weights are cast to float8_e4m3fn."""
    c = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * math.log2(math.e)
    m = torch.full((*q.shape[:3], 1), -math.inf)
    l, acc = torch.zeros(m.shape), torch.zeros((*q.shape[:3], v.shape[-1]))
    for at in range(0, k.shape[2], TILE):
        s = q @ k[:, :, at : at + TILE].transpose(-1, -2) * c
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        alpha = torch.exp2(m - m_new)
        p = torch.exp2(s - (m_new - 8))
        l = l * alpha + p.sum(-1, keepdim=True)
        w = p.clamp(max=448).to(torch.float8_e4m3fn).to(torch.float32)
        acc, m = acc * alpha + w @ v[:, :, at : at + TILE], m_new
    return acc / l, ((m + torch.log2(l / 256)) * math.log(2))[..., 0]


def ratios(contract, problem, order=None, executes=None):
    """Return error / bound of the output and the log-sum-exp of an emulated kernel."""
    order, executes = order or Order(), executes or contract
    made = emulate("k", executes, order, contract=contract, steps=steps_of(executes, order))
    answer = Subject(made, "float32")(problem)
    judgement = judge(problem, contract.at("float32"), output=answer["output"], lse=answer["lse"])
    return {one.name: one.ratio for one in judgement.measurements}


def scores(values, v):
    """Return a problem of one query whose scores are these numbers."""
    tensors = {"q": [[1.0]], "k": [[x] for x in values], "v": [[x] for x in v]}
    arrays = {name: np.array(x, dtype=np.float64)[None, None] for name, x in tensors.items()}
    return Problem(**arrays, scale=1.0)


@pytest.mark.parametrize(
    "name",
    [
        "accuracy.output_is_within_its_bound",
        "accuracy.log_sum_exp_is_within_its_bound",
        "softmax.weights_sum_to_one",
        "online_rescaling.the_maximum_may_move_anywhere",
    ],
)
def test_a_torch_kernel_with_weights_in_8_bits_is_held(name):
    profile = Profile(name="test", examples=10, floor=3, seconds=60, shrink_seconds=0, seed=0)

    row, _ = search(PROPERTIES[name], Subject(eight_bits, "float32"), profile, seed=0)

    assert row.verdict is Verdict.HELD
    assert row.ratio > (0.02 if "log_sum_exp" in name else 0.3)


def test_each_way_of_a_scale_is_within_its_bound_and_not_far():
    """Factors that are rounded or not, and offsets, in each way to normalize; the cast is most of the error."""
    worst = {}
    for normalize in ("after_product", "before_product", "every_tile", "by_lse"):
        for c in (1.0, 2.0**8, 448.0, 100.3):
            for of in ("cast", "uncast"):
                contract = replace(PRECISE, **EIGHT | {"probability_scale": c}, normalize=normalize, row_sum_of=of)
                contract = replace(contract, exponent="base2")
                order = Order(kv_tile=8, scale_in_exponent=c == 2.0**8, divides=of == "cast")
                found = ratios(contract, Recipe(**SHAPE).problem(), order)
                assert max(found.values()) <= 1
                worst[normalize, c] = max(worst.get((normalize, c), 0.0), found["output"])
    assert min(worst.values()) > 0.1
    assert max(worst.values()) > 0.3


@pytest.mark.parametrize("c", [1.0, 2.0**8])
def test_underflow_of_the_cast_is_that_of_the_format_divided_by_the_scale(c):
    """Light keys just below half the smallest number are lost, and a bound of half as much would not cover it."""
    contract = replace(PRECISE, **EIGHT | {"probability_scale": c}, exp_error=0.1, matrix_rounding=None)
    light = float(np.float32(math.log(2.0**-10 / c) - 2.0**-10))
    problem = scores([0.0, *[light] * 200], [0.0, *[1.0] * 200])

    assert probability_cast(contract.at("float32")).eta == 2.0**-10 / c
    assert 0.85 < ratios(contract, problem)["output"] <= 1


def test_a_row_whose_probabilities_may_leave_the_format_is_outside_the_domain_unless_they_saturate():
    """In base 2 the reference s c is rounded, and in float32 a score of 2^20 may be off by far more than 448 allows."""
    problem, far = scores([1.0, 2.0], [1.0, 3.0]), scores([2.0**20, 2.0**20], [1.0, 3.0])

    def bound(x, overflow):
        scaled = EIGHT | {"probability_scale": 448.0, "overflow": overflow}
        contract = replace(PRECISE, **scaled, exponent="base2_fused").at("float32")
        return forward_bound(intermediates(x), contract)

    for overflow in ("saturates", "leaves"):
        assert bound(problem, overflow).in_domain.all()
    assert bound(far, "saturates").in_domain.all()
    assert not bound(far, "leaves").in_domain.any()
    assert (bound(far, "saturates").allowed["output"] > 2.0**-4 * 3).all()


def test_a_weight_that_saturates_is_less_in_a_row_sum_of_what_is_cast():
    """No maximum is subtracted: of the one weight, e^0.5, the cast leaves 1, and the LSE is 0 in place of 0.5."""
    scaled = EIGHT | {"probability_scale": 448.0, "row_sum_of": "cast"}
    contract = replace(PRECISE, **scaled, reference="zero", reference_range=1.0)

    assert 0.3 < ratios(contract, scores([0.5], [1.0]))["lse"] <= 1


@pytest.mark.parametrize(("c", "inside"), [(2.0**12, True), (57344.0, False)])
def test_a_scale_whose_inverse_is_no_normal_number_is_outside_the_domain(c, inside):
    """In float16 the inverse of 57344 has five bits, and none if it is flushed."""
    scaled = EIGHT | {"probabilities": "float8_e5m2", "probability_scale": c}
    contract = replace(PRECISE, **scaled, softmax="float16").at("float32")

    assert forward_bound(intermediates(scores([1.0, 2.0], [1.0, 3.0])), contract).in_domain.all() == inside


@pytest.mark.parametrize(("reference", "grows"), [("maximum", False), ("upper_bound", True)])
def test_errors_of_scores_raise_the_largest_weight_unless_the_reference_is_one_of_them(reference, grows):
    problem = scores([5 + 2.0**-12, 7 + 2.0**-12], [1.0, 3.0])
    contract = replace(PRECISE, **EIGHT, reference=reference, reference_range=2.0 * grows)
    exact, coarse = (
        largest_cast_weight(intermediates(problem), replace(contract, score_accumulation=narrow).at("float32")).max()
        for narrow in ("float64", "float16")
    )

    assert (coarse > exact * (1 + 2.0**-12)) == grows


@pytest.mark.parametrize(("p", "inside"), [(0.5, True), (0.75, False)])
def test_what_dropout_raises_leaves_the_format_sooner(p, inside):
    """A weight of 1 times 2^7 is 128; over 1 - p it is 256 or 512, of which the latter is above 448."""
    problem = scores([1.0, 2.0], [1.0, 3.0])
    problem = problem.replace(dropout_keep=np.ones((1, 1, 1, 2), dtype=bool), dropout_p=p)
    contract = replace(PRECISE, **EIGHT | {"probability_scale": 128.0, "overflow": "leaves"})

    assert forward_bound(intermediates(problem), contract.at("float32")).in_domain.all() == inside


def test_a_number_that_rounds_to_the_largest_is_inside_the_domain():
    """448 times a weight that roundings take above 1 is cast to 448 in every way."""
    contract = replace(PRECISE, **EIGHT | {"probability_scale": 448.0, "overflow": "leaves"})

    assert forward_bound(intermediates(scores([1.0, 2.0], [1.0, 3.0])), contract.at("float32")).in_domain.all()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"probability_scale": 512.0}, "probability_scale=512.0 has probabilities of 2"),
        ({"reference_slack": 8 * math.log(2)}, "probability_scale=256.0, reference_slack=5.5"),
        ({"probability_scale": 1.0, "reference_slack": 7.0}, "above 448, the largest number"),
        ({"probabilities": "float8_e4m3fnuz"}, "above 240"),
    ],
)
def test_a_scale_above_the_largest_number_is_refused_when_declared(fields, says):
    with pytest.raises(KernelError, match=says):
        emulate("k", PRECISE, contract=replace(FUSED, **EIGHT | fields))


@pytest.mark.parametrize("value", [0.5, -1.0, math.nan, math.inf, True, "2"])
def test_a_scale_is_a_finite_number_of_1_or_more(value):
    with pytest.raises(ContractError, match="probability_scale must be finite, 1 or more"):
        Contract(probability_scale=value)


def test_gradients_and_linear_attention_are_refused():
    contract = replace(FUSED, **EIGHT)

    with pytest.raises(KernelError, match="says nothing of gradients"):
        eight_bits.backward(lambda dout, *saved, **options: saved)
    with pytest.raises(KernelError, match="says nothing of gradients"):
        emulate("k", PRECISE, contract=contract, supports=("backward", "lse"))
    with pytest.raises(ContractError, match=r"probability_scale=256\.0 says nothing of gradients"):
        gradient_readings(contract.at("float32"))
    with pytest.raises(KernelError, match="says nothing of linear attention"):
        emulate("k", PRECISE, contract=contract, supports=("feature_map",))


@pytest.mark.parametrize(
    ("on", "keys", "inside"),
    [
        ("output", 1, True),
        ("output", 4, False),  # a number of each key cannot multiply the output
        ("probabilities", 1, False),
        ("operands", 4, True),
    ],
)
def test_a_descale_of_values_counts_at_the_cast_where_it_may_multiply_weights(on, keys, inside):
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-4, 5, size=(1, 1, 4, 4)).astype(float) for _ in range(3))
    problem = Problem(q=q, k=k, v=v, dtypes="float32", v_descale=np.full((1, 1, keys, 1), 96.0))
    contract = replace(PRECISE, **{**EIGHT, "overflow": "leaves"}, value_descale_on=on)

    assert forward_bound(intermediates(problem), contract.at("float32")).in_domain.all() == inside


def test_the_logarithm_of_a_scale_is_added_with_two_roundings():
    """The offset joins the reference, and that the score of 0; nothing else in the exponent is rounded."""
    v = np.ones((1, 1, 1, 1))
    x = intermediates(Problem(q=0 * v, k=v, v=v, dtypes="float32"))
    plain = replace(PRECISE, exponent="base2", score_accumulation="float32", softmax="float32")

    with_scale, without = (
        log_weight_error(x, replace(plain, probability_scale=scale).at("float32")).direct for scale in (256.0, 1.0)
    )

    assert (with_scale - without).item() == pytest.approx(2 * 2.0**-24 * math.log(256.0), rel=1e-6)
