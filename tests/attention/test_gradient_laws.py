"""Laws of the gradients of attention, each derived where it is tested: what a sound backward kernel obeys too.

Notation of ``gradients``. A law holds within the definition's own error, 2**-BITS of the magnitudes in its docstring.
"""

import numpy as np
import pytest
from hypothesis import given
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.definition import exact
from attn_spec.attention.gradients import GUARD, gradients, score_gradients
from tests.attention.exact_problems import TAME, backward_problems, examples, magnitudes

BITS = 100


@pytest.fixture(autouse=True)
def precision():
    """Evaluate the laws with far more bits than the gradients have."""
    with mp.workprec(1000):
        yield


def solve(problem, dO, dL=None):
    return gradients(problem, dO, BITS, dL)


def sizes(problem, dO, dL=None):
    return magnitudes(problem, dO, dL)


def assert_close(actual, expected, size):
    """Assert that values are equal within the errors of two gradients of that size."""
    assert np.all(abs(actual - expected) <= mp.ldexp(2, -BITS) * size)


def assert_same(actual, expected, *size):
    """Assert that gradients are equal, name by name, within the errors of gradients of these sizes."""
    assert actual.keys() == expected.keys()
    for name in expected:
        assert_close(actual[name], expected[name], sum(x[name] for x in size))


def sum_groups(problem, x):
    """Sum over head groups: [B, Hq, ..] -> [B, Hkv, ..]."""
    return x.reshape(problem.batch, problem.kv_heads, problem.group, *x.shape[2:]).sum(axis=2)


def inner(x, y):
    """Return the inner products of the matrices of each head."""
    return (exact(x) * y).sum(axis=(2, 3))


# Sums.


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_a_row_of_score_gradients_sums_to_the_cotangent_of_the_log_sum_exp(drawn):
    """sum_j dA_ij = dL_i in every row that sees a key, and 0 when there is no dL.

    sum_j P_ij = 1 and delta_i = sum_j P_ij dP_ij, so that sum_j P_ij (dP_ij - delta_i + dL_i) is
    delta_i - delta_i + dL_i: the Jacobian of softmax kills constants.
    """
    problem, dO, dL = drawn
    bias = np.zeros((*problem.score_shape[:3], 1))
    # A bias that is constant along the row receives just that sum; it replaces the drawn one, which may hide keys.
    problem = problem.replace(bias=bias, mask=problem.visible)
    expected = np.where(problem.empty_rows, 0.0, 0.0 if dL is None else dL)

    assert_close(solve(problem, dO, dL)["dbias"][..., 0], exact(expected), sizes(problem, dO, dL)["dbias"][..., 0])


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_the_gradients_of_v_sum_to_the_cotangents(drawn):
    """sum_j dV_jc = sum_i dO_ic over the rows of the head group that see a key, as sum_j P_ij = 1."""
    problem, dO, dL = drawn
    seen = exact(np.where(problem.empty_rows[..., None], 0.0, dO))
    actual, size = solve(problem, dO, dL)["dv"], sizes(problem, dO)["dv"]

    assert_close(actual.sum(axis=2), sum_groups(problem, seen.sum(axis=2)), size.sum(axis=2))


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_q_and_k_share_one_inner_product_with_their_gradients(drawn):
    """sum_id q_id dQ_id = sum_jd k_jd dK_jd in each head group: both are scale * sum_ij dS_ij q_i.k_j."""
    problem, dO, dL = drawn
    found, size = solve(problem, dO, dL), sizes(problem, dO, dL)
    by_q, by_k = sum_groups(problem, inner(problem.q, found["dq"])), inner(problem.k, found["dk"])

    assert_close(by_q, by_k, inner(abs(problem.k), size["dk"]))


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_v_and_its_gradient_have_the_inner_product_of_o_and_its_cotangent(drawn):
    """sum_jc v_jc dV_jc = sum_ic o_ic dO_ic in each head group: both are sum_ijc dO_ic P_ij v_jc."""
    problem, dO, dL = drawn
    by_o = sum_groups(problem, inner(dO, definition.attention(problem, BITS)))
    by_v = inner(problem.v, solve(problem, dO, dL)["dv"])

    assert_close(by_v, by_o, inner(abs(problem.v), sizes(problem, dO)["dv"]))


