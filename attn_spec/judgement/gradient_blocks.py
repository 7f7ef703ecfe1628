"""Gradients of long problems, judged in blocks of query rows whose memory is bounded.

dQ of a row is made of that row alone; dK, dV and dBias are sums over rows, and so are the terms of their bounds
(``error.gradient_key_sums``). Scores that are no product of q and k themselves, linear attention and layers are judged
whole, those without parameters by batch entry and kv head; :class:`MemoryExceededError` says where that would take more
memory than was allowed. So are sums that float64 is too coarse for, whose truth is enclosed as that of the whole is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.attention.scores import score_of
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.gradient_blocks import FinishedKeys, finished_keys, group_bound
from attn_spec.error.gradient_key_sums import ALL, Keys
from attn_spec.error.readings import gradient_readings
from attn_spec.judgement.blocks import ENOUGH, MEMORY, RowJudgement, Tally
from attn_spec.judgement.gradient_groups import (
    THEOREMS,
    BiasOfGroups,
    Given,
    enclosed,
    is_sharp,
    worked_through,
)
from attn_spec.judgement.measure import Judgement, judge_gradients, measured_gradients
from attn_spec.judgement.row_sample import RowSample, Sampled
from attn_spec.problem.problem import Problem

#: How many times the memory that was allowed a problem may take that is judged whole.
FAR = 4


class MemoryExceededError(ValueError):
    """A problem that has to be judged whole takes far more memory than is allowed."""


@dataclass(frozen=True)
class GradientPart:
    """One kv head with its query heads, [1, group, ..]; or a whole problem, where gradients are sums over heads."""

    problem: Problem
    #: dO [1, group, Sq, Dv], and dL [1, group, Sq] or None.
    cotangent: np.ndarray
    lse_cotangent: np.ndarray | None
    #: Gradients by name, "dq", "dk", "dv", "dbias", ..
    found: dict[str, np.ndarray]
    #: Batch entry and kv head.
    at: tuple[int, int] = (0, 0)


@dataclass(kw_only=True)
class GradientJudgement(RowJudgement):
    """The verdict on gradients: rows are those of dQ."""

    #: Keys of dK and dV of all kv heads that were looked at, of how many.
    keys: int = 0
    of_keys: int = 0

    def __str__(self) -> str:
        """What was looked at, in one sentence."""
        return f"{super().__str__()}; {self.keys} of {self.of_keys} keys"


def gradient_parts_of(
    problem: Problem,
    cotangent: np.ndarray,
    found: dict[str, np.ndarray],
    lse_cotangent: np.ndarray | None = None,
) -> list[GradientPart]:
    """The parts of a whole problem: by batch entry and kv head, unless some gradient is a sum over these."""
    whole = GradientPart(problem, cotangent, lse_cotangent, found)
    if problem.projects or found.keys() - {"dq", "dk", "dv"}:
        return [whole]
    return [_part(whole, b, g) for b, g in np.ndindex(problem.k.shape[:2])]


def _part(part: GradientPart, b: int, g: int) -> GradientPart:
    """One kv head of a part."""
    problem, dL = part.problem, part.lse_cotangent
    entry, group = slice(b, b + 1), slice(g * part.problem.group, (g + 1) * part.problem.group)
    heads = {"dq": group, "dk": slice(g, g + 1), "dv": slice(g, g + 1)}
    return GradientPart(
        problem.take("B", [b]).take("H", [g]),
        part.cotangent[entry, group],
        None if dL is None else dL[entry, group],
        {name: x[entry, heads[name]] for name, x in part.found.items()},
        (part.at[0] + b, part.at[1] + g),
    )


def judge_gradient_parts(
    parts: Sequence[GradientPart] | Callable[[], Iterator[GradientPart]],
    contract: ResolvedContract,
    *,
    sample: RowSample | None = None,
    keys: np.ndarray | None = None,
    memory: int = MEMORY,
) -> GradientJudgement:
    """Compare gradients with the truth, under a resolved contract.

    dQ is looked at in the rows of a ``sample``, or in all; dK and dV at the ``keys`` of that index, or at all, to which
    all rows add. Without dK, dV and dBias among what was found, other rows are left out, and so is what they say of the
    domain. Where the contract leaves a choice open, one choice has to explain all parts. ``memory`` is about how many
    bytes are held at a time beside the parts and what is as large as their gradients. ``parts`` are asked for once for
    each reading. A refuted answer is not looked at further than the part that has ENOUGH rows. Raises
    :class:`MemoryExceededError`.
    """
    chosen = ALL if keys is None else np.asarray(keys, dtype=np.intp)
    found = []
    for reading in gradient_readings(contract):
        judging = _Judging(GradientJudgement(contract=reading), sample, chosen, memory)
        for part in parts() if callable(parts) else parts:
            judging.add(part)
        found.append(judging.judgement)
        if found[-1].exercised and not found[-1].refuted:
            return found[-1]
    silent = [judgement for judgement in found if not judgement.refuted]
    return silent[0] if silent else min(found, key=lambda judgement: judgement.ratio)


def is_additive(problem: Problem) -> bool:
    """Whether the gradients of a problem are made of sums over rows here."""
    return score_of(problem).plain and problem.feature_map is None and not problem.projects


@dataclass
class _Judging:
    """Judging parts under one reading."""

    judgement: GradientJudgement
    sample: RowSample | None
    keys: Keys
    memory: int
    heads: int = 0

    def add(self, part: GradientPart) -> None:
        problem, found = part.problem, self.judgement
        found.of += problem.q[..., 0].size
        found.of_keys += problem.k[..., 0].size
        if found.refuted and found.decided >= ENOUGH:
            return
        if not is_additive(problem):
            self._whole(part)
            return
        bias = BiasOfGroups(part.problem) if "dbias" in part.found else None
        for b, g in np.ndindex(problem.k.shape[:2]):
            self._group(part, b, g, bias)
        if bias is not None:
            self._add_bias(part, bias)

    def _whole(self, part: GradientPart) -> None:
        """Judge a part as a problem that is not long."""
        problem, found = part.problem, self.judgement
        needed = 8 * THEOREMS * math.prod(problem.score_shape)
        if needed > FAR * self.memory:
            raise MemoryExceededError(
                f"gradients of {problem.query_length} queries and {problem.key_length} keys have to be judged whole, "
                f"which takes about {needed / 2**20:,.0f} MiB, not {self.memory / 2**20:,.3g} MiB: their scores are no "
                "products of q and k, or float64 is too coarse for their contract"
            )
        judgement = judge_gradients(problem, found.contract, part.cotangent, part.found, part.lse_cotangent)
        b, g = part.at
        for name, values in part.found.items():
            self._count(judgement, name, (b, _first_head(part) if name == "dq" else g), np.arange(values.shape[2]))
        if "dq" in part.found:
            rows = problem.q[..., 0].size
            found.rows, found.drawn, found.decided = found.rows + rows, found.drawn + rows, found.decided + rows
        found.keys += problem.k[..., 0].size if part.found.keys() & {"dk", "dv"} else 0

    def _count(self, judgement: Judgement, name: str, at: tuple[int, int], rows: np.ndarray) -> None:
        (m,) = (m for m in judgement.measurements if m.name == name)
        tally = self.judgement.tallies.setdefault(name, Tally(name=name))
        tally.elements += m.got.size
        tally.add(judgement, at, rows)

    def _group(self, part: GradientPart, b: int, g: int, bias: BiasOfGroups | None) -> None:
        problem, c = part.problem, self.judgement.contract
        one = problem.take("B", [b])
        total, heads, x = None, [], None
        for h in range(g * problem.group, (g + 1) * problem.group):
            head = worked_through(self._given(part, one, b, h), c, self.keys, self.memory)
            total, x = head.sums if total is None else total + head.sums, head.x
            heads.append((h, head.of_rows))
            if bias is not None and head.bias is not None:
                bias.add(head, b, h)
        assert total is not None
        assert x is not None
        of = finished_keys(x, c, total.allowed, total.evaluated)
        if bias is not None:
            bias.end(of)
        for h, of_rows in heads:
            at = part.at[0] + b, _first_head(part) + h
            for each in of_rows:
                self._count(_within(each.judgement, of.in_domain), "dq", at, each.rows)
        self._add_keys(part, b, g, of)

    def _given(self, part: GradientPart, one: Problem, b: int, h: int) -> Given:
        """A query head, and the rows of it that are looked at."""
        found, head, n = self.judgement, one.head(h), one.query_length
        chosen = Sampled(np.arange(n), n, n) if self.sample is None else self.sample.of(head, self.heads)
        self.heads += 1
        summed = chosen.index if part.found.keys() <= {"dq"} else np.arange(n)
        if "dq" in part.found:
            found.rows, found.drawn = found.rows + len(chosen.index), found.drawn + chosen.drawn
        found.decided += len(summed)
        at = slice(b, b + 1), slice(h, h + 1)
        dL, dq = part.lse_cotangent, part.found.get("dq")
        return Given(
            head,
            part.cotangent[at],
            None if dL is None else dL[at],
            None if dq is None else dq[at],
            summed=summed,
            judged=chosen.index,
        )

    def _add_keys(self, part: GradientPart, b: int, g: int, of: FinishedKeys) -> None:
        own = {name: part.found[name][b : b + 1, g : g + 1] for name in ("dk", "dv") if name in part.found}
        if not all(is_sharp(of.gradients[name], of.evaluated_in_domain) for name in own):
            self._whole(replace(_part(part, b, g), found=own))
            return
        truth = {name: enclosed(of.gradients[name], of.evaluated_in_domain) for name in own}
        bound = group_bound({name: of.gradients[name].allowed for name in own}, of.in_domain)
        some = {name: values[:, :, self.keys] for name, values in own.items()}
        judgement = measured_gradients(part.problem, self.judgement.contract, some, truth, bound)
        keys = np.arange(part.problem.key_length)[self.keys]
        for name in own:
            self._count(judgement, name, (part.at[0] + b, part.at[1] + g), keys)
        self.judgement.keys += len(keys) if own else 0

    def _add_bias(self, part: GradientPart, bias: BiasOfGroups) -> None:
        of, found = bias.finished(self.judgement.contract), {"dbias": part.found["dbias"]}
        if not is_sharp(of, bias.evaluated_in_domain):
            self._whole(replace(part, found=found))
            return
        truth = {"dbias": enclosed(of, bias.evaluated_in_domain)}
        bound = group_bound({"dbias": of.allowed}, bias.in_domain)
        judgement = measured_gradients(part.problem, self.judgement.contract, found, truth, bound)
        self._count(judgement, "dbias", (0, 0), np.arange(of.value.shape[2]))


def _first_head(part: GradientPart) -> int:
    """The number of the part's first query head."""
    return part.at[1] * part.problem.query_group


def _within(judgement: Judgement, in_domain: np.ndarray) -> Judgement:
    """The judgement if the domain holds; else nothing is measured."""
    if in_domain.all():
        return judgement
    (m,) = judgement.measurements
    nothing = np.zeros(m.got.shape, dtype=bool)
    return replace(judgement, measurements=(replace(m, outside=nothing, measured=nothing),))
