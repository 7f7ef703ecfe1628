"""Mutants: correct kernels with one documented bug put in, which the properties must catch.

A mutant is a subclass of :class:`~attn_spec.emulation.forward.TiledAttention` that overrides one step. Or it is that
kernel, executing a worse arithmetic than it declares, or a function that cheats. Its docstring states the bug in one
line, ``source`` is the report, and ``named_by`` the property that must name it. Controls are the opposite: unusual
kernels that are right, and must pass.

Each is an attribute of this module, so that the command examines it:
``attn-spec certify attn_spec.reports.proof.zoo.mutants:causal_top_left``.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import FUSED
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import CONVENTIONS, SUPPORTS, emulate, emulate_both
from attn_spec.emulation.operands import Operands
from attn_spec.emulation.ranks import Layout, contiguous
from attn_spec.emulation.ring import over_ranks
from attn_spec.emulation.shards import Rank
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.nearest_names import suggestion
from attn_spec.problem.options import parameters
from attn_spec.problem.shape_spec import AskedShape
from attn_spec.search.verdict import Verdict

#: A kernel's function (q, k, v, **options) -> (out, lse).
Attention = Callable[..., Any]

#: A class or a function.
Wrong = TypeVar("Wrong", bound=Callable[..., Any])

#: The dtypes at which a wrong step is wrong, whatever it is.
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug, or for a control none."""

    id: str
    #: The bug, in one line.
    story: str
    #: Report of the bug, owner/repository#number, or the reason why it was made up.
    source: str
    #: Mutants that share a kind of step: the module that registers them, or "arithmetic".
    family: str
    #: The property whose refutation names the bug; None for a control.
    named_by: str | None
    #: Verdict of that property on the mutant.
    verdict: Verdict = Verdict.REFUTED
    #: The dtype it is tried at.
    dtype: str
    #: The dtypes at which the change is a defect.
    dtypes: tuple[str, ...] = DTYPES
    #: A new kernel for inputs of a dtype.
    build: Callable[[str], Kernel] = field(repr=False)
    #: Shapes that its user asks for, where no smaller problem shows the bug.
    shapes: tuple[AskedShape, ...] = ()

    def __post_init__(self) -> None:
        self._require(self.dtype)

    @property
    def kernel(self) -> Kernel:
        """A new kernel, without memory of earlier calls, at the dtype it is tried at."""
        return self.at(self.dtype)

    def at(self, dtype: str) -> Kernel:
        """Return a new kernel for inputs of ``dtype``. Raises ``ValueError`` where the change is no defect."""
        self._require(dtype)
        return self.build(dtype)

    def _require(self, dtype: str) -> None:
        if dtype not in self.dtypes:
            raise ValueError(f"{self.id} is a defect at {', '.join(self.dtypes)}, not at {dtype}")


#: Mutants and controls by id.
MUTANTS: dict[str, Mutant] = {}
CONTROLS: dict[str, Mutant] = {}


def mutant(
    *,
    source: str,
    named_by: str | None,
    dtype: str = "float32",
    dtypes: tuple[str, ...] = DTYPES,
    executes: Contract = PRECISE,
    order: Order | None = None,
    lacks: tuple[str, ...] = (),
    takes: tuple[str, ...] = (),
    conventions: Mapping[str, Any] | None = None,
    contract: str | Contract = "fused",
    verdict: Verdict = Verdict.REFUTED,
    shapes: tuple[str, ...] = (),
) -> Callable[[type[TiledAttention]], type[TiledAttention]]:
    """Register a subclass of the tiled kernel, as a control when no property names it.

    It does the arithmetic of ``executes`` but declares ``contract``, as a user would, with tiles as small as its own.
    It supports all options but ``lacks``, and those of ``takes``; ``conventions`` change those of the emulated kernels.
    ``shapes`` are those at which a user asks for it.
    """
    if contract == "fused" and order is not None and order.kv_tile is not None:
        contract = replace(FUSED, kv_tile=min(FUSED.kv_tile or order.kv_tile, order.kv_tile))

    def register(steps: type[TiledAttention]) -> type[TiledAttention]:
        def build(name: str, dtype: str) -> Kernel:
            declared = {
                "dtypes": (dtype,),
                "contract": contract,
                "supports": [*(option for option in SUPPORTS if option not in lacks), *takes],
                "conventions": {**CONVENTIONS, **(conventions or {})},
            }
            made = type(steps.__name__, (steps,), {"calls": itertools.count()})
            if issubclass(made, TiledGradients):
                return emulate_both(name, executes, order, gradients=made, **declared)
            return emulate(name, executes, order, steps=made, **declared)

        told: dict[str, Any] = {"source": source, "named_by": named_by, "verdict": verdict}
        told["shapes"] = tuple(AskedShape.parse(shape) for shape in shapes)
        return introduce(steps, build, **told, dtype=dtype, dtypes=dtypes)

    return register


