"""Sweeps of numeric error: kernels x dtypes x lengths, score magnitudes and regimes, one row per measurement.

Three sweeps cover the grid. ``length`` varies the number of keys at scores of standard deviation 1, and ``magnitude``
varies that deviation at a fixed length. ``regime`` visits every recipe of :mod:`attn_spec.search.drawing.regimes`. A
row pools the elements of all its seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from attn_spec.contract.presets import describe
from attn_spec.judgement import measure
from attn_spec.judgement.measure import Measurement
from attn_spec.judgement.quantisation import quantisation_error
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.conventions import DEFAULTS, Conventions
from attn_spec.problem.problem import Problem
from attn_spec.search import assertions
from attn_spec.search.drawing import cotangents
from attn_spec.search.drawing.asked_shapes import always_used
from attn_spec.search.drawing.regimes import REGIMES, Recipe
from attn_spec.search.drawing.shapes import of_layer, within_limits

from .rows import Row, Spread, Worst

#: D = Dv of every problem: 1/sqrt(64) is a power of two, so that the scale itself adds no rounding.
HEAD_DIM = 64


class SweepError(KernelError):
    """A sweep that cannot start; the text says which choice to change."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Problems that a sweep measures."""

    #: Sk of the ``length`` sweep: powers of two and their ragged neighbours.
    lengths: tuple[int, ...]
    #: log2 of the scores' standard deviation in the ``magnitude`` sweep.
    magnitudes: tuple[int, ...]
    #: Sk of the ``magnitude`` and ``regime`` sweeps.
    fixed_length: int
    #: Most queries per problem.
    queries: int
    seeds: int


SMOKE = Grid(
    lengths=(1, 2, 7, 16, 33, 64, 129, 256),
    magnitudes=(-4, 0, 2, 4, 8, 12),
    fixed_length=100,
    queries=8,
    seeds=1,
)
FULL = Grid(
    lengths=(1, 2, 3, 4, 7, 16, 33, 64, 100, 128, 129, 256, 500, 1024, 2048),
    magnitudes=tuple(range(-4, 13, 2)),
    fixed_length=200,
    queries=32,
    seeds=4,
)
#: For kernels that a CPU runs through an interpreter, a thousand times slower.
INTERPRETED = Grid(
    lengths=(1, 2, 7, 16, 33, 64, 129), magnitudes=(-4, 0, 2, 4, 8, 12), fixed_length=65, queries=4, seeds=1
)

