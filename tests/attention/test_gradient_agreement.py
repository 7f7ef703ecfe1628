"""Gradients against differences of the definition, torch's autograd, and sympy, with every option."""

import numpy as np
import pytest
import sympy as sp
import torch
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.gradients import gradients
from attn_spec.problem.problem import Problem
from tests.attention.exact_problems import magnitudes

BITS = 320
#: Small enough for its sixth power, large enough that inputs on a grid of 1/16 plus a few steps are floats.
STEP = 2.0**-36

BROADCASTS = [(2, 4, 3, 4), (1, 4, 3, 4), (2, 1, 1, 4), (1, 4, 1, 1), (2, 1, 3, 1), (1, 1, 1, 1)]
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.75},
    "causal": {"causal": True},
    "causal, bottom right": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (1, 0)},
    "mask": {"mask": np.arange(72).reshape(2, 1, 9, 4)[:, :, ::3] % 5 > 1},
    "empty rows": {"mask": np.array([True, False, True]).reshape(1, 1, 3, 1)},
    "softcap": {"softcap": 1.5},
    **{f"bias {shape}": {"bias": shape} for shape in BROADCASTS},
    "everything": {"scale": 0.5, "causal": True, "window": (2, None), "softcap": 0.75, "bias": (2, 4, 1, 4)},
}


def grid_problem(options):
    """Draw multiples of 1/16 within 2, two kv heads for four query heads; a bias of the given shape, with some -inf."""
    rng = np.random.default_rng(7)
    shapes = {"q": (2, 4, 3, 2), "k": (2, 2, 4, 2), "v": (2, 2, 4, 3), "dO": (2, 4, 3, 3), "dL": (2, 4, 3)}
    q, k, v, dO, dL = (rng.integers(-32, 33, shape) / 16 for shape in shapes.values())
    if shape := options.get("bias"):
        bias = rng.integers(-32, 33, shape) / 16
        options = {**options, "bias": np.where(bias < -1.5, -np.inf, bias)}
    return Problem(q=q, k=k, v=v, dtypes="float64", **options), dO, dL


def cross_checked(test):
    return pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)(test)


@pytest.mark.one_in(3)
@cross_checked
def test_agrees_with_differences_of_the_definition(options):
    """The slope of <dO, o> + <dL, L> along a random direction of each input is <gradient, direction>.

    The six points leave STEP**6 / 140 = 2**-223 times a seventh derivative. Scores change by 10 a unit at most, so that
    it is of the order of 10**7 times 7!, 2**36: 2**-150 is far above the remainder and far below any gradient.
    """
    problem, dO, dL = grid_problem(options)
    rng = np.random.default_rng(1)
    for name, gradient in gradients(problem, dO, BITS, dL).items():
        direction = rng.integers(1, 4, gradient.shape) * rng.choice([-1.0, 1.0], gradient.shape)
        slope = slope_along(problem, name.removeprefix("d"), direction, dO, dL)
        with mp.workprec(BITS):
            assert abs(slope - (gradient * direction).sum()) < mp.ldexp(1, -150), name
            assert abs(slope) > mp.ldexp(1, -20) or not gradient.any()


def test_agrees_with_differences_of_the_definition_entry_by_entry():
    problem = Problem(
        q=np.reshape([0.5, -1, 1.5, 2], (1, 2, 2, 1)),
        k=np.reshape([1, 2, -0.5], (1, 1, 3, 1)),
        v=np.reshape([2, -1, 0.5], (1, 1, 3, 1)),
        bias=np.reshape([0.5, -1, 2], (1, 1, 1, 3)),
        scale=0.5,
        softcap=0.75,
        causal=True,
        causal_alignment="bottom_right",
        dtypes="float64",
    )
    dO, dL = np.reshape([1, -2, 3, 0.5], (1, 2, 2, 1)), np.reshape([0.25, 1, -1, 2], (1, 2, 2))
    for name, gradient in gradients(problem, dO, BITS, dL).items():
        for at in np.ndindex(gradient.shape):
            unit = np.zeros(gradient.shape)
            unit[at] = 1
            slope = slope_along(problem, name.removeprefix("d"), unit, dO, dL)
            assert abs(slope - gradient[at]) < mp.ldexp(1, -150)


def slope_along(problem, name, direction, dO, dL):
    """Return d/dt of the objective at input + t * direction, within STEP**6 / 140 of its seventh derivative."""
    array = getattr(problem, name)

    def objective(t):
        return cotangents_on_the_definition(problem.replace(**{name: array + t * direction}), dO, dL)

    with mp.workprec(BITS):
        terms = [c * (objective(n * STEP) - objective(-n * STEP)) for n, c in ((1, 45), (2, -9), (3, 1))]
        return mp.fsum(terms) / (60 * mp.convert(STEP))


