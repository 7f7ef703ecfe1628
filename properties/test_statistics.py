"""Statistics: errors look like those of independent roundings to nearest, together no larger and with no common sign.

These are tests, not theorems: a kernel that fails is suspect, not refuted. See ``attn_spec.chance.error_statistics``.
"""

from attn_spec.chance.error_statistics import FALSE_ALARM
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.property import attention_property
from attn_spec.search.suspicion import assert_below_threshold, errors, generic_problems, not_applicable

MODEL = "Connolly, Higham and Mary (2021, SIAM J. Sci. Comput. 43), mean-independent roundings"


@attention_property(
    source=f"{MODEL}; Hsu, Kakade and Zhang (2012, Electron. Commun. Probab. 17), Theorem 1",
    hunts="accumulators a few bits too narrow, inexact exponentials, a cast that is not declared: inside the bound",
    problems=generic_problems,
    not_applicable=not_applicable,
    false_alarm=FALSE_ALARM,
)
def test_errors_are_together_no_larger_than_independent_roundings_make_them(subject: Subject, problem: Problem) -> None:
    """The mean square of all errors is no larger than random roundings of the declared arithmetic make it.

    Independent roundings add up like the root of their number, where the worst case adds them all: a sound kernel is
    far inside its bound, and a kernel that is merely inside may still do a worse arithmetic than it declares. A sound
    one fails on one problem with probability at most 1e-9 if each rounding has mean 0 whatever the others were.
    Domain: normal inputs without masks, biases and softcaps, rounding to nearest, first order.
    """
    found = errors(subject, problem)
    assert_below_threshold(found.size(), found.rows)


@attention_property(
    source=f"{MODEL}; the inequality of Azuma and Hoeffding",
    hunts="accumulators and casts that truncate where nearest is declared, a scale or exponential slightly off",
    problems=generic_problems,
    not_applicable=not_applicable,
    false_alarm=FALSE_ALARM,
)
def test_errors_have_no_common_sign(subject: Subject, problem: Problem) -> None:
    """Errors lean neither towards zero, nor upwards, nor along a common change of all scores.

    Roundings to nearest have no preferred sign, so their weighted sum over thousands of outputs grows like the root of
    their number; a bias grows like the number. What a contract allows to be systematic, such as the error of the
    exponential, is taken off at its worst. Probability and domain are those of the mean square.
    """
    found = errors(subject, problem)
    assert_below_threshold(found.bias(), found.rows)
