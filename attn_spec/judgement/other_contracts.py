"""Hints about contracts that an answer outside its bound keeps: presets, and the declared one with one field changed.

No verdict depends on these hints; they are for the reader of a refutation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import STAGES, ContractError, ResolvedContract
from attn_spec.contract.presets import PRESETS, describe
from attn_spec.judgement.analysis import analysis_of
from attn_spec.judgement.measure import Judgement, judge, judge_gradients
from attn_spec.judgement.other_problems import explains
from attn_spec.numbers.formats import EIGHT_BITS, FORMATS
from attn_spec.problem.dtypes import dtype_of
from attn_spec.problem.problem import Problem

#: Fields by which sound kernels differ from their declarations in both passes, with a value or several.
BOTH: dict[str, Any] = {
    "alibi_terms": "input",
    "rotary_tables": "input",
    "row_sum_of": "either",
    "lse_merges": 1,
    "scale_on": "operands",
    "normalize": ("every_tile", "by_lse", "before_product"),
}
#: Fields of the forward pass: formats of its stages, which kernels often have as narrow as their inputs.
FORWARD: dict[str, Any] = dict.fromkeys(
    ("score_accumulation", "stored_scores", "softmax", "row_sum", "probabilities", "output_accumulation"), "input"
)
#: Fields that few kernels change, and that allow as much as a preset.
RARE: dict[str, Any] = {"products": "input", "rounding": "toward_zero"}
#: Fields of the backward pass, with values that kernels often have.
BACKWARD: dict[str, Any] = {
    "weight_gradients": "input",
    "delta": "either",
    "backward_weights": "either",
    "score_gradients_of": "either",
    "partial_gradients": "input",
}


def presets_that_hold(problem: Problem, **answer: Any) -> list[str]:
    """Return the names of the preset contracts under which an answer, given as to :func:`judge`, is in its bound."""
    known = analysis_of(problem)
    return [name for name, contract in _presets(problem.dtype) if explains(judge(known, contract, **answer))]


def contracts_that_hold(contract: ResolvedContract, problem: Problem, **answer: Any) -> dict[str, bool]:
    """Return contracts under which an answer is within its bound: the declared one with a field of ``BOTH`` changed,
    then with one of ``FORWARD``, and presets, then with one of ``RARE``. With each name stands whether an output
    of zeros is within it too.

    Each measures all elements that are outside the bound of the declared one. Of each kind the contract that allows
    least comes first.
    """
    known, dtype = analysis_of(problem), problem.dtype
    likely, others, rare = (_described(_changed(contract, dtype, fields), dtype) for fields in (BOTH, FORWARD, RARE))
    nothing = {"output": np.zeros_like(answer["output"])} if answer.get("output") is not None else None

    def judged(other: ResolvedContract) -> Judgement:
        return judge(known, other, **answer)

    def allows_zeros(other: ResolvedContract) -> bool:
        return nothing is not None and not judge(known, other, **answer | nothing).refuted

    found: dict[str, bool] = {}
    for contracts in (likely, [*others, *_presets(dtype)], rare):
        found |= _sharpest(contract, contracts, judged, allows_zeros)
    return found


def gradient_contracts_that_hold(
    contract: ResolvedContract,
    problem: Problem,
    dO: np.ndarray,
    found: Mapping[str, np.ndarray],
    dL: np.ndarray | None = None,
) -> dict[str, bool]:
    """Return contracts with one field changed from the declared one, under which gradients are within their bounds, as
    :func:`contracts_that_hold` does; with whether gradients of zeros are so too.
    """
    others = _described(_changed(contract, problem.dtype, BACKWARD | BOTH | RARE), problem.dtype)
    nothing = {name: np.zeros_like(x) for name, x in found.items()}

    def judged(other: ResolvedContract) -> Judgement:
        return judge_gradients(problem, other, dO, found, dL)

    def allows_zeros(other: ResolvedContract) -> bool:
        return not judge_gradients(problem, other, dO, nothing, dL).refuted

    return _sharpest(contract, others, judged, allows_zeros)


def _presets(dtype: str) -> list[tuple[str, ResolvedContract]]:
    return [(name, one.at(dtype)) for name, one in PRESETS.items() if name != "fp64" or dtype == "float64"]


def _described(contracts: Iterable[ResolvedContract], dtype: str) -> list[tuple[str, ResolvedContract]]:
    return [(describe(other, dtype), other) for other in contracts]


def _sharpest(
    declared: ResolvedContract,
    others: Iterable[tuple[str, ResolvedContract]],
    judged: Callable[[ResolvedContract], Judgement],
    allows_zeros: Callable[[ResolvedContract], bool],
) -> dict[str, bool]:
    """Return the contracts that explain all that is outside the declared one, by name, with what ``allows_zeros`` says.

    Those that allow what is outside least come first.
    """
    outside = {one.name: one.outside for one in judged(declared).measurements}
    found: dict[str, tuple[float, bool]] = {}
    for name, other in others:
        judgement = judged(other)
        at = [(one, outside[one.name]) for one in judgement.measurements]
        if explains(judgement) and all(one.measured[wrong].all() for one, wrong in at):
            allowed = sum(float(one.allowed[wrong].sum()) for one, wrong in at)
            found.setdefault(name, (allowed, allows_zeros(other)))
    return {name: zeros for name, (_, zeros) in sorted(found.items(), key=lambda item: item[1][0])}


def _changed(contract: ResolvedContract, dtype: str, fields: Mapping[str, Any]) -> Iterator[ResolvedContract]:
    """Yield the contract with one of these fields changed, where that promises less; none if it has alternatives."""
    changes = ((name, one) for name, said in fields.items() for one in (said if isinstance(said, tuple) else (said,)))
    for name, said in changes if not contract.alternatives else ():
        value, own = dtype_of(dtype, "q") if said == "input" else said, getattr(contract, name)
        if name in STAGES and own in FORMATS and FORMATS[own].precision <= FORMATS[value].precision:
            continue
        if value in EIGHT_BITS:  # no kernel adds or stores in them what it goes on with
            continue
        if name == "lse_merges" and (contract.normalize != "after_product" or own):
            continue
        if value != own:
            with contextlib.suppress(ContractError):  # the contract excludes this value beside another field
                yield replace(contract, **{name: value})
