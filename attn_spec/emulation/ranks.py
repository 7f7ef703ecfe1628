"""Ranks that work on shards of one problem: the layout of positions on ranks, and the exchange of tensors.

The work of a rank is a program, a generator that yields its exchanges and returns its answer. :func:`in_turn` runs the
programs of all ranks in one process, so that a mutant over ranks costs no more than any other mutant.
``implementations.rank_pool`` runs each program in a process of its own, with ``torch.distributed``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


class ExchangeError(RuntimeError):
    """Ranks that wait for one another, or a tensor whose shape or dtype is not the one its receiver expects."""


@dataclass(frozen=True)
class Exchange:
    """The tensors that a rank sends and receives before it continues, by the number of the other rank."""

    send: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    #: Tensors that received tensors overwrite.
    receive: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)


#: Tensors that a rank answers with; None if the rank has no part of a tensor.
Answer = tuple[Tensor | None, ...]
Program = Generator[Exchange, None, Answer]


@dataclass(frozen=True)
class Work:
    """A program that has not begun: a method of a rank, and its tensors."""

    rank: Any
    method: str
    tensors: tuple[Tensor | None, ...]

    def begin(self) -> Program:
        """Return the program."""
        return getattr(self.rank, self.method)(*self.tensors)


#: Function that runs the work of ranks 0, 1, .. and returns their answers in this order.
Run = Callable[[Sequence[Work]], list[Answer]]


def in_turn(works: Sequence[Work]) -> list[Answer]:
    """Run all programs in this process, each until it waits for a tensor. Raises :class:`ExchangeError`."""
    programs = dict(enumerate(work.begin() for work in works))
    awaited = dict.fromkeys(programs, Exchange())
    mail: dict[tuple[int, int], deque[list[Tensor]]] = defaultdict(deque)
    answers: dict[int, Answer] = {}
    while len(answers) < len(programs):
        able = [rank for rank, exchange in awaited.items() if all(mail[other, rank] for other in exchange.receive)]
        if not able:
            waiting = (f"{rank} for {', '.join(map(str, exchange.receive))}" for rank, exchange in awaited.items())
            raise ExchangeError(f"ranks wait for tensors that nobody sent: {'; '.join(waiting)}")
        for rank in able:
            for other, places in awaited.pop(rank).receive.items():
                _deliver(mail[other, rank].popleft(), places, f"from rank {other} to rank {rank}")
            try:
                awaited[rank] = next(programs[rank])
            except StopIteration as end:
                answers[rank] = end.value
                continue
            for other, tensors in awaited[rank].send.items():
                mail[rank, other].append([x.clone() for x in tensors])
    return [answers[rank] for rank in programs]


def _deliver(tensors: Sequence[Tensor], places: Sequence[Tensor], way: str) -> None:
    """Write the sent tensors into those of the receiver. Raises :class:`ExchangeError` if shapes or dtypes differ."""
    sent, wanted = ([(tuple(x.shape), x.dtype) for x in each] for each in (tensors, places))
    if sent != wanted:
        raise ExchangeError(f"tensors {sent} were sent {way}, which expects {wanted}")
    for place, x in zip(places, tensors, strict=True):
        place.copy_(x)


#: Function ``layout(length, ranks)`` that returns the positions of each rank.
Layout = Callable[[int, int], Sequence[Tensor]]


@lru_cache(maxsize=512)
def contiguous(length: int, ranks: int) -> Sequence[Tensor]:
    """Return one stretch of positions for each rank; first stretches are longer by one if there is a remainder."""
    return torch.arange(length).tensor_split(ranks)


@lru_cache(maxsize=512)
def zigzag(length: int, ranks: int) -> Sequence[Tensor]:
    """Return two stretches for each rank, one as far from the start as the other is from the end.

    Under a causal mask late queries see more keys than early ones. A rank with one stretch of each kind has as much
    work as any other rank, in every hop of a ring. Source: zhuzilin/ring-flash-attention#2.
    """
    stretches = torch.arange(length).tensor_split(2 * ranks)
    return [torch.cat([stretches[rank], stretches[2 * ranks - 1 - rank]]) for rank in range(ranks)]


@lru_cache(maxsize=512)
def striped(length: int, ranks: int) -> Sequence[Tensor]:
    """Return every ranks-th position for each rank.

    This layout balances causal work too (Brandon et al., arXiv 2311.09431).
    """
    return [torch.arange(length)[rank::ranks] for rank in range(ranks)]
