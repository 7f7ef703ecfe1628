"""Errors of the rows of linear attention's backward pass, which the gradients of all operands read.

Symbols are those of ``linear_gradient_bounds``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.bounds.backward.gradient_sums import (
    accumulated,
    stored_sums,
    sum_eta,
)
from attn_spec.bounds.intermediates import GradientIntermediates
from attn_spec.bounds.linear.linear_bounds import (
    LinearError,
    lse_error,
    state_rounding,
)
from attn_spec.contract.products import (
    number_of_products,
    probability_cast,
    rounding_on_entry,
    roundings_of_sum,
    skipped_pieces,
    sum_underflow,
)
from attn_spec.contract.roundoff import elementary_error, gamma
from attn_spec.contract.terms import count, standing, term, times
from attn_spec.numbers.formats import FORMATS

#: Stages in which a product of a term of delta may be stored.
_STORED = ("softmax", "stored_scores", "weight_gradients", "score_gradients", "probabilities")


@dataclass(frozen=True, eq=False)
class RowGradientError:
    """Errors and sizes that the gradients of all operands read of the backward pass's rows. Sizes include errors."""

    errors: LinearError
    #: 1 / N at most, [.., Sq, 1]; 0 in rows that see no key.
    inverse: np.ndarray
    #: |dO| [.., Sq, Dv], and the size of D, [.., Sq, 1].
    dO: np.ndarray
    D: np.ndarray
    #: Size and error of dw, and of P, [.., Sq, Sk]; 0 where the key is hidden.
    dw: np.ndarray
    E_dw: np.ndarray
    P: np.ndarray
    E_P: np.ndarray


def row_errors(errors: LinearError, grad: GradientIntermediates, E_o: np.ndarray) -> RowGradientError:
    """Return the errors of 1 / N and of D, which is the error of o, in dw and in P."""
    forward, dO = errors.forward, np.abs(grad.cotangent)
    inverse, lost = _inverse(errors)
    D = (dO * (np.abs(forward.O) + term("the error of o in the size of linear delta", E_o))).sum(axis=-1, keepdims=True)
    P, dP = errors.w * inverse, dO @ errors.v.swapaxes(-1, -2)
    E_P = term("errors of features in dv", errors.E_w * inverse) + term(
        "the error of 1 / N in dv",
        np.where(forward.visible, forward.P, 0.0) * lost / times("the largest 1 / N in dv", 1 - lost),
    )
    E_D = (dO * E_o).sum(axis=-1, keepdims=True)
    if errors.contract.delta != "output":  # sum P dP, whose terms may cancel, and which has the errors of P
        D = np.maximum(D, term("sums of P dP in linear delta", (P * dP).sum(axis=-1, keepdims=True)))
        E_D = np.maximum(E_D, term("errors of P in linear delta", (E_P * dP).sum(axis=-1, keepdims=True)))
        E_D = E_D + term(
            "sums of linear delta over keys",
            gamma(*roundings_of_sum(errors.contract, "score_accumulation", forward.keys))
            * (
                term("linear delta in its sums over keys", D)
                + term("the error of linear delta in its sums over keys", E_D)
            ),
        )
        E_D = E_D + term("underflow of linear delta's sum over keys", _underflow_of_sum(errors))
    dL = 0.0 if grad.lse_cotangent is None else np.abs(grad.lse_cotangent)[..., None]
    size = (
        np.where(
            forward.visible,
            term("dP in linear dw", dP) + term("delta in linear dw", D) + term("dL in linear dw", dL),
            0.0,
        )
        * inverse
    )
    E_X = term("the error of o in linear dw", E_D * inverse)
    if errors.contract.delta != "output":
        seen = np.where(forward.visible, dP, 0.0).sum(axis=-1, keepdims=True)
        E_X = E_X + term("underflow of linear delta over N", _underflow_of_quotient(errors, inverse, seen))
    E_dw = np.where(forward.visible, E_X, 0.0)
    E_dw = E_dw + term("the error of 1 / N in dw", size * lost)
    return RowGradientError(errors, inverse, dO, D, dw=size, E_dw=E_dw, P=P, E_P=E_P)


