"""Each engine computes as its bound assumes, and what is glanced at is the same by any of them, within their errors."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from array_api_compat import array_namespace

from attn_spec.bounds.forward.row_sum_bounds import EVALUATION
from attn_spec.contract.roundoff import elementary_error, gamma
from attn_spec.judgement.long.blocks import judge_parts, parts_of
from attn_spec.judgement.long.engine import EngineError, engine_of
from attn_spec.judgement.long.glance import glance, shares
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from tests.judgement.long.test_glance import PROBLEMS

U = 2.0**-53
OF_TORCH = ["torch", pytest.param("torch:cuda", marks=pytest.mark.gpu)]
every_engine = pytest.mark.parametrize("name", ["numpy", *OF_TORCH])

rng = np.random.default_rng(0)
#: Function -> arguments of every size that it meets, and what its error is relative to.
FUNCTIONS = {
    "exp": (np.concatenate([-np.geomspace(1e-18, 700, 2000), rng.uniform(-40, 0, 1000), [0.0]]), abs),
    "log": (np.concatenate([np.geomspace(1, 1e6, 1500), 1 + np.geomspace(1e-15, 1, 1500)]), lambda y: 1 + abs(y)),
    "tanh": (np.concatenate([np.geomspace(1e-18, 400, 1500), rng.uniform(-3, 3, 1500)]), lambda y: 1),
}


def largest_error(name, function):
    """Return the largest error of a function of an engine, in unit roundoffs of the size it is relative to."""
    arguments, size = FUNCTIONS[function]
    engine = engine_of(name)
    x = engine.give(arguments)
    found = engine.take(getattr(array_namespace(x), function)(x))
    with mpmath.workprec(160):
        exact = [getattr(mpmath, function)(mpmath.mpf(float(a))) for a in arguments]
        return max(
            float(abs(mpmath.mpf(float(y)) - true) / size(true) / U) for y, true in zip(found, exact, strict=True)
        )


@every_engine
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_as_accurate_as_the_evaluation_assumes(name, function):
    error = largest_error(name, function)

    # Half a unit is the last rounding, which some argument always meets.
    assert 0.4 < error <= elementary_error(EVALUATION, f"{function}_error") / U


@every_engine
@pytest.mark.parametrize("n", [1, 7, 64, 300])
def test_products_of_matrices_are_off_by_gamma_at_most(name, n):
    A, B = (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape) for shape in ((12, n), (n, 12)))
    A[:, n // 2 :] = -A[:, : n - n // 2]  # sums that nearly cancel
    engine = engine_of(name)
    a, b = map(engine.give, (A, B))
    found = engine.take(array_namespace(a).matmul(a, b))

    assert float(gamma((U, n))) < 1e-12
    for i, j in np.ndindex(found.shape):
        exact = sum(Fraction(x) * Fraction(y) for x, y in zip(A[i].tolist(), B[:, j].tolist(), strict=True))
        allowed = float(gamma((U, n))) * float(np.abs(A[i]) @ np.abs(B[:, j])) * (1 + 2.0**-40)
        assert abs(Fraction(float(found[i, j])) - exact) <= allowed


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_what_is_glanced_at_is_the_same_within_the_radii(problem, name):
    one, other = glance(problem), glance(problem, engine_of(name))
    rows = one.keys > 0

    for what in ("output", "lse"):
        a, b = getattr(one, what), getattr(other, what)
        assert (np.abs(a.value - b.value) <= a.radius + b.radius)[rows].all()
    np.testing.assert_allclose(one.output.radius[rows], other.output.radius[rows], rtol=1e-9)


@pytest.mark.parametrize("name", OF_TORCH)
def test_no_key_at_all_and_no_number_are_told_alike(name):
    empty = Recipe(query_length=3, key_length=4).problem().take("K", [])
    c = resolve("torch_tiled").contract_for("float32")
    wrong = Recipe(query_length=3, key_length=4).problem().replace(v=np.full((1, 1, 4, 1), np.nan))

    for problem in (empty, wrong):
        for engine in ("numpy", name):
            found = shares(problem, c, {"output": np.zeros(problem.output_shape)}, engine=engine_of(engine))
            assert np.isinf(found).all()


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize("wrong", [False, True])
def test_long_answers_are_judged_alike(name, wrong):
    subject = Subject(resolve("torch_tiled"), "bfloat16")
    shape = {"query_heads": 2, "query_length": 150, "key_length": 200, "head_dim": 16, "value_dim": 16}
    problem = Recipe(**shape, dtypes="bfloat16", causal=True, causal_alignment="bottom_right").problem()
    answer = subject(problem)
    answer["output"] = answer["output"].astype(np.float64)
    answer["output"][0, 1, 70:72] += 0.25 if wrong else 0.0
    judged = [judge_parts(parts_of(problem, **answer), subject.contract, engine=one) for one in ("numpy", name)]

    assert [one.refuted for one in judged] == [wrong, wrong]
    assert judged[0].tallies["output"].outside == judged[1].tallies["output"].outside == 32 * wrong
    assert judged[0].worst.index == judged[1].worst.index
    assert judged[0].ratio == judged[1].ratio  # the theorems decided on the same rows, in NumPy


@pytest.mark.parametrize("name", ["cupy", "numpy:cuda", "torch:mps", ""])
def test_an_engine_that_there_is_not(name):
    with pytest.raises(EngineError, match=r"no engine is called .*; write numpy, torch, torch:cuda or torch:cuda:N"):
        engine_of(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_engine_without_its_device():
    with pytest.raises(EngineError, match="needs a CUDA device, and none is available to torch; choose torch or numpy"):
        judge_parts([], resolve("torch_tiled").contract_for("float32"), engine="torch:cuda")
