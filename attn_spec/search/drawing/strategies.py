"""Hypothesis strategies of problems that a subject's kernel declares it can solve.

A strategy draws a recipe (shape, options, regime, seed), never a large array. An example therefore costs about a
millisecond. It shrinks to one batch entry, one head, one query, one key, one dimension, the plainest regime and seed 0.
Every list below therefore runs from plain to wild. Only tensors of a few entries are drawn entry by entry.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from hypothesis import event
from hypothesis import strategies as st

from attn_spec.kernels.limits import NotTaken
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EIGHT_BITS, FORMATS
from attn_spec.problem import patterns
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.dtypes import input_dtypes
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.options.option import PARAMETER
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import Trait, named_by
from attn_spec.search.drawing import shapes, signatures, sizes, turns
from attn_spec.search.drawing.clipping import CLIPS
from attn_spec.search.drawing.ranges import within_range
from attn_spec.search.drawing.regimes import SCORE_REGIMES, SHIFTS, VALUE_REGIMES, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from attn_spec.kernels.subject import Subject

#: Regimes that overflow no format, not even in masked keys.
TAME = ("normal", "integers", "ties", "large", "one_hot", "first_key_dominates", "rising", "falling")
#: Bits of the floats that entries are drawn from, before rounding.
_WIDTHS: dict[str, Literal[16, 32, 64]] = {"float64": 64, "float32": 32, "bfloat16": 32, "float16": 16}
_WIDTHS |= dict.fromkeys(EIGHT_BITS, 16)
#: Options and abilities that are drawn; parameters come with their option.
_DRAWN = {**{name: row for name, row in OPTIONS.items() if row.kind != PARAMETER}, **ABILITIES}
#: Relative frequencies with which options and abilities are drawn; lengths of zero are rarer.
_WEIGHTS = {name: row.weight for name, row in _DRAWN.items() if row.weight}


def often(plain: Any, wild: Sequence[Any], share: int = 3) -> SearchStrategy[Any]:
    """Draw ``plain``, or one time in ``share`` an element of ``wild``."""
    return st.sampled_from([plain] * ((share - 1) * len(wild)) + list(wild))


def named(known: Iterable[str], axes: str = "BHQK") -> SearchStrategy[str]:
    """Draw the name of a pattern of a tensor with these axes, such as a mask or bias, with a broadcast."""
    return st.sampled_from(patterns.spread(known, axes))


# Strategies are built once, since Hypothesis spends more time on a new strategy than on a draw.
_REGIMES = st.tuples(st.sampled_from(SCORE_REGIMES), often("", [f"+{name}" for name in VALUE_REGIMES], share=2))
_SHIFTS = often(0.0, SHIFTS[1:])
_SEEDS = st.integers(0, 2**32 - 1)
#: Shares of the possible options and abilities that a problem uses; the most usual problems use none. One number
#: decides: Hypothesis would copy one of several numbers over the others.
_SHARES = st.sampled_from((0.0, 0.1, 0.2, 0.3, 0.4, 0.3, 0.4, 0.5, 0.6, 0.8))
#: Shares of the possible options that a problem of a size uses; most use none beside those that are asked for. An
#: option that leaves few keys visible, or makes weights equal, would hide what the size is to show.
_SHARES_OF_SIZES = st.sampled_from((0.0, 0.0, 0.4))
_ONE_IN_SIXTEEN = st.sampled_from([False] * 15 + [True])
_WIDTHS_OF_SCORES = st.sampled_from((1, 2, 3, 8, 17))
#: Options by name, with those that no problem uses beside them.
_APART = {
    name: frozenset(other for other, its in OPTIONS.items() if row.excludes(its) or its.excludes(row))
    for name, row in OPTIONS.items()
}
#: Options that have parameters.
_OWNERS = {row.of for row in OPTIONS.values()}
#: Fields of a recipe that are numbers of heads.
_HEADS = ("batch", "query_heads", "kv_heads")
_VALUES = {name: st.sampled_from(row.draws) for name, row in OPTIONS.items()}


def problems(
    subject: Subject,
    *,
    needs: Collection[str] = (),
    without: Collection[str | Trait] = (),
    regimes: Sequence[str] | None = None,
    backward: bool = False,
    where: Callable[[Recipe], bool] | None = None,
    **fixed: Any,
) -> SearchStrategy[Problem]:
    """Draw problems that the kernel declares it can solve, inside the range of its contract.

    - ``needs``: options and abilities that every problem uses.
    - ``without``: names or traits of options that no problem uses, unless it needs them.
    - ``regimes``: replaces all regimes and shifts.
    - ``backward``: says that gradients are judged too.
    - ``where``: says of a recipe whether its problem is wanted, before tensors are made.
    - ``fixed``: fields of :class:`Recipe`, each a value or a strategy. An option with parameters is left out by
      ``without`` alone, so that these are left out too.

    Raises :class:`NotTaken` if the kernel always uses an option in ``without`` or one that no problem has beside what
    it needs, or takes no number of heads that is ``fixed``; :class:`ValueError` for an option with parameters that is
    fixed to None. Drawn numbers of query heads give way to those that the kernel takes.
    """
    _check_asked(subject, needs, without, fixed)
    for name in ("kv_heads", "query_heads"):
        heads, taken = fixed.get(name), getattr(subject.kernel.limits, name)
        if isinstance(heads, int) and taken is not None and heads not in taken:
            what = f"the number of {name.replace('_', ' ')}"
            raise NotTaken(f"{what} must be among {taken}, and problems of this property have {heads}")
        if name == "query_heads" and heads is not None and taken is not None:
            fixed = fixed | {name: st.sampled_from(taken)}
    asked = {"needs": needs, "without": without, "regimes": regimes, **fixed}
    recipe, at_a_size = recipes(subject, **asked), turns.size() is not None

    def is_meant(drawn: Recipe) -> bool:
        return turns.takes(drawn.lengths, subject.kernel.slowness) and (where is None or where(drawn))

    if subject.kernel.signatures is not None:
        own = {*needs, *subject.kernel.limits.always}
        count = 1 if at_a_size else subject.kernel.signatures
        recipe = signatures.few(recipe, recipes(subject, telling=True, **asked), count, own, is_meant)
    if at_a_size or where is not None:  # a filter that accepts everything would still change what Hypothesis draws
        recipe = recipe.filter(is_meant)
    drawn = recipe.map(lambda found: within_range(subject, found, fixed, backward=backward))
    if subject.kernel.limits.of_sequences and any(subject.supports(row.name) for row in OPTIONS.values() if row.up_to):
        drawn = drawn.filter(lambda problem: not subject.kernel.limits.refusal(problem))
    entrywise = not (needs or without or regimes or fixed or where or at_a_size) and _takes_any_problem(subject)
    return often(drawn, [tiny_problems(subject)], share=8).flatmap(lambda chosen: chosen) if entrywise else drawn


def _check_asked(
    subject: Subject, needs: Collection[str], without: Collection[str | Trait], fixed: Mapping[str, Any]
) -> None:
    """Raise :class:`NotTaken` or :class:`ValueError` for needs that :func:`problems` cannot meet together."""
    if clash := sorted(named_by(without) & set(subject.kernel.limits.needed) - set(needs)):
        raise NotTaken(f"the kernel always uses {', '.join(clash)}, which no problem of this property does")
    if apart := [name for name in needs if _is_never_used(subject, name)]:
        raise NotTaken(f"the kernel always uses options beside which no problem has {', '.join(apart)}")
    usable = {*needs, *subject.kernel.limits.needed, *_possible(subject, named_by(without))}
    if lonely := [name for name in subject.kernel.limits.alone(usable) if name in needs]:
        raise NotTaken(f"the kernel takes {', '.join(lonely)} only beside options that no problem of this property has")
    if owners := [name for name, value in fixed.items() if name in _OWNERS and value is None]:
        raise ValueError(f"give without={owners!r} in place of None, since their parameters are drawn otherwise")


def can_use(subject: Subject, name: str) -> bool:
    """Return whether a problem of the kernel may use an option or ability beside those that every call uses."""
    return subject.supports(name) and not _is_never_used(subject, name)


def _is_never_used(subject: Subject, name: str) -> bool:
    """Return whether every call uses an option beside which no problem has this one."""
    return _is_excluded(subject, name, {*subject.kernel.limits.needed} - {name})


def _possible(subject: Subject, excluded: Collection[str]) -> list[str]:
    """Return the kernel's options and abilities that are drawn and not ``excluded``."""
    return [name for name in _WEIGHTS if subject.supports(name) and name not in excluded]


