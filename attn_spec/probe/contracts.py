"""Choice of the preset contract to declare: the tightest one that agrees with every finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.presets import PRESETS
from attn_spec.contract.readings import gradient_readings
from attn_spec.judgement.measure import judge
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.search.plain_calls import plain

from .instrument import Finding

#: Presets, the tightest first.
ORDER = ("fp64", "fp32", "fused", "split_kv", "tf32", "eager")
#: Stages whose narrowest format an experiment measures.
STAGES = {
    "scores": ("score_accumulation", "stored_scores", "softmax"),
    "weights": ("softmax", "probabilities", "multiplicands", "output_accumulation"),
    "accumulator of p.v": ("output_accumulation",),
    "row sum": ("softmax", "row_sum"),
    "gradients of weights": ("weight_gradients",),
}
#: Significant bits of the formats that experiments report.
BITS = {"float64": 53, "float32": 24, "float16 or tf32": 11, "float16": 11, "bfloat16": 8}
#: Seeds of the problems whose answers must be within the bound at each dtype, and factors of their scores.
SEEDS, SPREADS = 4, (0.25, 1.0, 4.0)


def contract(subjects: Sequence[Subject], found: Mapping[str, Sequence[Finding]]) -> Finding:
    """Return the first preset in ``ORDER`` that agrees with ``found`` at each dtype, and that bounds all answers."""
    able = [name for name in ORDER if all(_agrees(name, each, found[each.dtype]) for each in subjects)]
    fitting = [name for name in able if all(_bounds(name, subject) for subject in subjects)]
    number = SEEDS * len(SPREADS)
    if not fitting:
        return Finding("contract", None, f"no preset agrees with all of this and bounds {number} answers at each dtype")
    return Finding("contract", fitting[0], f"the first of {', '.join(ORDER)} that agrees and bounds {number} answers")


def _agrees(name: str, subject: Subject, found: Sequence[Finding]) -> bool:
    """Return whether no finding contradicts the preset.

    A finding contradicts it in two cases: a stage is narrower than the preset promises, or sums or weights are
    truncated where the preset promises another rounding. The preset "fp64" agrees at float64 only.
    """
    if name == "fp64" and subject.dtype != "float64":
        return False
    contract = PRESETS[name].at(subject.dtype)
    ways = {"rounding of weights": contract.direction("multiplicands")}
    cut = any(one.value == "truncated" and ways.get(one.name, contract.rounding) != "toward_zero" for one in found)
    formats = (one for one in found if one.name in STAGES and one.value is not None)
    return not cut and all(BITS[one.value or ""] >= _narrowest(contract, one.name) for one in formats)


def _narrowest(contract: ResolvedContract, what: str) -> int:
    """Return the fewest bits that any reading leaves to these stages; experiments do not tell tf32 from float16."""
    return min(contract.format(stage).precision for contract in gradient_readings(contract) for stage in STAGES[what])


def _bounds(name: str, subject: Subject) -> bool:
    """Return whether answers to normally distributed problems are within the preset's bound."""
    contract = PRESETS[name].at(subject.dtype)
    for seed in range(SEEDS):
        for spread in SPREADS:
            problem = _problem(subject, seed, spread)
            if judge(problem, contract, **subject(problem), conventions=subject.conventions).refuted:
                return False
    return True


def _problem(subject: Subject, seed: int, spread: float) -> Problem:
    rng, asked = np.random.default_rng(seed), plain(subject.kernel, subject.dtype)
    if asked.states:
        bias = bits.nearest(spread * rng.standard_normal(np.shape(asked.bias)), asked.dtype_of("bias"))
        return asked.replace(v=bits.nearest(rng.standard_normal(asked.v.shape), subject.dtype), bias=bias)
    made = {name: bits.nearest(rng.standard_normal(getattr(asked, name).shape), subject.dtype) for name in "qkv"}
    return asked.with_inputs(**made | {"q": bits.nearest(spread * made["q"], subject.dtype)})
