"""Errors that rounding leaves where a framework also differentiates the reference that is subtracted from scores.

Such a gradient is 0 in exact arithmetic. Of m = max s of some keys W it is - sum_W p g from their weights, for
g = (dP - D) / l the gradient of a weight, and + sum_W p g from what l and p v are multiplied by for m's sake. But the
first has the rounded dP. The second has D as it is found, from p v and l as they were summed. With e_i the error of
dP_i, a_i the cast of p_i, b_ic the roundings of its product with v_ic, c_i those of p_i in l, and d the error of D
that the outputs do not explain,

    sum_W P_i (a_i dP_i + sum_c b_ic dO_ic v_ic - e_i + c_i D) + d

is left, and is a part of dS at the key that attains the maximum. Keys are visited in order, a chunk or a tile at a
time. So W is a part of the longest run of keys around the largest one of them.

Parts that are merged by their log-sum-exps L_t have one more such gradient each, P_t (dO o_t - D) of L_t. It has o_t as
that was stored, and the weights of the part have D_t = dO o_t, or sum P dP, as it was before. So all keys of a part
have a gradient left, P_i times that difference. Likewise where each tile is divided by a row sum of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attn_spec.bounds.backward.weight_gradient_bounds import (
    cotangent_entering,
    division,
    division_underflow,
    largest_weight,
)
from attn_spec.bounds.forward.dropout_bounds import factor_underflow, late_roundings, weight_stages
from attn_spec.bounds.forward.output_terms import (
    OutputTerms,
    merged_growth,
    numerator_growth,
    renormalizations,
)
from attn_spec.bounds.forward.row_sum_bounds import WeightError, divided
from attn_spec.bounds.forward.weight_bounds import log_weight_error, reference_rounding
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.operand_bounds import value_format, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import (
    casts_row_sum,
    number_of_products,
    probability_cast,
    rounding_on_entry,
    sum_underflow,
)
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import count, stands, term, times


@dataclass(frozen=True, kw_only=True)
class _Row:
    """Values and error bounds of dP and D that the theorems below use; arrays are [.., Sq, Sk] or [.., Sq, 1]."""

    forward: Intermediates
    contract: ResolvedContract
    forward_weights: WeightError
    #: The error of dP, and what dP and D less dL are at most.
    E_dP: np.ndarray
    dP_size: np.ndarray
    D_size: np.ndarray
    #: sum_c |dO_c|, sum_c |dO_c v_c|, which dropout has changed, and the last roundings of o in sum_c dO_c o_c.
    dO: np.ndarray
    of_v: np.ndarray
    #: Sum of |dO_c v_c|, times the factor of a weight where that is above 1.
    raised_v: np.ndarray
    last: np.ndarray
    #: Growth of a weight in the numerator beside its cast, and in the row sum.
    moved: np.ndarray
    C: np.ndarray

    @property
    def in_parts(self) -> bool:
        """Return whether the contract divides parts of a row by row sums of their own."""
        return self.contract.lse_merges > 0 or self.contract.normalize == "every_tile"

    @property
    def own(self) -> np.ndarray:
        """The error of dP, with that of the cast of a weight that multiplies it."""
        return term("errors of dP that are left of a reference", self.E_dP) + term(
            "casts of weights that are left of a reference", probability_cast(self.contract).u * self.dP_size
        )

    @property
    def divided(self) -> np.ndarray:
        """Bound the error that dividing an output by its row sum leaves in sum_c dO_c o_c, for one key."""
        softmax = self.contract.stages.softmax
        narrowing = softmax.of(self.contract.stages.output_accumulation.format)
        of_tiles = term("roundings of the divisions of each tile", 3 * renormalizations(self.forward, self.contract))
        relative = gamma(
            (softmax.u, count("roundings where a part is divided", 4) + of_tiles),
            (narrowing.u, count("the accumulator of a part narrowed to the softmax's format", 1)),
        )
        tiny = (
            term("underflow of a quotient of a part", 3 * softmax.eta)
            + term("underflow of factors of dropout in a part", self.lost)
            + term(
                "underflow of the narrowed accumulator of a part", divided(self.forward, self.contract) * narrowing.eta
            )
        )
        return term("roundings of the division of a part", relative * self.of_v) + term(
            "underflow of the division of a part", tiny * self.dO
        )

    @property
    def lost(self) -> float:
        """Bound the underflow where a factor of dropout multiplies a weight."""
        return factor_underflow(self.forward, self.contract, *weight_stages(self.contract))

    def summed(self, n: np.ndarray | float) -> np.ndarray:
        """Return the roundings of a sum of n products in the formats of scores."""
        stored = self.contract.stages.stored_scores.of(self.contract.stages.score_accumulation.format)
        return gamma(
            (self.contract.stages.score_accumulation.u, term("sums that are left of a reference", n)),
            (stored.u, count("stores that are left of a reference", 2)),
        )


@np.errstate(all="ignore")
def left_of_references(
    forward: Intermediates,
    grad: GradientIntermediates,
    contract: ResolvedContract,
    forward_weights: WeightError,
    of_output: OutputTerms,
    *,
    most: np.ndarray,
    E_dP: np.ndarray,
    E_D: np.ndarray,
) -> np.ndarray:
    """Bound what is left of the gradients of references and of log-sum-exps of parts, in dA of each key, [.., Sq, Sk].

    ``forward`` leaves far keys out; ``of_output`` are the terms of the output's error, ``most`` is the largest that
    each weight may be, ``E_dP`` and ``E_D`` are the errors of dP and of D less dL.
    """
    dO = term(
        "errors of dO in what is left of references",
        cotangent_entering(forward, grad, contract)[0],
        np.abs(grad.cotangent),
    )
    dL = 0.0 if grad.lse_cotangent is None else np.abs(grad.lse_cotangent)[..., None]
    row = _Row(
        forward=forward,
        contract=contract,
        forward_weights=forward_weights,
        E_dP=E_dP,
        dP_size=np.where(
            forward.visible, np.abs(grad.dP) + term("errors of dP in what is left of references", E_dP), 0.0
        ),
        D_size=np.abs(grad.D)
        + term("errors of delta in what is left of references", E_D)
        + term("dL in what is left of a reference", dL),
        dO=dO.sum(-1, keepdims=True),
        of_v=forward.dropped(dO @ value_sizes(forward, contract).swapaxes(-1, -2)),
        raised_v=forward.raised(dO @ value_sizes(forward, contract).swapaxes(-1, -2)),
        last=(
            dO
            * (
                term("roundings of an output that are left of a reference", of_output.finish * np.abs(forward.O))
                + term("underflow of an output that is left of a reference", of_output.tiny)
            )
        ).sum(-1, keepdims=True),
        moved=numerator_growth(forward, contract, forward_weights, casts=0),
        C=of_output.C,
    )
    left = np.zeros(())
    if contract.reference == "maximum":
        of_key = most * term("what a key leaves of a reference", _in_run(row))
        of_key = np.where(
            forward.visible, of_key + term("underflow that is left of a reference", _underflow_in_run(row)), 0.0
        )
        left = _over_runs(forward, contract, of_key) if stands("all keys of a run") else of_key
    if row.in_parts:
        left = left + term(
            "what is left of log-sum-exps of parts",
            most * np.where(forward.visible, _in_part(row), 0.0).max(axis=-1, keepdims=True, initial=0.0),
        )
    again = row.summed(1)  # it is added to the gradient of a score
    return times("roundings of what is left of references", 1 + again) * left + term(
        "adding what is left of references",
        again
        * most
        * (
            term("adding what is left of references to that of dP", row.dP_size)
            + term("adding what is left of references to that of delta", row.D_size)
        ),
    )


def _in_run(row: _Row) -> np.ndarray:
    """Bound the share of a key in what is left of a maximum's gradient, divided by the key's weight."""
    forward, contract = row.forward, row.contract
    each = (
        row.own
        + term(
            "delta's own factors that are left of a reference",
            (
                term(
                    "roundings of D / l that are left of a reference",
                    gamma(
                        *term("the division of D by l that is left of a reference", division(forward, contract), ()),
                        *term(
                            "1 / (1 - p) at the end in what is left of references",
                            late_roundings(forward, contract),
                            (),
                        ),
                    ),
                )
                + term("the row sum that is left of a reference", row.C)
            )
            * row.D_size,
        )
        + term("underflow of D / l that is left of a reference", division_underflow(forward, contract))
    )
    each = each + term(
        "sums of gradients that are left of a reference",
        row.summed(
            term("keys in sums that are left of a reference", forward.keys)
            + count("more roundings of sums that are left of references", 4)
        )
        * (
            term("dP in sums that are left of a reference", row.dP_size)
            + term("delta in sums that are left of a reference", row.D_size)
        ),
    )
    if casts_row_sum(contract) or contract.score_gradients_of == "cast":
        each = each + term(
            "casts of weights in a row sum that are left of a reference", probability_cast(contract).u * row.D_size
        )
    if contract.delta == "probabilities":
        return each + term(
            "delta's sum over keys in what is left of references",
            row.summed(
                term("keys in delta's sum that is left of references", forward.keys)
                + count("more roundings of delta's sum over keys that are left of references", 2)
            )
            * row.dP_size,
        )
    apart = (
        times("sums of weighted values that are left of a reference", 1 + row.moved)
        * times(
            "delta's sum that is left of a reference",
            1
            + row.summed(
                term("columns in delta's sum that are left of a reference", forward.v.shape[-1])
                + count("more roundings of delta's sum that are left of references", 2)
            ),
        )
        - 1
    )
    each = (
        each
        + term("products of weights with values that are left of a reference", apart * row.of_v)
        + term(
            "last roundings of an output that are left of a reference",
            term("divisions of each part in a run", row.divided if row.in_parts else row.last, row.last),
        )
    )
    return each + term(
        "underflow on entry that is left of a reference",
        times("underflow on entry that is left of a reference, raised", forward.largest_factor)
        * (
            term(
                "underflow of values on entry that is left of a reference",
                rounding_on_entry(contract, value_format(forward, contract)).eta,
            )
            + term("underflow of factors of dropout that is left of references", row.lost)
        )
        * row.dO,
    )


def _underflow_in_run(row: _Row) -> np.ndarray:
    """Bound a key's share of underflow in that gradient: before the division by l, and where it is stored."""
    forward, contract = row.forward, row.contract
    work, stored, softmax = (
        contract.stages.score_accumulation.eta,
        contract.stages.stored_scores.eta,
        contract.stages.softmax.eta,
    )
    rescalings = row.forward_weights.R.max(axis=-1, keepdims=True, initial=0.0)
    steps = count("several underflows of a weighted value that are left of references", 4) * (
        1
        + term("rescalings that underflow in what is left of references", rescalings)
        + term("divisions that underflow in what is left of references", renormalizations(forward, contract))
    )
    of_sums = (
        number_of_products(contract, steps)
        * sum_underflow(contract, "output_accumulation")
        * times("underflow of weighted values that is left of a reference, raised", forward.largest_factor)
        * row.dO
    )
    of_weights = term(
        "underflow of casts of weights that is left of a reference", _cast_underflow(row) * row.dP_size
    ) + term(
        "weights that underflow in what is left of references",
        (
            term("weights that underflow in the softmax's format", steps * softmax)
            + term("underflow of factors of dropout beside that of weights", row.lost)
        )
        * row.raised_v,
    )
    small = (
        term(
            "underflow of delta's sum that is left of references",
            count("underflows of delta's sum that are left of references", 2) * forward.v.shape[-1] * work,
        )
        + term(
            "underflow of dA that is left of references",
            count("several underflows of dA that are left of references", 4) * largest_weight(forward, contract) * work,
        )
        + term(
            "underflow of stored gradients that is left of a reference",
            count("underflows of a stored gradient that are left of references", 2) * stored,
        )
    )
    return row.forward_weights.inverse_sum * (
        term("underflow of weights that is left of a reference", of_weights)
        + term("underflow of weighted values that is left of a reference", of_sums)
    ) + term(
        "underflow of gradients that is left of a reference",
        times("underflow of gradients that is left of a reference, raised", forward.largest_factor) * small,
    )


