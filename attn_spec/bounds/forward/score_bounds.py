"""Bounds on the error of a score under a contract: one function per theorem.

Symbols: s scores, Delta error of a score, sigma the scale. All arrays are [B, Hq, Sq, Sk] and 0 where a key is hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attn_spec.attention.terms import BENDS, DESCALES, TERMS, numbers_of, used
from attn_spec.bounds.forward.product_bounds import dot_product_error, exact_scores, shared_error
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import of_forward_pass
from attn_spec.bounds.replay import replay_of
from attn_spec.bounds.running_error import Approximation, RunningErrors
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import elementary_error, gamma, is_power_of
from attn_spec.contract.stages import contains
from attn_spec.contract.terms import count, guard, term, times
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS


@of_forward_pass
@np.errstate(all="ignore")
def score_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Delta: error of the finished score, and of a sink as a score (:func:`sink_error`)."""
    if forward.has_sink:
        return np.concatenate([score_error(forward.of_keys, contract), sink_error(forward, contract)], axis=-1)
    *_, delta = errors_after(forward, contract).values()
    return np.where(forward.visible, delta, 0.0)


@of_forward_pass
@np.errstate(all="ignore")
def errors_after(forward: Intermediates, contract: ResolvedContract) -> dict[str, np.ndarray]:
    """Return the error of the score after each term, by option: by its theorem, or as its formula is evaluated."""
    if forward.has_sink:  # which no term changes
        of_sink = np.zeros((*forward.s.shape[:-1], 1))
        of_keys = errors_after(forward.of_keys, contract)
        return {
            name: np.concatenate([np.broadcast_to(x, forward.of_keys.s.shape), of_sink], axis=-1)
            for name, x in of_keys.items()
        }
    delta, found = dot_product_error(forward, contract), {}
    for name in forward.after:
        theorem = THEOREMS.get(name)
        found[name] = delta = (
            _evaluated_error(forward, contract, name, delta) if theorem is None else theorem(forward, contract, delta)
        )
    return found


@np.errstate(all="ignore")
def sink_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Error of a sink z as a score, [.., Sq, 1].

    It is rounded as it is loaded to the format of scores. With base 2 it is multiplied by a log2(e) of its own, while
    scores have one with the scale in it: the two are off against each other by 6 roundings at most, and the product is
    one more. Where all scores of a row are moved by one number (:func:`row_shift`), the sink is moved too, by a product
    and a sum.
    """
    stored, work = contract.stages.stored_scores, contract.stages.score_accumulation
    form = FORMATS[forward.problem.dtype_of("sinks")]
    size, loaded = np.abs(forward.s[..., -1:]), stored.of(form)
    error = (
        term("a sink rounded to the format of scores", loaded.u * size)
        + term("underflow of a sink that is rounded", loaded.eta)
        + term("underflow of a sink as it is loaded", work.eta)
    )
    if (shift := row_shift(forward, contract)).any():
        moved = error + _shift_product(forward, contract)
        error = moved + term(
            "the sum that moves a sink", gamma((work.u, 1), (stored.u, 1)) * (size + shift + moved) + stored.eta
        )
    if contract.base2:
        error = (
            error
            + count("base 2 of a sink", 7) * work.u * (size + shift + error)
            + term("underflow of a sink in base 2", 2 * work.eta)
        )
    return np.where(forward.visible[..., -1:], error, 0.0)


def error_before(forward: Intermediates, contract: ResolvedContract, name: str) -> np.ndarray:
    """Return the error of the score that a term, which is not the scale, is made of."""
    previous = forward.previous(name)
    assert previous is not None
    return errors_after(forward, contract)[previous]


def _evaluated_error(forward: Intermediates, contract: ResolvedContract, name: str, delta: np.ndarray) -> np.ndarray:
    """Error of a term whose formula a kernel evaluates operation by operation."""
    A, s = RunningErrors(contract), approximate_score(contract, forward.before(name), delta)
    p = {option: A.given(x) for option, x in numbers_of(forward.problem).items()}
    return TERMS[name].value(A, s, p).error


def approximate_score(contract: ResolvedContract, s: np.ndarray, delta: np.ndarray) -> Approximation:
    """Return a score that is off by ``delta``, as formulas take it."""
    return Approximation(s, np.abs(s), delta, contract.stages.stored_scores.format, contract)


@of_forward_pass
@np.errstate(all="ignore")
def repeated_score_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound the difference of a score computed again from the first one, of the same operands, [.., Sq, Sk].

    Each is off by its own roundings. What operands are off by is the same number in both, and so it is less what a
    softcap makes of that. A sink may be loaded again, too.
    """
    if forward.has_sink:
        of_sink = count("both loads of a sink", 2) * sink_error(forward, contract)
        return np.concatenate([repeated_score_error(forward.of_keys, contract), of_sink], axis=-1)
    shared = abs(forward.problem.scale_value) * shared_error(forward, contract)
    for name in used(forward.problem, BENDS):
        # Of other terms nothing is said, and all of the error counts as a score's own.
        shared = _shared_by_softcap(forward, contract, shared) if name == "softcap" else np.zeros(shared.shape)
    return np.where(
        forward.visible,
        count("both scores of a key", 2) * np.maximum(score_error(forward, contract) - shared, 0.0),
        0.0,
    )


