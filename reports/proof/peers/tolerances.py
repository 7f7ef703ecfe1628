"""Tolerances that other suites have for attention with 8-bit inputs, beside the bound here, on the same problems.

    python -m attn_spec.reports.proof.peers.tolerances --output tolerances.md

For each suite of ``eight_bits``: how many times wider its tolerance is than the bound of an element, and which mutants
of descales and of casts it accepts. A reference is exact attention, since its own roundings are no part of a rule. A
right kernel answers first: its suite must accept it, and the bound must.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attn_spec import atomic
from attn_spec.bounds.intermediates import intermediates
from attn_spec.emulation.kernels import SUPPORTS, emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.analysis import analysis_of
from attn_spec.judgement.measure import judge
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.options import FACTORS
from attn_spec.problem.problem import Problem

from ..zoo.mutants import Mutant, load_all
from .eight_bits import SUITES, Suite

#: Families of mutants that are shown to these suites.
FAMILIES = ("descales", "casts", "arithmetic")
#: Mutants of the family "arithmetic" that are of casts to 8 bits.
OF_CASTS = ("p_saturates", "p_nan_above_448", "flushed_p_in_the_sum")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Verdicts of a suite and of the bound on a mutant, on the problems of the suite."""

    mutant: str
    #: True if the suite refuses some output, and if the bound refutes some output, or some log-sum-exp.
    refused: bool
    refuted: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A suite's tolerance beside the bound, over the elements of all its problems."""

    suite: Suite
    #: Tolerance over bound, and error of quantization over bound: median and least.
    wider: tuple[float, float]
    quantization: float
    #: True if the suite accepts a right kernel, and if the bound does.
    accepted: bool
    held: bool
    mutants: tuple[Shown, ...]

    @property
    def let_through(self) -> list[str]:
        """Names of the mutants that the bound refutes and the suite accepts."""
        return [one.mutant for one in self.mutants if one.refuted and not one.refused]

    @property
    def refuted(self) -> int:
        """Number of mutants that the bound refutes on the problems of the suite."""
        return sum(one.refuted for one in self.mutants)


def shown_mutants() -> list[Mutant]:
    """Return the mutants of descales and of casts to 8 bits, but for those of latent calls, which no suite makes."""
    found = load_all()[0].values()
    return [
        one
        for one in found
        if one.family in FAMILIES[:2] or one.id in OF_CASTS
        if one.id != "v_scale_missing_in_latent"
    ]


def measured(suite: Suite, mutants: Iterable[Mutant], seed: int = 0) -> Measured:
    """Draw the problems of a suite, and show them to a right kernel and to mutants."""
    pairs = suite.drawn(seed)
    references = [intermediates(stored if suite.dequantized else before).O for before, stored in pairs]
    wider, quantization = [], []
    for (before, stored), reference in zip(pairs, references, strict=True):
        truth, bound = analysis_of(stored).truth_and_bound(suite.contract.at(stored.dtype))
        allowed = bound.allowed["output"][bound.in_domain]
        wider.append((suite.applied.tolerance(reference)[bound.in_domain] / allowed).ravel())
        off = np.abs(truth["output"].value - intermediates(before).O)[bound.in_domain]
        quantization.append((off / allowed).ravel())
    ratios = np.concatenate(wider)
    right = emulate("right", PRECISE, supports=(*SUPPORTS, *FACTORS), dtypes=(suite.dtype,))
    accepted, refuted = _said(suite, right, suite.dtype, pairs, references)
    return Measured(
        suite=suite,
        wider=(float(np.median(ratios)), float(ratios.min())),
        quantization=float(np.median(np.concatenate(quantization))),
        accepted=accepted,
        held=not refuted,
        mutants=tuple(
            _shown(suite, one, pairs, references) for one in mutants if suite.casts or one.family == "descales"
        ),
    )


def _shown(suite: Suite, mutant: Mutant, pairs: list[tuple[Problem, Problem]], references: list[np.ndarray]) -> Shown:
    dtype = suite.dtype if suite.dtype in mutant.dtypes else mutant.dtype
    accepted, refuted = _said(suite, mutant.at(dtype), dtype, pairs, references)
    return Shown(mutant=mutant.id, refused=not accepted, refuted=refuted)


