"""Gradients against numbers that a reader can verify by hand; precision; refusals."""

import math

import numpy as np
import pytest
from hypothesis import given
from mpmath import mp

from attn_spec.attention.gradients import gradients
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from tests.attention.exact_problems import EXACT, backward_problems, examples, magnitudes
from tests.one_head import one_head


def found(problem, dO, dL=None):
    """Return {name: flat list of floats}, for cotangents given as rows of numbers of the only head."""
    dO, dL = (None if x is None else np.array(x, dtype=np.float64)[None, None] for x in (dO, dL))
    return {name: x.astype(float).ravel().tolist() for name, x in gradients(problem, dO, 80, dL).items()}


# Two keys, one column: numbers to verify by hand.


def test_weights_of_a_quarter_and_three_quarters():
    """q = 1, k = (0, log 3), v = (0, 1), dO = 1, scale 1/sqrt(1).

    P = (1, 3) / 4, o = 3/4, dP = dO v = (0, 1), delta = dO o = 3/4,
    dS = P (dP - delta) = (1/4 * -3/4, 3/4 * 1/4) = (-3/16, 3/16),
    dQ = sum dS k = 3/16 log 3, dK = dS q = (-3/16, 3/16), dV = P dO = (1/4, 3/4).
    """
    # log(3) is no float, so that the weights are those of the float nearest to it.
    near = {"rel": 2.0**-51}
    actual = found(one_head([[1]], [[0], [math.log(3)]], [[0], [1]]), [[1]])

    assert actual["dq"] == pytest.approx([3 / 16 * math.log(3)], **near)
    assert actual["dk"] == pytest.approx([-3 / 16, 3 / 16], **near)
    assert actual["dv"] == pytest.approx([1 / 4, 3 / 4], **near)


def test_equal_scores():
    """q = 3, k = (5, 5), v = (0, 1), dO = 8: P = 1/2, dP = (0, 8), delta = 4, dS = (-2, 2).

    dQ = 5 (-2 + 2) = 0, dK = 3 dS = (-6, 6), dV = (4, 4).
    """
    assert found(one_head([[3]], [[5], [5]], [[0], [1]]), [[8]]) == {"dq": [0], "dk": [-6, 6], "dv": [4, 4]}


def test_the_cotangent_of_the_log_sum_exp():
    """q = 3, k = (5, 5), dO = 0, dL = 8: dA = P dL = (4, 4), dQ = 5 * 8 = 40, dK = 3 * 4, dV = P dO = 0."""
    assert found(one_head([[3]], [[5], [5]], [[0], [1]]), [[0]], [8]) == {"dq": [40], "dk": [12, 12], "dv": [0, 0]}


def test_scale_multiplies_dq_and_dk():
    """The problem is that of test_equal_scores, with scale 1/4 on dK."""
    assert found(one_head([[3]], [[5], [5]], [[0], [1]], scale=0.25), [[8]])["dk"] == [-1.5, 1.5]


def test_the_default_scale_is_the_real_number_one_over_the_square_root_of_d():
    """The problem is that of test_equal_scores, with a second column of zeros: dK = 1/sqrt(2) * (-+6, 0)."""
    dk = gradients(one_head([[3, 0]], [[5, 0], [5, 0]], [[0], [1]]), np.full((1, 1, 1, 1), 8.0), 200)["dk"]

    with mp.workprec(220):
        assert abs(dk[0, 0, 1, 0] - 6 / mp.sqrt(2)) < mp.ldexp(1, -200)


def test_the_softcap_multiplies_by_its_slope():
    """softcap 1, q = 1, k = (0, log(3) / 2): tanh = (0, 1/2), slopes 1 - tanh^2 = (1, 3/4).

    The bias (0, -1/2) makes the final scores equal: P = 1/2; v = (0, 1), dO = 4: dP = (0, 4), delta = 2,
    dBias = dA = (-1, 1), dS = (-1, 3/4), dQ = 3/4 log(3) / 2, dK = dS.
    """
    bias = np.reshape([0.0, -0.5], (1, 1, 1, 2))
    problem = one_head([[1]], [[0], [math.log(3) / 2]], [[0], [1]], softcap=1.0, bias=bias)
    actual = found(problem, [[4]])

    assert actual["dbias"] == pytest.approx([-1, 1], rel=2.0**-51)
    assert actual["dk"] == pytest.approx([-1, 3 / 4], rel=2.0**-51)
    assert actual["dq"] == pytest.approx([3 / 8 * math.log(3)], rel=2.0**-51)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 1, 2, 2), [-2, 2, -1, 1]),
        ((1, 1, 1, 2), [-3, 3]),
        ((1, 1, 2, 1), [0, 0]),
        ((1, 1, 1, 1), [0]),
    ],
    ids=str,
)
def test_the_gradient_of_the_bias_is_summed_where_it_was_broadcast(shape, expected):
    """Equal scores, v = (0, 1), dO = (8, 4): dA = ((-2, 2), (-1, 1))."""
    problem = one_head([[0], [0]], [[5], [5]], [[0], [1]], bias=np.zeros(shape))

    assert found(problem, [[8], [4]])["dbias"] == expected