def _underflow_of_sum(errors: LinearError) -> np.ndarray | float:
    """Underflow of sums over keys in delta, [.., Sq, 1]."""
    return (
        count("several underflows of linear delta", 4)
        * times("underflow of linear delta for each key", number_of_products(errors.contract, errors.forward.keys))
        * sum_underflow(errors.contract, "score_accumulation")
    )


def _underflow_of_quotient(errors: LinearError, inverse: np.ndarray, dP: np.ndarray) -> np.ndarray:
    """Underflow of delta / N as a sum over keys of products of dP, w and twice 1 / N, [.., Sq, 1].

    ``dP`` is the sum of its sizes over visible keys. PyTorch sums dP (w / N / N), and JAX dP w (1 / N^2).
    """
    keys, one = errors.forward.keys, max(errors.contract.stage(stage).eta for stage in _STORED)
    behind_products = (
        1
        + term("1 / N behind products of dP and w in linear delta", inverse)
        + term("1 / N^2 behind products of dP and w in linear delta", inverse**2)
    )
    behind_quotients = 1 + term("1 / N behind quotients of w in linear delta", inverse)
    return one * (
        term(
            "underflow of products of dP and w in linear delta",
            behind_products * (keys + count("underflow of quotients of dP in linear delta", 1)),
        )
        + term("underflow of quotients of w in linear delta", behind_quotients * dP)
    ) + term("underflow of a sum over keys that 1 / N has multiplied", _underflow_of_sum(errors))


def _inverse(errors: LinearError) -> tuple[np.ndarray, np.ndarray]:
    """1 / N at most, 0 in rows that see no key, and its error relative to 1 / N at most, [.., Sq, 1].

    Where weights are computed again from the log-sum-exp, it is exp(-L).
    """
    forward, contract = errors.forward, errors.contract
    lost = term("the error of N in the backward pass", errors.E_N / forward.N)
    if contract.backward_weights == "recomputed":
        E_L = lse_error(errors)[..., None]
        size = np.abs(forward.L) + term("the error of the LSE in roundings of -LSE", E_L)
        rounded = gamma((contract.stages.softmax.u, count("roundings of -LSE", 3))) * size
        in_exponent = term("the LSE in 1 / N", E_L) + rounded
        again = -np.expm1(-in_exponent - term("the exponential of -LSE", elementary_error(contract, "exp_error")))
        lost = np.maximum(lost, term("1 / N as exp(-LSE)", again))
    inverse = np.where(lost < 1, 1 / (forward.N * times("the largest 1 / N in dw", 1 - lost)), np.inf)
    return np.where(forward.keys > 0, inverse, 0.0), np.where(forward.keys > 0, lost, 0.0)


def _lengths(errors: LinearError) -> tuple[int, int]:
    """Terms of the longest sum over columns, and tiles that a sum over queries or keys passes."""
    problem = errors.forward.problem
    columns = max(problem.value_dim, problem.head_dim)
    return columns, term(
        "states of gradients for each tile", errors.contract.tiles(problem.key_length)
    ) + errors.contract.tiles(problem.query_length)


