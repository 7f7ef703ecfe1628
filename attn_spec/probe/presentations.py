"""Choice of the presentation that a callable takes: the one under which it answers a plain problem correctly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.packing.argument_names import keyword_of, of_calls
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import judged
from attn_spec.search.plain_calls import plain, with_defaults_off

from .instrument import Finding, asked

EXPLAINED = "explained"
#: Words of the message on a call that raised.
RAISED = "the kernel's call raised"


def presentation(kernel: Kernel, dtype: str) -> Finding:
    """Return the only presentation that explains an answer.

    Presentations that hand over a whole problem are tried first, those that loop over heads only if none of them fits.
    """
    whole = [name for name, row in PRESENTATIONS.items() if row.calls_once]
    failed: list[str] = []
    for names in (whole, [name for name in PRESENTATIONS if name not in whole]):
        found = {name: answered(kernel, dtype, name) for name in names}
        explain = _least([name for name, one in found.items() if one.value])
        if len(explain) == 1:
            return Finding("presentation", explain[0], f"{_named(kernel, explain[0])}it alone explains the answer")
        if explain:
            return Finding("presentation", None, f"{' and '.join(explain)} explain the answer")
        failed += [one.evidence for one in found.values() if one.evidence]
    # A result that is no answer tells more of a function than its refusal of tensors that it does not take.
    why = next((each for each in failed if RAISED not in each), next(iter(failed), ""))
    told = _places(kernel, dtype) or f"{why and '; '}{why}"
    return Finding("presentation", None, f"none explains the answer to a plain problem{told}")


def _places(kernel: Kernel, dtype: str) -> str:
    """Return which parameters of a callable are those of a presentation, and how a call in it ends, after a semicolon.

    The text is empty if there are no such parameters.
    """
    like, own = of_calls(kernel.parameters, {name: row.recognised_by for name, row in PRESENTATIONS.items()})
    if not like:
        return ""
    if own is None:
        return f"; {', '.join(like)} look like those of a packed call that no presentation says"
    return f"; {', '.join(like)} are those of {own}: {answered(kernel, dtype, own).evidence or 'its answer is wrong'}"


def _named(kernel: Kernel, name: str) -> str:
    """Return which parameters of a callable are arguments of a presentation, as the beginning of a sentence."""
    words = [keyword_of(argument, kernel.parameters) for argument in PRESENTATIONS[name].says_where]
    found = [word for word in words if word in kernel.parameters]
    return f"it takes {', '.join(map(str, found))}, and " if found else ""


def _least(names: list[str]) -> list[str]:
    """Return the presentations that pass no argument in vain: no other one does with fewer arguments.

    A callable that appends new keys may also attend without any, so that calls which append come before others.
    """
    names = [name for name in names if PRESENTATIONS[name].appends] or names
    passed = {name: set(PRESENTATIONS[name].says_where) for name in names}
    return [name for name in names if not any(passed[other] < passed[name] for other in names)]


def answered(kernel: Kernel, dtype: str, name: str) -> Finding:
    """Test whether the answer to 2 batch entries of 3 heads of length 5 is within the loosest contract's bound.

    A presentation that cannot say this problem, such as one of a single query, is given a plain one of its own.
    """

    def experiment() -> Finding:
        made, _ = with_defaults_off([Subject(replace(kernel, presentation=name), dtype)])
        subject = Subject(made, dtype)
        given = plain(made, dtype) if made.limits.refusal(problem) else problem
        explains = not judged(subject, given, subject(given)).refuted
        return Finding(name, EXPLAINED if explains else None, "")

    rng = np.random.default_rng(0)
    q, k, v = bits.nearest(rng.standard_normal((3, 2, 3, 5, 16)), dtype)
    problem = Problem(q=q, k=k, v=v, dtypes=dtype)
    return asked(f"calls as {name}, {dtype}", experiment)