def _in_part(row: _Row) -> np.ndarray:
    """Bound the distance of dO o_t from D_t where the part t is one key alone."""
    forward, contract = row.forward, row.contract
    merged = (
        times("merges of a part", 1 + merged_growth(forward, contract))
        * times("the sum of delta of a part", 1 + row.summed(forward.v.shape[-1] + 2))
        - 1
    )
    waits = 4 * contract.lse_merges * (contract.stages.softmax.eta + contract.stages.partial_outputs.eta)
    stored = (
        term("merges of a part in its value", merged * row.of_v)
        + term("divisions of a part in its value", (1 + merged) * row.divided)
        + term("underflow of merges of a part", waits * forward.largest_factor * row.dO)
    )
    if contract.delta == "output":
        return stored
    lost = row.lost + sum_underflow(contract, "output_accumulation") * forward.largest_factor
    lost = term("underflow of sums in a part", 4 * number_of_products(contract, forward.keys) * lost * row.dO) + term(
        "underflow of casts in a part", (_cast_underflow(row) * row.dP_size).sum(-1, keepdims=True)
    )
    moved = term("roundings of weighted values of a part", row.moved * (row.of_v + stored)) + term(
        "underflow on entry in a part",
        (rounding_on_entry(contract, value_format(forward, contract)).eta + row.lost) * row.dO,
    )
    return (
        term("what is stored of a part", stored)
        + term("errors of dP in a part", row.own)
        + term("sums of delta over keys of a part", row.summed(forward.keys + 2) * row.dP_size)
        + term("roundings of the numerator of a part", moved)
        + term("underflow of a part", divided(forward, contract) * lost)
    )


