"""Write a stand-alone script of a case: it needs the kernel and its framework, not attn-spec.

The script repeats, with the exact bits, every call of the kernel that the property made for the case's problem.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import pprint
import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attn_spec import atomic, bits
from attn_spec.kernels import Kernel, kernels_of
from attn_spec.property import Property
from attn_spec.reproduce import Case
from attn_spec.subject import Subject

#: Arrays of up to this many entries are written as numbers, larger ones as compressed bytes.
READABLE = 256


@dataclass
class Call:
    """One call of the kernel: what it was given, and a digest of what it returned, if it did."""

    tensors: list[np.ndarray]
    options: dict[str, Any]
    answer: str = ""


@dataclass
class Recorder:
    """A kernel function that remembers its calls."""

    function: Callable[..., Any]
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function)

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        call = Call([bits.values_of(tensor) for tensor in tensors], {k: _plain(v) for k, v in options.items()})
        self.calls.append(call)
        returned = self.function(*tensors, **options)
        call.answer = digest(returned)
        return returned


def write(case: Case, claim: Property, subject: Subject, path: Path) -> Path:
    """Run the case once more, recording, and write the script. Returns ``path``."""
    recorder = Recorder(subject.kernel.function)
    try:
        claim.check(replace(subject, kernel=replace(subject.kernel, function=recorder)), case.problem)
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
        "framework": subject.kernel.framework,
        "dtype": subject.dtype,
        "device": subject.device,
        "worst": pprint.pformat(asdict(case.worst), sort_dicts=False) if case.worst else "None",
        "calls": ",\n".join(_call(call) for call in calls),
    }
    text = TEMPLATE
    for name, value in facts.items():
        text = text.replace(f"@{name}@", value)
    return text


def digest(returned: Any) -> str:
    """A digest of the bits of one answer, or of (out, lse)."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    return hashlib.sha256(b"".join(bits.values_of(part).tobytes() for part in parts)).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """A tensor as an array, anything else as it is."""
    if isinstance(value, np.ndarray) or type(value).__module__ == "torch":
        array = bits.values_of(value)
        return array.astype(bool) if bits.dtype_name(value) == "bool" else array
    return value


def _finder(kernel: Kernel) -> str:
    """Lines that define ``kernel`` in the script."""
    module = sys.modules[kernel.function.__module__]
    named = kernel.spec.partition(":")[2]
    attribute = named or next((name for name, k in kernels_of(module).items() if k.function is kernel.function), "")
    if kernel.spec.partition(":")[0].endswith(".py"):
        folder = str(Path(str(module.__file__)).resolve().parent)
        return f"sys.path.insert(0, {folder!r})\nfrom {module.__name__} import {attribute} as kernel"
    return f"from {module.__name__} import {attribute or kernel.function.__name__} as kernel"


def _call(call: Call) -> str:
    tensors = ", ".join(_literal(array) for array in call.tensors)
    options = ", ".join(f"{name!r}: {_literal(value)}" for name, value in call.options.items())
    return f"    ([{tensors}], {{{options}}}, {call.answer!r})"


def _literal(value: Any) -> str:
    """An expression for the exact value, in terms of the script's ``tensor``."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    kind = "bool" if value.dtype == np.bool_ else "float64"
    if value.size <= READABLE:
        inner = np.array2string(
            value.ravel(), separator=", ", threshold=READABLE, max_line_width=110, formatter={"float_kind": _number}
        )
        return f"tensor({value.shape}, {inner}, {kind!r})"
    data = base64.b85encode(zlib.compress(np.ascontiguousarray(value, dtype=kind).tobytes())).decode()
    return f"tensor({value.shape}, {data!r}, {kind!r})"


def _number(x: float) -> str:
    return repr(float(x)) if np.isfinite(x) else f"float({str(float(x))!r})"


TEMPLATE = '''"""Counterexample @id@, written by attn-spec. Run it: it exits with 1 while the kernel still fails, else with 0.

Claim:  @claim@
Kernel: @kernel@
Why:    @why@
"""

import base64
import hashlib
import sys
import zlib

import numpy as np

@find@

FRAMEWORK, DTYPE, DEVICE = "@framework@", "@dtype@", "@device@"

# The element that is farthest outside its bound; reals are hexadecimal floats. None: the claim measures none.
WORST = @worst@


def tensor(shape, data, kind):
    """The exact values, in the kernel's dtype."""
    if isinstance(data, str):
        data = np.frombuffer(zlib.decompress(base64.b85decode(data)), dtype=kind)
    array = np.array(data, dtype=kind).reshape(shape)
    if FRAMEWORK == "numpy":
        return array if kind == "bool" else array.astype(DTYPE)
    import torch

    made = torch.from_numpy(array).to(DEVICE)
    return made if kind == "bool" else made.to(getattr(torch, DTYPE))


def values(x):
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.detach().double().cpu().numpy()


# Each call the property made: tensors, options, and a digest of the answer that refuted the claim.
CALLS = [
@calls@
]

failed = False
repeated = True
for number, (tensors, options, digest) in enumerate(CALLS):
    before = [values(x).copy() for x in tensors]
    answer = kernel(*tensors, **options)
    parts = answer if isinstance(answer, tuple) else (answer,)
    out = parts[0]
    print(f"call {number}: out {tuple(out.shape)} {out.dtype}")
    if any(not np.array_equal(values(x), y, equal_nan=True) for x, y in zip(tensors, before)):
        print("  the kernel changed its inputs")
        failed = True
    repeated &= hashlib.sha256(b"".join(values(x).tobytes() for x in parts)).hexdigest()[:16] == digest
    part = parts[-1] if WORST and WORST["quantity"] == "lse" else out
    if WORST and len(WORST["index"]) == part.ndim:
        index = tuple(WORST["index"])
        got = float(values(part)[index])
        truth, radius, allowed = (float.fromhex(WORST[name]) for name in ("truth", "radius", "allowed"))
        wrong = not (got == truth or abs(got - truth) <= allowed + radius)
        print(f"  {WORST['quantity']}{list(index)}: got {got!r}, truth {truth!r} +- {radius:.3g}, allowed {allowed:.3g}")
        failed |= wrong and number == 0
if not WORST:
    print("the answers that refuted the claim came back, bit for bit" if repeated else "the answers have changed")
    failed |= repeated
print("still fails" if failed else "no longer fails here; attn-spec replay @id@ checks the claim itself")
sys.exit(failed)
'''
