"""Ranks that work on shards of one problem: who holds which positions, and how ranks exchange tensors.

What a rank does is a program, a generator that yields its exchanges and returns its answer. :func:`in_turn` runs the
programs of all ranks in one process, so that a mutant of one costs no more than any other mutant;
``implementations.rank_pool`` runs each in a process of its own, with ``torch.distributed``.
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
    """Ranks that wait for one another, or a tensor that is not what its receiver made room for."""


@dataclass(frozen=True)
class Exchange:
    """What a rank sends and receives before it goes on, by the number of the other rank."""

    send: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    #: Tensors that are overwritten by what arrives.
    receive: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)


#: The tensors that a rank answers with; None where it has no part in one.
Answer = tuple[Tensor | None, ...]
Program = Generator[Exchange, None, Answer]


@dataclass(frozen=True)
class Work:
    """One program that is not begun: a method of a rank, and the tensors it is given."""

    rank: Any
    method: str
    tensors: tuple[Tensor | None, ...]

    def begin(self) -> Program:
        """The program."""
        return getattr(self.rank, self.method)(*self.tensors)


#: Runs the work of ranks 0, 1, .. and returns their answers in this order.
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
    """Write what was sent where its receiver wants it. Raises :class:`ExchangeError`."""
    sent, wanted = ([(tuple(x.shape), x.dtype) for x in each] for each in (tensors, places))
    if sent != wanted:
        raise ExchangeError(f"{way} go {sent}, but there is room for {wanted}")
    for place, x in zip(places, tensors, strict=True):
        place.copy_(x)


#: ``layout(length, ranks)``: the positions that each rank holds.
Layout = Callable[[int, int], Sequence[Tensor]]


@lru_cache(maxsize=512)
def contiguous(length: int, ranks: int) -> Sequence[Tensor]:
    """One stretch for each rank, the first ones longer by one where the length leaves a rest."""
    return torch.arange(length).tensor_split(ranks)


@lru_cache(maxsize=512)
def zigzag(length: int, ranks: int) -> Sequence[Tensor]:
    """Two stretches for each rank, one as far from the start as the other from the end.

    Under a causal mask late queries see more keys than early ones. A rank with one stretch of each kind has as much to
    do as any other, in every hop of a ring (zhuzilin/ring-flash-attention#2).
    """
    stretches = torch.arange(length).tensor_split(2 * ranks)
    return [torch.cat([stretches[rank], stretches[2 * ranks - 1 - rank]]) for rank in range(ranks)]


@lru_cache(maxsize=512)
def striped(length: int, ranks: int) -> Sequence[Tensor]:
    """Every ranks-th position: another balance under a causal mask (Brandon et al., arXiv 2311.09431)."""
    return [torch.arange(length)[rank::ranks] for rank in range(ranks)]