def _cast_underflow(row: _Row) -> np.ndarray:
    """Bound the loss to underflow in the cast of a weight, [.., Sq, Sk]: 0 for one that is surely a normal number."""
    forward, contract = row.forward, row.contract
    delta = log_weight_error(forward, contract).delta
    smallest = max(form.smallest_normal for form in contract.formats("probabilities", "multiplicands"))
    highest = (
        forward.M
        + contract.reference_distance
        + reference_rounding(forward, contract)
        + delta.max(axis=-1, keepdims=True, initial=0.0)
    )
    normal = highest + math.log(smallest) + term("a cast that may underflow by errors of the row's maximum", 1.0)
    return np.where(forward.s - delta < normal, term("a cast that underflows", probability_cast(contract).eta), 0.0)


def _over_runs(forward: Intermediates, contract: ResolvedContract, terms: np.ndarray) -> np.ndarray:
    """Return the sum of ``terms`` [.., n] over the longest run around each key of keys that may score below it.

    A sink may be visited first or last. So it may be in any run, and a run around it may have all keys.
    """
    if forward.has_sink:
        of_keys, of_sink = terms[..., :-1], terms[..., -1:]
        runs = _over_runs_of_keys(forward.of_keys, log_weight_error(forward, contract).delta[..., :-1], of_keys)
        every = terms.sum(axis=-1, keepdims=True) * (1 + 2.0**-44)
        return np.concatenate([runs + term("a sink in a run", of_sink), every], axis=-1)
    return _over_runs_of_keys(forward, log_weight_error(forward, contract).delta, terms)


