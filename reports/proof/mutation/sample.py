"""Mutants of the code of truth, bounds, judgement and verdicts: places that may change, and a sample of the changes.

The mutations are those of cosmic-ray.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

import attn_spec

_MODULES = {
    "attention": ("arithmetic", "scores", "definition", "enclosure", "gradients", "gradient_enclosure"),
    "judgement": ("oracle", "analysis", "measure"),
    "contract": ("roundoff", "products", "readings"),
    "bounds": ("intermediates", "running_error", "operand_bounds", "replay", "codes", "block_scales", "hadamard"),
    "bounds.forward": (
        *("product_bounds", "score_bounds", "weight_bounds", "row_sum_bounds", "bounds", "domain", "output_bounds"),
        *("output_terms", "weighted_means", "sink_bounds", "cast_bounds", "output_scale_bounds"),
    ),
    "bounds.backward": (
        *("score_gradient_bounds", "gradient_bounds", "block_sums", "gradient_key_sums", "weight_gradient_bounds"),
        *("gradient_products", "operand_gradients", "gradient_blocks", "backward_weights", "delta_bounds"),
        *("reference_gradients", "value_gradient_bounds"),
    ),
    "problem": ("masks",),
    "search": ("assertions", "verdict"),
}
#: Modules of ``attn_spec`` that are mutated.
MODULES = tuple(f"{folder}.{module}" for folder, modules in _MODULES.items() for module in modules)

#: Replacements of operators; the others of cosmic-ray make the same mutants again, or none that runs.
_BINARY = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Add_Mul", "Mul_Add", "Pow_Mul", "FloorDiv_Div")
_SETS = ("BitAnd_BitOr", "BitOr_BitAnd")
_COMPARISON = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Is_IsNot", "IsNot_Is")
_UNARY = ("Delete_USub", "Delete_Not", "Delete_Invert")
_WORDS = ("TrueWithFalse", "FalseWithTrue", "AndWithOr", "OrWithAnd", "BreakWithContinue", "ContinueWithBreak")
OPERATORS = (
    *(f"core/ReplaceBinaryOperator_{change}" for change in _BINARY + _SETS),
    *(f"core/ReplaceComparisonOperator_{change}" for change in _COMPARISON),
    *(f"core/ReplaceUnaryOperator_{change}" for change in _UNARY),
    *(f"core/Replace{change}" for change in _WORDS),
    *("core/AddNot", "core/NumberReplacer", "core/ZeroIterationForLoop"),
)


@dataclass(frozen=True)
class Mutant:
    """One change of one module of ``attn_spec``."""

    module: str
    operator: str
    source: str

    @property
    def change(self) -> str:
        """The lines taken out and put in."""
        before = source_of(self.module).splitlines()
        lines = list(unified_diff(before, self.source.splitlines(), lineterm="", n=0))[2:]
        return "\n".join(line for line in lines if not line.startswith("@@"))


class Place(NamedTuple):
    """A place where an operator may change a module."""

    module: str
    operator: str
    #: Index among the places of this module where this operator applies.
    number: int
    #: The source line, and how many places of this operator come before in lines like it.
    line: str
    before: int


def places(modules: Iterable[str]) -> list[Place]:
    """Return every place that an operator may change."""
    found = []
    for module in modules:
        source = source_of(module)
        nodes, lines = list(ast_nodes(get_ast(source))), source.splitlines()
        for name in OPERATORS:
            positions = [at for node in nodes for at in get_operator(name)().mutation_positions(node)]
            before: Counter[str] = Counter()
            for number, ((row, _), _) in enumerate(positions):
                line = lines[row - 1].strip()
                found.append(Place(module, name, number, line, before[line]))
                before[line] += 1
    return found


def sampled(places: Iterable[Place], count: int, seed: int) -> Iterator[Mutant]:
    """Draw ``count`` mutants with a seed, whose code differs in more than an annotation or a decorator.

    A place is drawn by a hash of its line, so that an edit elsewhere leaves the others in the sample.
    """

    def drawn(place: Place) -> bytes:
        known = (seed, place.module.rpartition(".")[2], place.operator, place.line, place.before)
        return hashlib.sha256(repr(known).encode()).digest()

    return islice(_differing(sorted(places, key=drawn)), count)


def _differing(places: Iterable[Place]) -> Iterator[Mutant]:
    sources = {module: source_of(module) for module in MODULES}
    codes = {module: _code(source) for module, source in sources.items()}
    for place in places:
        changed = mutate_code(sources[place.module], get_operator(place.operator)(), place.number)
        if changed is not None and _runs(changed) and _code(changed) != codes[place.module]:
            yield Mutant(place.module, place.operator, changed)


def path_of(module: str) -> Path:
    """Return the file of a module of ``attn_spec``."""
    return Path(attn_spec.__path__[0]).joinpath(*module.split(".")).with_suffix(".py")


def source_of(module: str) -> str:
    """Return the source of a module of ``attn_spec``."""
    return path_of(module).read_text(encoding="utf-8")


def _runs(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _code(source: str) -> str:
    """Return a source's syntax without annotations, which never run, and decorators, which freeze or cache."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if hasattr(node, name):
                setattr(node, name, ast.Constant(None))
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.decorator_list = []
    return ast.dump(tree)
