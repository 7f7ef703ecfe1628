"""Accuracy: every element lies as near to the truth as the arithmetic that the kernel declares allows."""

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import attention_property


@attention_property(
    source="attn_spec.bounds.forward.output_bounds.output_error, the forward bound of the declared contract",
    hunts="any wrong formula, index, scale, mask or format, whatever the size of the values",
    each_call=True,
)
def test_output_is_within_its_bound(subject: Subject, problem: Problem) -> None:
    """Each output element differs from the true attention by no more than the contract's roundings can cause.

    The bound is a theorem about every order and tiling of the declared arithmetic, so no sound kernel exceeds it.
    """
    assert_within_bound(subject, problem, subject(problem), "output")


@attention_property(
    source="attn_spec.bounds.forward.row_sum_bounds.lse_error, the forward bound of the declared contract",
    hunts="base-2 logarithms returned as natural ones, a row sum that lost or invented keys, inexact exponentials",
    needs=("lse",),
    each_call=True,
)
def test_log_sum_exp_is_within_its_bound(subject: Subject, problem: Problem) -> None:
    """Each log-sum-exp differs from the true one by no more than the contract's roundings can cause.

    The log-sum-exp is kept in the working format even where the output is narrow, which makes it the most sensitive
    witness of the scores and of the row sum.
    """
    assert_within_bound(subject, problem, subject(problem), "lse")


@attention_property(
    source="Gemma 2 (arXiv 2408.00118), section 2: scores are capped by softcap * tanh(score / softcap)",
    hunts="a softcap that is ignored, or applied before the scale, after the bias or after the mask",
    needs=("softcap",),
    problems=lambda subject: problems(subject, needs=("softcap",)),
    each_call=True,
)
def test_softcapped_scores_give_an_answer_within_its_bound(subject: Subject, problem: Problem) -> None:
    """With a softcap every element of the output and of the log-sum-exp lies within its bound."""
    assert_within_bound(subject, problem, subject(problem))
