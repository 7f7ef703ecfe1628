"""Correct kernels with one documented bug put in: what the properties must catch.

A mutant is a subclass of :class:`~attn_spec.reports.emulated.TiledAttention` that overrides one step, or the same
kernel executing a worse arithmetic than it declares, or a function that cheats. Its docstring tells the story in
one line, ``source`` is the report it retells, ``named_by`` the property that must name it. Controls are the
opposite: unusual kernels that are right, and must pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attn_spec.contract import Contract
from attn_spec.kernels import Kernel

from .arithmetic import Order
from .emulated import CONVENTIONS, SUPPORTS, TiledAttention, emulate
from .emulated_backward import TiledGradients, emulate_both
from .sound import PRECISE

#: A kernel's function (q, k, v, **options) -> (out, lse).
Attention = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug, or for a control none."""

    id: str
    #: What goes wrong, in one line.
    story: str
    #: Where it happened: owner/repository#number, or why it was made up.
    source: str
    #: The property whose refutation names the bug; None for a control.
    named_by: str | None
    #: The dtype it is tried at.
    dtype: str
    build: Callable[[], Kernel] = field(repr=False)

    @property
    def kernel(self) -> Kernel:
        """A new kernel, without memory of earlier calls."""
        return self.build()


#: Mutants and controls by id.
MUTANTS: dict[str, Mutant] = {}
CONTROLS: dict[str, Mutant] = {}


def mutant(
    *,
    source: str,
    named_by: str | None,
    dtype: str = "float32",
    executes: Contract = PRECISE,
    order: Order | None = None,
    lacks: tuple[str, ...] = (),
    conventions: Mapping[str, Any] | None = None,
    contract: str | Contract = "fused",
) -> Callable[[type[TiledAttention]], type[TiledAttention]]:
    """Register a subclass of the tiled kernel, as a control when no property names it.

    It does the arithmetic of ``executes`` but declares ``contract``, as a user would, all options but ``lacks``,
    and the emulated kernels' conventions changed by ``conventions``.
    """

    def register(steps: type[TiledAttention]) -> type[TiledAttention]:
        name = _snake(steps.__name__)

        def build() -> Kernel:
            declared = {
                "contract": contract,
                "supports": [option for option in SUPPORTS if option not in lacks],
                "conventions": {**CONVENTIONS, **(conventions or {})},
            }
            if issubclass(steps, TiledGradients):
                return emulate_both(name, executes, order, dtypes=(dtype,), gradients=steps, **declared)
            return emulate(name, executes, order, dtypes=(dtype,), steps=steps, **declared)

        _add(Mutant(id=name, story=_story(steps), source=source, named_by=named_by, dtype=dtype, build=build))
        return steps

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
    _add(
        Mutant(
            id=name,
            story=story,
            source=source,
            named_by=named_by,
            dtype=dtype,
            build=lambda: emulate(name, executes, order, dtypes=(dtype,), contract=contract),
        )
    )


def cheat(*, source: str, named_by: str, dtype: str = "float32") -> Callable[[Callable[[Attention], Attention]], Any]:
    """Register a function that wraps the sound kernel's function into a dishonest one."""

    def register(wrap: Callable[[Attention], Attention]) -> Callable[[Attention], Attention]:
        def build() -> Kernel:
            honest = emulate(wrap.__name__, PRECISE, dtypes=(dtype,), contract="fused")
            return Kernel(**{**vars(honest), "function": wrap(honest.function)})

        story = _story(wrap)
        _add(Mutant(id=wrap.__name__, story=story, source=source, named_by=named_by, dtype=dtype, build=build))
        return wrap

    return register


def load_all() -> tuple[dict[str, Mutant], dict[str, Mutant]]:
    """Import every family; the mutants and the controls."""
    from . import (  # noqa: F401 - they register
        mutants_autograd,
        mutants_backward,
        mutants_backward_masking,
        mutants_cheating,
        mutants_masking,
        mutants_plumbing,
        mutants_softmax,
        mutants_values,
    )

    return MUTANTS, CONTROLS


def _add(made: Mutant) -> None:
    (CONTROLS if made.named_by is None else MUTANTS)[made.id] = made


def _story(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "").splitlines()[0]


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).removeprefix("_")
