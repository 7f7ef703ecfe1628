"""Bounds on the errors of a score's operands, and of the gradients of q and k behind them, under a contract.

q' = f(q, p) and k' = g(k, p) of ``attention.scores``, evaluated with a running error bound. A plain score has none:
its operands are q and k. So are the values v' of a layer, and what of a cotangent arrives at its heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.attention.rotations import rotations_of
from attn_spec.attention.scores import Operand, parameters_of
from attn_spec.attention.terms import DESCALES, used
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, finite, repeated_keys
from attn_spec.bounds.memoized import of_forward_pass
from attn_spec.bounds.replay import replay_of
from attn_spec.bounds.running_error import Approximation, RowErrors, RunningErrors, given, stored
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import roundings_of_sum
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import guard, term, times
from attn_spec.numbers.formats import FORMATS, Format, narrowest


@dataclass(frozen=True, eq=False)
class OperandError:
    """Errors of q' [B, Hq, Sq, D] and k' [B, Hq, Sk, D] as they are stored."""

    E_q: np.ndarray
    E_k: np.ndarray
    #: Once more, where all of a vector has a part in common.
    q_rows: RowErrors | None
    k_rows: RowErrors | None

    def moves(self, forward: Intermediates) -> np.ndarray:
        """Bound the error that these errors make in q'.k', [B, Hq, Sq, Sk]; one common to a vector scales q'.k'."""
        e, f = self.E_q, self.E_k.swapaxes(-1, -2)
        moved = term("errors of keys in a score", forward.q_size @ f) + term(
            "errors of queries in a score",
            e @ (forward.k_size.swapaxes(-1, -2) + term("errors of both operands, multiplied", f)),
        )
        if self.q_rows is None or self.k_rows is None:
            return moved
        a, b = self.q_rows.own, self.k_rows.own.swapaxes(-1, -2)
        of_q, of_k = self.q_rows.common, self.k_rows.common.swapaxes(-1, -2)
        common, own = (
            term("what errors of a query have in common", of_q)
            + term("what errors of a key have in common", of_k)
            + term("what errors of q and k have in common, multiplied", of_q * of_k),
            term("errors of each number of a key", forward.q_size @ b)
            + term(
                "errors of each number of a query",
                a @ (forward.k_size.swapaxes(-1, -2) + term("errors of each number of q and k, multiplied", b)),
            ),
        )
        return np.fmin(
            moved,
            term("what errors of a vector have in common", common * np.abs(forward.dot))
            + term(
                "errors of each number of a vector",
                times("what errors have in common makes each number's grow", 1 + common) * own,
            ),
        )


def stored_format(forward: Intermediates, contract: ResolvedContract) -> Format:
    """Return the format of the operands, before a scale multiplies them; of q and k the one that includes both."""
    descaled = contract.descale_on == "operands" and bool(used(forward.problem, DESCALES))
    changed = guard("the format of operands", not forward.score.plain or descaled, False)
    return contract.stages.operands.format if changed else narrowest(*map(forward.problem.dtype_of, "qk"))


@of_forward_pass
@np.errstate(all="ignore")
def operand_error(forward: Intermediates, contract: ResolvedContract) -> OperandError | None:
    """Errors of the operands, infinite of vectors too short for it; None of a plain score, which has none."""
    score = forward.score
    if score.plain:
        return _open_codes(forward, contract)
    lengths = (
        np.linalg.norm(given, axis=-1, keepdims=True) for given in (forward.problem.q, repeated_keys(forward.problem))
    )
    q, k = _operands(forward, contract)
    errors = term("errors of queries", q.error), term("errors of keys", k.error)
    of_q, of_k = (np.where(n < score.shortest, np.inf, of) for n, of in zip(lengths, errors, strict=True))
    return OperandError(of_q, of_k, q.rows, k.rows)


def _open_codes(forward: Intermediates, contract: ResolvedContract) -> OperandError | None:
    """Return what the quantisers of a contract leave open of codes of q and k; None if nothing is."""
    problem = replay_of(forward.problem, contract)
    if problem is None:
        return None
    found = [problem.radius(name) for name in "qk"]
    if all(radius is None for radius in found):
        return None
    E_q, E_k = (
        np.zeros(x.shape) if radius is None else radius for x, radius in zip((problem.q, problem.k), found, strict=True)
    )
    return OperandError(term("codes of queries at a tie", E_q), term("codes of keys at a tie", E_k), None, None)


def codes_known(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] of whose query something is known, and of all keys and values of its head, hidden ones too.

    Nothing is known of a block with a number that is not finite. Its scale is then none, and 0 times it is NaN.
    """
    found = np.ones(forward.s.shape[:-1], dtype=bool)
    problem = replay_of(forward.problem, contract)
    if problem is None:
        return found
    for name in "qkv":
        if (radius := problem.radius(name)) is not None:
            known = np.isfinite(radius).all(axis=-1)
            found = found & (known if name == "q" else known.all(axis=-1, keepdims=True))
    return found