def _shared_by_softcap(forward: Intermediates, contract: ResolvedContract, shared: np.ndarray) -> np.ndarray:
    """Return the part that two scores under a softcap have in common of an error ``shared`` by them before it."""
    delta, cap = error_before(forward, contract, "softcap"), forward.problem.softcap
    assert cap is not None
    delta = _divided_error(forward, contract, delta, cap)
    slope = _steepest(forward, delta, cap)
    return np.minimum(delta * slope, 2 * cap) - term(
        "what two scores under a softcap do not share", np.minimum((delta - shared) * slope, 2 * cap)
    )


def narrows_scores(contract: ResolvedContract) -> bool:
    """Return whether scores are stored in a format that does not hold all numbers of their accumulator's."""
    return not contains(contract.stages.stored_scores.format, contract.stages.score_accumulation.format)


def scaled_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Error of the score after the scale."""
    return errors_after(forward, contract)["scale"]


def _scale_error(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
    """Two roundings of the constant, one of the product, which is stored."""
    stored, work = contract.stages.stored_scores, contract.stages.score_accumulation
    sigma = abs(forward.problem.scale_value)
    delta = sigma * delta
    narrows = narrows_scores(contract)
    if narrows:
        delta = (
            delta
            + term("storing a score", stored.u * (np.abs(forward.scaled) + delta))
            + term("underflow of storing a score", sigma * stored.eta)
        )
    if not is_power_of(2, sigma):
        delta = (
            delta
            + gamma((work.u, count("roundings of the scale", 2)), (stored.u, count("the scaled score's rounding", 1)))
            * (np.abs(forward.scaled) + delta)
            + term("the scaled score's underflow", stored.eta)
        )
    elif sigma < 1:
        delta = delta + np.where(
            exact_scores(forward, contract)
            & guard("underflow of a scaled exact score that is stored", not narrows, True),
            0.0,
            term("underflow by a scale of a power of 2", stored.eta),
        )
    return delta


def _descale_error(name: str) -> Callable[[Intermediates, ResolvedContract, np.ndarray], np.ndarray]:
    """Return the theorem of a descale d that multiplies the score: d times the error before it, and roundings of d s.

    A kernel loads d, and has one product more than without it, of a score or of constants, in any order. A product that
    is a score is stored. A power of 2 leaves every digit as it is, and a descale that multiplies operands has its
    roundings there (``product_bounds``). A product that underflows on the way is multiplied by the factors that follow,
    and so by those above 1 at most. The scale may come after a descale too, which is the second underflow.
    """

    def theorem(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
        stored, work = contract.stages.stored_scores, contract.stages.score_accumulation
        d = forward.problem.by_pair(name)
        relative = gamma(
            (
                work.of(FORMATS[forward.problem.dtype_of(name)]).u,
                count("a descale that is rounded as it is loaded", 1),
            ),
            (work.u, count("a descale's product with a score or with a constant", 1)),
            (stored.u, count("the store of a score that a descale multiplies", 1)),
        )
        of_scale = scale_error(forward, contract, name)
        moved = times("the descale of a score's error", d) * (delta + of_scale * delta)
        exact = ((np.frexp(d)[0] == 0.5) & (of_scale == 0)) | (contract.descale_on == "operands")
        tiny = count("underflows of a score that a descale multiplies", 2) * (stored.eta + work.eta)
        return (
            moved
            + of_scale * np.abs(forward.after[name])
            + np.where(exact, 0.0, relative * (1 + of_scale) * (np.abs(forward.after[name]) + moved))
            + tiny * times("factors behind an underflow", raised_by_factors(forward))
        )

    return theorem


def scale_error(forward: Intermediates, contract: ResolvedContract, name: str) -> np.ndarray | float:
    """Return by which share of itself a descale may be another, as that of a quantiser may, [B, Hq, Sq or 1, Sk or 1].

    Theorem: with d (1 + e) for d, and s + delta for s, |e| <= E, the product is off by d E |s| + d (1 + E) |delta|.
    """
    problem = replay_of(forward.problem, contract)
    if problem is None:
        return 0.0
    return term("the scale of a block", problem.scale_error(name))


def raised_by_factors(forward: Intermediates) -> np.ndarray:
    """Return the product of the scale and the descales, each where it is above 1, [B, Hq, Sq or 1, Sk or 1]."""
    found = np.full((1, 1, 1, 1), max(1.0, abs(forward.problem.scale_value)))
    for name in used(forward.problem, DESCALES):
        found = found * np.maximum(forward.problem.by_pair(name), 1.0)
    return found


def _steepest(forward: Intermediates, delta: np.ndarray, cap: float) -> np.ndarray:
    """Return the largest slope of the softcap within an error of ``delta`` of its argument, times the cap."""
    near = term("the largest slope nearby", delta)
    nearest = np.maximum(np.abs(forward.before("softcap")) - near, 0.0) / cap
    return np.cosh(np.minimum(nearest, 300.0)) ** -2.0


def _divided_error(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray, cap: float) -> np.ndarray:
    """Error of the softcap's argument, times the cap."""
    stored, work = contract.stages.stored_scores, contract.stages.score_accumulation
    return (
        delta
        + gamma((work.u, count("the softcap's inverse", 2)), (stored.u, count("the score over the softcap", 1)))
        * (np.abs(forward.before("softcap")) + delta)
        + term("underflow of the score over the softcap", cap * stored.eta)
    )


