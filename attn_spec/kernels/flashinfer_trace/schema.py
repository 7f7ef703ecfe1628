"""The documents of the FlashInfer Trace schema, as far as attn-spec reads them; further fields are left alone.

Source of the fields: flashinfer_bench 0.1.2, ``flashinfer_bench/data``.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attn_spec.kernels.flashinfer_trace.documents import DocumentError

#: Languages of the sources that attn-spec runs.
LANGUAGES = ("python", "triton")
#: Function of a definition's reference.
REFERENCE = "run"
#: Largest number of faults of one document that an error lists.
MOST_FAULTS = 5

Name = Annotated[str, Field(min_length=1)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ConstantAxis(_Document):
    """An axis of one length."""

    type: Literal["const"]
    value: Annotated[int, Field(ge=1)]


class VariableAxis(_Document):
    """An axis whose length each workload gives."""

    type: Literal["var"]


class Tensor(_Document):
    """Shape and dtype of an input or output."""

    #: Names of axes; None is a number.
    shape: tuple[Name, ...] | None
    dtype: Name


class Definition(_Document):
    """The description of what a kernel computes: inputs and outputs in order, and a reference in Python."""

    name: Name
    op_type: Name
    axes: dict[Name, Annotated[ConstantAxis | VariableAxis, Field(discriminator="type")]]
    inputs: dict[Name, Tensor]
    outputs: dict[Name, Tensor]
    reference: Name

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, tensor in (self.inputs | self.outputs).items():
            if unknown := [axis for axis in tensor.shape or () if axis not in self.axes]:
                raise ValueError(f"{name} has the axis {unknown[0]!r}, which axes does not define; define it there")
        if both := sorted(self.inputs.keys() & self.outputs.keys()):
            raise ValueError(f"{both[0]!r} is an input and an output; rename one")
        try:
            body = ast.parse(self.reference).body
        except SyntaxError as error:
            raise ValueError(f"reference is no Python source: {error.msg} (line {error.lineno})") from None
        if not any(isinstance(each, ast.FunctionDef) and each.name == REFERENCE for each in body):
            raise ValueError(f"reference defines no function {REFERENCE!r}; define it at the top level")
        return self

    def length(self, axis: str) -> int | None:
        """Return the length of an axis; None if workloads give it."""
        found = self.axes[axis]
        return found.value if isinstance(found, ConstantAxis) else None


class Source(_Document):
    """A file of a solution: its path below the solution's folder, and its text."""

    path: Name
    content: Name

    @model_validator(mode="after")
    def _check(self) -> Self:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts or "\\" in self.path:
            raise ValueError(f"path {self.path!r} leaves the solution's folder; write a path below it")
        return self


class Build(_Document):
    """The facts by which the sources of a solution become a function."""

    language: Name
    entry_point: Name
    #: True if the function writes into its last arguments, the outputs in the order of the definition.
    destination_passing_style: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.language not in LANGUAGES:
            raise ValueError(
                f"language {self.language!r} is not supported: attn-spec runs {' and '.join(LANGUAGES)}, and compiles "
                "no sources; wrap the compiled function in a Python kernel, and certify that"
            )
        if self.entry_point.count("::") != 1 or not self.file.endswith(".py") or not self.function.isidentifier():
            raise ValueError(f"entry_point {self.entry_point!r} must be FILE.py::FUNCTION, as in main.py::run")
        return self

    @property
    def file(self) -> str:
        """Path of the file with the function."""
        return self.entry_point.partition("::")[0]

    @property
    def function(self) -> str:
        """Name of the function."""
        return self.entry_point.partition("::")[2]


class Solution(_Document):
    """A kernel for a definition: sources, and how to call them."""

    name: Name
    #: Name of the definition.
    definition: Name
    spec: Build
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        paths = [PurePosixPath(source.path) for source in self.sources]
        if twice := [path for path in paths if paths.count(path) > 1]:
            raise ValueError(f"sources have {str(twice[0])!r} twice; leave one out")
        if PurePosixPath(self.spec.file) not in paths:
            raise ValueError(f"spec.entry_point names {self.spec.file!r}, which sources do not have; add the file")
        return self


class Given(_Document):
    """The source of an input of a workload: random numbers, one number, or a file."""

    type: Literal["random", "scalar", "safetensors"]
    value: int | float | bool | None = None


class Workload(_Document):
    """Lengths of the variable axes of a definition, and how each input is given."""

    axes: dict[str, Annotated[int, Field(ge=0)]]
    inputs: dict[str, Given] = {}


class Trace(_Document):
    """A line of a file of workloads: a workload, and the name of its definition."""

    definition: Name
    workload: Workload


Document = TypeVar("Document", bound=_Document)


def read(model: type[Document], path: Path) -> Document:
    """Read a document from a file. Raises :class:`DocumentError`."""
    return _valid(model, _text(path), str(path))


def is_solution(path: Path) -> bool:
    """Return whether a file is JSON with the sources that a solution has, and a definition has not."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "sources" in found


def read_lines(model: type[Document], path: Path) -> list[Document]:
    """Read documents from the lines of a file; empty lines are skipped. Raises :class:`DocumentError`."""
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), 1) if line.strip()]
    if not lines:
        raise DocumentError(f"{path} has no line; each line must be a {model.__name__.lower()} as JSON")
    return [_valid(model, line, f"{path}, line {number}") for number, line in lines]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DocumentError(f"{path} does not exist (looked in {Path.cwd()}); give the path of a document") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{path} cannot be read: {error}") from error


def _valid(model: type[Document], text: str, where: str) -> Document:
    kind = model.__name__.lower()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{where} is not JSON: {error}; write a {kind} of the FlashInfer Trace schema") from None
    try:
        return model.model_validate(found)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        shown = "\n".join(f"  {_field(fault['loc'])}: {_words(fault)}" for fault in faults[:MOST_FAULTS])
        raise DocumentError(
            f"{where} is no {kind} of the FlashInfer Trace schema that attn-spec reads. Change:\n{shown}"
        ) from None


def _field(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place)) or "document"


def _words(fault: Any) -> str:
    return str(fault["msg"]).removeprefix("Value error, ")
