"""Some rows of a problem are judged as they are among all of them."""

import numpy as np
import pytest

from attn_spec.attention import definition
from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import EAGER
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 9, "key_length": 7, "head_dim": 4, "value_dim": 3}
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "causal, bottom right": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (2, 1), "causal_alignment": "bottom_right"},
    "mask, bias and softcap": {"mask": "random", "bias": "normal", "softcap": 2.0},
    "ALiBi": {"alibi_slopes": "geometric@1H11", "causal_alignment": "bottom_right"},
    "rotary": {"rotary": "half", "causal_alignment": "bottom_right"},
    "dropout": {"dropout_keep": "half", "dropout_p": 0.25},
}
ROWS = [8, 2, 3]


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_rows_have_what_they_have_among_all(options):
    problem = Recipe(**SHAPE, **options).problem()
    rows, x = problem.rows(ROWS), intermediates(problem)
    y = intermediates(rows)

    assert (rows.visible == problem.visible[:, :, ROWS]).all()
    assert (rows.distances == problem.distances[:, :, ROWS]).all()
    for name in ("O", "L", "s"):
        np.testing.assert_allclose(getattr(y, name), getattr(x, name)[:, :, ROWS], rtol=1e-13, atol=1e-13)
    whole, part = (forward_bound(of, EAGER.at("float32")) for of in (x, y))
    for name in ("output", "lse"):
        np.testing.assert_allclose(part.allowed[name], whole.allowed[name][:, :, ROWS], rtol=1e-9)
    assert (rows.rows([1, 2]).visible == problem.visible[:, :, [2, 3]]).all()
    assert Problem.from_json(rows.to_json()).visible.tolist() == rows.visible.tolist()


def test_the_definition_reads_rows_where_they_stand():
    problem = Recipe(query_length=5, key_length=4, head_dim=2, value_dim=2, causal=True, rotary="half").problem()
    for of in (definition.attention, definition.log_sum_exp):
        assert (abs(of(problem.rows([3, 1]), 80) - of(problem, 80)[:, :, [3, 1]]) < 2.0**-70).all()


def test_a_kernel_is_not_given_rows_of_a_longer_problem():
    problem = Recipe(query_length=5, key_length=4).problem()

    with pytest.raises(NotTaken, match="it is some rows of a longer problem"):
        Subject(resolve("numpy_naive"), "float32")(problem.rows([3, 1]))


@pytest.mark.parametrize("diagonal", [[1, 2], np.arange(3), np.arange(2.0)])
def test_a_diagonal_is_an_integer_for_each_query(diagonal):
    problem = Recipe(query_length=2, key_length=4).problem()

    with pytest.raises(
        ProblemError, match=r"diagonal must be an int64 array \[Sq\] = \(2,\) or \[B, Sq\] = \(1, 2\), not "
    ):
        problem.replace(diagonal=diagonal)


def test_rows_share_their_keys_with_the_problem():
    """Blocks of many long problems are made without a copy or a check of what is the same in all of them."""
    problem = Recipe(query_length=5, key_length=4).problem()

    assert problem.rows([1]).k is problem.k
    with pytest.raises(ValueError, match="read-only"):
        problem.rows([1]).q[...] = 0
