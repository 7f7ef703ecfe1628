"""Validation of a problem, and the messages of checks that fail."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.numbers import bits
from attn_spec.problem.dtypes import refusal
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import SCORE


class ProblemError(ValueError):
    """A problem is not an attention input; the message says which argument is wrong and what it must be."""


def check_dtypes(dtypes: Any) -> None:
    """Raise :class:`ProblemError` unless the tensors of a problem can have these dtypes."""
    if (reason := refusal(dtypes)) is not None:
        raise ProblemError(f"dtypes {reason}")


def check_arrays(p: Any) -> None:
    """Raise :class:`ProblemError` unless q, k and v are exact values of their dtypes and their shapes agree."""
    for name in ("q", "k", "v"):
        array = getattr(p, name)
        if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.ndim != 4:
            raise ProblemError(
                f"{name} must be a 4-dimensional float64 array of exact values, not {bits.described(array)}"
            )
        if not bits.is_representable(array, dtype := p.dtype_of(name)):
            raise ProblemError(f"{name} has values that {dtype} cannot represent; round them with bits.nearest first")
    q, k, v = p.q.shape, p.k.shape, p.v.shape
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        raise ProblemError(f"shapes must be q [B,Hq,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv]; got q {q}, k {k}, v {v}")
    _check_diagonal(p)
    if q[3] == 0 or k[1] == 0 or q[1] % k[1]:
        raise ProblemError(f"Hq must be a multiple of Hkv and D positive; got Hq={q[1]}, Hkv={k[1]}, D={q[3]}")


def _check_diagonal(p: Any) -> None:
    """Raise :class:`ProblemError` unless the diagonal is None or has one int64 for each query."""
    if p.diagonal is None:
        return
    shapes = (p.q.shape[2:3], (p.q.shape[0], p.q.shape[2]))
    if not isinstance(p.diagonal, np.ndarray) or p.diagonal.dtype != np.int64 or p.diagonal.shape not in shapes:
        wanted = f"[Sq] = {shapes[0]} or [B, Sq] = {shapes[1]}"
        raise ProblemError(f"diagonal must be an int64 array {wanted}, not {bits.described(p.diagonal)}")


def _check_projections(p: Any) -> None:
    if not isinstance(p.query_projection, np.ndarray) or p.query_projection.ndim != 4:
        raise ProblemError(
            "query_projection must be a float64 array [1, Hq, A, D], not " + bits.described(p.query_projection)
        )
    for name in ("value_projection", "output_projection"):
        if (tensor := getattr(p, name)) is not None and np.ndim(tensor) != 4:
            raise ProblemError(f"{name} must be a 4-dimensional float64 array, not {bits.described(tensor)}")
    if (p.q.shape[1], p.k.shape[1]) != (1, 1):
        raise ProblemError(
            "q, k and v of a layer must have one head, which query_projection maps to Hq heads; "
            f"got q {p.q.shape}, k {p.k.shape}"
        )


def _check_tie(p: Any) -> None:
    """Raise :class:`ProblemError` unless the values of a problem with ``latent`` are the first columns of its keys."""
    same = bits.identical(p.v, p.k[..., : p.value_dim])
    if not same.all():
        at = tuple(np.argwhere(~same)[0].tolist())
        raise ProblemError(
            f"latent=True says that v is the first Dv = {p.value_dim} columns of k, bit for bit; "
            f"v{list(at)} is {p.v[at]:.9g} and k{list(at)} is {p.k[at]:.9g}: give v=k[..., :{p.value_dim}], or leave "
            "latent out"
        )


def _check_no_products(p: Any) -> None:
    """Raise :class:`ProblemError` unless q and k of a problem with ``states`` are 0."""
    if p.q.any() or p.k.any():
        raise ProblemError("states=True says that q and k are 0, since a state's score is its bias; leave states out")


def check_options(p: Any) -> None:
    """Raise :class:`ProblemError` unless every option has an allowed value and the options can be combined."""
    _check_scores(p)
    if p.query_projection is not None:
        _check_projections(p)
    lengths = p.lengths
    for name, row in OPTIONS.items():
        if (reason := row.refusal(getattr(p, name), lengths, p.dtype_of(name))) is not None:
            raise ProblemError(f"{name} {reason}")
    if p.latent:
        _check_tie(p)
    if p.states:
        _check_no_products(p)


def _check_scores(p: Any) -> None:
    scores = [name for name, row in OPTIONS.items() if row.kind == SCORE and getattr(p, name) is not None]
    for row in filter(lambda row: row.of, OPTIONS.values()):
        given, chosen = getattr(p, row.name) is not None, getattr(p, row.of) is not None
        if given and not chosen:
            raise ProblemError(f"{row.name} is a parameter of {row.of}; give {row.of} too, or leave {row.name} out")
        if chosen and not (given or row.optional):
            raise ProblemError(f"{row.of} needs {row.name} as well")
    if len(scores) > 1:
        raise ProblemError(f"{' and '.join(scores)} exclude each other, since each selects the score; keep one of them")
    used = {name: row for name, row in OPTIONS.items() if row.is_used(getattr(p, name))}
    for name in scores:
        if apart := [other for other, row in used.items() if OPTIONS[name].excludes(row)]:
            factor = any(OPTIONS[other].factor_of for other in apart)
            why = "a factor of its operands is none of the score" if factor else "a layer has one length of queries"
            why = why if OPTIONS[name].exponential else "its weights are no softmax"
            raise ProblemError(f"{name} cannot be combined with {' and '.join(apart)}: {why}; leave one out")
