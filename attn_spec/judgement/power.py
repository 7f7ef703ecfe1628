"""Power of a verdict: the planted errors that the judgement which an answer passed would have refuted.

An error is planted by a wrong answer in place of the kernel's. It is the float64 answer of a neighbouring problem
(``neighbours``), or zeros, a mean, or another row, rounded to the dtype of the answer. The judgement under the same
contract gets the wrong answer. An error that is not refuted would not be noticed in the kernel's answer either.

An error is counted once for all problems of a place, and it is seen if it is refuted in any of them. An error that
changes no number of the rounded answer is not planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.contract import STAGES, ResolvedContract
from attn_spec.judgement.analysis import Analysis
from attn_spec.judgement.measure import Judgement, judge, judge_gradients
from attn_spec.judgement.neighbours import Change, made, next_along, other_edges, share_lost, without_options
from attn_spec.judgement.planted_errors import Power, Unseen
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.problem import Problem

#: Shares of the keys that are lost, in percent.
SHARES = (1, 10)
#: Places of lost keys, in words.
PLACES = {"start": "at the start", "middle": "in the middle", "end": "at the end"}
#: Least number of lost keys for which a share is planted beside the single lost key.
FEWEST = 2
#: Words for a window whose edge is a key off.
EDGE = "with an edge of its window a key off"
#: Factor on the scale, close to 1.
OFF = 1.01
#: Bound on the roundings of float64, relative to the largest number of an answer.
ROUNDOFF = 2.0**-44
#: Values of an answer, by quantity.
Answer = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Planting:
    """One problem that was judged, and how: answers of its neighbours are judged in the same way as the kernel's
    answer.
    """

    problem: Problem
    contract: ResolvedContract
    conventions: Conventions
    #: True if a log-sum-exp is judged too.
    lse: bool = False
    #: Cotangent dO [B, Hq, Sq, Dv] if gradients are judged instead of the output; None otherwise.
    cotangent: np.ndarray | None = None
    #: Names of the gradients that are judged.
    gradients: tuple[str, ...] = ()


def power(asked: Iterable[Planting], *, dtype: str, where: str) -> Power:
    """Plant errors in the problems of one place, and return those that are seen and unseen."""
    nearest: dict[str, _Tried] = {}

    def is_open(words: str) -> bool:
        return words not in nearest or not nearest[words].refuted

    for one in asked:
        for words, answer in planted(one, is_open):
            found, before = _Tried(one, answer, judged(one, one.contract, answer)), nearest.get(words)
            if found.judgement.exercised and (before is None or found.beats(before)):
                nearest[words] = found
    unseen = [_unseen(words, tried) for words, tried in nearest.items() if not tried.refuted]
    return Power(dtype=dtype, where=where, planted=tuple(nearest), unseen=tuple(unseen))


@dataclass(frozen=True)
class _Tried:
    """A planted answer and its judgement."""

    asked: Planting
    answer: Answer
    judgement: Judgement

    @property
    def refuted(self) -> bool:
        return self.judgement.refuted

    def beats(self, other: _Tried) -> bool:
        """Return whether this answer is nearer to a refutation than another."""
        return (self.refuted, self.judgement.ratio) > (other.refuted, other.judgement.ratio)


def judged(one: Planting, contract: ResolvedContract, answer: Answer) -> Judgement:
    """Return the judgement of an answer to the planting's problem under a contract."""
    if one.cotangent is not None:
        return judge_gradients(one.problem, contract, one.cotangent, answer)
    return judge(one.problem, contract, **answer, conventions=one.conventions)


# Planting


def planted(one: Planting, is_asked: Callable[[str], bool] = lambda words: True) -> Iterator[tuple[str, Answer]]:
    """Yield wrong answers that differ from the rounded right answer, each with words for the error.

    ``is_asked`` says of words whether answers with that error are wanted; others are not computed.
    """
    if not (~one.problem.empty_output_rows).any():
        return
    exact = _answer(one, one.problem)
    right = _rounded(one, exact)
    for words, wrong in _wrong(one, exact, is_asked):
        rounded = _rounded(one, wrong)
        if any(_differs(rounded[name], right[name]) for name in rounded):
            yield words, rounded


@np.errstate(invalid="ignore")
def _differs(wrong: np.ndarray, right: np.ndarray) -> bool:
    """Return whether some number differs by more than the roundings of float64, in which both answers were computed."""
    size = np.abs(np.where(np.isfinite(right), right, 0.0)).max(initial=0.0)
    return bool(np.any(~(np.abs(wrong - right) <= ROUNDOFF * size) & ~bits.identical(wrong, right)))


def right_answer(one: Planting) -> Answer:
    """Return the right answer in float64, rounded to its dtypes."""
    return _rounded(one, _answer(one, one.problem))


def _wrong(one: Planting, exact: Answer, is_asked: Callable[[str], bool]) -> Iterator[tuple[str, Answer]]:
    for words, answer in _of_itself(one, exact):
        if is_asked(words):
            yield words, answer()
    changes = ((words, fields) for words, fields in _changes(one.problem) if is_asked(words))
    for words, other in made(one.problem, changes):
        yield words, _answer(one, other)


