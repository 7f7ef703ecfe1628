"""Merges of attention states: a state without keys takes no part, and what is merged may be merged again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.judgement.measure import Measurement
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import all_but
from attn_spec.search.assertions import assert_kept, assert_within_bound, judged
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import Refutation, attention_property, observe

#: Options and abilities of problems whose keys are states.
STATES = ("states", "bias", "cross")
STATE = "Ye et al. 2025, FlashInfer (arXiv 2501.01005), section 2.2"


def of_states(subject: Subject, *needs: str) -> SearchStrategy[Problem]:
    """Draw problems of one query for each token and head, whose keys are states."""
    without = ("empty", "gqa", all_but("states", "bias", "mask", "seqused_k"))
    return problems(subject, needs=(*STATES, *needs), without=without, query_length=1)


def with_empty_states(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems in which about half of the states are empty: all of the first token, all but one of the last."""

    def emptied(problem: Problem) -> Problem:
        rng = randomness(problem)
        seen = rng.random(problem.score_shape) < 0.5
        if seen.size:
            seen[-1] = np.arange(problem.key_length) == rng.integers(problem.key_length)
            seen[0, :, :, :] &= problem.batch == 1 or rng.random() < 0.5
        return problem.replace(mask=seen)

    return of_states(subject, "mask").map(emptied)


def check_queries(problem: Problem) -> None:
    """Raise :class:`NotTaken` unless each token has one query, as the kernel's limits may forbid."""
    if problem.query_length != 1:
        raise NotTaken("it takes no single query, which a merge of states has for each token")


@attention_property(
    source=f"{STATE}: the state of no keys is the identity; flashinfer-ai/flashinfer#4051, vllm-project/vllm#28181",
    hunts="0/0 and inf - inf where all states are empty, +inf taken for a weight, an output of nobody that is averaged",
    needs=(*STATES, "mask"),
    problems=with_empty_states,
)
def test_an_empty_state_takes_no_part(subject: Subject, problem: Problem) -> None:
    """The answer is that of the states with keys, and other numbers in the outputs of empty states change no bit of it.

    Where NaN in an empty state is promised to be kept out (masked_nonfinite="excluded"), NaN is one of these numbers. A
    token without any state has what the convention on empty rows says, which may be the mean of all outputs.
    """
    check_queries(problem)
    before = subject(problem)
    assert_within_bound(subject, problem, before)
    empty = ~problem.visible[:, :, 0, :, None]
    rows = None if subject.conventions.empty_rows_are_constant else ~problem.empty_rows
    for number in (1.0, np.nan) if subject.conventions.masked_nonfinite == "excluded" else (1.0,):
        other = problem.replace(v=np.where(empty, number, problem.v))
        did = f"after outputs of empty states became {number}"
        assert_kept(subject, problem, before, subject(other), did, rows)


