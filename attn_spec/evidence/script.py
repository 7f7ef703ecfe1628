"""Write a stand-alone script of a case: it needs the kernel and its framework, not attn-spec.

The script repeats, with the exact bits, every call of the kernel that the property made for the case's problem.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import pprint
import textwrap
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attn_spec import atomic
from attn_spec.judgement.worst import WorstElement
from attn_spec.kernels.frameworks.framework import FrameworkError, of, values_of
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentation import Presentation
from attn_spec.kernels.resolve import attribute_of
from attn_spec.kernels.subject import Subject
from attn_spec.problem.abilities import ABILITIES
from attn_spec.search.cases import Case
from attn_spec.search.property import Property

#: Arrays of up to this many entries are written as numbers, larger ones as compressed bytes.
READABLE = 256


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor that the kernel was given: exact values, and its dtype."""

    values: np.ndarray
    dtype: str


@dataclass
class Call:
    """One call of the kernel: what it was given and what it returned, if it did."""

    tensors: list[Given]
    options: dict[str, Any]
    #: The tensors that it returned; what else it did is left out.
    parts: list[np.ndarray] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """A digest of the bits returned."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self.parts)).hexdigest()[:16]


@dataclass
class Recorder:
    """Calls a kernel, and remembers what it was given and what it returned."""

    kernel: Kernel
    calls: list[Call] = field(default_factory=list)

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        call = Call([_given(tensor) for tensor in tensors], {name: _plain(value) for name, value in options.items()})
        self.calls.append(call)
        returned = self.kernel(*tensors, **options)
        for part in returned if isinstance(returned, tuple) else (returned,):
            with contextlib.suppress(FrameworkError):
                call.parts.append(values_of(part))
        return returned


def write(case: Case, claim: Property, subject: Subject, path: Path) -> Path | None:
    """Run the case once more, recording, and write the script. Returns ``path``.

    Returns None for a claim about gradients, since a script repeats forward calls only, for a statistical one, which no
    single element decides, for one about chance, of which no call gives the same answer again, and for a large case,
    whose tensors no script should hold.
    """
    by_chance = any(name in ABILITIES and ABILITIES[name].by_chance for name in claim.needs)
    if "backward" in claim.needs or claim.false_alarm or by_chance or case.is_large:
        return None
    recorder = Recorder(subject.kernel)
    try:
        claim.check(replace(subject, kernel=subject.kernel.wrapped(recorder)), case.problem)
    except Exception as error:
        del error  # the case says why already
    return atomic.write(path, source(case, claim, subject, recorder.calls))


def source(case: Case, claim: Property, subject: Subject, calls: list[Call]) -> str:
    """The text of the script."""
    facts = {
        "id": case.id,
        "claim": claim.statement,
        "kernel": f"{subject.kernel.name}, {subject.dtype}, {subject.device}",
        "why": case.message.splitlines()[0],
        "find": _finder(subject.kernel),
        "give": textwrap.indent(subject.framework.script_gives, "    "),
        "take": textwrap.indent(subject.framework.script_takes, "    "),
        "device": subject.device,
        "worst_call": str(_worst_call(case.worst, subject.presentation, calls)),
        "worst": pprint.pformat(asdict(case.worst), sort_dicts=False) if case.worst else "None",
        "calls": ",\n".join(_call(call) for call in calls),
    }
    text = TEMPLATE
    for name, value in facts.items():
        text = text.replace(f"@{name}@", value)
    return text


def _worst_call(
    worst: WorstElement | None, shown: Presentation, calls: list[Call]
) -> tuple[int, tuple[int, ...]] | tuple[None, None]:
    """Number of the last call that returned the worst element, which is the one measured, and where in its answer.

    None when the claim measures none, or when one of several calls for one problem returned it.
    """
    if worst is None or shown.looped:
        return None, None
    for number, call in reversed(list(enumerate(calls))):
        part = call.parts[-1 if worst.quantity == "lse" else 0] if call.parts else None
        place = None if part is None else _place(worst, shown, part, call.options.get("query_heads", 1))
        if part is not None and place is not None and float(part[place]).hex() == worst.got:
            return number, place
    return None, None


def _place(worst: WorstElement, shown: Presentation, part: np.ndarray, heads: int) -> tuple[int, ...] | None:
    """Index the worst element in what a kernel of so many heads returned; None when it is not there."""
    numbered = np.arange(part.size).reshape(part.shape)
    if worst.quantity != "lse":
        if part.ndim != len(shown.axes):
            return None
        numbered = shown.back(numbered, heads)
    if len(worst.index) != numbered.ndim or any(i >= n for i, n in zip(worst.index, numbered.shape, strict=True)):
        return None
    return tuple(int(i) for i in np.unravel_index(numbered[worst.index], part.shape))


def _given(tensor: Any) -> Given:
    own = of(tensor)
    return Given(own.take(tensor), own.dtype_of(tensor))


def _plain(value: Any) -> Any:
    """A tensor as what was given, anything else as it is."""
    try:
        return _given(value)
    except FrameworkError:
        return value


def _finder(kernel: Kernel) -> str:
    """Lines that define ``kernel`` in the script."""
    attribute = attribute_of(kernel)
    if not attribute:  # no module has it, as that of definition:200
        return f"from attn_spec.kernels.resolve import resolve\n\nkernel = resolve({kernel.spec!r})"
    if kernel.spec.partition(":")[0].endswith(".py"):
        file = Path(str(kernel.file)).resolve()
        return f"sys.path.insert(0, {str(file.parent)!r})\nkernel = importlib.import_module({file.stem!r}).{attribute}"
    return f"from {kernel.module} import {attribute} as kernel"


def _call(call: Call) -> str:
    tensors = ",\n      ".join(_literal(tensor) for tensor in call.tensors)
    options = ", ".join(f"{name!r}: {_literal(value)}" for name, value in call.options.items())
    return f"    ([{tensors}],\n     {{{options}}}, {call.digest!r})"


def _literal(value: Any) -> str:
    """An expression for the exact value, in terms of the script's ``tensor``."""
    if not isinstance(value, Given):
        return repr(value)
    array = value.values
    if array.size <= READABLE:
        numbers = ", ".join(_number(x) for x in array.ravel().tolist())
        return f"tensor({array.shape}, [{numbers}], {value.dtype!r})"
    data = base64.b85encode(zlib.compress(np.ascontiguousarray(array).tobytes())).decode()
    return f"tensor({array.shape}, {data!r}, {value.dtype!r})"


