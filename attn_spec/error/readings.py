"""The definite contracts that a contract stands for: its alternatives, and every choice of a field that says "either".

A kernel keeps to one of them, so one has to explain all of an answer. They are tried in this order, the plain and
sharp ones first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.products import probability_cast

#: What "either" stands for in fields that both passes read, and in those of the backward pass.
_FORWARD: dict[str, tuple[str, str]] = {"row_sum_of": ("uncast", "cast")}
_BACKWARD: dict[str, tuple[str, str]] = {
    "backward_weights": ("stored", "recomputed"),
    "delta": ("output", "probabilities"),
    "score_gradients_of": ("uncast", "cast"),
}


@lru_cache(maxsize=64)
def readings(c: ResolvedContract) -> tuple[ResolvedContract, ...]:
    """The definite contracts of the forward pass of a resolved contract."""
    return tuple(reading for one in _alternatives(c) for reading in _definite(one, _FORWARD))


@lru_cache(maxsize=64)
def gradient_readings(c: ResolvedContract) -> tuple[ResolvedContract, ...]:
    """The same for the backward pass, which has more fields that leave a choice."""
    return tuple(reading for one in _alternatives(c) for reading in _definite(one, _FORWARD | _BACKWARD))


def _alternatives(c: ResolvedContract) -> Iterator[ResolvedContract]:
    yield replace(c, alternatives=())
    for other in c.alternatives:
        yield from _alternatives(other)


def _definite(c: ResolvedContract, choices: Mapping[str, Sequence[str]]) -> Iterator[ResolvedContract]:
    open_fields = {
        name: _worth_trying(c, name, words) for name, words in choices.items() if getattr(c, name) == "either"
    }
    for words in product(*open_fields.values()):
        yield replace(c, **dict(zip(open_fields, words, strict=True)))


def _worth_trying(c: ResolvedContract, name: str, words: Sequence[str]) -> Sequence[str]:
    """The words of a field that make a difference: "cast" makes none where the cast changes nothing."""
    casts = probability_cast(c).u > 0 and (name != "row_sum_of" or c.normalize == "after_product")
    return words if casts or "cast" not in words else [word for word in words if word != "cast"]