@of_forward_pass
@np.errstate(all="ignore")
def _operands(forward: Intermediates, contract: ResolvedContract) -> tuple[Approximation, Approximation]:
    """q' and k' as they are stored, of infinite error where an operation could overflow or divide by 0."""
    A, score, (q, k, p) = RunningErrors(contract), forward.score, _given(forward, contract)
    return stored(score.queries.value(A, q, p)), stored(score.keys.value(A, k, p))


def value_format(forward: Intermediates, contract: ResolvedContract) -> Format:
    """Return the format of the values."""
    stored_again = forward.problem.v_descale is not None and contract.value_descale_on == "operands"
    changed = guard("the format of values", forward.problem.projects or stored_again, False)
    return contract.stages.operands.format if changed else FORMATS[forward.problem.dtype_of("v")]


@of_forward_pass
@np.errstate(all="ignore")
def value_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray | None:
    """Errors of v' [B, Hq, Sk, U] as they are stored, 0 where nobody sees them; None of v itself.

    Of values that a quantiser makes, what is open of their codes.
    """
    replay = replay_of(forward.problem, contract)
    if replay is not None and (radius := replay.radius("v")) is not None:
        found = term("codes of values at a tie", radius)
    elif not forward.problem.projects:
        return None
    else:
        found = term("errors of values", _value_errors(forward, contract))
    seen = np.any(forward.of_keys.seen, axis=2)[..., None]
    return forward.padded(np.where(seen, found, 0.0))


