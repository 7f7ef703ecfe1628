"""The emulated backward pass does the arithmetic it is said to do, with every option."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.presets import FP64
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import StoredWeights, TiledGradients
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE, SOUND
from attn_spec.judgement.measure import judge_gradients
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing import cotangents
from attn_spec.search.drawing.regimes import Recipe

#: Two keys of equal scores: P = 1/2 each, o = 1.
BY_HAND = Problem(
    q=np.zeros((1, 1, 1, 1)),
    k=np.array([1.0, 3.0]).reshape(1, 1, 2, 1),
    v=np.array([0.0, 2.0]).reshape(1, 1, 2, 1),
    bias=np.zeros((1, 1, 1, 2)),
    dtypes="float32",
)
ONE = np.ones((1, 1, 1, 1))


@pytest.fixture(params=[TiledGradients, StoredWeights])
def whole_row(request):
    """Return kernels that solve a row in one tile, with weights computed again and weights stored."""
    stored = {"normalize": "before_product", "backward_weights": "stored"} if request.param is StoredWeights else {}
    kernel = emulate_both("row", replace(PRECISE, **stored), Order(kv_tile=None), gradients=request.param)
    return Subject(kernel, "float32")


def test_two_keys_by_hand(whole_row):
    """dP = v = (0, 2), delta = 1, so dA = (-1/2, 1/2), dQ = -1/2 + 3/2 = 1, dK = dA q = 0, dV = P dO = (1/2, 1/2)."""
    found = {name: x.ravel().tolist() for name, x in whole_row.gradients(BY_HAND, ONE).items()}

    assert found == {"dq": [1.0], "dk": [0.0, 0.0], "dv": [0.5, 0.5], "dbias": [-0.5, 0.5]}


def test_two_keys_by_hand_with_a_cotangent_of_the_log_sum_exp(whole_row):
    """dL = 1 adds P to dA: (0, 1), so that dQ = 3."""
    found = whole_row.gradients(BY_HAND, ONE, lse_cotangent=ONE[..., 0])

    assert found["dbias"].ravel().tolist() == [0.0, 1.0]
    assert found["dq"].item() == 3.0


OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "causal_alignment": "bottom_right"},
    {"window": (3, 1)},
    {"mask": "empty_middle_rows@BHQK"},
    {"bias": "normal@1HQK", "mask": "random"},
    {"bias": "minus_inf@B11K"},
    {"softcap": 1.0, "bias": "normal@111K"},
    {"scale": 0.3},
    {"query_heads": 4, "kv_heads": 2},
    {"query_length": 0},
    {"key_length": 0},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("gradients", [TiledGradients, StoredWeights])
def test_every_option_has_its_gradients_in_float64(gradients, options):
    shape = {"batch": 2, "query_length": 5, "key_length": 19, "head_dim": 4, "value_dim": 3, "dtypes": "float64"}
    problem = Recipe(**{**shape, **options}).problem()
    stored = {"normalize": "before_product", "backward_weights": "stored"} if gradients is StoredWeights else {}
    c = replace(FP64, **stored)
    order = Order(kv_tile=None if stored else 8)
    subject = Subject(emulate_both("exact", c, order, gradients=gradients, dtypes=("float64",)), "float64")
    dO, dL = cotangents.cotangent(subject, problem), cotangents.lse_cotangent(problem)

    judgement = judge_gradients(problem, subject.contract, dO, subject.gradients(problem, dO, lse_cotangent=dL), dL)

    assert not judgement.refuted, judgement.worst
    assert judgement.exercised or not problem.q.size or not problem.k.size


@pytest.mark.parametrize("sums", ["sequential", "pairwise", "random"])
def test_tilings_and_orders_change_roundings_only(sums):
    problem = Recipe(batch=2, query_length=9, key_length=37, head_dim=8, value_dim=6, seed=1).problem()
    dO = cotangents.cotangent(Subject(SOUND["sequential"], "float32"), problem)

    def solve(order):
        return Subject(emulate_both("ordered", PRECISE, order), "float32").gradients(problem, dO)

    one, other = solve(Order(kv_tile=None)), solve(Order(kv_tile=8, tiles="random", sums=sums, seed=2))

    for name, x in one.items():
        np.testing.assert_allclose(other[name], x, rtol=1e-4, atol=1e-5)
    assert any((other[name] != x).any() for name, x in one.items())


def test_a_narrow_store_of_partial_sums_is_committed():
    problem = Recipe(key_length=64, query_length=3, head_dim=8, value_dim=8, dtypes="bfloat16").problem()
    subjects = [Subject(SOUND[name], "bfloat16") for name in ("sequential", "narrow_partial_gradients")]
    dO = cotangents.cotangent(subjects[0], problem)

    wide, narrow = (subject.gradients(problem, dO) for subject in subjects)

    assert (wide["dq"] != narrow["dq"]).any()
    np.testing.assert_array_equal(wide["dv"], narrow["dv"])


def test_sound_kernels_come_near_their_gradient_bounds():
    """A bound that is loose by accident would hide defects: some problem of thirty must use a good part of it."""
    subject = Subject(SOUND["sequential"], "bfloat16")
    ratios = []
    for seed in range(30):
        problem = Recipe(query_length=1, key_length=2, dtypes="bfloat16", seed=seed).problem()
        dO = cotangents.cotangent(subject, problem)
        ratios.append(judge_gradients(problem, subject.contract, dO, subject.gradients(problem, dO)).ratio)

    assert 0.5 < max(ratios) <= 1
