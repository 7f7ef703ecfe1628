"""Hints about calls that a test may have meant: other axes of the same tensors, or another reading of an option.

No verdict depends on these hints; they are for the reader of a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from attn_spec.judgement.long.blocks import Part
from attn_spec.judgement.long.gradient_parts import GradientPart
from attn_spec.kernels.calls.any_call import any_call
from attn_spec.kernels.calls.call import Call, CallError, answered, call_errors, presentations
from attn_spec.kernels.calls.gradient_call import pulled
from attn_spec.kernels.calls.sequence_arguments import packed_rows
from attn_spec.kernels.presentations.packing.packed_descales import OF_KEYS
from attn_spec.problem.conventions import CONVENTIONS, Conventions
from attn_spec.problem.problem import Problem

#: Largest number of kv heads and batch entries whose keys are tried.
MOST_KEYS = 16
Read = TypeVar("Read")
Given = TypeVar("Given", bound="Arguments")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of one call of an assertion, as the test gave them, before they are read as attention."""

    q: Any
    k: Any
    v: Any
    presentation: str
    #: Options by the names that the test uses.
    words: Mapping[str, Any]
    conventions: Conventions
    lse: Any = None

    @property
    def answers(self) -> tuple[str, ...]:
        """Return the names of the quantities in an answer that conventions decide."""
        return ()

    def read(self, part: Callable[[Call], Read]) -> Read | None:
        """Return ``part(call)`` for the call of these arguments; None if they are no call of attention."""
        try:
            with call_errors():
                return part(any_call(self.q, self.k, self.v, presentation=self.presentation, **self.words))
        except CallError:
            return None


@dataclass(frozen=True, kw_only=True)
class AsGiven(Arguments):
    """Arguments of ``assert_attention``."""

    output: Any

    @property
    def answers(self) -> tuple[str, ...]:
        """Return the names of the quantities in an answer that conventions decide."""
        return ("output",) if self.lse is None else ("output", "lse")

    def part(self, quantity: str, place: tuple[int, ...]) -> tuple[Part, int] | None:
        """Return the head of an element of the output or LSE, and the element's row; None if this is no call of
        attention.

        ``place`` is an index in the test's tensor.
        """

        def of(made: Call) -> tuple[Part, int]:
            answer = answered(made, output=self.output, lse=self.lse)
            b, h, row, *_ = made.index(quantity, place)
            return made.part(answer, b, 0 if made.layer else h), row

        return self.read(of)


@dataclass(frozen=True, kw_only=True)
class GradientsAsGiven(Arguments):
    """Arguments of ``assert_attention_gradients``."""

    gradients: Mapping[str, Any]
    dout: Any
    dlse: Any

    def part(self, quantity: str, place: tuple[int, ...]) -> GradientPart | None:
        """Return the part with the gradient element at ``place``; None if this is no call of attention.

        ``place`` is an index in the test's tensor.
        """

        def of(made: Call) -> GradientPart:
            b, h, *_ = made.index(quantity, place)
            return pulled(made, self.gradients, self.dout, self.dlse).with_element(quantity, b, h)

        return self.read(of)


def with_other_keys(made: Call, b: int, h: int) -> Iterator[tuple[str, Problem]]:
    """Yield the problem of a query head with the keys and values of another kv head, or of another batch entry, each
    with a text that names it. None is of a layer; at most ``MOST_KEYS`` are tried.
    """
    if made.layer:
        return
    own, of_head = made.head(b, h), h // made.group_size
    heads = [(f"kv head {g}", b, g) for g in range(made.kv_heads) if g != of_head]
    entries = [(f"batch entry {c}", c, of_head) for c in range(made.batch) if c != b]
    for text, entry, kv_head in [*heads, *entries][:MOST_KEYS]:
        other = made.head(entry, kv_head * made.group_size)
        found = {name: getattr(other, name) for name in ("k", "v", *OF_KEYS) if getattr(own, name) is not None}
        yield f"with the keys and values of {text}", own.replace(**found)


def other_calls(asked: Given) -> Iterator[tuple[str, Given]]:
    """Yield calls that differ from the given one in one respect, each with a text that names it."""
    is_packed = asked.presentation not in presentations()
    for name in packed_rows() if is_packed else presentations():
        if name != asked.presentation:
            yield f"as presentation={name!r}", replace(asked, presentation=name)
    yield from _with_other_conventions(asked)
    for word, x in asked.words.items():
        shape = list(getattr(x, "shape", []))
        if len(shape) in (2, 3) and shape[0] == asked.q.shape[0] > 1:
            added = (slice(None), *[None] * (4 - len(shape)))
            text = f"{word}[:{', None' * (4 - len(shape))}]"
            yield (
                f"with {text}, whose first axis is the batch",
                replace(asked, words={**asked.words, word: x[added]}),
            )


def _with_other_conventions(asked: Given) -> Iterator[tuple[str, Given]]:
    """Yield the call with another choice of one convention that decides its answer, or that its words name."""
    for name, row in CONVENTIONS.items():
        for choice in row.telling:
            if row.is_option and name in asked.words and choice != asked.words[name]:
                yield f"with {name}={choice!r}", replace(asked, words={**asked.words, name: choice})
            if (
                not row.is_option
                and set(row.decides) & set(asked.answers)
                and choice != getattr(asked.conventions, name)
            ):
                other = replace(asked.conventions, **{name: choice})
                yield f"with {name}={choice!r}", replace(asked, conventions=other)
