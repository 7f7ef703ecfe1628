"""Kernels of documents: a solution for a definition, or a definition alone, whose reference is the kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from attn_spec.contract.presets import UNDECLARED
from attn_spec.kernels.declarations.declaration import kernel as declare
from attn_spec.kernels.flashinfer_trace.called import Called
from attn_spec.kernels.flashinfer_trace.documents import DocumentError
from attn_spec.kernels.flashinfer_trace.interface import Interface
from attn_spec.kernels.flashinfer_trace.schema import (
    REFERENCE,
    Build,
    Definition,
    Solution,
    Source,
    is_solution,
    read,
)
from attn_spec.kernels.flashinfer_trace.sources import function_of
from attn_spec.kernels.kernel import Kernel

#: Declarations that may stand beside documents; all others are what the definition says.
FURTHER = ("definition", "contract", "slowness")
#: File of a reference's source.
_REFERENCE_FILE = "reference.py"


def kernel_of(spec: str, **given: Any) -> Kernel:
    """Return the kernel of a solution's file for the file ``definition=``, or the reference of a definition's file.

    It declares what the definition says. Its contract is the loosest unless ``contract=`` gives one, since no document
    says how a kernel rounds. Raises :class:`DocumentError`.
    """
    if foreign := sorted(set(given) - set(FURTHER)):
        raise DocumentError(f"{spec} is a document, whose definition says what --{foreign[0]} would; leave it out")
    path, file = Path(spec), given.get("definition") or spec
    if "definition" not in given and is_solution(path):
        raise DocumentError(f"{spec} is a solution; name the file of its definition, --definition FILE.json")
    definition = read(Definition, Path(file))
    interface = Interface(definition, file)
    if "definition" in given:
        solution = read(Solution, path)
        if solution.definition != definition.name:
            raise DocumentError(
                f"{spec}: definition is {solution.definition!r}, and {file} defines {definition.name!r}; give the "
                "definition of that name"
            )
    else:
        solution = _of_reference(definition)
    writes = solution.spec.destination_passing_style
    called = Called(function_of(solution, spec), interface, writes=writes, name=solution.name)
    destinations = {name: name for name in definition.outputs} if writes else {}
    made = declare(
        framework="torch",
        name=solution.name,
        contract=given.get("contract") or UNDECLARED,
        destinations=destinations,
        slowness=given.get("slowness", 1.0),
        **interface.declared,
    )(called)
    return replace(made, spec=spec, source=str(path.resolve()), given=given)


def _of_reference(definition: Definition) -> Solution:
    """Return the reference of a definition as a solution, which returns its outputs."""
    build = Build(language="python", entry_point=f"{_REFERENCE_FILE}::{REFERENCE}", destination_passing_style=False)
    source = Source(path=_REFERENCE_FILE, content=definition.reference)
    return Solution(name=f"reference of {definition.name}", definition=definition.name, spec=build, sources=(source,))
