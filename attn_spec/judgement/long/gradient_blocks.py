"""Gradients of long problems, judged in blocks of query rows of bounded memory.

dQ of a row depends on that row alone. dK, dV, dBias and dSinks are sums over rows, and so are the terms of their
bounds (``gradient_key_sums``). Most plain gradients are cleared at a glance (``gradient_glance``), and the theorems
decide on the rest. Only sums over all judged rows, in the domain, refute anything.

A score q'.k' of formulas of q and k, as with rotary positions, has such sums too, unless the formulas have a matrix or
their parameters have gradients. Other scores, linear attention and layers are judged in one piece, without parameters
by batch entry and kv head. So are sums that float64 evaluates too coarsely. :class:`MemoryExceededError` is raised
where that takes more memory than is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from attn_spec.bounds.backward.gradient_blocks import FinishedKeys, bound_of, finished_keys
from attn_spec.bounds.backward.gradient_key_sums import ALL, Keys
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.readings import gradient_readings_of
from attn_spec.judgement.best_reading import best
from attn_spec.judgement.long.blocks import ENOUGH, MEMORY, RowJudgement, Tally, problem_of
from attn_spec.judgement.long.gradient_glance import is_glanced, left_open
from attn_spec.judgement.long.gradient_groups import (
    THEOREMS,
    Given,
    Head,
    OptionOfGroups,
    enclosed,
    is_sharp,
    worked_through,
)
from attn_spec.judgement.long.gradient_parts import GradientPart, first_head, is_additive, of_first_queries, one_group
from attn_spec.judgement.long.key_sample import KeySample
from attn_spec.judgement.long.row_sample import TOLD, RowSample, Sampled, chance, missed
from attn_spec.judgement.measure import Judgement, judge_gradients, measured_gradients
from attn_spec.problem.conventions import DEFAULTS, Conventions
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import OF_KEYS

#: Largest factor by which a problem that is judged in one piece may exceed the allowed memory.
FAR = 4


class MemoryExceededError(ValueError):
    """A problem that must be judged in one piece takes far more memory than is allowed."""


@dataclass(kw_only=True, repr=False)
class GradientJudgement(RowJudgement):
    """Verdict on gradients; its rows are rows of dQ."""

    #: Number of keys of dK and dV that were judged, over all kv heads.
    keys: int = 0
    #: Number of keys of all kv heads.
    of_keys: int = 0
    #: Number of judged keys that were drawn at random, not by strata.
    keys_drawn: int = 0
    #: Least share of a kv head's keys that were drawn at random.
    least_keys_drawn: Fraction = Fraction(1)

    @property
    def telling_keys(self) -> int:
        """Number of random keys that :func:`row_sample.missed` counts: the least share of all kv heads, of all keys."""
        return int(self.least_keys_drawn * self.of_keys)

    def keys_missed(self, share: float) -> float:
        """Return an upper bound on the probability that no judged key is among a ``share`` of all keys; 0 if all were
        judged.
        """
        return 0.0 if self.keys == self.of_keys else missed(share, self.telling_keys)

    @property
    def _looked_at(self) -> str:
        of_keys = f"{self.keys} of {self.of_keys} keys"
        if self.keys_drawn and self.keys < self.of_keys and not self.refuted:
            of_keys += f", {self.keys_drawn} of them at random: {chance(TOLD, self.telling_keys)}"
        return f"{super()._looked_at}; {of_keys}"


def judge_gradient_parts(
    parts: Sequence[GradientPart] | Callable[[], Iterator[GradientPart]],
    contract: ResolvedContract,
    *,
    sample: RowSample | None = None,
    keys: KeySample | None = None,
    memory: int = MEMORY,
    conventions: Conventions = DEFAULTS,
) -> GradientJudgement:
    """Compare gradients with the truth, under a resolved contract.

    dQ is judged at the rows of a ``sample``, or at all rows. dK and dV are judged at a sample of the ``keys``, or at
    all keys, with sums over all rows. If dK, dV and dBias are not among the gradients, other rows are left out, and the
    domain is that of the sampled rows.

    ``memory`` is about the number of bytes held at a time, beside the parts and arrays as large as their gradients.
    ``conventions`` say whether gradients of queries and keys that are not there are judged. ``parts`` are asked for
    once for each reading. If the contract leaves a choice open, one choice has to explain all parts. The judgement of a
    refuted answer ends with the part that has ENOUGH rows. Raises :class:`MemoryExceededError`.
    """

    def judged(reading: ResolvedContract) -> GradientJudgement:
        judging = _Judging(GradientJudgement(contract=reading), sample, keys, memory, conventions)
        for part in parts() if callable(parts) else parts:
            judging.add(part)
        return judging.judgement

    return best(judged, gradient_readings_of(contract, problem_of(parts)))


@dataclass
class _Judging:
    """Judgement of parts under one reading, in progress."""

    judgement: GradientJudgement
    sample: RowSample | None
    sampled: KeySample | None
    memory: int
    conventions: Conventions
    #: Number of query heads so far, which seeds the samples of rows.
    heads: int = 0
    #: Number of kv heads so far, which seeds the samples of keys.
    groups: int = 0

    def add(self, part: GradientPart) -> None:
        there, found = part.problem.there, self.judgement
        if part.problem.batch == 1 and not there.all():
            self._add_unused(part, np.flatnonzero(~there[0, 0]))
            part = of_first_queries(part, int(there.sum()))
        problem = part.problem
        found.of += problem.q[..., 0].size
        found.of_keys += problem.k[..., 0].size
        if found.refuted and found.decided >= ENOUGH:
            return
        if part.in_one_piece or not is_additive(part) or 0 in (problem.query_length, problem.key_length):
            self._whole(part)
            return
        options = [OptionOfGroups(problem, name) for name in ("dbias", "dsinks") if name in part.found]
        for b, g in np.ndindex(problem.k.shape[:2]):
            self._group(part, b, g, options)
        for option in options:
            self._add_option(part, option)

    def _add_unused(self, part: GradientPart, rows: np.ndarray) -> None:
        """Judge dQ in rows behind the length of their sequence, which must be 0 if that is declared."""
        if "dq" not in part.found or self.conventions.unused_rows != "zero":
            return
        problem, found = part.problem.rows(rows).take("K", []), {"dq": part.found["dq"][:, :, rows]}
        none = np.zeros(problem.output_shape)
        judgement = judge_gradients(problem, self.judgement.contract, none, found, conventions=self.conventions)
        self._count(judgement, "dq", (part.at[0], first_head(part)), rows)

    def _whole(self, part: GradientPart) -> None:
        """Judge a part in one piece, as a problem that is not long."""
        problem, found = part.problem, self.judgement
        of_query = 8 * THEOREMS * math.prod(problem.score_shape) // max(problem.query_length, 1)
        needed, held = of_query * problem.query_length, FAR * self.memory
        if needed > held:
            raise MemoryExceededError(
                f"gradients of {problem.query_length} queries and {problem.key_length} keys must be judged in one "
                f"piece, which takes about {needed / 2**20:,.0f} MiB, not {held / 2**20:,.3g} MiB: their scores are no "
                "products of q and k, or float64 is too coarse for their contract; allow more memory"
                + (f", or give at most {fit} queries" if (fit := held // of_query) else "")
            )
        given = (part.cotangent, part.found, part.lse_cotangent)
        judgement = judge_gradients(problem, found.contract, *given, conventions=self.conventions)
        b, g = part.at
        for name, values in part.found.items():
            self._count(judgement, name, (b, first_head(part) if name == "dq" else g), np.arange(values.shape[2]))
        if "dq" in part.found:
            rows = problem.q[..., 0].size
            found.rows, found.drawn, found.decided = found.rows + rows, found.drawn + rows, found.decided + rows
        found.keys += problem.k[..., 0].size if part.found.keys() & set(OF_KEYS) else 0

    def _count(
        self, judgement: Judgement, name: str, at: tuple[int, int], rows: np.ndarray, *, elements: bool = True
    ) -> None:
        (measurement,) = (measurement for measurement in judgement.measurements if measurement.name == name)
        tally = self.judgement.tallies.setdefault(name, Tally(name=name))
        tally.elements += measurement.got.size if elements else 0
        tally.add(judgement, at, rows)

    def _group(self, part: GradientPart, b: int, g: int, options: Sequence[OptionOfGroups]) -> None:
        one, group = part.problem.take("B", [b]), part.problem.group
        heads = [self._given(part, one, b, h) for h in range(g * group, (g + 1) * group)]
        n, self.groups = one.key_length, self.groups + 1
        chosen = Sampled(np.arange(n), n, n)
        if self.sampled is not None:
            chosen = self.sampled.of(one.k[0, g], one.v[0, g], self.groups)
        if part.found.keys() & set(OF_KEYS):
            self.judgement.keys_drawn += chosen.drawn
            self.judgement.least_keys_drawn = min(self.judgement.least_keys_drawn, chosen.share_drawn)
        decided = self.judgement.decided
        if not options and self._is_glanced(part) and self._cleared(part, b, g, heads, chosen.index):
            return
        self.judgement.decided = decided  # all rows are judged again
        of_heads, of = self._summed(heads, ALL if chosen.is_whole else chosen.index)
        for option in options:
            option.end(of)
        for h, head in enumerate(of_heads, g * group):
            for option in options:
                option.add(head, b, h)
            for each in head.of_rows:
                self._count(each.judgement, "dq", self._place(part, b, h), each.rows)
        self._add_keys(part, b, g, of, chosen.index)

    def _is_glanced(self, part: GradientPart) -> bool:
        """Return whether a glance may clear the part; none knows the gradient of keys that are values."""
        return "dkv" not in part.found and is_glanced(part.problem)

    def _place(self, part: GradientPart, b: int, h: int) -> tuple[int, int]:
        """Return the batch entry and query head of a part's head in the full answer."""
        return part.at[0] + b, first_head(part) + h

    def _summed(self, heads: Sequence[Given], keys: Keys) -> tuple[list[Head], FinishedKeys]:
        """Apply the theorems to the query heads of one kv head; return the heads, and their sums for some keys."""
        contract, found = self.judgement.contract, []
        for given in heads:
            found.append(worked_through(given, contract, keys, self.memory))
            self.judgement.decided += len(given.summed)
        return found, finished_keys([head.of_keys for head in found], contract, keys)

    def _cleared(self, part: GradientPart, b: int, g: int, heads: list[Given], every: np.ndarray) -> bool:
        """Return whether all sampled elements are within their bounds, by a glance or, where that leaves them open, by
        theorems.

        The theorems are applied to the rows that see an open key, since other rows add nothing to it, and regardless of
        the domain. If an element is outside, they are applied again to all rows.
        """
        own = {name: part.found[name][b, g] for name in OF_KEYS if name in part.found}
        left = left_open(heads, self.judgement.contract, own, every, self.memory)
        narrowed = [
            replace(given, summed=_rows_of(given, left.keys, rows), judged=rows)
            for given, rows in zip(heads, left.rows, strict=True)
        ]
        asked = [(h, given) for h, given in enumerate(narrowed, g * part.problem.group) if len(given.summed)]
        judged: list[tuple[str, tuple[int, int], np.ndarray, Judgement]] = []
        if asked:
            of_heads, of = self._summed([given for _, given in asked], left.keys)
            for (h, _), head in zip(asked, of_heads, strict=True):
                judged += [("dq", self._place(part, b, h), each.rows, each.judgement) for each in head.of_rows]
            if len(left.keys) and own:
                if not all(is_sharp(of.gradients[name], of.evaluated_in_domain) for name in own):
                    return False
                judgement = self._of_keys(part, {name: x[None, None, left.keys] for name, x in own.items()}, of)
                judged += [(name, (part.at[0] + b, part.at[1] + g), left.keys, judgement) for name in own]
        if any(judgement.refuted for *_, judgement in judged):
            return False
        tallies = self.judgement.tallies
        for name, at, rows, judgement in judged:
            self._count(judgement, name, at, rows, elements=False)
        for name in part.found:
            tally = tallies.setdefault(name, Tally(name=name))
            tally.share = max(tally.share, float(left.shares.get(name, 0.0)))
            tally.elements += (
                own[name][every].size
                if name in own
                else sum(given.dq[:, :, given.judged].size for given in heads if given.dq is not None)
            )
        self.judgement.keys += len(every) if own else 0
        return True

    def _given(self, part: GradientPart, one: Problem, b: int, h: int) -> Given:
        """Return a query head with the rows that are judged."""
        found, head, n = self.judgement, one.head(h), one.query_length
        chosen = Sampled(np.arange(n), n, n) if self.sample is None else self.sample.of(head, self.heads)
        self.heads += 1
        summed = chosen.index if part.found.keys() <= {"dq"} else np.arange(n)
        if "dq" in part.found:
            found.rows, found.drawn = found.rows + len(chosen.index), found.drawn + chosen.drawn
            found.least_drawn = min(found.least_drawn, chosen.share_drawn)
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

    def _add_keys(self, part: GradientPart, b: int, g: int, of: FinishedKeys, keys: np.ndarray) -> None:
        own = {name: part.found[name][b : b + 1, g : g + 1] for name in OF_KEYS if name in part.found}
        if not all(is_sharp(of.gradients[name], of.evaluated_in_domain) for name in own):
            self._whole(replace(one_group(part, b, g), found=own))
            return
        judgement = self._of_keys(part, {name: values[:, :, keys] for name, values in own.items()}, of)
        for name in own:
            self._count(judgement, name, (part.at[0] + b, part.at[1] + g), keys)
        self.judgement.keys += len(keys) if own else 0

    def _of_keys(self, part: GradientPart, found: dict[str, np.ndarray], of: FinishedKeys) -> Judgement:
        truth = {name: enclosed(of.gradients[name], of.evaluated_in_domain) for name in found}
        bound = bound_of({name: of.gradients[name].allowed for name in found}, keys=of.in_domain)
        return measured_gradients(part.problem, self.judgement.contract, found, truth, bound)

    def _add_option(self, part: GradientPart, option: OptionOfGroups) -> None:
        name = option.name
        of, found = option.finished(self.judgement.contract), {name: part.found[name]}
        if not is_sharp(of, option.evaluated_whole):
            self._whole(replace(part, found=found))
            return
        truth = {name: enclosed(of, option.evaluated_whole)}
        bound = bound_of({name: of.allowed}, whole=option.whole)
        judgement = measured_gradients(part.problem, self.judgement.contract, found, truth, bound)
        self._count(judgement, name, (0, 0), np.arange(of.value.shape[2]))


def _rows_of(given: Given, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return ``rows`` and the summed rows that see any of ``keys``; at least one row if there are keys."""
    if not len(keys):
        return rows
    seen = [given.problem.rows(block).visible[0, 0][:, keys].any(axis=-1) for block in np.array_split(given.summed, 64)]
    return np.union1d(rows, given.summed[np.concatenate(seen)] if np.concatenate(seen).any() else given.summed[:1])