@of_forward_pass
@np.errstate(all="ignore")
def _value_errors(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    v = given(
        contract,
        _repeated_values(forward),
        term("the format of v", FORMATS[forward.problem.dtype_of("v")], contract.stages.multiplicands.format),
    )
    return stored(forward.score.values.value(RunningErrors(contract), v, parameters_given(forward, contract))).error


def _repeated_values(forward: Intermediates) -> np.ndarray:
    """Return the value that each query head reads, [B, Hq, Sk, Dv]."""
    return forward.problem.per_query_head(forward.problem.v)


def value_sizes(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the largest sizes of the values, [B, Hq, Sk, Dv]."""
    error = value_error(forward, contract)
    return forward.v_size if error is None else forward.v_size + term("errors of values in their sizes", error)


@np.errstate(all="ignore")
def arriving(forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract) -> GradientIntermediates:
    """``grad`` with the errors of what arrives at each head of a layer, [B, Hq, Sq, U], as it is stored.

    The contract is that of the layer: dO has the format of its output, that of a head's output may be narrower.
    """
    outputs = forward.score.outputs
    if outputs is None:
        return grad
    form = term("the format of the cotangent of a layer", contract.stages.output, contract.stages.operands).format
    dO = given(contract, grad.of_output, form)
    # This matters to the gradient of W_O alone.
    nothing = given(contract, np.zeros(forward.O.shape), contract.stages.operands.format)
    of_heads = outputs.pull(RunningErrors(contract), nothing, parameters_given(forward, contract), dO)[0]
    of_heads = term("the store of cotangents of heads", stored(of_heads), of_heads)
    return replace(grad, cotangent_error=term("errors of cotangents of heads", of_heads.error))


def product_of_operands_error(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, of_g: np.ndarray | None
) -> np.ndarray | float:
    """Return the error of dO.v from errors ``of_g`` of dO and errors of v, without its own roundings, [.., Sq, Sk]."""
    off, of_v = np.float64(0.0), value_error(forward, contract)
    if of_g is not None:
        size_v = term("errors of both in dP", value_sizes(forward, contract), forward.v_size)
        off = off + term("errors of cotangents in dP", of_g @ size_v.swapaxes(-1, -2))
    if of_v is not None:
        off = off + term("errors of values in dP", np.abs(grad.cotangent) @ of_v.swapaxes(-1, -2))
    return np.where(forward.visible, off, 0.0)


def heads_contract(forward: Intermediates, contract: ResolvedContract) -> ResolvedContract:
    """Return the contract of the heads; in a layer their outputs are operands of the output projection."""
    return term(
        "the outputs of heads are operands",
        replace(contract, output=contract.operands) if forward.problem.projects else contract,
        contract,
    )


@np.errstate(all="ignore")
def values_pulled_back(
    forward: Intermediates, gradient: Approximation
) -> tuple[Approximation, dict[str, Approximation]]:
    """Return the gradients of v and of parameters per query head, from the gradient of v' [B, Hq, Sk, U]."""
    contract = gradient.contract
    v = given(
        contract,
        finite(_repeated_values(forward)),
        term(
            "the format of v in the gradient of W_V",
            FORMATS[forward.problem.dtype_of("v")],
            contract.stages.multiplicands.format,
        ),
    )
    return forward.score.values.pull(
        RunningErrors(contract),
        v,
        parameters_given(forward, contract),
        term("the store of the gradient of a value", stored(gradient), gradient),
    )


def operands_are_bounded(forward: Intermediates, contract: ResolvedContract) -> bool:
    """Return whether the error of every operand, and so its size, has a bound."""
    errors = operand_error(forward, contract)
    return errors is None or bool(np.isfinite(errors.E_q).all() and np.isfinite(errors.E_k).all())


@np.errstate(all="ignore")
def unknown_operands(forward: Intermediates, contract: ResolvedContract) -> tuple[np.ndarray, np.ndarray]:
    """bool [B, Hq, Sq], [B, Hq, Sk]: queries and keys whose operand may be anything, though they are finite numbers.

    An infinity times a score gradient of 0 is NaN, whoever sees it. That of a vector of zeros is defined.
    """
    queries = np.zeros(forward.s.shape[:-1], dtype=bool)
    if not forward.score.plain and operand_error(forward, contract) is not None:
        queries = np.broadcast_to(_unknown(forward.problem.q, _operands(forward, contract)[0].error), queries.shape)
    return queries, unknown_keys(forward, contract)


@np.errstate(all="ignore")
def unknown_keys(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """bool [B, Hq, Sk]: those keys, and those with such a value.

    A score that overflows is NaN where -inf is added to it to hide it, and so is a weight of 0 times an infinity.
    """
    problem, unknown = forward.problem, np.zeros((*forward.s.shape[:2], forward.problem.key_length), dtype=bool)
    if forward.score.plain or operand_error(forward, contract) is None:
        return unknown
    unknown = _unknown(repeated_keys(problem), _operands(forward, contract)[1].error)
    if problem.projects:
        unknown = unknown | _unknown(_repeated_values(forward), _value_errors(forward, contract))
    return unknown


def _unknown(vectors: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Vectors of finite numbers, not all 0, whose operand has no bound."""
    numbers = np.isfinite(vectors).all(axis=-1) & vectors.any(axis=-1)
    return np.asarray(numbers & ~np.isfinite(error).all(axis=-1))


@np.errstate(all="ignore")
def pulled_back(
    forward: Intermediates, name: str, gradient: Approximation
) -> tuple[Approximation, dict[str, Approximation]]:
    """Return the gradients of "q" or "k" and of parameters per query head, from that of its operand [B, Hq, S, D]."""
    contract = gradient.contract
    score, (q, k, p) = forward.score, _given(forward, contract)
    q, k = (of.changed(finite) for of in (q, k))
    operand: Operand = {"q": score.queries, "k": score.keys}[name]
    return operand.pull(
        RunningErrors(contract),
        {"q": q, "k": k}[name],
        p,
        term("the store of the gradient of an operand", stored(gradient), gradient),
    )


def _given(forward: Intermediates, contract: ResolvedContract) -> tuple[Approximation, Approximation, dict[str, Any]]:
    """q, k, the parameters by name, and the rotations of operands; kv heads repeated."""
    problem, entering = forward.problem, contract.stages.multiplicands.format
    q, k = (
        given(contract, tensor, term("the format of q and k", FORMATS[problem.dtype_of(name)], entering))
        for name, tensor in (("q", problem.q), ("k", repeated_keys(problem)))
    )
    return q, k, parameters_given(forward, contract)


def parameters_given(forward: Intermediates, contract: ResolvedContract) -> dict[str, Any]:
    """Return the parameters by name, [B, Hq, .., ..], and the rotations of operands."""
    problem, tensors = forward.problem, parameters_of(forward.problem).items()
    p = {
        name: given(
            contract,
            tensor,
            term("the formats of parameters", FORMATS[problem.dtype_of(name)], contract.stages.multiplicands.format),
        )
        for name, tensor in tensors
    }
    return p | rotations_of(problem)


@of_forward_pass
@np.errstate(all="ignore")
def pair_error(forward: Intermediates, contract: ResolvedContract, *, shared: bool = True) -> np.ndarray | None:
    """Error of what each pair of operands becomes, [B, Hq, Sq, Sk]; None of their product.

    With the errors of the operands, which are ``shared`` by all that reads them, or without.
    """
    pairs = forward.score.pairs
    if pairs is None:
        return None
    q, k, p = _entering(forward, contract)
    if not shared:
        q, k = (replace(of, error=np.zeros(of.error.shape)) for of in (q, k))
    return pairs.value(RunningErrors(contract), q, k, p).error


@np.errstate(all="ignore")
def largest_argument_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the largest error that the operands of a pair make in a number of their sum, [B, Hq, Sq, Sk]."""
    q, k, _ = _entering(forward, contract)
    of_q, of_k = (x.error.max(axis=-1, initial=0.0) for x in (q, k))
    return of_q[..., :, None] + of_k[..., None, :]


@np.errstate(all="ignore")
def pairs_pulled_back(
    forward: Intermediates, gradient: Approximation
) -> tuple[Approximation, Approximation, dict[str, Approximation]]:
    """Return the gradients of q', k' and parameters per query head, from the gradient of each pair's numbers."""
    pairs, (q, k, p) = forward.score.pairs, _entering(forward, gradient.contract)
    assert pairs is not None
    q, k = (of.changed(finite) for of in (q, k))
    return pairs.pull(RunningErrors(gradient.contract), q, k, p, gradient)


def _entering(
    forward: Intermediates, contract: ResolvedContract
) -> tuple[Approximation, Approximation, dict[str, Any]]:
    """Return the operands with their errors, and the parameters.

    Where both are added first they may be one product, of q and k side by side, whose sums are as long as theirs
    together: each passes the other's roundings too.
    """
    errors, form, D = operand_error(forward, contract), contract.stages.operands.format, forward.problem.head_dim
    assert errors is not None
    G = gamma(*roundings_of_sum(contract, "score_accumulation", D, blocks=math.ceil(D / contract.matrix_block)))
    sides = (forward.q, forward.q_size, errors.E_q), (forward.k, forward.k_size, errors.E_k)
    q, k = (Approximation(value, size, e + G * (size + e), form, contract) for value, size, e in sides)
    return q, k, _given(forward, contract)[2]
