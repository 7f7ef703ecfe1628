"""Dropout by chance: problems whose answers show the keep mask that a call drew, and assertions about that mask.

If the values are the identity, v_jc = 1 for c = j and 0 else, the output is o_ij = c_ij P_ij. A dropped weight gives 0,
since products with 0 and their sums do not round. A kept weight gives another number, unless P_ij underflows. The
answer of a call therefore shows its own keep mask, and is judged as the answer for that explicit mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from attn_spec.chance.mask_statistics import least_likely
from attn_spec.contract.readings import readings_of
from attn_spec.judgement.analysis import analysis_of
from attn_spec.kernels.dropping import dropping, needs_seed
from attn_spec.kernels.limits import NotTaken
from attn_spec.problem.traits import all_but, ties_values
from attn_spec.search.assertions import assert_gradients_within_bound, measured_within_bound
from attn_spec.search.drawing import strategies
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.shapes import VALUE_DIMS
from attn_spec.search.property import Refutation, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from hypothesis.strategies import SearchStrategy

    from attn_spec.chance.mask_statistics import Counts
    from attn_spec.judgement.measure import Judgement
    from attn_spec.kernels.kernel import Kernel
    from attn_spec.kernels.subject import Answer, Subject
    from attn_spec.problem.problem import Problem

    Draw = Callable[..., SearchStrategy[Problem]]

#: Values of p that kernels are called with.
CHANCES = (0.5, 0.1, 0.2, 0.3, 0.7)
#: Numbers of keys whose weights are shown one by one.
KEYS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 100, 129, 192, 256)
#: Numbers of keys in problems of which all weights are counted together.
KEYS_TOGETHER = (64, 96, 128)
#: Numbers of keys in problems with long rows.
LONG = (600, 1100)
#: Number of keys in problems with long rows, for kernels that need as many queries as keys.
SQUARE = 300
#: Distance between the seeds of two calls: a presentation may make many calls with seeds that follow one another.
SEEDS_APART = 2**21


def showing(
    subject: Subject, keys: Iterable[int] = KEYS, *, draw: Draw = strategies.problems, **drawn: Any
) -> SearchStrategy[Problem]:
    """Draw problems, as ``draw`` does, with one of these numbers of ``keys`` and at least as many columns of values.

    Raises :class:`NotTaken` if the kernel's limits allow no such problem.
    """
    limits = subject.kernel.limits
    dims = (limits.value_dims if subject.supports("dv") else limits.equal_dims) or VALUE_DIMS
    step = limits.step("K" if subject.supports("cross") else "QK")
    lengths = sorted({-(-n // step) * step for n in keys if -(-n // step) * step <= max(dims)})
    lengths = lengths or [max(dims) // step * step]
    if not lengths[0]:
        raise NotTaken(f"values of {max(dims)} columns cannot show the weights of {step} keys")
    length = st.shared(st.sampled_from(lengths), key="keys that are shown")
    width = length.map(lambda n: min(dim for dim in dims if dim >= n))
    any_width = limits.widths is None or len(limits.widths) == len(limits.query_dims or ()) * len(dims)
    same = {} if subject.supports("dv") and any_width else {"head_dim": width.map(limits.query_dim)}
    drawn["without"] = (*drawn.get("without", ()), ties_values)
    drawn["where"] = lambda recipe: recipe.key_length <= recipe.value_dim
    return draw(subject, **{"key_length": length, "value_dim": width, **drawn, **same})


def together(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of equal scores with enough weights for statistics, without options other than causality."""
    is_slow = subject.kernel.slowness > 1
    heads = 2 if is_slow else 4
    drawn: dict[str, Any] = {
        "without": ("gqa", "dv", "empty", all_but("causal")),
        "regimes": ["uniform"],
        "batch": 2,
        "query_heads": heads,
        "kv_heads": st.sampled_from((heads // 2, heads)) if subject.supports("gqa") else heads,
    }
    if subject.supports("dv"):
        drawn["head_dim"] = _head_dim(subject)
    if subject.supports("cross"):
        drawn["query_length"] = 16 if is_slow else 32
    return showing(subject, KEYS_TOGETHER[:1] if is_slow else KEYS_TOGETHER, **drawn)


def long_rows(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of equal scores with many more keys than columns of values, without options."""
    is_slow, crosses = subject.kernel.slowness > 1, subject.supports("cross")
    dim, heads = _columns(subject), 2 if crosses else 1
    return strategies.problems(
        subject,
        without=("gqa", "dv", "empty", all_but()),
        regimes=["uniform"],
        batch=1,
        query_heads=heads,
        kv_heads=heads,
        query_length=1 if is_slow else 2 if subject.dtype == "float64" else 8,
        key_length=(LONG[0] if is_slow else st.sampled_from(LONG)) if crosses else SQUARE,
        head_dim=_head_dim(subject, dim) if subject.supports("dv") else dim,
        value_dim=dim,
    )


def _columns(subject: Subject) -> int:
    """Return the number of value columns for long rows: large, so that few keys share a column."""
    allowed = subject.kernel.limits.value_dims or (128,)
    return max((dim for dim in allowed if dim <= 128), default=min(allowed))


def _head_dim(subject: Subject, value_dim: int | None = None) -> int:
    """Return a small head dimension that goes with values of ``value_dim``; it does not matter for equal scores."""
    widths = subject.kernel.limits.widths or ((16, value_dim),)
    return min(dim for dim, other in widths if value_dim in (None, other))


def not_shown(subject: Subject) -> str:
    """Return why the weights of :func:`together` may be rounded to 0; an empty text if they are not."""
    most = max(KEYS_TOGETHER)
    row = Recipe(dtypes=subject.dtype, regime="uniform", key_length=most, head_dim=16, value_dim=most).problem()
    certain = is_shown(subject, row, min(CHANCES))
    return "" if certain else "its contract rounds weights too coarsely to show which are kept"


def not_counted(subject: Subject) -> str:
    """Return why an output of :func:`long_rows` may fit several numbers of kept keys; an empty text if it does not."""
    dim = _columns(subject)
    drawn = {"dtypes": subject.dtype, "regime": "uniform", "head_dim": 16, "value_dim": dim}
    p, columns = min(CHANCES), columns_of_keys(Recipe(key_length=max(LONG), **drawn).problem())
    known = analysis_of(with_mask(columns, p, np.ones((1, 1, 1, 1), dtype=bool)))
    allowed = [
        known.truth_and_bound(reading)[1].allowed["output"] for reading in readings_of(subject.contract, columns)
    ]
    # A mask that drops weights has another bound, so the limit is half of 1/2.
    certain = (np.array(allowed) * columns.key_length * (1 - p) < 1 / 4).all()
    return "" if certain else f"its contract leaves open how many of {columns.key_length} keys {dim} columns stand for"


def is_shown(subject: Subject, problem: Problem, p: float) -> bool:
    """Return whether the theorem of the output excludes that a visible weight is rounded to 0 when it is kept."""
    whole = with_mask(columns_of_keys(problem), p, np.ones((1, 1, 1, 1), dtype=bool))
    for reading in readings_of(subject.contract, whole):
        truth, bound = analysis_of(whole).truth_and_bound(reading)
        least = truth["output"].value - truth["output"].radius - bound.allowed["output"]
        known = bound.in_domain[..., None] & (least[..., : problem.key_length] > 0)
        if not known[problem.visible].all():
            return False
    return True


def columns_of_keys(problem: Problem) -> Problem:
    """Return the problem with the identity for values; with n times as many keys as columns, n keys share a column."""
    width = -(-problem.key_length // problem.value_dim)
    v = (np.arange(problem.key_length)[:, None] // width == np.arange(problem.value_dim)).astype(float)
    return problem.replace(v=np.broadcast_to(v, problem.v.shape))


def with_mask(problem: Problem, p: float, keep: np.ndarray) -> Problem:
    """Return the problem that a kernel solves if it drops, with probability p, what ``keep`` does not keep."""
    return problem.replace(dropout_keep=keep, dropout_p=p)


def shown_by(problem: Problem, p: float, answer: Answer) -> Problem:
    """Return the problem with the keep mask that the answer shows."""
    return with_mask(problem, p, answer["output"][..., : problem.key_length] != 0)


def chance(problem: Problem) -> float:
    """Return one of the values of p, drawn by the problem's values."""
    return float(randomness(problem).choice(CHANCES))


def calls(subject: Subject, problem: Problem, p: float, number: int, *, seeded: bool = False) -> list[Subject]:
    """Return the subject for ``number`` calls that drop with probability p, each with a mask of its own.

    Each call has its own seed if ``seeded`` is True, or if the kernel requires a seed.
    """
    first = int(randomness(problem).integers(SEEDS_APART))
    has_seed = subject.supports("dropout_seed") and (seeded or needs_seed(subject.kernel))
    seeds = [first + n * SEEDS_APART if has_seed else None for n in range(number)]
    return [dropping(subject, p, seed) for seed in seeds]


def assert_solved(subject: Subject, shown: Problem, answer: Answer) -> Judgement:
    """Raise :class:`Refutation` unless the answer is right for the mask that it shows."""
    try:
        return measured_within_bound(subject, shown, answer)
    except Refutation as error:
        raise _with_p(shown, error) from None


def assert_differentiated(subject: Subject, shown: Problem, dO: np.ndarray, found: Mapping[str, np.ndarray]) -> None:
    """Raise :class:`Refutation` unless the gradients are right for the mask that the output of the same call shows."""
    try:
        assert_gradients_within_bound(subject, shown, dO, found)
    except Refutation as error:
        raise _with_p(shown, error) from None


def assert_likely(subject: Subject, found: Iterable[Counts], p: float) -> None:
    """Raise :class:`Refutation` if the counts of kept weights are too unlikely for independent draws.

    A hint names a seed parameter that the kernel does not declare, without which all calls may use the same mask.
    """
    finding = least_likely(found)
    observe(finding.ratio, "surprise")
    if finding.ratio > 1:
        raise Refutation(f"for dropout_p={p:g}, {finding.text}", None, lambda: _seed_not_declared(subject.kernel))


def _seed_not_declared(kernel: Kernel) -> list[str]:
    seed = kernel.keyword("dropout_seed")
    if "dropout_seed" in kernel.supports or seed not in kernel.parameters:
        return []
    return [f'it has a parameter {seed} and does not declare "dropout_seed", so no call was given a seed of its own']


def masks_of_calls(problem: Problem, asked: Iterable[Subject]) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights that each call keeps, and the visible ones, both bool [calls, B, Hq, Sq, Sk].

    Raises ``UnsatisfiedAssumption`` for problems other than those of :func:`together`.
    """
    assume_equal_scores(problem)
    outputs = [call(columns_of_keys(problem))["output"] for call in asked]
    kept = np.stack([output[..., : problem.key_length] != 0 for output in outputs])
    return kept, np.broadcast_to(problem.visible, kept.shape)


def assume_equal_scores(problem: Problem) -> None:
    """Raise ``UnsatisfiedAssumption`` if weights may be so small that a kept weight shows as 0."""
    if problem.q.any() or problem.options() - {"causal", "gqa", "dv", "cross"}:
        raise UnsatisfiedAssumption("the scores of the problem are not equal")


def _with_p(shown: Problem, error: Refutation) -> Refutation:
    p = shown.dropout_p
    hint = f"the truth is that of dropout_p={p:g} with the keep mask that the output shows"
    return Refutation(f"for dropout_p={p:g}, {error}", error.measurement, lambda: [hint])