@st.composite
def recipes(
    draw: DrawFn,
    subject: Subject,
    *,
    needs: Collection[str] = (),
    without: Collection[str | Trait] = (),
    regimes: Sequence[str] | None = None,
    telling: bool = False,
    **fixed: Any,
) -> Recipe:
    """Draw the recipes behind :func:`problems`, which describes the arguments; ``telling`` excludes plain shapes."""
    # Options come last: their number of draws varies, so that Hypothesis cannot replay draws after them.
    limits, slowness = subject.kernel.limits, subject.kernel.slowness
    ingredients = shapes.ingredients(limits.query_dims, limits.value_dims, slowness, telling=telling)
    drawn = shapes.Ingredients(**{name: draw(strategy) for name, strategy in ingredients.items()})
    size = turns.size()
    if size:
        drawn = replace(drawn, **draw(sizes.numbers(size, slowness, any_width=limits.head_dims is None)))
        needs = {*needs, *sizes.used(size, subject, named_by(without))}
        needs |= turns.option(_addable(subject, needs, named_by(without)))
    regimes = regimes or (sizes.REGIMES if size else None)
    regime = draw(st.sampled_from(regimes)) if regimes else "".join(draw(_REGIMES))
    shift, seed = 0.0 if regimes else draw(_SHIFTS), draw(_SEEDS)
    given = {name: draw(x) if isinstance(x, st.SearchStrategy) else x for name, x in fixed.items()}
    chosen = _options(draw, subject, needs, without)
    values = {name: draw(strategy) for name, strategy in _VALUES.items() if name in chosen}
    if "scale" in values and limits.positive_scale:
        values["scale"] = abs(values["scale"]) or 1.0
    width = {"score_width": draw(_WIDTHS_OF_SCORES)} if "score_vector" in chosen else {}
    shape = drawn.shape(subject, chosen, size.most_heads if size else shapes.MOST_HEADS)
    if "dv" not in chosen:
        given.setdefault("value_dim", given.get("head_dim", shape["head_dim"]))  # states have a D of 1
    options = {"causal_alignment": subject.conventions.causal_alignment, **values, **width}
    fields: dict[str, Any] = {"regime": regime, "shift": shift, "seed": seed, **shape, **options, **given}
    recipe = Recipe(dtypes=subject.dtypes, **fields)
    if "query_projection" in chosen:
        widths = drawn.widths if "head_widths" in chosen else None
        recipe = shapes.of_layer(recipe, widths, own_values="dv" in chosen)
    large = sizes.BUDGET_FLOAT64 if subject.dtype == "float64" else sizes.BUDGET
    budget = size.times * large if size else shapes.BUDGET
    recipe = shapes.with_able_descales(recipe, subject)
    recipe = shapes.within_limits(recipe, subject, math.inf if "query_length" in fixed else budget)
    if "query_length" in fixed and fixed.keys().isdisjoint(_HEADS):  # lengths stay, and heads give way
        recipe = shapes.of_few_heads(recipe, subject.kernel.limits, recipe.query_length * recipe.key_length)
    lengths = recipe.lengths
    unfit = {n: row.off for n, row in OPTIONS.items() if not row.fits(getattr(recipe, n), lengths)}
    recipe = replace(recipe, **unfit) if unfit else recipe
    if any(row.up_to and getattr(recipe, name) is not None for name, row in OPTIONS.items()):
        recipe = replace(recipe, **{name: getattr(subject.kernel.limits, name) for name in CLIPS})
    event("dtype", recipe.dtype)
    event("regime", recipe.regime)
    return recipe