@attention_property(
    source=f"{STATE}: merging is associative",
    hunts="a log-sum-exp that is written in another form than it is read, in another base or without a term",
    needs=(*STATES, "lse"),
    problems=of_states,
)
def test_merged_states_merge_again(subject: Subject, problem: Problem) -> None:
    """The kernel's merge of two of its own merges is the merge of all states.

    Let two parts have outputs o_t within E_t and log-sum-exps L_t within e of the true ones, and exact weights w_t, so
    that o = sum w_t o_t. Merging what was returned has weights off by factors within exp(+-2e). So its exact output is
    off by at most sum_t w_t e^2e E_t + (e^2e - 1) sum_t w_t |o_t - o|, and its log-sum-exp by e. The bound of the last
    merge, about that, is added. A token without any state may have the mean of all outputs, which two merges change.
    """
    check_queries(problem)
    if subject.conventions.empty_lse != "-inf":
        return
    half = -(-problem.key_length // 2)
    keys = np.arange(problem.key_length)
    found = [_Part.of(subject, problem.take("K", part)) for part in (keys[:half], keys[half:]) if len(part)]
    again = _of_merged(problem, found)
    last = judged(subject, again, subject(again)).measurements
    true = judged(subject, problem, subject(problem)).measurements
    allowed = _allowed_of_two_levels(found, last, true, subject.conventions.lse_unit)
    for quantity, one, whole, most in zip(("output", "lse"), last, true, allowed, strict=True):
        with np.errstate(invalid="ignore"):
            gap = np.abs((one.got - whole.truth.value) - whole.truth.low) - whole.truth.radius
        same = (one.got == whole.truth.value) | (np.isnan(one.got) & np.isnan(whole.truth.value))
        gap = np.where(same, 0.0, gap)  # minus infinity or NaN, of no state
        decided = subject.conventions.empty_rows_are_constant | ~problem.empty_rows
        speaks = one.measured & whole.measured & np.isfinite(most)
        speaks &= decided[..., None] if quantity == "output" else decided
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.max(gap / most, where=speaks & (gap > 0), initial=0.0)
        observe(float(ratio), f"{quantity} error / bound of two merges")
        wrong = speaks & ~(gap <= most)
        if wrong.any():
            at = tuple(int(n) for n in np.argwhere(wrong)[0])
            raise Refutation(
                f"two merges merged again give {quantity}{list(at)} = {one.got[at]:.9g}, and all states together have "
                f"{whole.truth.value[at]:.9g}; allowed error {most[at]:.3g}"
            )


@dataclass(frozen=True)
class _Part:
    """The kernel's merge of some states, as states of their own: exact numbers of the dtypes that it is given."""

    #: Output [B, H, 1, Dv] and log-sum-exp [B, H, 1].
    o: np.ndarray
    L: np.ndarray
    #: The true ones, and how far those above may be off; infinite where nothing is said.
    true_o: np.ndarray
    true_L: np.ndarray
    error_o: np.ndarray
    error_L: np.ndarray

    @classmethod
    def of(cls, subject: Subject, problem: Problem) -> Self:
        """Return the merge of all states of a problem. The rounding to other dtypes is a part of its error.

        A log-sum-exp of base 2 becomes a natural one, by a product in float64. Its rounding is a part of the error too.
        """
        output, lse = judged(subject, problem, subject(problem)).measurements
        o, L = (np.where(np.isfinite(x.got) | np.isneginf(x.got), x.got, 0.0) for x in (output, lse))
        empty = np.isneginf(lse.truth.value)
        o = bits.nearest(np.where(np.isneginf(L)[..., None], 0.0, o), problem.dtype_of("v"))
        unit = subject.conventions.lse_unit
        L = bits.nearest(L * unit, problem.dtype_of("bias"))
        with np.errstate(invalid="ignore"):
            error_o = np.where(output.measured, output.allowed + np.abs(o - output.got), np.inf)
            rounded = np.abs(L - lse.got * unit) + (unit != 1.0) * 2.0**-50 * np.abs(L)
            error_L = np.where(lse.measured, lse.allowed * unit + rounded, np.inf)
        error_L = np.where(empty, np.where(np.isneginf(L), 0.0, np.inf), error_L)
        return cls(o, L, output.truth.value, lse.truth.value * unit, np.where(empty[..., None], 0.0, error_o), error_L)


def _of_merged(problem: Problem, parts: list[_Part]) -> Problem:
    """Return the problem whose states are merged parts."""
    bias = np.stack([part.L for part in parts], axis=-1)
    v = np.concatenate([part.o for part in parts], axis=2)
    return problem.replace(k=np.zeros((*v.shape[:3], 1)), v=v, bias=bias, mask=None, seqused_k=None)


def _allowed_of_two_levels(
    parts: list[_Part], last: Sequence[Measurement], true: Sequence[Measurement], unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of output and log-sum-exp after a second merge; infinite where a part has none.

    A log-sum-exp of a measurement is counted in multiples of ``unit``.
    """
    o, L = true[0].truth.value, true[1].truth.value * unit
    with np.errstate(all="ignore"):
        e = np.maximum.reduce([part.error_L for part in parts])
        grow = np.exp(2 * e)[..., None] * (1 + 2.0**-40)  # the factor covers the float64 arithmetic of this bound
        output = last[0].allowed.copy()
        for part in parts:
            w = np.where(np.isneginf(part.true_L), 0.0, np.exp(part.true_L - L))[..., None]
            error = grow * part.error_o + (grow - 1) * np.abs(part.true_o - o)
            output += np.where(w == 0, 0.0, w * error) * (1 + 2.0**-40)
        output = np.where(np.isfinite(e)[..., None], output, np.inf)
    return output, last[1].allowed + e / unit