def test_query_heads_add_into_their_kv_head():
    """Four query heads q = (1, 2, 3, 4), two kv heads, equal scores, v = (0, 1), dO = 8: dS = (-2, 2) for each."""
    q = np.reshape([1.0, 2.0, 3.0, 4.0], (1, 4, 1, 1))
    k, v = np.ones((1, 2, 2, 1)), np.tile(np.reshape([0.0, 1.0], (2, 1)), (1, 2, 1, 1))
    actual = gradients(Problem(q=q, k=k, v=v, scale=1.0), np.full((1, 4, 1, 1), 8.0), 80)

    assert actual["dk"].ravel().tolist() == [-6, 6, -14, 14]
    assert actual["dv"].ravel().tolist() == [8, 8, 8, 8]


def test_a_hidden_key_and_an_empty_row_have_gradients_of_exactly_zero_even_when_they_are_nan():
    """Causal from the bottom right, three queries, two keys: query 0 sees none, query 1 key 0, query 2 both.

    Query 1 has P = 1, so that only its dV = dO counts: dV = (8/2 + 2, 8/2).
    """
    problem = one_head([[np.nan], [3], [3]], [[5], [5]], [[0], [1]], causal=True, causal_alignment="bottom_right")
    assert found(problem, [[np.nan], [2], [8]], [np.inf, 0, 0]) == {"dq": [0, 0, 0], "dk": [-6, 6], "dv": [6, 4]}


@pytest.mark.parametrize("hide", ["mask", "bias"])
@pytest.mark.parametrize("softcap", [None, 1e300])
def test_a_key_hidden_by_mask_or_bias_may_be_nan(hide, softcap):
    """The problem is that of test_equal_scores, with a third key; a softcap of 1e300 has slope 1 in 80 bits."""
    visible = np.array([[[[True, True, False]]]])
    option = {"mask": visible} if hide == "mask" else {"bias": np.where(visible, 0.0, -np.inf)}
    problem = one_head([[3]], [[5], [5], [np.nan]], [[0], [1], [np.inf]], softcap=softcap, **option)
    expected = {"dq": [0], "dk": [-6, 6, 0], "dv": [4, 4, 0]} | ({"dbias": [-2, 2, 0]} if hide == "bias" else {})

    assert found(problem, [[8]]) == expected


@pytest.mark.parametrize(("Sq", "Sk"), [(0, 3), (2, 0), (0, 0)])
def test_no_queries_and_no_keys(Sq, Sk):
    shapes = {"q": (2, 2, Sq, 3), "k": (2, 1, Sk, 3), "v": (2, 1, Sk, 5), "bias": (1, 2, 1, 1)}
    problem = Problem(**{name: np.ones(shape) for name, shape in shapes.items()})

    for name, x in gradients(problem, np.ones((2, 2, Sq, 5)), 80).items():
        assert x.shape == shapes[name.removeprefix("d")]
        assert not x.any()


# Precision.


@given(drawn=backward_problems())
@examples(10)
def test_precision_bits_are_correct(drawn):
    problem, dO, dL = drawn
    coarse, fine = (gradients(problem, dO, precision, dL) for precision in (40, 160))
    size = magnitudes(problem, dO, dL)

    with mp.workprec(EXACT):
        for name in coarse:
            assert np.all(abs(coarse[name] - fine[name]) <= mp.ldexp(1, -40) * size[name]), name


def test_the_callers_precision_is_left_alone():
    before = mp.prec
    gradients(one_head([[1]], [[1]], [[1]], softcap=1.0), np.ones((1, 1, 1, 1)), 999)

    assert mp.prec == before


@pytest.mark.parametrize(
    ("dO", "dL", "message"),
    [
        (
            np.ones((1, 1, 2, 1)),
            None,
            r"cotangent must be a float64 array \[B, Hq, Sq, Dv\] = \(1, 1, 1, 1\), not float64",
        ),
        (
            np.ones((1, 1, 1, 1), np.float32),
            None,
            r"not float32 \(1, 1, 1, 1\); kernels.frameworks reads",
        ),
        ([[[[1.0]]]], None, r"not list; kernels.frameworks"),
        (
            np.ones((1, 1, 1, 1)),
            np.ones((1, 1, 1, 1)),
            r"lse_cotangent must be a float64 array \[B, Hq, Sq\] = \(1, 1, 1\)",
        ),
    ],
    ids=["shape", "dtype", "type", "lse"],
)
def test_a_wrong_cotangent_is_refused(dO, dL, message):
    with pytest.raises(ProblemError, match=message):
        gradients(one_head([[1]], [[1]], [[1]]), dO, 80, dL)
