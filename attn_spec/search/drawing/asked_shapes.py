"""Problems of the shapes that a user asks for: some regimes without options, then each option in common use.

These problems are large. They are recipes, made one after the other, and nothing of them is drawn or shrunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_spec.attention.terms import BENDS
from attn_spec.kernels.limits import Limits, NotTaken
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import SCORE, WEIGHT
from attn_spec.problem.shape_spec import LETTERS, AskedShape, ShapeError
from attn_spec.search.drawing.regimes import Recipe

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem

#: Regimes of outputs and of gradients, which show keys lost among many and a tile read in place of another. In
#: "normal+v_waves" the means of all values differ from part to part, in "large" a few keys outweigh all others.
#: Gradients in these regimes are seldom cleared at a glance, so that the theorems would have to judge all rows.
REGIMES, OF_GRADIENTS = ("normal+v_waves", "large"), ("normal",)
#: Copies of q, k, v and the output as float64 that the examination of a shape holds at a time. The second number is
#: bytes for the judgement and a framework. B=2,H=16,S=4096,D=128 took 2.3 GiB, and is estimated as 3.
ARRAYS, BESIDE = 4, 2**30


def recipes(subject: Subject, seed: int, *, gradients: bool = False) -> list[Recipe]:
    """Return the problems of all shapes that are asked for: without options in each regime, then with each option.

    With ``gradients``, only problems whose gradients are cleared at a glance: no other scores, no terms that bend the
    score, no dropout.
    """
    limits = subject.kernel.limits
    always = always_used(subject)
    kinds = (SCORE, WEIGHT)
    chosen = [
        name
        for name, row in OPTIONS.items()
        if row.usual is not None
        and subject.supports(name)
        and name not in always
        and not any(row.excludes(OPTIONS[other]) or OPTIONS[other].excludes(row) for other in always)
        and not any(name in pair and set(always) & set(pair) for pair in limits.exclusive)
        and not (gradients and (row.kind in kinds or name in BENDS))
    ]
    regimes = OF_GRADIENTS if gradients else REGIMES
    ways: list[tuple[str, dict[str, Any]]] = [(regime, {}) for regime in regimes]
    ways += [
        (regimes[-1 - place % len(regimes)], used)
        for place, name in enumerate(chosen)
        if (used := _used(name, chosen, always, limits))
    ]
    plain = Recipe(
        dtypes=subject.dtypes,
        seed=seed,
        **{"causal_alignment": subject.conventions.causal_alignment, **always},
    )
    return [
        replace(plain, regime=regime, **options, **shape.recipe_fields)  # type: ignore[arg-type]
        for shape in subject.shapes
        for regime, options in ways
        if not any(_clashes(name, shape) for name in options)
    ]


def _used(name: str, chosen: Sequence[str], always: Iterable[str], limits: Limits) -> dict[str, Any]:
    """Return values that use an option, and with it one beside which the kernel takes it; none if it takes neither."""
    others = [other for each in limits.alone({name, *always}) for other in limits.beside[each]]
    able = [other for other in others if other in chosen]
    used = (name, *able[:1]) if able or not others else ()
    return {each: OPTIONS[each].usual for each in used}


def _clashes(name: str, shape: AskedShape) -> bool:
    """Return whether a shape gives an option itself, or an option that excludes it."""
    row = OPTIONS[name]
    given = [OPTIONS[other] for other in (*shape.lengths, *shape.scaled)]
    return any(row is other or row.excludes(other) or other.excludes(row) for other in given)


def check_taken(subject: Subject, problem: Problem) -> None:
    """Raise :class:`NotTaken` if the problem uses an option or ability that the kernel does not declare.

    An option that every call of the kernel uses, such as causality, is declared by that alone.
    """
    asked = problem.options() - set(subject.kernel.limits.always)
    if missing := sorted(name for name in asked if not subject.supports(name)):
        raise NotTaken(f"the kernel does not declare {', '.join(missing)}")


def described(recipe: Recipe) -> str:
    """Return the shape, options and regime of a recipe, as a certificate states them."""
    shape = AskedShape(**{name: getattr(recipe, name) for name in LETTERS.values()})
    used = [f"{name}={getattr(recipe, name)}" for name, row in OPTIONS.items() if row.is_used(getattr(recipe, name))]
    return " ".join([str(shape), *used, recipe.regime])


def check_memory(shapes: Sequence[AskedShape]) -> None:
    """Raise :class:`ShapeError` for a shape whose tensors, as float64, do not fit this machine's memory."""
    available = available_memory()
    for shape in shapes:
        needed = bytes_needed(shape)
        if available is not None and needed > available:
            heads = max(shape.batch * shape.query_heads, 1)
            one = replace(shape, batch=1, query_heads=shape.query_heads // shape.kv_heads, kv_heads=1)
            fewer = f"one kv head has all lengths too: {one}" if heads > one.query_heads else "ask for shorter lengths"
            raise ShapeError(
                f"{shape} takes about {needed / 2**30:,.1f} GiB to examine, and {available / 2**30:,.1f} GiB are "
                f"available here; {fewer}"
            )


def bytes_needed(shape: AskedShape) -> int:
    """Return the approximate number of bytes that the examination of a shape takes, without the kernel's own memory."""
    queries = shape.batch * shape.query_heads * shape.query_length
    keys = shape.batch * shape.kv_heads * shape.key_length
    entries = (queries + keys) * (shape.head_dim + shape.value_dim)
    return 8 * ARRAYS * entries + BESIDE


def available_memory() -> int | None:
    """Return the bytes of memory that are available on this machine; None if the system does not report them."""
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def always_used(subject: Subject) -> dict[str, Any]:
    """Return values with which a recipe uses the options that every problem of the kernel uses, by option."""
    return {name: _usual(name) for name in subject.kernel.limits.always if name in OPTIONS}


def _usual(name: str) -> Any:
    """Return a value with which a recipe uses an option."""
    row = OPTIONS[name]
    return next(filter(row.is_used, row.draws), row.off) if row.usual is None else row.usual