# Linearity.


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_gradients_are_linear_in_the_cotangents(drawn):
    """P does not depend on dO and dL; dP, delta, and so dA and all gradients are linear in them."""
    problem, dO, dL = drawn
    dL = np.zeros(dO.shape[:3]) if dL is None else dL
    first_column = np.arange(problem.value_dim) == 0
    parts = [(dO * first_column, 0 * dL), (dO * ~first_column, 0 * dL), (0 * dO, dL)]
    found, size = solve(problem, dO, dL), sizes(problem, dO, dL)
    a, b, c = (solve(problem, *part) for part in parts)
    scaled = solve(problem, -4 * dO, -4 * dL)

    assert_same({name: a[name] + b[name] + c[name] for name in a}, found, size)
    assert_same({name: scaled[name] / -4 for name in scaled}, found, size)


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_dv_depends_on_neither_v_nor_dl(drawn):
    """dV = P^T dO, and P depends on q, k and the options only."""
    problem, dO, dL = drawn

    assert (solve(problem.replace(v=np.ones(problem.v.shape)), dO)["dv"] == solve(problem, dO, dL)["dv"]).all()


# Scaling.


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_doubling_q_and_halving_the_scale_halves_dq(drawn):
    """The scores and so dS remain; dQ = scale * dS K is halved, dK = scale * dS^T Q, dV and dBias remain."""
    problem, dO, dL = drawn
    problem = problem.replace(scale=problem.scale or 1.0, dtypes="float64")
    doubled = problem.replace(q=2 * problem.q, scale=problem.scale / 2)
    found = solve(doubled, dO, dL)

    assert_same(found | {"dq": 2 * found["dq"]}, solve(problem, dO, dL), sizes(problem, dO, dL))


@given(drawn=backward_problems(kinds=TAME, lse=False))
@examples(25)
def test_gradients_of_the_scores_scale_with_v(drawn):
    """dP and delta are linear in v: without dL, -2v gives -2 times dQ, dK and dBias, and the same dV."""
    problem, dO, _ = drawn
    problem = problem.replace(dtypes="float64")
    found = solve(problem.replace(v=-2 * problem.v), dO)
    halved = {name: x if name == "dv" else x / -2 for name, x in found.items()}

    assert_same(halved, solve(problem, dO), sizes(problem, dO))


# Shifts.


@given(drawn=backward_problems(kinds=("ties",)))
@examples(25)
def test_a_bias_that_is_constant_along_each_row_changes_no_gradient(drawn):
    """A constant of a row multiplies e^a_ij and their sum alike: P remains, and with it all that P determines."""
    problem, dO, dL = drawn
    bias = np.zeros((1, 1, 1, 1)) if problem.bias is None else problem.bias
    constant = np.arange(problem.query_length)[:, None] * 8.0 - 5.0
    problem = problem.replace(bias=np.broadcast_to(bias, problem.score_shape), dtypes="float64")
    shifted = problem.replace(bias=problem.bias + constant)

    assert_same(solve(shifted, dO, dL), solve(problem, dO, dL), sizes(problem, dO, dL))


@given(drawn=backward_problems(kinds=("ties",), lse=False))
@examples(25)
def test_a_constant_added_to_every_value_changes_only_the_output(drawn):
    """dP_ij grows by sum_c dO_ic w_c, the same for all j, and so does delta_i; dV does not depend on v."""
    problem, dO, _ = drawn
    moved = problem.replace(v=problem.v + np.arange(1.0, problem.value_dim + 1), dtypes="float64")

    assert_same(solve(moved, dO), solve(problem, dO), sizes(problem, dO), sizes(moved, dO))


