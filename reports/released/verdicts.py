"""Verdicts of a certificate, as the page has them: refutations with their findings, and the largest error / bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attn_spec.evidence.certificate import Certificate
from attn_spec.evidence.certificate import Finding as Found
from attn_spec.search.verdict import Verdict

from .findings import Finding
from .outcome import Refutation

#: Verdicts on a property that a problem contradicts.
CONTRADICTED = (Verdict.REFUTED, Verdict.KNOWN)


def every(document: Certificate) -> Iterator[tuple[str, str, Found]]:
    """Yield the id of each property, each dtype, and the verdict."""
    for one in document.properties:
        for dtype, found in one.dtypes.items():
            yield one.id, dtype, found


def largest_ratio(document: Certificate) -> float | None:
    """Return the largest finite error / bound of properties that are not refuted; None without any."""
    ratios = [
        float.fromhex(found.ratio.hex)
        for _, _, found in every(document)
        if found.ratio is not None and found.verdict not in CONTRADICTED
    ]
    return max((ratio for ratio in ratios if math.isfinite(ratio)), default=None)


def refutations(document: Certificate, findings: Sequence[Finding]) -> tuple[Refutation, ...]:
    """Return the refutations, each with the reason of the first finding that covers it."""
    return tuple(
        _refutation(property_id, dtype, found, findings)
        for property_id, dtype, found in every(document)
        if found.verdict in CONTRADICTED
    )


def unexercised(document: Certificate) -> dict[str, str]:
    """Return why each pair of property and dtype was not exercised, by the pair."""
    return {
        f"{property_id}, {dtype}": found.message
        for property_id, dtype, found in every(document)
        if found.verdict is Verdict.NOT_EXERCISED
    }


def confirmed(document: Certificate, findings: Sequence[Finding]) -> set[str]:
    """Return the reasons of all findings that cover a refutation."""
    return {
        reason
        for _, _, found in every(document)
        if found.verdict is Verdict.KNOWN
        for reason in _judged(found.message, findings)[0]
    }


def _refutation(property_id: str, dtype: str, found: Found, findings: Sequence[Finding]) -> Refutation:
    is_known = found.verdict is Verdict.KNOWN
    reasons, message = _judged(found.message, findings) if is_known else ([], found.message)
    first = next(iter(message.splitlines()), "")
    return Refutation(
        property_id=property_id, dtype=dtype, message=first, hints=found.hints, judged=next(iter(reasons), "")
    )


def _judged(message: str, findings: Sequence[Finding]) -> tuple[list[str], str]:
    """Return the reasons with which a message begins, one for each entry that covers the refutation, and the rest."""
    reasons: list[str] = []
    while reason := next((one.reason for one in findings if message.startswith(one.reason)), ""):
        reasons.append(reason)
        message = message.removeprefix(reason).removeprefix("; ").removeprefix(". ")
    return reasons, message