GRIDS: dict[str, Grid] = {"smoke": SMOKE, "ci": FULL, "certify": FULL}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place on the grid for one subject: the recipes, one per seed, that become its rows."""

    subject: Subject
    sweep: str
    magnitude: float
    recipes: tuple[Recipe, ...]


def points(subjects: Sequence[Subject], profile: str) -> list[Point]:
    """Return all points to measure, kernel by kernel. Raises :class:`SweepError` for an unknown profile."""
    if profile not in GRIDS:
        raise SweepError(f"unknown profile {profile!r}; known are {', '.join(GRIDS)}")
    return [point for subject in subjects for point in points_of(subject, grid_for(subject, GRIDS[profile]))]


def grid_for(subject: Subject, grid: Grid) -> Grid:
    """Return the grid, or the small one for a Triton kernel on a CPU, which can only be interpreted there."""
    names = getattr(subject.kernel.function, "__globals__", {})
    return INTERPRETED if subject.device == "cpu" and "triton" in names else grid


def points_of(subject: Subject, grid: Grid) -> list[Point]:
    """Return the points of the three sweeps of one subject, without problems that its kernel does not support."""
    fixed = grid.fixed_length
    made = [_point(subject, grid, sweep="length", length=length, magnitude=1.0) for length in grid.lengths]
    made += [_point(subject, grid, sweep="magnitude", length=fixed, magnitude=2.0**e) for e in grid.magnitudes]
    made += [_point(subject, grid, sweep="regime", length=fixed, regime=regime) for regime in REGIMES]
    distinct = {(point.sweep, point.recipes[0]): point for point in made}  # limits of a kernel make lengths equal
    return [point for point in distinct.values() if _is_declared(subject, point.recipes[0])]


def _point(
    subject: Subject, grid: Grid, *, sweep: str, length: int, magnitude: float = math.nan, regime: str = "normal"
) -> Point:
    limits = subject.kernel.limits
    head_dim = min(limits.query_dims or (HEAD_DIM,), key=lambda d: abs(d - HEAD_DIM))
    kv_heads = 1 if limits.kv_heads is None else limits.kv_heads[0]
    always = always_used(subject)
    recipe = Recipe(
        regime=regime,
        dtypes=subject.dtypes,
        query_heads=kv_heads,
        kv_heads=kv_heads,
        query_length=min(length, grid.queries) if subject.supports("cross") else length,
        key_length=length,
        head_dim=head_dim,
        value_dim=limits.value_dim(head_dim),
        **{"causal_alignment": subject.conventions.causal_alignment, **always},
    )
    if "query_projection" in always:
        recipe = of_layer(recipe, None, own_values=False)
    recipe = within_limits(recipe, subject, math.inf)
    if sweep == "magnitude":
        recipe = replace(recipe, scale=magnitude * head_dim**-0.5)
    recipes = tuple(replace(recipe, seed=seed) for seed in range(grid.seeds))
    return Point(subject=subject, sweep=sweep, magnitude=magnitude, recipes=recipes)


def _is_declared(subject: Subject, recipe: Recipe) -> bool:
    wanted = {"scale": recipe.scale is not None, "cross": recipe.query_length != recipe.key_length}
    return subject.supports(*(option for option, used in wanted.items() if used))


def measured(point: Point) -> list[Row]:
    """Measure a point: return one row per quantity, or a single row with the failure if there is no answer.

    Raises :class:`attn_spec.kernels.limits.NotTaken` for problems beyond the kernel's limits.
    """
    found: dict[str, list[tuple[Recipe, Measurement]]] = {}
    share, contract = math.nan, point.subject.contract
    for recipe in point.recipes:
        try:
            measurements = judge(point.subject, problem := recipe.problem())
        except Misbehaviour as error:
            return [_row(point, "output", [], failure=f"{error} in {recipe!r}.problem()")]
        for one in measurements:
            found.setdefault(one.name, []).append((recipe, one))
        if contract.quantisers:
            share = float(np.fmax(share, quantisation_error(problem, contract)))
    return [_row(point, quantity, pool, quantisation=share) for quantity, pool in found.items()]


def judge(subject: Subject, problem: Problem) -> tuple[Measurement, ...]:
    """Measure the errors of a forward and, if declared, a backward call. Raises :class:`Misbehaviour`."""
    forward = assertions.judged(subject, problem, subject(problem)).measurements
    if not subject.supports("backward"):
        return forward
    dO = cotangents.cotangent(subject, problem)
    found = subject.gradients(problem, dO)
    return (
        forward
        + measure.judge_gradients(problem, subject.contract, dO, found, conventions=subject.conventions).measurements
    )


def _unusual(agreed: Conventions) -> str:
    """Return the conventions that differ from the defaults, in words."""
    usual = asdict(DEFAULTS)
    return ", ".join(f"{name} {value}" for name, value in asdict(agreed).items() if value != usual[name])


def _row(
    point: Point,
    quantity: str,
    pool: Sequence[tuple[Recipe, Measurement]],
    failure: str = "",
    quantisation: float = math.nan,
) -> Row:
    recipe = point.recipes[0]
    return Row(
        kernel=point.subject.kernel.name,
        spec=point.subject.kernel.spec,
        dtype=point.subject.dtype,
        device=point.subject.device,
        quantity=quantity,
        contract=describe(point.subject.kernel.contract_declared(point.subject.dtype)),
        conventions=_unusual(point.subject.conventions),
        sweep=point.sweep,
        regime=recipe.regime,
        key_length=recipe.key_length,
        magnitude=point.magnitude,
        elements=sum(int(one.measured.sum()) for _, one in pool),
        outside_domain=sum(int((~one.measured).sum()) for _, one in pool),
        outside_bound=sum(int(one.outside.sum()) for _, one in pool),
        ulps=Spread.of(_pooled(pool, lambda one: one.ulps)),
        row_ulps=Spread.of(_known(_pooled(pool, lambda one: one.error / _row_ulp(one)))),
        row_allowed=Spread.of(_known(_pooled(pool, lambda one: one.allowed / _row_ulp(one)))),
        relative=Spread.of(_known(_pooled(pool, lambda one: one.relative))),
        ratio=Spread.of(_pooled(pool, lambda one: one.ratios)),
        worst=_worst(pool),
        failure=failure,
        quantisation=quantisation,
    )


def _pooled(pool: Sequence[tuple[Recipe, Measurement]], of: Callable[[Measurement], np.ndarray]) -> np.ndarray:
    return np.concatenate([of(one)[one.measured] for _, one in pool]) if pool else np.empty(0)


def _known(values: np.ndarray) -> np.ndarray:
    """Drop NaN: an error has no size relative to an exact value, or a row of them, that is 0."""
    return values[~np.isnan(values)]


def _row_ulp(one: Measurement) -> np.ndarray:
    """Return the spacing at each row's largest exact value, [..., 1]; NaN for a row of zeros (dQ of one key)."""
    largest = np.abs(one.truth.value).max(axis=-1, keepdims=True)
    return np.where(largest == 0, np.nan, bits.spacing(largest, one.dtype))


@np.errstate(over="ignore")  # beside a truth of 0 the ulp is the smallest number there is
def _worst(pool: Sequence[tuple[Recipe, Measurement]]) -> Worst | None:
    exercised = [(recipe, one) for recipe, one in pool if one.measured.any()]
    if not exercised:
        return None
    recipe, one = max(exercised, key=lambda pair: (bool(pair[1].outside.any()), pair[1].ratio))
    at = one.worst
    ulp = bits.spacing(one.truth.value, one.dtype)[at]
    return Worst(
        index=at,
        got=float(one.got[at]),
        truth=float(one.truth.value[at]),
        ulps=float(one.ulps[at]),
        allowed=float(one.allowed[at] / ulp),
        ratio=float(one.ratios[at]),
        recipe=f"{recipe!r}.problem()",
    )
