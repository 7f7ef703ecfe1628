"""Findings on a kernel's arithmetic at one dtype: each format is measured once, for all dependent experiments."""

from __future__ import annotations

from functools import partial

from attn_spec.kernels.subject import Subject

from .accumulators import output_accumulator
from .descales import key_descale, value_descale
from .eight_bits import weights_in_eight_bits
from .instrument import Finding, asked, of_experiments
from .order import accumulator_rounding, order
from .row_sum import row_sum_format
from .scale import scale_place
from .scores import product_format, score_format
from .weight_gradients import weight_gradient_format
from .weights import weight_format, weight_rounding


def arithmetic(subject: Subject) -> list[Finding]:
    """Return the findings in the order in which they are shown, without those whose question does not arise.

    There is one finding, without a value, if calls cannot pass the problems of the experiments.
    """
    if reason := subject.kernel.limits.refusal(of_experiments(subject)):
        return [Finding("arithmetic", None, f"the experiments ask for other problems: {reason}")]
    scores = asked("scores", partial(score_format, subject))
    weights = asked("weights", partial(weight_format, subject))
    sums = asked("accumulator of p.v", partial(output_accumulator, subject))
    further = (
        asked("products of scores", partial(product_format, subject, scores.value)),
        asked("row sum", partial(row_sum_format, subject)),
        asked("rounding of weights", partial(weight_rounding, subject, weights.value)),
        asked("weights in 8 bits", partial(weights_in_eight_bits, subject)),
        asked("descale of keys", partial(key_descale, subject)),
        asked("descale of values", partial(value_descale, subject)),
        asked("rounding of sums", partial(accumulator_rounding, subject, sums.value)),
        asked("order of keys", partial(order, subject, sums.value)),
        asked("scale", partial(scale_place, subject)),
        asked("gradients of weights", partial(weight_gradient_format, subject)),
    )
    return [scores, weights, sums, *(found for found in further if found is not None)]