def growth(errors: LinearError, n: np.ndarray) -> np.ndarray:
    """G of a term on the longest way: sums over Dv or D and over ``n`` queries or keys, stores, casts and factors."""
    forward, contract = errors.forward, errors.contract
    dtype, form, out = (
        FORMATS[forward.problem.dtype_of("v")],
        contract.stages.operands.format,
        contract.stages.output.format,
    )
    entering = standing(
        ("entry of values to linear dP", dtype),
        ("entry of one feature to the linear backward pass", form),
        ("entry of the other feature to the linear backward pass", form),
        ("entry of dO to the linear backward pass", out),
        ("entry of dw", contract.stages.score_gradients.format),
    )
    entries = [(rounding_on_entry(contract, each).u, 1) for each in entering]
    entries += [
        (
            rounding_on_entry(contract, contract.stages.partial_outputs.format).u,
            count("entry of states of gradients", 1),
        ),
        (probability_cast(contract).u, count("the cast of P in linear dv", 1)),
    ]
    formats = (
        dtype,
        form,
        out,
        contract.stages.score_gradients.format,
        contract.stages.probabilities.format,
        contract.stages.partial_outputs.format,
    )
    left = max(skipped_pieces(contract, one, other) for one in formats for other in formats)
    summed = contract.stages.score_accumulation.format
    stages = standing(
        ("the store of linear weights and of dw", "stored_scores"),
        ("the store of linear dP", "weight_gradients"),
        ("the cast of dw", "score_gradients"),
    )
    narrowed = [
        (contract.stage(stage).of(summed).u, count("two stores of one number of the linear backward pass", 2))
        for stage in (*stages, "softmax")
    ]
    columns, tiles = _lengths(errors)
    terms_of_column = columns + count("the sums of delta and dL with dP", 2)
    short = np.maximum(
        term(
            "sums over columns in the format of scores",
            gamma(*roundings_of_sum(contract, "score_accumulation", terms_of_column)),
        ),
        term(
            "sums over columns in the format of gradients",
            gamma(*roundings_of_sum(contract, "gradient_accumulation", terms_of_column)),
        ),
    )
    passed = term(
        "states of gradients that are added to one accumulator", np.maximum(n, columns * np.minimum(tiles, n)), n
    ) + term("additions within the state of gradients of the first tile", columns)  # as :func:`linear_bounds.chained`
    long = np.maximum(
        term("sums over rows in the format of gradients", gamma(*accumulated(contract, passed))),
        term(
            "sums over rows in the format of outputs", gamma(*roundings_of_sum(contract, "output_accumulation", passed))
        ),
    )
    rest = gamma(
        *entries,
        (left, count("pieces left out of two products of the linear backward pass", 2)),
        (state_rounding(contract).u, term("states of gradients that wait", tiles)),
        (contract.stages.softmax.u, count("products with 1 / N in the backward pass", 6)),
        *term("stores of the linear backward pass", narrowed, ()),
    )
    return (
        times("sums over columns of the linear backward pass", 1 + short)
        * (1 + term("sums over rows of the linear backward pass", long))
        * times("casts of the linear backward pass", 1 + rest)
        - 1
    )


@dataclass(frozen=True)
class Underflow:
    """Absolute errors of single results: of sums over columns, of sums over rows, of entries, of stores."""

    columns: np.ndarray | float
    rows: np.ndarray
    entry: float
    stored: float


def underflow(errors: LinearError, n: np.ndarray) -> Underflow:
    """Return the underflow of single results for sums over ``n`` queries or keys."""
    forward, contract = errors.forward, errors.contract
    least = max(
        term(
            "underflow in the format of scores in the linear backward pass",
            sum_underflow(contract, "score_accumulation"),
        ),
        term(
            "underflow in the format of outputs in the linear backward pass",
            sum_underflow(contract, "output_accumulation"),
        ),
        term("underflow in the format of gradients in the linear backward pass", sum_eta(contract)),
    )
    stores, partial = stored_sums(contract, n)
    columns, tiles = _lengths(errors)
    formats = (
        FORMATS[forward.problem.dtype_of("v")],
        *(contract.format(stage) for stage in ("operands", "output", "score_gradients")),
    )
    stages = standing(
        ("underflow of products with 1 / N", "softmax"),
        ("underflow of products with 1 / N", "softmax"),
        ("underflow of linear weights and of dw that are stored", "stored_scores"),
        ("underflow of linear weights and of dw that are stored", "stored_scores"),
        ("underflow of linear dP that is stored", "weight_gradients"),
        ("underflow of the cast of dw", "score_gradients"),
    )
    return Underflow(
        columns=term(
            "underflow of linear sums over columns",
            count("several underflows of linear sums over columns", 4) * number_of_products(contract, columns) * least,
        ),
        rows=count("several underflows of linear sums over rows", 4)
        * number_of_products(
            contract,
            term(
                "underflow of states of gradients in one accumulator", np.maximum(n, columns * np.minimum(tiles, n)), n
            )
            + columns,
        )
        * least
        + tiles * state_rounding(contract).eta
        + 2 * partial.eta * (stores + n),
        entry=term(
            "underflow on entry in the linear backward pass",
            max(rounding_on_entry(contract, form).eta for form in formats),
        ),
        stored=term(
            "underflow of what the linear backward pass stores", sum(contract.stage(stage).eta for stage in stages)
        )
        + term("underflow of the cast of P in linear dv", probability_cast(contract).eta),
    )