def score_mutant(
    *scores: str, source: str, named_by: str, dtype: str = "float32", executes: Contract = PRECISE
) -> Callable[[type[Operands]], type[Operands]]:
    """Register operands with one wrong step, for the sound kernel with these scores and all their parameters.

    Or with right steps in a worse arithmetic, ``executes``, than is declared.
    """
    chosen = (*scores, *(row.name for name in scores for row in parameters(name)))

    def register(operands: type[Operands]) -> type[Operands]:
        def build(name: str, dtype: str) -> Kernel:
            declared = {"contract": "fused", "supports": (*SUPPORTS, *chosen), "conventions": CONVENTIONS}
            return emulate_both(name, executes, operands=operands, dtypes=(dtype,), **declared)

        return introduce(operands, build, source=source, named_by=named_by, dtype=dtype)

    return register


def rank_mutant(
    *, source: str, named_by: str | None, ranks: int = 3, layout: Layout = contiguous, dtype: str = "float32",
    dtypes: tuple[str, ...] = DTYPES,
) -> Callable[[type[Rank]], type[Rank]]:  # fmt: skip
    """Register what every one of some ranks does, run in one process; as a control when no property names it."""

    def register(program: type[Rank]) -> type[Rank]:
        def build(name: str, dtype: str) -> Kernel:
            return over_ranks(name, program, ranks, layout=layout, dtypes=(dtype,))

        return introduce(program, build, source=source, named_by=named_by, dtype=dtype, dtypes=dtypes)

    return register


def narrow(
    name: str,
    story: str,
    *,
    source: str,
    named_by: str,
    dtype: str,
    inaccuracy: float = 0.0,
    contract: str | Contract = "fused",
    **executed: Any,
) -> None:
    """Register the unchanged kernel executing a worse arithmetic than the contract it declares.

    ``executed`` are fields of the contract that is executed instead.
    """
    order, executes = Order(inaccuracy=inaccuracy), replace(PRECISE, **executed)

    def build(dtype: str) -> Kernel:
        return emulate(name, executes, order, dtypes=(dtype,), contract=contract)

    told = {"family": "arithmetic", "source": source, "named_by": named_by}
    _add(name, story, build, **told, dtype=dtype, dtypes=(dtype,))


def cheat(*, source: str, named_by: str, dtype: str = "float32") -> Callable[[Callable[[Attention], Attention]], Any]:
    """Register a function that wraps the sound kernel's function into a dishonest one."""

    def register(wrap: Callable[[Attention], Attention]) -> Callable[[Attention], Attention]:
        def build(name: str, dtype: str) -> Kernel:
            honest = emulate(name, PRECISE, dtypes=(dtype,), contract="fused")
            return replace(honest, function=wrap(honest.function))

        return introduce(wrap, build, source=source, named_by=named_by, dtype=dtype)

    return register


def introduce(wrong: Wrong, build: Callable[[str, str], Kernel], **told: Any) -> Wrong:
    """Register a class or function: its name is the id, its docstring begins with the story, its module is the family.

    ``build`` makes a kernel of a name for a dtype; ``told`` are more fields of :class:`Mutant`.
    """
    name, story = _snake(wrong.__name__), inspect.cleandoc(wrong.__doc__ or "").splitlines()[0]
    _add(name, story, partial(build, name), family=wrong.__module__.rpartition(".")[2], **told)
    return wrong


def _add(name: str, story: str, build: Callable[[str], Kernel], **told: Any) -> None:
    """Register a mutant, or a control when no property names it. Raises :class:`ValueError` for an id that is taken."""
    made = Mutant(id=name, story=story, build=build, **told)
    if (other := MUTANTS.get(name) or CONTROLS.get(name)) and other.family != made.family:
        raise ValueError(f"a mutant of {other.family} and one of {made.family} are both called {name}; rename one")
    (CONTROLS if made.named_by is None else MUTANTS)[made.id] = made


def load_all() -> tuple[dict[str, Mutant], dict[str, Mutant]]:
    """Import every module of this folder, which registers its family; the mutants and the controls."""
    package = importlib.import_module(__package__ or "")
    for module in pkgutil.iter_modules(package.__path__):
        if f"{package.__name__}.{module.name}" != __name__:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return MUTANTS, CONTROLS


def __getattr__(name: str) -> Kernel:
    """Return a new kernel of the mutant or control with that id, at the dtype it is tried at.

    Raises :class:`KernelError` when there is none, and ``AttributeError`` for private names, which Python itself asks
    for.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    mutants, controls = load_all()
    known = {**mutants, **controls}
    if name not in known:
        every = f"; there are {', '.join(sorted(known))}"
        raise KernelError(f"no mutant is called {name!r}{suggestion(name, known, every)}")
    return known[name].kernel


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).removeprefix("_")
