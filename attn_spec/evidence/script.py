"""Stand-alone scripts of cases: a script needs the kernel and its framework, but not attn-spec.

The script repeats, with the exact bits, every call that the property made for the case's problem, gradients included.
If attn-spec is not installed, a file that declares its kernel with ``@kernel`` gets a stand-in for the decorator.
"""

from __future__ import annotations

import pprint
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attn_spec import atomic
from attn_spec.evidence.recording import Call, Given, recorded
from attn_spec.evidence.script_text import TEMPLATE
from attn_spec.judgement.worst import WorstElement
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.packing.argument_names import spelled
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.resolve import attribute_of, is_whole_file
from attn_spec.kernels.subject import Subject
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.quantities import QUANTITIES
from attn_spec.search.cases import Case
from attn_spec.search.literals import data, tensor_literal
from attn_spec.search.property import Property


def write(case: Case, property_: Property, subject: Subject, path: Path) -> Path | None:
    """Run the case once more, recording its calls, and write the script to ``path``. Returns ``path``.

    Returns None in three cases:

    - the property is statistical, so that no single element decides it;
    - the property needs an ability of chance, so that no call repeats an answer;
    - the case is large, so that its tensors do not fit a script.
    """
    by_chance = any(name in ABILITIES and ABILITIES[name].by_chance for name in property_.needs)
    if property_.false_alarm or by_chance or case.is_large:
        return None
    watched, calls = recorded(subject)
    try:
        property_.check(watched, case.problem)
    except Exception as error:
        del error  # the case states the reason already
    return atomic.write(path, source(case, property_, subject, calls))


def source(case: Case, property_: Property, subject: Subject, calls: list[Call]) -> str:
    """Return the text of the script."""
    unit = _unit(case)
    facts = {
        "id": case.id,
        "statement": _in_docstring(property_.statement),
        "kernel": _in_docstring(f"{subject.kernel.name}, {subject.dtype}, {subject.device}"),
        "why": _in_docstring(case.message.splitlines()[0]),
        "find": _finder(subject.kernel) + _writing(subject.kernel),
        "give": textwrap.indent(subject.framework.script_gives, "    "),
        "take": textwrap.indent(subject.framework.script_takes, "    "),
        "differentiate": textwrap.indent(subject.framework.script_differentiates, "    "),
        "device": subject.device,
        "worst_call": ", ".join(map(str, _worst_call(case.worst, subject.presentation, calls, unit))),
        "worst": pprint.pformat(_plain(case.worst), sort_dicts=False) if case.worst else "None",
        "unit": repr(unit),
        "calls": ",\n".join(_call(call) for call in calls),
        "promised": _by_call(calls, "promised"),
        "allowed": _by_call(calls, "allowed"),
    }
    return TEMPLATE.substitute(facts)


def _in_docstring(text: str) -> str:
    """Return a text as it is written between triple quotes; a kernel's message may hold quotes and backslashes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _plain(worst: WorstElement) -> dict[str, Any]:
    """Return the fields of the worst element that a script shows, without the terms of its bound."""
    return {name: value for name, value in asdict(worst).items() if name != "bound_terms"}


def _unit(case: Case) -> float:
    """Return the factor of stored numbers of the worst element's quantity: the scale of an output, else 1."""
    d = case.problem.o_scale
    return 1.0 if d is None or case.worst is None or case.worst.quantity != "output" else float(d.item())


def _worst_call(
    worst: WorstElement | None, shown: Presentation, calls: list[Call], unit: float
) -> tuple[int, int, tuple[int, ...]] | tuple[None, None, None]:
    """Return the number of the last call that returned the worst element, the part of its result, and the index there.

    Returns three None if the property measures no element, if the kernel is called once per head, or if no call
    returned the element.
    """
    if worst is None or not shown.calls_once:
        return None, None, None
    for number, call in reversed(list(enumerate(calls))):
        part = _part_of(worst.quantity, call)
        place = None if part is None else _place(worst, shown, call, part)
        if part is not None and place is not None and (unit * float(call.parts[part][place])).hex() == worst.got:
            return number, part, place
    return None, None, None


def _part_of(quantity: str, call: Call) -> int | None:
    """Return which of the returned tensors is a quantity; None if there is none."""
    if QUANTITIES[quantity].made_by == "backward":
        return call.gradients.get(quantity)
    outputs = len(call.parts) - len(call.gradients)
    return (outputs - 1 if quantity == "lse" else 0) if outputs else None