@given(drawn=backward_problems(kinds=("ties",), lse=False))
@examples(25)
def test_a_vector_added_to_every_key_changes_no_gradient_without_softcap(drawn):
    """s_ij grows by scale * q_i.u, the same for all j, so that P and dS remain; sum_j dS_ij u = 0 leaves dQ."""
    problem, dO, _ = drawn
    problem = problem.replace(softcap=None, dtypes="float64")
    moved = problem.replace(k=problem.k + np.arange(1.0, problem.head_dim + 1))

    assert_same(solve(moved, dO), solve(problem, dO), sizes(problem, dO), sizes(moved, dO))


# Permutations.


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
@pytest.mark.parametrize("axis", ["batch", "heads", "queries", "keys"])
def test_gradients_are_equivariant_under_permutations(axis, drawn):
    """Every formula sums over an unordered set: what permutes an input permutes its gradient, and no other.

    Heads are reversed on q and on k and v together, so that each query head still reads its own kv head.
    """
    problem, dO, dL = drawn
    dL = np.zeros(dO.shape[:3]) if dL is None else dL
    bias = None if problem.bias is None else np.broadcast_to(problem.bias, problem.score_shape)
    problem = problem.replace(causal=False, window=None, mask=problem.visible, bias=bias)
    rows = dict.fromkeys(("q", "mask", "bias", "dO", "dL"))
    everything = rows | dict.fromkeys("kv")
    moved = {
        "batch": dict.fromkeys(everything, 0),
        "heads": dict.fromkeys(everything, 1),
        "queries": dict.fromkeys(rows, 2),
        "keys": {"k": 2, "v": 2, "mask": 3, "bias": 3},
    }[axis]

    def reverse(name, x):
        return x if x is None or name not in moved else np.flip(x, moved[name])

    changed = problem.replace(
        **{name: reverse(name, getattr(problem, name)) for name in ("q", "k", "v", "mask", "bias")}
    )
    found = solve(changed, reverse("dO", dO), reverse("dL", dL))
    back = {name: reverse(name.removeprefix("d"), x) for name, x in found.items()}

    assert_same(back, solve(problem, dO, dL), sizes(problem, dO, dL))


# Zeros.


@given(drawn=backward_problems())
@examples(60)
def test_hidden_keys_and_empty_rows_have_gradients_of_exactly_zero(drawn):
    """P_ij = 0 there, and every term has a factor P_ij."""
    problem, dO, dL = drawn
    found = solve(problem, dO, dL)
    unseen = ~sum_groups(problem, problem.visible.any(axis=2)).astype(bool)

    assert not found["dq"][problem.empty_rows].any()
    assert not found["dk"][unseen].any()
    assert not found["dv"][unseen].any()
    assert not score_gradients(problem, dO, BITS, dL)[~problem.visible].any()
    if problem.bias is not None:
        assert not found["dbias"][problem.bias == -np.inf].any()


@given(drawn=backward_problems(kinds=TAME, lse=False))
@examples(25)
def test_a_query_that_sees_one_key_gives_no_gradient_but_to_v(drawn):
    """P = 1 whatever the score: dP = delta, dA = 0, and dV = dO."""
    problem, dO, _ = drawn
    problem = problem.replace(window=(0, 0))
    found, size = solve(problem, dO), sizes(problem, dO)

    for name in found.keys() - {"dv"}:
        assert_close(found[name], 0, size[name])


@given(drawn=backward_problems(kinds=TAME))
@examples(25)
def test_the_gradient_of_the_log_sum_exp_is_the_weights(drawn):
    """dO = 0 and dL = 1 give dA = P and dV = 0."""
    problem, dO, _ = drawn
    ones = np.ones(dO.shape[:3])

    assert (score_gradients(problem, 0 * dO, BITS, ones) == definition.weights(problem, BITS + GUARD)).all()
    assert not solve(problem, 0 * dO, ones)["dv"].any()
