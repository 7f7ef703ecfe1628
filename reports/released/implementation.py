"""The record of a released implementation: how it is called, and what it declares."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from attn_spec.kernels.signatures.signature import Fact
from attn_spec.kernels.signatures.table import SIGNATURES

#: Folder of the functions that stand between an implementation and attn-spec.
ADAPTERS = Path(__file__).parent / "adapters"
#: Shape of one decoder layer with groups of four query heads. It takes about 20 processor seconds on the CPU.
DECODER_LAYER = "Hq=32,Hkv=8,S=1024,D=128"


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One released implementation, and the words of its examination."""

    #: Name of the row, in lower case with hyphens.
    name: str
    project: str
    #: Distribution whose version is stated.
    package: str
    #: Description of the function for a reader who knows the project.
    function: str
    #: Name of its environment.
    environment: str
    #: Kernel by the name that ``attn-spec certify`` takes; an adapter is ``file.py:name`` in ``ADAPTERS``.
    kernel: str
    #: Row of the table of signatures by which the function is called; empty for an adapter.
    signature: str = ""
    #: Contract of the function, for one that is called by its signature.
    contract: str = ""
    #: Abilities beside those that the signature shows.
    supports: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    #: Shape of a production size, as ``--shape`` takes it. A function that declares no gqa has Hq kv heads there.
    shape: str = DECODER_LAYER
    #: Facts of the declaration, with their sources; for a signature, those beside the facts of its row.
    facts: tuple[Fact, ...] = ()

    @property
    def is_adapted(self) -> bool:
        """True if the kernel is a function of a file in ``ADAPTERS``."""
        return not self.signature

    @property
    def spec(self) -> str:
        """Kernel as a command names it."""
        return str(ADAPTERS / self.kernel) if self.is_adapted else self.kernel

    @property
    def known(self) -> tuple[Fact, ...]:
        """All facts with their sources."""
        return self.facts if self.is_adapted else (*SIGNATURES[self.signature].facts, *self.facts)

    @property
    def lines(self) -> int:
        """Number of lines of an adapter, with its declaration, without its docstring and empty lines.

        An adapter is a declared function, or the name that a declared function of the package is assigned to.
        """
        file, _, name = self.kernel.partition(":")
        source = (ADAPTERS / file).read_text(encoding="utf-8")
        found = next(one for one in ast.parse(source).body if defines(one) == name)
        first, described = found.lineno, None
        if isinstance(found, ast.FunctionDef):
            first = min((one.lineno for one in found.decorator_list), default=first)
            described = found.body[0] if ast.get_docstring(found) else None
        skipped = range(described.lineno, (described.end_lineno or 0) + 1) if described else range(0)
        lines = source.splitlines()[first - 1 : found.end_lineno]
        return sum(bool(line.strip()) for number, line in enumerate(lines, first) if number not in skipped)


def defines(statement: ast.stmt) -> str:
    """Return the name that a statement of a module gives to a function or to a value; an empty text for others."""
    if isinstance(statement, ast.FunctionDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return next((one.id for one in targets if isinstance(one, ast.Name)), "")
