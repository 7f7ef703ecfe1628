"""The examination of an implementation at one shape that its users run, by sampled rows and keys, and its speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attn_spec.evidence.certificate import Certificate
from attn_spec.problem.shape_spec import AskedShape
from attn_spec.search.verdict import Verdict

from . import verdicts
from .certification import certified, declared
from .environments import Installed, last_line
from .findings import Finding
from .implementation import Implementation
from .outcome import COULD_NOT_RUN, AtShape, Refutation

#: Properties that are held at a shape that is asked for: of the output, and of gradients.
PROPERTIES = "asked_shapes"
#: File that times a call; a path, so that the environment needs no attn-spec of this very commit.
TIMER = Path(__file__).parent / "call_seconds.py"


def examine(
    implementation: Implementation,
    findings: Sequence[Finding],
    installed: Installed,
    *effort: str,
    has_groups: bool,
) -> tuple[AtShape, tuple[Refutation, ...]]:
    """Certify an implementation at its shape; return the verdict and the refutations.

    Without ``has_groups`` there are as many kv heads as query heads.
    """
    shape = AskedShape.parse(implementation.shape)
    shape = str(shape if has_groups else replace(shape, kv_heads=shape.query_heads))
    run = certified(implementation, findings, installed, *effort, "--property", PROPERTIES, "--shape", shape)
    if run.document is None:
        return AtShape(shape=shape, result=COULD_NOT_RUN, reason=run.reason, seconds=run.seconds), ()
    seconds, untimed = _call_seconds(implementation, installed, shape)
    result = _result(run.document)
    found = AtShape(
        shape=shape,
        result=result,
        reason=(_not_judged(run.document) if result == "inconclusive" else "") or untimed,
        ratio=verdicts.largest_ratio(run.document),
        looked_at=tuple(text for _, _, one in verdicts.every(run.document) for text in one.looked_at),
        seconds=run.seconds,
        call_seconds=seconds,
    )
    return found, verdicts.refutations(run.document, findings)


def _result(document: Certificate) -> str:
    """Return the result of a certificate, which is "known defect" if a known defect is all that was judged."""
    met = {found.verdict for _, _, found in verdicts.every(document)}
    return str(Verdict.KNOWN) if met - {Verdict.NOT_DECLARED} == {Verdict.KNOWN} else document.result


def _not_judged(document: Certificate) -> str:
    """Return the reason of an inconclusive result."""
    reasons = {found.verdict: found.message for _, _, found in verdicts.every(document)}
    return reasons.get(Verdict.NOT_EXERCISED) or reasons.get(Verdict.NOT_DECLARED, "")


def _call_seconds(implementation: Implementation, installed: Installed, shape: str) -> tuple[dict[str, float], str]:
    """Return the seconds of a call by pass, or none and the reason."""
    command = ["python", str(TIMER), implementation.spec, *declared(implementation), "--shape", shape]
    done = installed.run(command, Path.cwd())
    if done.returncode:
        return {}, f"no call was timed: {last_line(done.stderr)}"
    return json.loads(done.stdout.splitlines()[-1]), ""
