"""Hints about contracts that an answer outside its bound keeps: presets, and the declared one with one field changed.

No verdict depends on these hints; they are for the reader of a refutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import STAGES, ResolvedContract
from attn_spec.contract.presets import PRESETS, describe
from attn_spec.judgement.analysis import analysis_of
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.judgement.other_problems import explains
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.dtypes import dtype_of
from attn_spec.problem.problem import Problem

#: Largest number of contracts in a hint.
MOST = 3
#: Fields, and values, by which sound kernels differ from their declarations in the forward pass.
FORWARD: dict[str, Any] = {
    "alibi_terms": "input",
    "rotary_tables": "input",
    "row_sum_of": "either",
    "lse_merges": 1,
    "scale_on": "operands",
}
#: Fields, and values, by which sound kernels differ from their declarations in the backward pass.
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
    fitting = {n: one.at(problem.dtype) for n, one in PRESETS.items() if n != "fp64" or problem.dtype == "float64"}
    return [name for name, contract in fitting.items() if explains(judge(known, contract, **answer))]


def contracts_that_hold(contract: ResolvedContract, problem: Problem, **answer: Any) -> list[str]:
    """Return contracts under which an answer is within its bound: the declared one with one field changed, then
    presets.
    """
    known = analysis_of(problem)

    def holds(other: ResolvedContract) -> bool:
        return explains(judge(known, other, **answer))

    return [*_that_hold(contract, problem.dtype, FORWARD, holds), *presets_that_hold(problem, **answer)][:MOST]


def gradient_contracts_that_hold(
    contract: ResolvedContract,
    problem: Problem,
    dO: np.ndarray,
    found: Mapping[str, np.ndarray],
    dL: np.ndarray | None = None,
) -> list[str]:
    """Return contracts with one field changed from the declared one, under which gradients are within their bounds."""

    def holds(other: ResolvedContract) -> bool:
        return explains(judge_gradients(problem, other, dO, found, dL))

    return _that_hold(contract, problem.dtype, BACKWARD | FORWARD, holds)[:MOST]


def _that_hold(
    contract: ResolvedContract, dtype: str, fields: Mapping[str, Any], holds: Callable[[ResolvedContract], bool]
) -> list[str]:
    return [describe(other, dtype) for other in _changed(contract, dtype, fields) if holds(other)]


def _changed(contract: ResolvedContract, dtype: str, fields: Mapping[str, Any]) -> Iterator[ResolvedContract]:
    """Yield the contract with one of these fields changed, where that promises less; none if it has alternatives."""
    for name, said in fields.items() if not contract.alternatives else ():
        value, own = dtype_of(dtype, "q") if said == "input" else said, getattr(contract, name)
        if name in STAGES and own in FORMATS and FORMATS[own].precision <= FORMATS[value].precision:
            continue
        if name == "lse_merges" and (contract.normalize != "after_product" or own):
            continue
        if value != own:
            yield replace(contract, **{name: value})