def _softcap_error(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
    """Return the error of c tanh(s/c) for an error ``delta`` of s.

    The slope sech^2(s/c) falls with |s|, so an error e of s costs at most e sech^2((|s| - e)/c).
    """
    stored, work, cap = contract.stages.stored_scores, contract.stages.score_accumulation, forward.problem.softcap
    assert cap is not None
    delta = _divided_error(forward, contract, delta, cap)
    slope = _steepest(forward, delta, cap)
    delta = np.minimum(delta * slope, 2 * cap) + cap * (
        term("the error of tanh", elementary_error(contract, "tanh_error"))
        + term("underflow of tanh", count("underflows of tanh", 2) * stored.eta)
    )
    return (
        delta
        + gamma((work.u, count("the softcap itself, rounded", 1)), (stored.u, count("roundings after tanh", 2)))
        * (np.abs(forward.after["softcap"]) + delta)
        + term("underflow of the capped score", stored.eta)
    )


def may_add_bias_first(forward: Intermediates, contract: ResolvedContract) -> bool:
    """Return whether the scale may multiply the score after bias and ALiBi, which are divided by it."""
    return (
        not narrows_scores(contract)
        and forward.problem.has_addends
        and not used(forward.problem, BENDS)
        and forward.problem.scale_value != 0
    )


def _bias_error(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
    """One rounding of the sum, and one underflow of the bias as it is loaded.

    What the format of scores does not hold of a bias may be rounded to it first.
    With base 2, score and bias are each multiplied by a rounded log2(e) first. Where scores are stored as they were
    accumulated, the scale may multiply them after the bias, which is then divided by it: two roundings of the
    constant, its inverse and the quotient, and on the way back the constant and the product once more. To divide by
    a rounded number costs no more than to multiply: |x - fl(x)| <= u |fl(x)|, so x / fl(x) <= 1 + u. A power of 2
    leaves one rounding, of a bias with more bits than the quotient.
    """
    stored, work, bias = contract.stages.stored_scores, contract.stages.score_accumulation, forward.problem.bias
    size, sigma = np.where(np.isfinite(bias), np.abs(bias), 0.0), abs(forward.problem.scale_value)
    form = FORMATS[forward.problem.dtype_of("bias")]
    if (loaded := stored.of(form)).u:
        held = bits.nearest(bias, contract.stored_scores) == bias
        delta = delta + np.where(
            held,
            0.0,
            term("a bias rounded to the format of scores", loaded.u * size)
            + term("underflow of a bias that is rounded", loaded.eta),
        )
    if may_add_bias_first(forward, contract):
        divided = (work.u, count("a bias that is divided by the scale", 7))
        rounded = gamma((work.of(form).u, 1) if is_power_of(2, sigma) else divided)
        tiny = 2 * work.eta * times("underflow of a bias that a large scale divides", max(1.0, sigma))
        delta = delta + rounded * size + term("underflow of a bias that is divided by the scale", tiny)
    if contract.base2:
        delta = (
            delta
            + count("base 2 before a bias", 3)
            * work.u
            * (np.abs(forward.bent) + delta + term("base 2 of the bias alone", size))
            + term("base 2's underflow before a bias", 2 * work.eta)
        )
    return (
        delta
        + term("the sum with a bias", stored.u * (np.abs(forward.s) + delta))
        + term("underflow of the sum with a bias", stored.eta)
        + term("underflow of a bias as it is loaded", work.eta)
    )


def _alibi_error(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
    """One rounding of the product m |i - j|, of a slope that is rounded as it is loaded, and one of the sum.

    The product is divided by the scale or multiplied by log2(e) as a bias is, perhaps before the distance, by which an
    underflow grows. In a format of its own, slope, distance and product are rounded to that. Whether bias or ALiBi
    comes first is open, and so is the sum of those two that is rounded. Where keys are counted from one of them,
    products are as large as that of the row's length, and see :func:`row_shift`.
    """
    stored, work = contract.stages.stored_scores, contract.stages.score_accumulation
    loaded = work.of(FORMATS[forward.problem.dtype_of("alibi_slopes")])
    made = contract.stages.alibi_terms.of(work.format)
    shift, far, sigma = row_shift(forward, contract), abs(forward.problem.distances), abs(forward.problem.scale_value)
    if contract.alibi == "positions":
        far = term("products of keys counted from one of them", farthest_key(forward, contract), far)
    size = forward.problem.alibi_slopes * far
    bias = (
        0.0
        if forward.problem.bias is None
        else np.where(np.isfinite(forward.problem.bias), np.abs(forward.problem.bias), 0.0)
    )
    constants = 7 if may_add_bias_first(forward, contract) and not is_power_of(2, sigma) else 0
    of_product = count("the product of slope and distance", 1) + term("a slope that is divided by the scale", constants)
    relative = gamma(
        (loaded.u, count("a slope that is rounded as it is loaded", 1)),
        (made.u, count("slope, distance and product in a format of their own", 3)),
        (work.u, of_product),
        (stored.u, count("the product of slope and distance as it is stored", 1)),
    )
    tiny = loaded.eta + count("underflows of a slope and a product in their own format", 2) * made.eta + 3 * work.eta
    tiny = times("underflow of a slope, times the distance", 1 + far) * tiny * max(1.0, sigma)
    delta = (
        delta
        + relative * size
        + term("underflow of a slope, a quotient and a product", tiny)
        + term("underflow of the product of slope and distance as it is stored", stored.eta)
    )
    if contract.base2:
        delta = delta + term("base 2 before ALiBi", work.u * 3) * (size + np.abs(forward.bent) + delta)
    of_sum = work.eta + stored.eta
    if forward.problem.bias is not None:
        delta = (
            delta
            + term("the sum of two of score, bias and ALiBi", stored.u * (np.abs(forward.bent) + bias + size + delta))
            + term("underflow of the sum of two", of_sum)
        )
    return (
        delta
        + term("the sum with ALiBi", stored.u * (np.abs(forward.s) + term("sums that are moved", shift) + delta))
        + term("underflow of the sum with ALiBi", of_sum)
    )


#: Theorems on the error of the score after a term, given that before it, by option.
THEOREMS: dict[str, Callable[[Intermediates, ResolvedContract, np.ndarray], np.ndarray]] = {
    "scale": _scale_error,
    **{name: _descale_error(name) for name in DESCALES},
    "softcap": _softcap_error,
    "bias": _bias_error,
    "alibi_slopes": _alibi_error,
}
#: Terms whose errors are bounded. Kernels add in more ways than a formula tells: a term that is added has a theorem.
BOUNDED = tuple(name for name in TERMS if name in THEOREMS or name in BENDS)


def farthest_key(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the largest number of keys that a slope multiplies, [Sq, 1]."""
    far = _farthest_key(forward)
    return np.maximum(far, forward.problem.key_length) if contract.alibi == "positions" else far


def row_shift(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound the number by which all scores of a row may differ from those of the definition alike, [.., Sq, 1].

    ALiBi may count the keys from any of them: - m (i - j) and m j differ by m i.
    """
    slopes = forward.problem.alibi_slopes
    if slopes is None or contract.alibi == "distance":
        return np.zeros((1, 1, 1, 1))
    return term("what all scores of a row may differ by", slopes) * _farthest_key(forward)


def _farthest_key(forward: Intermediates) -> np.ndarray:
    """Return the distance of the farthest key from the key that a query is aligned with, [Sq, 1]."""
    return abs(forward.problem.distances).max(axis=-1, keepdims=True, initial=0)


def shift_error(forward: Intermediates, contract: ResolvedContract, error: np.ndarray) -> np.ndarray:
    """Bound the growth of the ``error`` of a log-sum-exp that is moved by m i, [.., Sq, 1].

    From the scores of a kernel to those of the definition, or back. m is rounded as it is loaded, the product with its
    constants and the sum are rounded, and that is stored.
    """
    shift = row_shift(forward, contract)
    if not shift.any():
        return shift
    softmax = contract.stages.softmax
    final = contract.stages.lse.of(softmax.format)
    product = _shift_product(forward, contract) + softmax.eta
    L = np.abs(np.where(np.isfinite(forward.L), forward.L, 0.0))
    largest = (
        term("the log-sum-exp that is moved", L)
        + term("the log-sum-exp before it is moved", shift)
        + product
        + term("an error that is moved", error)
    )
    return (
        product
        + gamma(
            (softmax.u, count("the sum that moves a log-sum-exp", 1)),
            (final.u, count("the store of a log-sum-exp that is moved", 1)),
        )
        * largest
        + term("underflow of a log-sum-exp that is moved", softmax.eta)
        + term("underflow of a log-sum-exp that is moved", final.eta)
    )


def _shift_product(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Error of the product m i that a log-sum-exp or a sink is moved by, [.., Sq, 1]."""
    work = contract.stages.score_accumulation
    loaded = work.of(FORMATS[forward.problem.dtype_of("alibi_slopes")])
    relative = gamma(
        (loaded.u, count("a slope that is rounded as a log-sum-exp is moved", 1)),
        (work.u, count("the product that a log-sum-exp is moved by", 3)),
    )
    tiny = term("underflow of what a log-sum-exp is moved by", _farthest_key(forward) * (loaded.eta + work.eta))
    return relative * row_shift(forward, contract) + tiny