def _over_runs_of_keys(forward: Intermediates, delta: np.ndarray, terms: np.ndarray) -> np.ndarray:
    low = np.where(forward.visible, forward.s - term("keys of a run that may be below the largest", delta), -np.inf)
    high = np.where(forward.visible, forward.s + term("the largest key of a run that may be above it", delta), -np.inf)
    before, after = reach(low, high), reach(low[..., ::-1], high[..., ::-1])[..., ::-1]
    sums = np.cumsum(np.concatenate([np.zeros((*terms.shape[:-1], 1)), terms], axis=-1), axis=-1)
    at = np.arange(terms.shape[-1])
    last = at + term("keys after the largest of a run", after)
    first = at - term("keys before the largest of a run", before)
    found = np.take_along_axis(sums, last + 1, axis=-1) - np.take_along_axis(sums, first, axis=-1)
    return np.where(
        forward.visible,
        term("a run is no less than its key", np.maximum(found, terms), found)
        + term("the evaluation of the sum over a run", max(2.0**-44, len(at) * 2.0**-52) * sums[..., -1:]),
        0.0,
    )


def reach(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Count the keys directly before each key whose ``low`` is at most its ``high``, [.., n]; halves, widest first."""
    n = low.shape[-1]
    widest = [low]  # of 1, 2, 4, .. keys, ending with each
    while 2 ** len(widest) < n:
        last, width = widest[-1], 2 ** (len(widest) - 1)
        earlier = np.concatenate([np.full((*low.shape[:-1], min(width, n)), -np.inf), last[..., :-width]], axis=-1)
        widest.append(np.maximum(last, earlier))
    reach = np.zeros(low.shape, dtype=np.int64)
    for step in reversed(range(len(widest))):
        ends = np.arange(n) - 1 - reach
        inside = ends - 2**step + 1 >= 0
        largest = np.take_along_axis(widest[step], np.maximum(ends, 0), axis=-1)
        reach += np.where(inside & (largest <= high), 2**step, 0)
    return reach
