"""Scale of the output: the stored output stands for the real numbers that are these numbers times the scale."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.judgement.analysis import analysis_of
from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_within_bound, measured_within_bound
from attn_spec.search.drawing.strategies import named, problems
from attn_spec.search.property import Refutation, attention_property


def scaled(subject: Subject, *, of: tuple[str, ...], **fixed: Any) -> SearchStrategy[Problem]:
    """Draw problems with a scale of the output by the patterns ``of``."""
    telling = partial(problems, subject, needs=("o_scale",), without=("empty",), **fixed)
    return telling(o_scale=named(of, "1111"))


@attention_property(
    source="vLLM, unified_attention: out = (acc / row_sum) / output_scale, rounded to the dtype of the output",
    hunts="a scale of the output that is left out, multiplied in place of divided, or applied twice",
    needs=("o_scale",),
    problems=lambda subject: scaled(
        subject, of=("near_one", "power_of_two", "ordinary", "large"), regimes=("normal", "large", "rising", "integers")
    ),
)
def test_an_output_is_divided_by_its_scale(subject: Subject, problem: Problem) -> None:
    """With a scale of the output, the scale times the stored output is within the bound of the output."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="OCP OFP8 1.0, conversion with saturation: a number above the largest becomes the largest",
    hunts="NaN or infinity above the largest number of the output's dtype, a cast that saturates too early",
    needs=("o_scale",),
    problems=lambda subject: scaled(
        subject, of=("small", "ordinary"), regimes=("normal", "uniform+v_offset", "one_hot", "normal+v_one")
    ),
)
def test_outputs_above_the_largest_number_become_it(subject: Subject, problem: Problem) -> None:
    """Outputs near the largest stored number are within their bounds; under saturation, larger ones become it."""
    judgement = measured_within_bound(subject, problem, answer := subject(problem), "output")
    contract = judgement.contract
    if contract.output_overflow != "saturates":
        return
    assert problem.o_scale is not None
    most = problem.output_unit * FORMATS[contract.output].largest
    truth, bound = analysis_of(problem).truth_and_bound(replace(contract, output_overflow="leaves"))
    measured = judgement.measurements[0]
    # The error of an output that no cast makes smaller, so that its quotient is above the largest number for certain.
    with np.errstate(invalid="ignore"):
        beyond = np.abs(truth["output"].value) - truth["output"].radius - bound.allowed["output"] > most
        wrong = measured.measured & beyond & (answer["output"] != np.copysign(most, truth["output"].value))
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(
            f"output{list(at)} is {answer['output'][at]:.9g}; the largest number times the scale is {most:g}",
            measured,
        )
