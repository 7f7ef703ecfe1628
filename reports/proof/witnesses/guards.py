"""Guards of the judge, and for each an answer that is judged wrongly without it.

No attack shows these: they decide about NaN, rows that see no key, rows outside the domain and choices of a contract.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.attention.enclosure import Enclosed
from attn_spec.bounds.backward import gradient_bounds
from attn_spec.bounds.forward import row_sum_bounds
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.presets import FP32, FP64
from attn_spec.contract.terms import struck
from attn_spec.judgement import measure, oracle
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.subject import Subject
from attn_spec.numbers.bits import nearest
from attn_spec.problem.conventions import Conventions, of_call
from attn_spec.problem.problem import Problem
from attn_spec.search import hidden_keys
from attn_spec.search.property import Refutation

from .guards_domain import DOMAIN
from .guards_quantisers import QUANTISERS

NAN = float("nan")
_FLOAT32 = FP32.at("float32")


@dataclass(frozen=True, kw_only=True)
class Guard:
    """A guard, and whether an answer is judged as it must be."""

    name: str
    right: Callable[[], bool]


def missed(guards: tuple[Guard, ...]) -> Iterator[str]:
    """Yield names of guards that judge their answer wrongly as they are, or rightly when they are taken away."""
    for guard in guards:
        stands = guard.right()
        with struck(guard.name):
            if not stands or guard.right():
                yield guard.name


def _problem(q: Any = ((0.0,),), v: Any = ((1.0,), (3.0,)), **options: Any) -> Problem:
    """Make a problem of two keys [1] and their values; one query, by default of equal scores."""
    q, k, v = (np.array(x, dtype=np.float64)[None, None] for x in (q, ((1.0,), (1.0,)), v))
    return Problem(q=q, k=k, v=v, **options)


#: The second of two queries sees no key; the mean of V is 2.
_BLIND = _problem(((0.0,), (0.0,)), mask=np.array([[[[True, True], [False, False]]]]))
_BEHIND = _problem(((0.0,), (0.0,)), seqused_q=np.ones((1, 1, 1, 1), dtype=np.int64))
#: Scores beyond float16, which accumulates them.
_OVERFLOWING = _problem(((2.0**16,),))
_BEHIND_OVERFLOWING = _problem(((0.0,), (2.0**16,)), seqused_q=np.ones((1, 1, 1, 1), dtype=np.int64))
#: Scores beyond float16 for the first of two queries.
_HALF_OVERFLOWING = _problem(((2.0**16,), (0.0,)))
#: A query that stands where float16 has no number, which its angle is found in.
_FAR = _problem().replace(
    **dict.fromkeys(("q", "k"), np.array([[[[1.0, 0.0]]]])),
    v=np.ones((1, 1, 1, 1)),
    rotary="half",
    rotary_query_positions=np.full((1, 1, 1, 1), 2**20),
)


def _refuted(problem: Problem, *values: float, quantity: str = "output", **options: Any) -> bool:
    """Return whether values of an output, or of a log-sum-exp, are refuted."""
    contract = options.pop("contract", _FLOAT32)
    shape = (1, 1, problem.query_length) + ((1,) if quantity == "output" else ())
    got: dict[str, Any] = {quantity: np.array(values, dtype=np.float64).reshape(shape)}
    return measure.judge(problem, contract, **got, **options).refuted


def _nan_bound() -> np.ndarray:
    """Return the bound of dQ where the error of a factor is NaN."""
    forward = intermediates(_problem())
    grad = replace(gradient_intermediates(forward, np.ones(forward.O.shape)), dS=np.full(forward.s.shape, NAN))
    return gradient_bounds.gradient_bound(forward, grad, FP64.at("float64")).allowed["dq"]


def _nan_row_sum() -> np.ndarray:
    forward = intermediates(_problem())
    weights = replace(row_sum_bounds.weight_error(forward, _FLOAT32), C=np.full(forward.s.shape, NAN))
    return row_sum_bounds.row_sum_error(forward, weights)


@kernel(
    framework="numpy",
    dtypes=["float32"],
    contract="fp32",
    supports=["mask"],
    conventions={"empty_row": "mean_of_v"},
)
def _filled(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
    """Attend with -1e9 for masked scores: the output is the mean of V where no key is visible."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    s = s if mask is None else np.where(mask, s, np.float32(-1e9))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return (p / p.sum(axis=-1, keepdims=True)) @ v


