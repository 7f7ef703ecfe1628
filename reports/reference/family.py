"""The page on the family: each member with the files that hold it, from the registries.

Each cell names the files that hold a part of a member, or the reason why there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from attn_spec.emulation.kernels import SUPPORTS
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.resolve import in_tree, resolve
from attn_spec.problem.options import OPTIONS
from attn_spec.search.property import Property
from attn_spec.search.property import load_all as load_properties

from ..proof.zoo.mutants import Mutant
from ..proof.zoo.mutants import load_all as load_mutants
from . import markdown
from .members import COLUMNS, KERNELS, MEMBERS, Member

#: Number of files above which a cell names their folder.
MOST_FILES = 2


class MemberError(ValueError):
    """A row of members that makes no table; the text says what to change."""


def page(members: Iterable[Member] = MEMBERS) -> str:
    """Return the page. Raises :class:`MemberError` for a cell that is empty without a reason."""
    return markdown.page(
        "The family",
        "A member of the family is a way to use attention that attn-spec certifies. "
        "This page names the files of the repository that hold each member. "
        "A mutant is a correct kernel with one documented bug.",
        *(f"## {member.name}\n\n{_listed(cells(member))}" for member in members),
    )


def _listed(found: Mapping[str, str]) -> str:
    return "\n".join(f"- {column}: {cell}" for column, cell in found.items())


def cells(member: Member) -> dict[str, str]:
    """Return the cells of one member, by column. Raises :class:`MemberError`."""
    kernels, properties = kernels_of(member), properties_of(member)
    found = {
        "definition": _files(member.definition + member.tests),
        "enclosure": _files(member.enclosure),
        "bound": _files(member.bound),
        **{column: _files(paths) for column, paths in kernels.items()},
        "gradients": _files(member.gradients),
        "properties": _counted(
            Counter(f"properties/{_stem(property_.check.__module__)}.py" for property_ in properties)
        ),
        "mutants": _counted(
            Counter(f"reports/proof/zoo/{mutant.family}.py" for mutant in mutants_of(member, properties))
        ),
    }
    for column in COLUMNS:
        reason = member.lacks.get(column, "")
        if bool(found[column]) == bool(reason):
            what = f"is not empty, but lacks says why: {reason}" if reason else "is empty; say why in lacks"
            raise MemberError(f"the cell {column!r} of the member {member.name!r} {what}")
    return {column: found[column] or f"*{member.lacks[column]}*" for column in COLUMNS}


def kernels_of(member: Member) -> dict[str, list[str]]:
    """Return the files of kernels that take the member, by column."""
    needed = member.options if member.supports is None else member.supports
    found: dict[str, list[str]] = {column: [] for column in KERNELS}
    for kernel in _kernels() if member.has_kernels else ():
        if member.merges and not any(kernel.contract_declared(dtype).lse_merges for dtype in kernel.dtypes):
            continue
        if kernel.supports.issuperset(needed) and set(kernel.limits.always) <= set(needed):
            path = f"implementations/{_stem(kernel.module)}.py"
            found[_column(kernel)] += [path] if path not in found[_column(kernel)] else []
    return found


def properties_of(member: Member) -> list[Property]:
    """Return the properties that need one of the member's options, and those that its row names."""
    properties = load_properties().values()
    own = [property_ for property_ in properties if not set(property_.needs).isdisjoint(member.options)]
    if "" in member.properties:
        with_rows = OPTIONS.keys() | {option for other in MEMBERS for option in other.options}
        return own + [property_ for property_ in properties if with_rows.isdisjoint(property_.needs)]
    return own + [
        property_
        for property_ in properties
        if property_.id.startswith(member.properties or (" ",)) and property_ not in own
    ]


def mutants_of(member: Member, properties: Iterable[Property]) -> list[Mutant]:
    """Return the mutants of these properties, of rare options of the member, or of the families that its row names.

    Parameters of another option, as given positions are, come with every mutant of that.
    """
    named, (mutants, _) = {property_.id for property_ in properties}, load_mutants()
    own = {name for name in member.options if name not in SUPPORTS and not (name in OPTIONS and OPTIONS[name].of)}
    return [
        each
        for each in mutants.values()
        if each.named_by in named or each.family in member.mutants or not own.isdisjoint(_taken_by_mutants()[each.id])
    ]


@cache
def _taken_by_mutants() -> dict[str, frozenset[str]]:
    """Return the options that each mutant takes, by its id; a mutant makes a new kernel whenever it is asked."""
    return {each.id: each.kernel.supports for each in load_mutants()[0].values()}


@cache
def _kernels() -> list[Kernel]:
    """Return the built-in kernels. Raises :class:`MemberError` where one of them does not import."""
    try:
        return [resolve(name) for name in in_tree()]
    except KernelError as error:
        raise MemberError(f"the table holds every kernel, and one does not import here: {error}") from error


def _column(kernel: Kernel) -> str:
    """Return the column of a kernel; those in Triton take tensors of PyTorch."""
    if kernel.framework == "jax" or "triton" in getattr(kernel.function, "__globals__", {}):
        return "Triton, JAX"
    return {"numpy": "NumPy", "torch": "PyTorch"}[kernel.framework]


def _stem(module: str) -> str:
    return module.rpartition(".")[2]


def _files(paths: Iterable[str]) -> str:
    return ", ".join(map(markdown.code, paths))


def _counted(counts: Mapping[str, int]) -> str:
    """Return files with counts: each file, or one folder of many."""
    if len(counts) > MOST_FILES:
        folder = next(iter(counts)).rpartition("/")[0]
        return f"{sum(counts.values())} in {markdown.code(folder)}"
    return ", ".join(f"{number} in {markdown.code(path)}" for path, number in counts.items())