@st.composite
def tiny_problems(draw: DrawFn, subject: Subject) -> Problem:
    """Draw problems of at most three queries, keys and dimensions, entry by entry."""
    queries, keys, D = (draw(st.integers(1, 3)) for _ in range(3))
    if not subject.supports("cross"):
        keys = queries
    of_q, of_k, of_v = map(entry, input_dtypes(subject.dtype))

    def tensor(entries: SearchStrategy[float], *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(entries, min_size=size, max_size=size))).reshape(shape)

    event("dtype", subject.dtype)
    event("regime", "entry by entry")
    return Problem(
        q=tensor(of_q, 1, 1, queries, D),
        k=tensor(of_k, 1, 1, keys, D),
        v=tensor(of_v, 1, 1, keys, D),
        dtypes=subject.dtypes,
        causal=subject.supports("causal") and draw(st.booleans()),
        causal_alignment=subject.conventions.causal_alignment,
    )


def entry(dtype: str) -> SearchStrategy[float]:
    """Draw finite numbers of a dtype, half of them within 8, half from the full range."""
    numbers = [st.floats(-bound, bound, width=_WIDTHS[dtype]) for bound in (8.0, FORMATS[dtype].largest)]
    return st.one_of(numbers).map(lambda x: float(bits.nearest(np.array(x), dtype)))