def _mean_is_accepted() -> bool:
    """Return whether masked keys may change the mean that a kernel declares for rows that see no key."""
    try:
        hidden_keys.assert_hidden_keys_have_no_influence(Subject(_filled, "float32"), _BLIND)
    except Refutation:
        return False
    return True


def _base_2() -> bool:
    """Return whether a logarithm of base 2 is accepted that was made of one of base e by a rounded constant."""
    contract = replace(FP64.at("float64"), lse="float16")
    half, once = 2.0**-11 * 0.99, nearest(np.log(2.0), "float16")
    answer = float(once / np.log(2.0)) * (1 + half) ** 3
    return not _refuted(_problem(), answer, quantity="lse", contract=contract, conventions=Conventions(lse_base="2"))


def _read(problem: Problem, value: float, other: ResolvedContract, **first: str) -> measure.Judgement:
    """Judge an output of one value under float32 with some fields changed, or else under another contract."""
    contract = replace(_FLOAT32, **first, alternatives=(other,))
    return measure.judge(problem, contract, output=np.full(problem.output_shape, value))


def _silent_of_blind(quantity: str) -> int:
    """Count the elements of no verdict where the second row sees no key and no convention is named."""
    values = {"output": np.array([[[[2.0], [7.0]]]]), "lse": np.array([[[math.log(2.0), 7.0]]])}[quantity]
    return measure.judge(_BLIND, _FLOAT32, **{quantity: values}, conventions=of_call({})).silent


def _gradients_are_refuted() -> bool:
    """Return whether gradients of NaN are refuted where scores may overflow."""
    found = {"dq": np.full((1, 1, 1, 1), NAN), "dv": np.full((1, 1, 2, 1), NAN)}
    contract = replace(_FLOAT32, score_accumulation="float16")
    return measure.judge_gradients(_problem(((2.0**12,),)), contract, np.ones((1, 1, 1, 1)), found).refuted


def _measured(got: float, allowed: float = 1.0) -> measure.Measurement:
    """Measure a number beside 0 +- 1, with the error allowed."""
    truth = Enclosed(np.zeros(1), np.zeros(1), np.ones(1))
    one = np.ones(1)
    at: dict[str, Any] = {"truth": truth, "allowed": allowed * one, "measured": one > 0, "asked": one > 0}
    return measure._measure("output", "float32", got * one, **at)  # noqa: SLF001


def _overflowing_sum() -> measure.Judgement:
    """Judge an infinite gradient of a bias, whose sum over 128 queries float16 does not hold."""
    problem = _problem(((0.0,),) * 128, ((2e3,), (-2e3,)), bias=np.zeros((1, 1, 1, 2)))
    contract = replace(_FLOAT32, gradient_accumulation="float16")
    found = {"dbias": np.full((1, 1, 1, 2), np.inf)}
    return measure.judge_gradients(problem, contract, np.ones((1, 1, 128, 1)), found)


