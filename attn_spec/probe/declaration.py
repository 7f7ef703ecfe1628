"""The declaration of an undecorated callable, as far as its answers decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attn_spec.isolation.foreign import found
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.misbehaviour import has_died
from attn_spec.kernels.signatures.fitting import fitting
from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import DTYPES
from attn_spec.search.preflight import check_dtypes, preflight

from .arithmetic import arithmetic
from .contracts import contract
from .conventions import conventions
from .instrument import Finding, announce, asked
from .merges import with_merge
from .options import abilities, uses
from .presentations import RAISED, answered, presentation


@dataclass(frozen=True)
class _Presented:
    """The presentation in which a callable answers, and the dtypes in which it does so correctly."""

    presentation: Finding
    dtypes: tuple[str, ...]
    #: Dtypes in which no plain answer is right, each with the reason.
    others: Mapping[str, str]


def declaration(spec: str, dtypes: Sequence[str] = (), **declared: Any) -> list[str]:
    """Return the declaration as lines of Python.

    It is found in ``dtypes``, or in all in which a plain answer is right. ``declared`` are arguments of ``resolve``.
    Raises :class:`KernelError` for a kernel that cannot be run, or answers in no dtype.
    """
    kernel = found(spec, undecorated=True, **declared)
    check_dtypes(kernel, dtypes)
    with np.errstate(all="ignore"):
        presented = _presented(kernel, spec, dtypes or tuple(dict.fromkeys((*kernel.dtypes, *DTYPES))))
        announce("calls with options")
        # Options are asked for in the first of these dtypes.
        ready = preflight(replace(kernel, presentation=str(presented.presentation.value), dtypes=presented.dtypes))
        pairs = {" with ".join(pair) for pair in ready.subjects[0].kernel.limits.exclusive}
        return [
            *_lines(ready.subjects, presented.presentation),
            *(f"# {what}: {why}" for what, why in ready.declined.items() if what in pairs),
            *(f"# {dtype} is left out: {why}" for dtype, why in presented.others.items()),
            *filter(None, [_proposed(kernel, "# ")]),
        ]


def _presented(kernel: Kernel, spec: str, dtypes: Sequence[str]) -> _Presented:
    """Find a presentation in the first dtype that shows one, and test it in the others. Raises :class:`KernelError`."""
    failed = []
    for dtype in dtypes:
        one = presentation(kernel, dtype)
        if one.value is None:
            failed.append(f"{dtype}: {one.evidence}")
            if has_died(one.evidence):
                break  # each further call would cost another process
            continue
        tried = {other: answered(kernel, other, one.value) for other in dtypes}
        right = tuple(other for other, finding in tried.items() if finding.value)
        wrong = {other: finding.evidence for other, finding in tried.items() if not finding.value}
        return _Presented(one, right, {other: why or "a plain answer is wrong" for other, why in wrong.items()})
    # A result that is no answer tells more than a refusal.
    why = next((each for each in failed if RAISED not in each), failed[0])
    raise KernelError(f"{spec}: no presentation was found: {why}{_proposed(kernel, '; ')}")


def _proposed(kernel: Kernel, before: str) -> str:
    """Return the signatures that the callable has by its parameters, as a proposal; empty if it has none."""
    found = fitting(kernel.parameters)
    told = " or ".join(f"signature={name!r}" for name in found)
    what = ", ".join(dict.fromkeys(SIGNATURES[name].function for name in found))
    return f"{before}{told}: its parameters and defaults are those of {what}" if found else ""


def _lines(subjects: Sequence[Subject], presented: Finding) -> list[str]:
    first, merged = with_merge(subjects[0])
    first, agreed = conventions(first)
    kernel = first.kernel
    subjects = [replace(subject, kernel=kernel) for subject in subjects]
    found_at = {}
    for subject in subjects:
        announce(f"arithmetic in {subject.dtype}")
        found_at[subject.dtype] = arithmetic(subject)
    promised = {one.dtype: asked(f"contract in {one.dtype}", partial(contract, [one], found_at)) for one in subjects}
    options = [*uses(first), *abilities(first)]
    # A kernel needs a contract for each dtype that it declares.
    told = {dtype: str(finding.value) for dtype, finding in promised.items() if finding.value}
    dtypes = tuple(told) or tuple(promised)
    return [
        "@kernel(",
        f"    framework={kernel.framework!r},  # what its module imports, or was said",
        f"    dtypes={dtypes!r},  # a plain answer is right",
        *_of_contracts(told, promised),
        f"    presentation={presented.value!r},  # {presented.evidence}",
        *(["    builds=True,  # it was said"] if kernel.given.get("builds") else []),
        *(
            [f"    destinations={kernel.destinations!r},  # parameters without a default"]
            if kernel.destinations
            else []
        ),
        f"    supports={tuple(sorted(kernel.supports))!r},  # parameters of these names, and calls that return",
        *([f"    merge={merged.value!r},  # {merged.evidence}"] if merged is not None and merged.value else []),
        *_of_calls(kernel),
        *_of_conventions(agreed),
        ")",
        *(f"# {dtype} is left out: {one}" for dtype, one in promised.items() if one.value is None and told),
        *(f"# {dtype}: {one}" for dtype, one in promised.items() if one.value is None and not told),
        *(f"# {finding}" for finding in agreed if finding.value is None),
        *(f"# {use.name} does not do as specified: {use.evidence}" for use in options if use.value is None),
        *(f"# {dtype}: {finding}" for dtype, every in found_at.items() for finding in every),
    ]


def _of_contracts(told: Mapping[str, str], promised: Mapping[str, Finding]) -> list[str]:
    """Return a line for the argument ``contract``: one preset, or one for each dtype; none if no preset was found."""
    if not told:
        return []
    evidence = promised[next(iter(told))].evidence
    if len(set(told.values())) == 1:
        return [f"    contract={next(iter(told.values()))!r},  # {evidence}"]
    return [f"    contract={dict(told)!r},  # each is {evidence}"]


def _of_calls(kernel: Kernel) -> list[str]:
    """Return lines for arguments that say how options are called: those that were found by calls, and no others."""
    limits = kernel.limits
    given = {
        "always": (limits.always, "no value turns these off"),
        "exclusive": (limits.exclusive, "calls with both of a pair fail"),
        "when_off": (dict(kernel.when_off), "with these arguments a plain answer is right"),
    }
    return [f"    {name}={value!r},  # {evidence}" for name, (value, evidence) in given.items() if value]


def _of_conventions(agreed: Sequence[Finding]) -> list[str]:
    """Return lines for the argument ``conventions``; none if no convention was found."""
    rows = [
        f"        {one.name!r}: {one.value if one.value in ('True', 'False') else repr(one.value)},  # {one.evidence}"
        for one in agreed
        if one.value is not None
    ]
    return ["    conventions={", *rows, "    },"] if rows else []
