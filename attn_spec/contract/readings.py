"""The definite contracts that a contract stands for: its alternatives, and every choice of a field that says "either".

A kernel keeps to one of them, so one has to explain all of an answer. They are tried in this order, the plain and
sharp ones first. Of a problem, those are left out that say nothing of it, as long as another says something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from attn_spec.contract.contract import ContractError, ResolvedContract
from attn_spec.contract.coverage import says_nothing, silence_of_gradients
from attn_spec.contract.products import probability_cast
from attn_spec.contract.stages import contains
from attn_spec.contract.terms import remembered
from attn_spec.problem.problem import Problem

#: Words that "either" stands for, in fields that both passes read, and in those of the backward pass.
_FORWARD: dict[str, tuple[str, str]] = {"row_sum_of": ("uncast", "cast")}
_BACKWARD: dict[str, tuple[str, str]] = {
    "backward_weights": ("stored", "recomputed"),
    "delta": ("output", "probabilities"),
    "score_gradients_of": ("uncast", "cast"),
}


@remembered(64)
def readings(contract: ResolvedContract) -> tuple[ResolvedContract, ...]:
    """Return the definite contracts of the forward pass of a resolved contract."""
    return tuple(reading for one in _alternatives(contract) for reading in _definite(one, _FORWARD))


def readings_of(contract: ResolvedContract, problem: Problem | None) -> tuple[ResolvedContract, ...]:
    """Return the definite forward contracts with a theorem for a problem; all of them if none has one, or for None."""
    return _of_problem(readings(contract), problem)


def gradient_readings_of(contract: ResolvedContract, problem: Problem | None) -> tuple[ResolvedContract, ...]:
    """Return the readings of the contract for the backward pass of a problem."""
    return _of_problem(gradient_readings(contract), problem)


def _of_problem(found: tuple[ResolvedContract, ...], problem: Problem | None) -> tuple[ResolvedContract, ...]:
    if problem is None:
        return found
    return tuple(reading for reading in found if not says_nothing(reading, problem)) or found


@remembered(64)
def gradient_readings(contract: ResolvedContract) -> tuple[ResolvedContract, ...]:
    """Return the readings for the backward pass, which has more fields that leave a choice.

    Raises :class:`ContractError` if the contract says nothing of gradients.
    """
    if reason := silence_of_gradients(contract):
        raise ContractError(reason)
    return tuple(
        reading
        for one in _alternatives(contract)
        for reading in _definite(one, {"weight_gradients": _weight_gradients(one)} | _FORWARD | _BACKWARD)
    )


def _weight_gradients(contract: ResolvedContract) -> tuple[str, ...]:
    """Return the formats of "either": the format of the probabilities is one only if it is no wider."""
    scores, probabilities = contract.stored_scores, contract.probabilities
    return (scores,) if contains(contract.format(probabilities), contract.format(scores)) else (scores, probabilities)


def _alternatives(contract: ResolvedContract) -> Iterator[ResolvedContract]:
    yield replace(contract, alternatives=())
    for other in contract.alternatives:
        yield from _alternatives(other)


def _definite(contract: ResolvedContract, choices: Mapping[str, Sequence[str]]) -> Iterator[ResolvedContract]:
    open_fields = {
        name: _worth_trying(contract, name, words)
        for name, words in choices.items()
        if getattr(contract, name) == "either"
    }
    for words in product(*open_fields.values()):
        yield replace(contract, **dict(zip(open_fields, words, strict=True)))


def _worth_trying(contract: ResolvedContract, name: str, words: Sequence[str]) -> Sequence[str]:
    """Return the words of a field that make a difference; "cast" makes none if the cast changes nothing."""
    casts = probability_cast(contract).u > 0 and (name != "row_sum_of" or contract.normalize == "after_product")
    return words if casts or "cast" not in words else [word for word in words if word != "cast"]