def _options(
    draw: DrawFn, subject: Subject, needs: Collection[str], without: Collection[str | Trait]
) -> frozenset[str]:
    """Draw the options and abilities of a problem: those it needs, and others with their own frequency."""
    excluded = named_by(without)
    possible = _possible(subject, {*needs, *excluded})
    share = draw(_SHARES_OF_SIZES if turns.size() else _SHARES)
    drawn = set(draw(_some(tuple(possible), round(share * len(possible)))))
    if "empty" not in excluded and subject.supports("empty") and draw(_ONE_IN_SIXTEEN):
        drawn.add("empty")
    chosen = {*needs, *subject.kernel.limits.needed}
    for name in [name for name in (*_WEIGHTS, "empty") if name in drawn - chosen]:
        if not _is_excluded(subject, name, chosen):
            chosen.add(name)
    if "empty" in chosen and "cross" in possible:
        chosen.add("cross")  # or nearly always both lengths would be 0
    for name in subject.kernel.limits.alone(chosen):
        _accompany(subject, name, chosen, needs, excluded)
    further = (row.name for name in sorted(chosen & _OWNERS) for row in parameters(name))
    chosen |= {name for name in further if subject.supports(name) and name not in excluded}
    return frozenset(chosen)


def _accompany(
    subject: Subject, name: str, chosen: set[str], needs: Collection[str], excluded: Collection[str]
) -> None:
    """Choose an option beside which the kernel takes the chosen ``name``; take ``name`` back if there is none."""
    for other in subject.kernel.limits.beside[name]:
        if subject.supports(other) and other not in excluded and not _is_excluded(subject, other, chosen):
            chosen.add(other)
            return
    if name not in needs:
        chosen.discard(name)


def _is_excluded(subject: Subject, name: str, chosen: set[str]) -> bool:
    """Return whether no problem uses this option or ability beside one of the chosen ones."""
    beside = _with_lengths(subject, chosen)
    if any(not beside.isdisjoint(_APART.get(one, ())) for one in _with_lengths(subject, {name})):
        return True
    return any(name in apart and not chosen.isdisjoint(apart) for apart in subject.kernel.limits.exclusive)


def _with_lengths(subject: Subject, names: set[str]) -> set[str]:
    """Return names of options, with the number of queries where a kernel's sequences have as many queries as keys."""
    return names | {"seqused_q"} if "seqused_k" in names and subject.kernel.limits.equal_lengths else names


def _addable(subject: Subject, needs: Collection[str], excluded: Collection[str]) -> list[str]:
    """Return the kernel's options that a problem with these needs may use in addition, each without the others."""
    own = {*needs, *subject.kernel.limits.always}
    possible = _possible(subject, {*own, *excluded})
    return [name for name in possible if name in OPTIONS and not _is_excluded(subject, name, own)]


@cache
def _some(possible: tuple[str, ...], count: int) -> SearchStrategy[list[str]]:
    """Draw ``count`` of the possible options and abilities, in proportion to their frequencies."""
    weighted = [name for name in possible for _ in range(_WEIGHTS[name])]
    return st.lists(st.sampled_from(weighted), min_size=count, max_size=count, unique=True) if count else st.just([])


def _takes_any_problem(subject: Subject) -> bool:
    """Return whether problems of any shape, without options, may be drawn entry by entry."""
    limits = subject.kernel.limits
    return limits.takes_any_shape and not limits.always and subject.kernel.signatures is None