def cotangents_on_the_definition(problem, dO, dL):
    """Return <dO, o> + <dL, L>, L taken where it is finite."""
    seen = ~problem.empty_rows
    o, L = definition.attention(problem, BITS), definition.log_sum_exp(problem, BITS)
    with mp.workprec(BITS):
        return mp.fdot(definition.exact(dO).ravel(), o.ravel()) + mp.fdot(definition.exact(dL)[seen], L[seen])


@cross_checked
def test_agrees_with_autograd_in_float64(options):
    """Scores stay below 64, in fewer than 8 roundings: P is right within 2**9 of float64's 2**-53, relatively."""
    problem, dO, dL = grid_problem(options)
    expected, size = gradients(problem, dO, 80, dL), magnitudes(problem, dO, dL)

    for name, actual in autograd(problem, dO, dL).items():
        error = abs(actual - expected[name].astype(float))
        assert (error <= 2.0**-44 * size[name].astype(float)).all(), name


def autograd(problem, dO, dL):
    """Return the gradients that torch derives from a plain forward pass."""
    names = ["q", "k", "v"] + ["bias"] * (problem.bias is not None)
    leaves = {name: torch.tensor(getattr(problem, name), requires_grad=True) for name in names}
    k, v = (leaves[name].repeat_interleave(problem.group, dim=1) for name in "kv")
    s = problem.scale_value * leaves["q"] @ k.mT
    if problem.softcap is not None:
        s = problem.softcap * torch.tanh(s / problem.softcap)
    s = s + leaves["bias"] if "bias" in leaves else s
    empty = torch.tensor(problem.empty_rows)
    s = s.masked_fill(torch.tensor(~problem.visible), -torch.inf).masked_fill(empty[..., None], 0.0)
    o, L = torch.softmax(s, dim=-1) @ v, torch.logsumexp(s, dim=-1)
    loss = (o * torch.tensor(dO)).sum(dim=-1) + L * torch.tensor(dL)
    loss.masked_fill(empty, 0.0).sum().backward()
    return {f"d{name}": leaf.grad.numpy() for name, leaf in leaves.items()}


# Symbols.


def test_sympy_derives_the_gradient_of_the_scores():
    """d/da_j of sum_c dO_c o_c + dL L is P_j (dP_j - delta + dL), for three keys and two columns."""
    a, dO, dL = sp.symbols("a1:4", real=True), sp.symbols("dO1:3"), sp.Symbol("dL")
    v = sp.Matrix(3, 2, sp.symbols("v1:7"))
    total = sum(map(sp.exp, a))
    P = [sp.exp(x) / total for x in a]
    dP = [sum(dO[c] * v[j, c] for c in range(2)) for j in range(3)]
    delta = sum(map(sp.Mul, P, dP))

    for j in range(3):
        derivative = sp.diff(delta + dL * sp.log(total), a[j])
        assert sp.simplify(derivative - P[j] * (dP[j] - delta + dL)) == 0


def test_sympy_derives_the_slope_of_the_softcap():
    s, c = sp.symbols("s c", positive=True)

    assert sp.simplify(sp.diff(c * sp.tanh(s / c), s) - (1 - sp.tanh(s / c) ** 2)) == 0


def test_the_gradients_evaluate_the_derivatives_of_the_symbolic_formula():
    """Two queries, two keys, D = 1, softcap 3/2, scale 3/4, one bias per key for both queries, causal."""
    q, k, v, bias = (sp.symbols(f"{name}1:3") for name in ("q", "k", "v", "b"))
    numbers = {"q": (2, -1), "k": (3, 1), "v": (-5, 7), "b": (sp.Rational(1, 4), sp.Rational(-1, 2))}
    dO, dL, cap = (3, -2), (1, 4), sp.Rational(3, 2)
    a = [[cap * sp.tanh(sp.Rational(3, 4) * x * y / cap) + z for y, z in zip(k, bias, strict=True)] for x in q]
    E = [[sp.exp(a[0][0])], [sp.exp(x) for x in a[1]]]
    loss = sum(dO[i] * sum(map(sp.Mul, E[i], v)) / sum(E[i]) + dL[i] * sp.log(sum(E[i])) for i in range(2))
    at = dict(zip((*q, *k, *v, *bias), (x for row in numbers.values() for x in row), strict=True))
    columns = {name: np.array(x, dtype=float).reshape(1, 1, 2, 1) for name, x in numbers.items()}
    problem = Problem(
        **{name: columns[name] for name in "qkv"},
        bias=columns["b"].reshape(1, 1, 1, 2),
        scale=0.75,
        softcap=1.5,
        causal=True,
    )
    actual = gradients(
        problem, np.reshape(dO, (1, 1, 2, 1)).astype(float), 190, np.reshape(dL, (1, 1, 2)).astype(float)
    )

    for symbols, gradient in ((q, actual["dq"]), (k, actual["dk"]), (v, actual["dv"]), (bias, actual["dbias"])):
        for symbol, value in zip(symbols, gradient.ravel(), strict=True):
            expected = sp.N(sp.diff(loss, symbol).subs(at), 60)
            with mp.workdps(60):
                assert abs(value - mp.mpf(str(expected))) < mp.mpf(10) ** -54