def _number(x: float) -> str:
    """Shortest decimal that is ``x`` exactly; a bool as it is."""
    return repr(x) if np.isfinite(x) else f"float({str(x)!r})"


TEMPLATE = '''"""Counterexample @id@, written by attn-spec. Exits with 1 while the kernel still fails, else with 0.

Claim:  @claim@
Kernel: @kernel@
Why:    @why@
"""

import base64
import hashlib
import importlib
import sys
import textwrap
import zlib

import numpy as np

@find@

DEVICE = "@device@"

# The element that is farthest outside its bound, the call that returned it, and where in its answer; reals are
# hexadecimal floats, and the index is that in [batch, head, ..], whatever the order of axes in the answer.
WORST_CALL, PLACE = @worst_call@
WORST = @worst@


def tensor(shape, data, dtype):
    """The exact values in a dtype, which "bool" is too."""
    kind = "bool" if dtype == "bool" else "float64"
    if isinstance(data, str):
        data = np.frombuffer(zlib.decompress(base64.b85decode(data)), dtype=kind)
    array = np.array(data, dtype=kind).reshape(shape)
@give@


def values(x):
    """The exact values of a tensor."""
@take@


# Each call the property made: tensors, options, and a digest of the answer that refuted the claim.
CALLS = [
@calls@
]

failed = False
repeated = True
for number, (tensors, options, digest) in enumerate(CALLS):
    before = [values(x).copy() for x in tensors]
    answer = kernel(*tensors, **options)
    parts = [part for part in (answer if isinstance(answer, tuple) else (answer,)) if hasattr(part, "dtype")]
    print(f"call {number}: " + ", ".join(f"{tuple(part.shape)} {part.dtype}" for part in parts))
    if any(not np.array_equal(values(x), y, equal_nan=True) for x, y in zip(tensors, before)):
        print("  the kernel changed its inputs")
        failed = True
    repeated &= hashlib.sha256(b"".join(values(x).tobytes() for x in parts)).hexdigest()[:16] == digest
    if number == WORST_CALL:
        got = float(values(parts[WORST["quantity"] == "lse"])[PLACE])
        truth, radius, allowed = (float.fromhex(WORST[name]) for name in ("truth", "radius", "allowed"))
        print(f"  {WORST['quantity']}{list(WORST['index'])} is {got!r}")
        print(f"  the truth is {truth!r} +- {radius:.3g}; allowed error {allowed:.3g}")
        failed |= not (got == truth or abs(got - truth) <= allowed + radius)
if WORST_CALL is None:
    print("the answers that refuted the claim came back, bit for bit" if repeated else "the answers have changed")
    failed |= repeated
print("still fails" if failed else "no longer fails here; attn-spec replay @id@ checks the claim itself")
sys.exit(failed)
'''