def _said(
    suite: Suite, kernel: Kernel, dtype: str, pairs: list[tuple[Problem, Problem]], references: list[np.ndarray]
) -> tuple[bool, bool]:
    """Return whether a suite accepts all outputs of a kernel, and whether the bound refutes an answer of it.

    A kernel that does not take descales, or log-sum-exps, is given the products. Outputs are rounded as the suite's.
    """
    subject, accepted, refuted = Subject(kernel, dtype), True, False
    for (_, stored), reference in zip(pairs, references, strict=True):
        problem = _taken(subject, stored, dtype)
        answer = subject(problem)
        refuted |= judge(problem, subject.contract, output=answer["output"], lse=answer["lse"]).refuted
        accepted &= suite.applied.accepts(reference, bits.nearest(answer["output"], suite.dtype))
    return accepted, refuted


def _taken(subject: Subject, stored: Problem, dtype: str) -> Problem:
    """Return a problem with its descales, or with products of float32 where the kernel takes no descales."""
    names = [name for name in FACTORS if getattr(stored, name) is not None]
    if subject.supports(*names):
        return stored.replace(dtypes={"qkv": dtype, **dict.fromkeys(names, dtype)}, **_rounded(stored, names, dtype))
    products = {}
    for name in names:
        d = getattr(stored, name)
        d = np.repeat(d, stored.query_group, axis=1) if name == "q_descale" else d
        products[name[0]] = bits.nearest(getattr(stored, name[0]) * d, dtype)
    return stored.replace(**products, **dict.fromkeys(names), dtypes=dtype)


def _rounded(stored: Problem, names: list[str], dtype: str) -> dict[str, np.ndarray]:
    """Return descales as numbers of the dtype in which a kernel takes them."""
    return {name: bits.nearest(getattr(stored, name), dtype) for name in names}


def page(found: Iterable[Measured]) -> Iterator[str]:
    """Yield the lines of a Markdown page."""
    found = list(found)
    yield "# Tolerances for attention with 8-bit inputs"
    yield ""
    yield "Made by `python -m attn_spec.reports.proof.peers.tolerances`. Rules and inputs are of the tests below."
    yield "The bound is that of the kernel's arithmetic, about attention of the stored numbers and their descales. The"
    yield "tolerance of a rule on a mean is its root mean square. Quantization is how far attention of the stored"
    yield "numbers is from attention before: a rule about the latter has to allow it."
    yield ""
    yield "| suite | tolerance / bound: median | least | quantization / bound: median | mutants let through |"
    yield "| --- | --- | --- | --- | --- |"
    for one in found:
        figures = f"{one.wider[0]:.3g} | {one.wider[1]:.3g} | {one.quantization:.3g}"
        yield f"| {one.suite.name} | {figures} | {len(one.let_through)} of {one.refuted} |"
    yield ""
    yield "Mutants are those of descales and, where kernels of the suite keep probabilities in 8 bits, of such casts."
    yield "Counted are mutants whose output or log-sum-exp the bound refutes on the very problems of the suite. The"
    yield "properties of attn-spec refute all of them on problems of their own."
    for one in found:
        yield from ("", f"## {one.suite.name}", "")
        yield f"- Source: {one.suite.source}."
        yield f"- Rule: {one.suite.rule}."
        yield f"- Inputs: {one.suite.recipe}."
        by_rule, by_bound = "accepted" if one.accepted else "refused", "held" if one.held else "refuted"
        yield f"- A right kernel: {by_rule} by the rule, {by_bound} by the bound."
        yield f"- Let through: {', '.join(one.let_through) or 'none'}."


def main(arguments: list[str] | None = None) -> int:
    """Measure every suite, and write the page. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="file of the page, in Markdown")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems; default 0")
    asked = parser.parse_args(arguments)
    mutants = shown_mutants()
    atomic.write(asked.output, "\n".join(page(measured(suite, mutants, asked.seed) for suite in SUITES)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