def _place(worst: WorstElement, shown: Presentation, call: Call, number: int) -> tuple[int, ...] | None:
    """Return the index of the worst element in a returned tensor; None if the tensor does not contain it."""
    part = call.parts[number]
    options = {name: x.values if isinstance(x, Given) else x for name, x in call.options.items()}
    options |= {name: options[word] for name in shown.says_where for word in spelled(name) if word in options}
    try:
        numbered = shown.read(worst.quantity, np.arange(part.size).reshape(part.shape), **options)
    except ValueError:  # the tensor has another number of axes than an answer
        return None
    if len(worst.index) != numbered.ndim or any(i >= n for i, n in zip(worst.index, numbered.shape, strict=True)):
        return None
    return tuple(int(i) for i in np.unravel_index(numbered[worst.index], part.shape))


def _finder(kernel: Kernel) -> str:
    """Return lines that define ``kernel`` in the script."""
    attribute = attribute_of(kernel)
    if is_whole_file(kernel.spec):
        named = [str(Path(file).resolve()) for file in (kernel.spec, kernel.given.get("definition")) if file]
        beside = f", definition={named[1]!r}" if len(named) > 1 else ""
        return f"from attn_spec.kernels.resolve import resolve\n\nkernel = resolve({named[0]!r}{beside})"
    if not attribute or kernel.signature:  # definition:200 is no attribute of a module; a signature needs attn-spec
        file, given = kernel.spec.partition(":")[0], f", signature={kernel.signature!r}" if kernel.given else ""
        spec = f"{Path(str(kernel.file)).resolve()}:{attribute}" if file.endswith(".py") else kernel.spec
        return f"from attn_spec.kernels.resolve import resolve\n\nkernel = resolve({spec!r}{given})"
    if kernel.spec.partition(":")[0].endswith(".py"):
        file = Path(str(kernel.file)).resolve()
        return f"sys.path.insert(0, {str(file.parent)!r})\nkernel = importlib.import_module({file.stem!r}).{attribute}"
    return f"from {kernel.module} import {attribute} as kernel"


#: Lines by which a script takes the results that a kernel writes for those that a call returns.
_WRITING = """

called, destinations = kernel, $destinations


def kernel(*tensors, **options):
    \"\"\"Return the results of a call, those that it wrote into tensors it was given among them.\"\"\"
    returned = called(*tensors, **options)
    found = dict(zip(("output", "lse"), returned if isinstance(returned, tuple) else (returned,)))
    return tuple({**found, **{quantity: options[name] for quantity, name in destinations.items()}}.values())


kernel.backward_function = getattr(called, "backward_function", None)"""


def _writing(kernel: Kernel) -> str:
    """Return lines behind those of :func:`_finder` for a kernel that writes into tensors it is given, else nothing."""
    return _WRITING.replace("$destinations", repr(dict(kernel.destinations))) if kernel.destinations else ""


def _call(call: Call) -> str:
    tensors = ",\n      ".join(_literal(tensor) for tensor in call.tensors)
    options = ", ".join(f"{name!r}: {_literal(value)}" for name, value in call.options.items())
    cotangents = ",\n      ".join(_literal(tensor) for tensor in call.cotangents)
    asked = f",\n     {call.wrt}, [{cotangents}], {call.passes}" if call.do == "differentiated" else ""
    return f"    ({call.do}, {call.digest!r}, [{tensors}],\n     {{{options}}}{asked})"


def _by_call(calls: list[Call], field: str) -> str:
    """Return a field of all calls whose values are arrays by tensor, as a dict by the number of the call."""
    every = {number: getattr(call, field) for number, call in enumerate(calls) if getattr(call, field)}
    found = (
        f"    {number}: {{{', '.join(f'{place!r}: {_array(x)}' for place, x in by_place.items())}}}"
        for number, by_place in every.items()
    )
    return "{\n" + ",\n".join(found) + "\n}" if every else "{}"


def _literal(value: Any) -> str:
    """Return an expression for the exact value, in terms of the script's ``tensor``."""
    if not isinstance(value, Given):
        return repr(value)
    return tensor_literal(value.values, value.dtype)


def _array(values: np.ndarray) -> str:
    """Return an expression for float64 values, in terms of the script's ``numbers``."""
    return f"numbers({data(values.astype(np.float64))})"