def _answer(one: Planting, problem: Problem) -> Answer:
    """Return the answer of a kernel that solves a problem exactly."""
    forward = intermediates(problem)
    if one.cotangent is not None:
        found = gradient_intermediates(forward, one.cotangent).gradients
        return {name: found[name] for name in one.gradients}
    seen = forward.keys[..., 0] > 0
    output = np.where(problem.empty_output_rows[..., None], 0.0, forward.output)
    has_lse = one.lse and one.conventions.lse_base == "e"
    return {"output": output} | ({"lse": np.where(seen, forward.L[..., 0], -np.inf)} if has_lse else {})


def _of_itself(one: Planting, right: Answer) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield functions that make wrong answers of the right one: zeros, a mean, another row, or exchanged gradients."""
    if one.cotangent is not None:
        for name, x in right.items():
            yield f"{name} of zeros", lambda name=name, x=x: right | {name: np.zeros(x.shape)}
            yield f"{name} negated", lambda name=name, x=x: right | {name: -x}
            yield f"{name} of the next row", lambda name=name, x=x: right | {name: np.roll(x, -1, 2)}
            yield f"{name} of the next head", lambda name=name, x=x: right | {name: np.roll(x, -1, 1)}
        if {"dk", "dv"} <= right.keys() and right["dk"].shape == right["dv"].shape:
            yield "dk and dv exchanged", lambda: right | {"dk": right["dv"], "dv": right["dk"]}
        return
    output, v = right["output"], one.problem.v
    if not one.problem.projects and v.shape[2] >= output.shape[2]:
        yield "the values", lambda: right | {"output": one.problem.per_query_head(v)[:, :, : output.shape[2]]}
    yield "zeros", lambda: right | {"output": np.zeros(output.shape)}
    mean = Analysis(one.problem).of_equal_scores
    yield "the mean of the values", lambda: right | {"output": mean.intermediates.output}
    yield "the next row", lambda: right | {"output": np.roll(output, -1, 2)}


def _changes(problem: Problem) -> list[Change]:
    """Return the changes of the problem whose answers a wrong kernel may give, each with words for the error."""
    changes: list[Change] = []
    seen = int(problem.visible.sum(axis=-1).max(initial=0))
    for where, place in PLACES.items():
        if seen > 1:
            changes.append((f"a key lost {place}", share_lost(problem, 0.0, where=where)))
        for share in SHARES:
            if share * seen >= 100 * FEWEST:
                lost = share_lost(problem, share / 100, where=where)
                changes.append((f"{share} % of the keys lost {place}", lost))
    if problem.feature_map is None:
        changes.append(("the scale 1 % off", {"scale": OFF * problem.scale_value}))
        changes.append(("without a scale", {"scale": 1.0}))
    for axis, words in (("H", "another kv head"), ("B", "another batch entry")):
        if not (problem.projects and axis == "H"):
            changes.append((words, next_along(problem, axis)))
    changes += [(EDGE if words.startswith("with window") else words, to) for words, to in other_edges(problem)]
    return [*changes, *without_options(problem)]


def _rounded(one: Planting, answer: Answer) -> Answer:
    formats = {"output": one.contract.output, "lse": one.contract.lse}
    units = {"output": one.problem.output_unit}

    def stored(name: str, x: np.ndarray) -> np.ndarray:
        form, d = formats.get(name) or one.problem.dtype_of(name[1:], one.contract.gradients), units.get(name, 1.0)
        return bits.nearest(x / d, form) * d

    return {name: stored(name, x) for name, x in answer.items()}


# Contract fields that hide an error


def _unseen(words: str, tried: _Tried) -> Unseen:
    ratio, best, by = tried.judgement.ratio, tried.judgement.ratio, ""
    for field, contract in _sharper(tried.judgement.contract, tried.asked):
        found = judged(tried.asked, contract, tried.answer).ratio
        if found > 1.05 * best:
            best, by = found, field
    return Unseen(words=words, ratio=ratio, hidden_by=by, sharper=best)


def _sharper(contract: ResolvedContract, one: Planting) -> Iterator[tuple[str, ResolvedContract]]:
    """Yield the contract that explained an answer with one field that promises more, with the field's present value."""
    wide = "float64" if contract.score_accumulation == "float64" else "float32"
    changes: list[tuple[str, Any]] = [
        (stage, wide)
        for stage in STAGES
        if (own := getattr(contract, stage)) in FORMATS and FORMATS[own].precision < FORMATS[wide].precision
        if stage not in ("output", "gradients")
    ]
    n = max(one.problem.key_length, 1)
    changes += [(name, value) for name, value in _WHOLE.items() if getattr(contract, name) not in (value, None)]
    if contract.kv_tile is not None and contract.kv_tile < min(n, LARGE_TILE):
        changes.append(("kv_tile", LARGE_TILE))
    if contract.summation_depth is None and n > LARGE_TILE:
        changes.append(("summation_depth", LARGE_TILE + n // LARGE_TILE))
    for name, value in changes:
        if name != "lse_merges" or contract.normalize != "by_lse":
            yield f"{name}={getattr(contract, name)!r}", replace(contract, **{name: value})


#: Values of fields that allow the least error.
_WHOLE: dict[str, Any] = {"lse_merges": 0, "scale_on": "scores", "alibi": "distance", "matrix_rounding": None}
#: Number of keys in a large tile.
LARGE_TILE = 128