_ROWS: dict[str, Callable[[], bool]] = {
    "a NaN radius is infinite": lambda: bool(
        np.isinf(oracle._enclosed(np.ones(1), np.full(1, NAN)).radius)  # noqa: SLF001 -- the guard itself
    ),
    "a NaN bound of a gradient is infinite": lambda: bool(np.isinf(_nan_bound()).all()),
    "sums of gradients that overflow have no bound": lambda: not _overflowing_sum().refuted,
    "an element without a bound is not measured": lambda: not _measured(1.5, allowed=math.inf).measured.any(),
    "a NaN error of a row sum is infinite": lambda: bool(np.isinf(_nan_row_sum()).all()),
    "NaN is as far away as can be": lambda: _refuted(_problem(), NAN),
    "the same infinity is no error": lambda: not _refuted(_BLIND, math.log(2), -math.inf, quantity="lse"),
    "another infinity is an error": lambda: _refuted(_BLIND, math.log(2), math.inf, quantity="lse"),
    "rows outside the domain are not measured": lambda: (
        not _refuted(_OVERFLOWING, NAN, contract=replace(_FLOAT32, score_accumulation="float16"))
    ),
    "scores that overflow are outside the domain": lambda: (
        not _refuted(_OVERFLOWING, NAN, contract=replace(_FLOAT32, score_accumulation="float16"))
    ),
    "angles that overflow have no bound": lambda: (
        not _refuted(_FAR, NAN, contract=replace(_FLOAT32, score_accumulation="float16"))
    ),
    "outputs that overflow are outside the domain": lambda: (
        not _refuted(_problem(v=((7e4,), (7e4,))), math.inf, contract=replace(_FLOAT32, output="float16"))
    ),
    "gradients outside the domain are not measured": lambda: not _gradients_are_refuted(),
    "rows behind their sequence are not measured": lambda: not _refuted(_BEHIND, 2.0, 7.0),
    "hidden scores of rows behind their sequence": lambda: (
        not _refuted(
            _BEHIND_OVERFLOWING,
            *(2.0, NAN),
            contract=replace(_FLOAT32, score_accumulation="float16"),
            conventions=Conventions(unused_rows="zero"),
        )
    ),
    "rows that see no key are measured": lambda: _refuted(_BLIND, 2.0, 1.0),
    "a mean of V in such rows is measured": lambda: _refuted(
        _BLIND, 2.0, 1.0, conventions=Conventions(empty_row="mean_of_v")
    ),
    "a mean of V has a bound": lambda: (
        not _refuted(_BLIND, 2.0, 2 + 2.0**-22, conventions=Conventions(empty_row="mean_of_v"))
    ),
    "hidden keys may change a mean of V": _mean_is_accepted,
    "an undeclared log-sum-exp of no keys is not measured": lambda: (
        not _refuted(_BLIND, math.log(2), 7.0, quantity="lse", conventions=Conventions(empty_lse="undeclared"))
    ),
    "roundings of a logarithm of base 2": _base_2,
    "a reading that is refuted is passed over": lambda: (
        not _read(_problem(), 2.0005, replace(_FLOAT32, output="float16")).refuted
    ),
    "a reading that says more is preferred": lambda: (
        _read(_HALF_OVERFLOWING, 2.0, _FLOAT32, score_accumulation="float16").silent == 0
    ),
    "a reading that is silent of an answer is not refuted by another one": lambda: (
        not _read(_OVERFLOWING, NAN, _FLOAT32, score_accumulation="float16").refuted
    ),
    "a log-sum-exp that overflows is not measured": lambda: (
        not _refuted(_problem(((7e4,),)), NAN, quantity="lse", contract=replace(_FLOAT32, lse="float16"))
    ),
    "a log-sum-exp of base 2 that overflows is not measured": lambda: (
        not _refuted(
            _problem(((6e4,),)),
            NAN,
            quantity="lse",
            contract=replace(_FLOAT32, lse="float16"),
            conventions=Conventions(lse_base="2"),
        )
    ),
    "rows whose output no convention decides are not asked for": lambda: not _silent_of_blind("output"),
    "rows whose log-sum-exp no convention decides are not asked for": lambda: not _silent_of_blind("lse"),
    "what an enclosure leaves open refutes nothing": lambda: not _measured(1.5).outside.any(),
    "an error is counted from the far end of an enclosure": lambda: _measured(1.5).ratio > 2,
}
GUARDS = tuple(Guard(name=name, right=right) for name, right in (_ROWS | DOMAIN | QUANTISERS).items())
