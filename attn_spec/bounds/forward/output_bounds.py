"""Bounds on the error of a row's output, from those of its weights and the terms beside these (``output_terms``).

Symbols as in ``bounds``: P = exp(s - L) weights, o = P v, n visible keys of a row, A = e^alpha - 1.
"""

from __future__ import annotations

import numpy as np

from attn_spec.bounds.forward import value_spread
from attn_spec.bounds.forward.output_scale_bounds import saturation as output_saturation
from attn_spec.bounds.forward.output_terms import OutputTerms, output_terms, terms_by_lse
from attn_spec.bounds.forward.row_sum_bounds import (
    INFLATION,
    WeightError,
)
from attn_spec.bounds.forward.value_spread import Columns, columns, row_blocks, weighed
from attn_spec.bounds.forward.weighted_means import largest_mean
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import term, times


@np.errstate(all="ignore")
def output_error(
    forward: Intermediates,
    contract: ResolvedContract,
    weights: WeightError,
    o: np.ndarray,
    slack: np.ndarray,
    *,
    W: np.ndarray | None = None,
) -> np.ndarray:
    """|O_hat - o| element by element, [.., Sq, Dv]; with a projection ``W`` [.., C, Dv] what that makes of it.

    Write the computed weights as P(1 + a), |a| <= A, with factors 1 + b of the numerator only, |b| <= B, and 1 + c
    of the row sum only, |c| <= C. v_j is c_ij v_j under dropout. Because sum_j P (v_j - o) = 0,

        O_hat - o = [ sum P a (v - o) + sum P (1 + a)(b v - c o) + underflow ] / sum P (1 + a)(1 + c).

    To first order in a, weights are at the end of their errors that moves the numerator most and at the one that makes
    the denominator least. Where errors are large they are not at both: then :func:`_farthest_mean` is less. Values
    that are off by f_j themselves have the output sum P v^, which is off by sum P f, and about which all of this is
    said. A contract with normalize="by_lse" has :func:`output_terms.terms_by_lse`.
    """
    of_output = (
        terms_by_lse(forward, contract, weights, o, slack)
        if contract.normalize == "by_lse"
        else output_terms(forward, contract, weights, o, slack)
    )
    own = columns(forward, contract, o)
    E_o = _mean_error(forward, contract, weights, of_output, own)
    last = term("last roundings of the output", of_output.finish * (np.abs(o) + slack + E_o)) + term(
        "last underflow of the output", of_output.tiny
    )
    last = last + output_saturation(forward, contract, np.abs(o) + slack)
    if W is None:
        return (E_o + last) * times("the evaluation of the output in float64", INFLATION)
    through = columns(forward, contract, o, W)
    return (
        _mean_error(forward, contract, weights, of_output, through)
        + term("last roundings of an output that is projected", through.of_each(last))
    ) * times("the evaluation of an output of a layer in float64", INFLATION)


@np.errstate(all="ignore")
def _mean_error(
    forward: Intermediates, contract: ResolvedContract, weights: WeightError, of_output: OutputTerms, of: Columns
) -> np.ndarray:
    """Bound the error of the output before its last roundings, [.., Sq, C]."""
    if of_output.first is None:
        off = value_spread.slack(forward, contract)
        around = of.of_each(of_output.slack + term("an output that values carry", off))
        spread = term("weights that move the output", value_spread.spread(forward, weights.PA, of)) + term(
            "the error of o's own evaluation",
            term("errors of values in how they lie around the output", weights.PA.sum(-1, keepdims=True) * around),
        )
        E_o = np.where(
            of_output.kappa > 0,
            (spread + term("terms of the numerator beside the weights", of.of_each(of_output.rest)))
            / times("the denominator", of_output.kappa),
            np.inf,
        ) + term("values that are off", of.of_each(off))
    else:
        E_o = np.asarray(of.of_each(of_output.first))
    rough = of_output.rough | ~np.isfinite(E_o).all(-1)
    if rough.any():
        E_o = np.fmin(
            E_o,
            _farthest_mean(forward, weights, of_output, of, rough)
            + term("underflow outside the hull", of.of_each(of_output.outside_hull)),
        )
    return E_o


@np.errstate(all="ignore")
def _farthest_mean(
    forward: Intermediates, weights: WeightError, of_output: OutputTerms, of: Columns, rows: np.ndarray
) -> np.ndarray:
    """Bound the distance of any mean of the values from the output, [.., Sq, C], in ``rows`` [.., Sq]; inf elsewhere.

    The output is X off where sum w ((1 + b)(v + f) - o - c o - (1 + c) X) = 0, over weights w in their intervals, with
    |f_j| the error of a value. With |c o| <= C |o| and c X >= -C X, and C the largest of a row,

        (1 - C) X <= the largest mean of  +-(v - o) + f + B (|v| + f) + C |o|,

    see ``weighted_means``. What underflows in the row sum alone is a part of C. inf where C is too large to say
    anything.
    """
    found = np.full(of.o.shape, np.inf)
    least = 1 - of_output.C.max(axis=-1, keepdims=True, initial=0.0)
    known = np.broadcast_to(of_output.slack, of_output.o.shape)
    known, sizes = (
        np.broadcast_to(of.of_each(s), of.o.shape)
        for s in (known, np.abs(of_output.o) + term("the evaluation of the output in sizes", known))
    )
    for at in row_blocks(forward, of.v, rows):
        head, high = at[:2], weights.high[at]
        some = weighed(high)
        met, r = (
            of.v[head][some][None],
            term("roundings of the numerator in a mean", _of_keys(of_output.B[head][at[2]], some)[..., None])
            * of.size[head][some][None],
        )
        r = term("errors of values in a mean", r if of.error is None else r + of.error[head][some][None], r)
        if forward.c is not None:
            kept = forward.c[at][:, some, None]
            met, r = kept * met, times("roundings in a mean are raised", kept) * r
        r = (
            r
            + term(
                "roundings of the row sum in a mean", _of_keys(of_output.C[at], some)[..., None] * sizes[at][:, None, :]
            )
            + term("the evaluation of the output in a mean", known[at][:, None, :])
        )
        apart = met - of.o[at][:, None, :]
        both = (largest_mean(sign * apart + r, weights.low[at][:, some], high[:, some]) for sign in (1.0, -1.0))
        found[at] = np.maximum(*both) / times("roundings of the row sum that divide a mean", least[at])
    return np.where(least > 0.75, found, np.inf)


def _of_keys(terms: np.ndarray, some: slice) -> np.ndarray:
    """Take some keys of terms [rows, Sk]; terms [rows, 1] hold for every key and stay."""
    return terms if terms.shape[-1] == 1 else terms[:, some]
