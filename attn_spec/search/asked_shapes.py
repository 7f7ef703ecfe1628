"""What a shape that a user asks for is examined by: each option that the kernel declares in usual use, some regimes.

Such problems are large: they are recipes, made one after the other, and nothing of them is drawn or shrunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_spec.kernels.limits import NotTaken
from attn_spec.problem.option import SCORE, WEIGHT
from attn_spec.problem.option_dtypes import pairs_of_dtypes
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.shape_spec import AskedShape, ShapeError
from attn_spec.search.regimes import Recipe

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem

#: Regimes that show keys lost among many, and a tile that is read in the place of another: means of all values, which
#: differ from part to part, and a few keys that outweigh all others. Gradients of these are seldom cleared at a glance,
#: and the theorems would have to look at all rows.
REGIMES, OF_GRADIENTS = ("normal+v_waves", "large"), ("normal",)
#: How many times q, k, v and the output, as float64, examining a shape holds at a time, and bytes for the judgement and
#: a framework beside them. B=2,H=16,S=4096,D=128 took 2.3 GiB, of which this makes 3.
ARRAYS, BESIDE = 4, 2**30


def recipes(subject: Subject, seed: int, *, gradients: bool = False) -> list[Recipe]:
    """The problems of all shapes that are asked for: without options, in each regime, then with each in usual use.

    With those alone whose ``gradients`` are cleared at a glance: no other scores, no softcap, no dropout.
    """
    limits = subject.kernel.limits
    always = {name: _usual(name) for name in limits.always if name in OPTIONS}
    kinds = (SCORE, WEIGHT)
    chosen = [
        name
        for name, row in OPTIONS.items()
        if row.usual is not None
        and subject.supports(name)
        and name not in always
        and not any(row.excludes(OPTIONS[other]) or OPTIONS[other].excludes(row) for other in always)
        and not any(name in pair and set(always) & set(pair) for pair in limits.exclusive)
        and not (gradients and (row.kind in kinds or name == "softcap"))
    ]
    regimes = OF_GRADIENTS if gradients else REGIMES
    ways: list[tuple[str, dict[str, Any]]] = [(regime, {}) for regime in regimes]
    ways += [(regimes[-1 - place % len(regimes)], {name: OPTIONS[name].usual}) for place, name in enumerate(chosen)]
    plain = Recipe(
        dtype=subject.dtype,
        option_dtypes=pairs_of_dtypes(subject.kernel.option_dtypes),
        seed=seed,
        **{"causal_alignment": subject.conventions.causal_alignment, **always},
    )
    shaped = [replace(plain, **asdict(shape)) for shape in subject.shapes]
    return [replace(recipe, regime=regime, **options) for recipe in shaped for regime, options in ways]


def check_taken(subject: Subject, problem: Problem) -> None:
    """Raise :class:`NotTaken` for a problem of a shape that the kernel does not declare."""
    if missing := sorted(name for name in problem.options() if not subject.supports(name)):
        raise NotTaken(f"the kernel does not declare {', '.join(missing)}")


def described(recipe: Recipe) -> str:
    """The shape, options and regime of a recipe, as a certificate tells them."""
    shape = AskedShape(**{name: getattr(recipe, name) for name in asdict(AskedShape.parse("H=1,S=1,D=1"))})
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
    """About how many bytes examining a shape takes, beside what the kernel takes itself."""
    queries = shape.batch * shape.query_heads * shape.query_length
    keys = shape.batch * shape.kv_heads * shape.key_length
    entries = (queries + keys) * (shape.head_dim + shape.value_dim)
    return 8 * ARRAYS * entries + BESIDE


def available_memory() -> int | None:
    """Bytes that this machine can still give; None where it does not say so."""
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _usual(name: str) -> Any:
    """A value with which a recipe uses an option."""
    row = OPTIONS[name]
    return next(filter(row.is_used, row.draws), row.off) if row.usual is None else row.usual
