"""One concrete attention input: q, k, v and every option. Immutable, validated once, exact in JSON."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES
from attn_spec.problem import masks


class ProblemError(ValueError):
    """A problem that is not an attention input; the text says which argument and what it must be."""


class Recipe(Protocol):
    """What generated a problem; its repr is an expression that makes the recipe again."""

    def problem(self) -> Problem: ...


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Problem:
    """Scores are ``scale * q.k -> softcap * tanh(s / softcap) -> + bias -> mask``, then softmax over the keys.

    Arrays hold exact values as float64 (see ``bits``). Query head h reads kv head ``h // (Hq // Hkv)``.
    Raises :class:`ProblemError`.
    """

    #: [B, Hq, Sq, D]
    q: np.ndarray
    #: [B, Hkv, Sk, D]
    k: np.ndarray
    #: [B, Hkv, Sk, Dv]
    v: np.ndarray
    #: The format q, k, v and bias are stored in when a kernel receives them.
    dtype: str = "float32"
    #: Factor on q.k; None is the real number 1/sqrt(D), not its rounding.
    scale: float | None = None
    #: Whether keys after the query are hidden.
    causal: bool = False
    #: Which corner the diagonal of ``causal`` and ``window`` starts from when Sq != Sk.
    causal_alignment: str = "top_left"
    #: (left, right) of the diagonal, both inclusive; None is unbounded.
    window: tuple[int | None, int | None] | None = None
    #: bool, True = attend, broadcastable to [B, Hq, Sq, Sk].
    mask: np.ndarray | None = None
    #: Added after scale and softcap, broadcastable to [B, Hq, Sq, Sk]; -inf hides a key.
    bias: np.ndarray | None = None
    #: c of c * tanh(s / c); None is no cap.
    softcap: float | None = None
    #: Where the problem came from, for a short repr.
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_options(self)
        for name in ("q", "k", "v", "mask", "bias"):
            if (array := getattr(self, name)) is not None:
                array = array.copy()
                array.flags.writeable = False
                object.__setattr__(self, name, array)

    @property
    def batch(self) -> int:
        return self.q.shape[0]

    @property
    def query_heads(self) -> int:
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share one kv head."""
        return self.query_heads // max(self.kv_heads, 1)

    @property
    def query_length(self) -> int:
        return self.q.shape[2]

    @property
    def key_length(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[3]

    @property
    def value_dim(self) -> int:
        return self.v.shape[3]

    @property
    def score_shape(self) -> tuple[int, int, int, int]:
        """[B, Hq, Sq, Sk]."""
        return (self.batch, self.query_heads, self.query_length, self.key_length)

    @property
    def scale_value(self) -> float:
        """The scale rounded to float64."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @cached_property
    def visible(self) -> np.ndarray:
        """bool [B, Hq, Sq, Sk]: which keys each query attends to, all options taken together."""
        mask = masks.everything()
        if self.causal:
            mask &= masks.causal(self.causal_alignment)
        if self.window is not None:
            mask &= masks.window(*self.window, self.causal_alignment)
        dense = np.broadcast_to(mask.dense(self.query_length, self.key_length), self.score_shape)
        if self.mask is not None:
            dense = dense & self.mask
        if self.bias is not None:
            dense = dense & (self.bias > -np.inf)
        return dense

    @property
    def bias_axes(self) -> tuple[int, ...]:
        """Axes along which the bias is broadcast, so that its gradient sums over them; none without a bias."""
        shape = () if self.bias is None else self.bias.shape
        return tuple(axis for axis, length in enumerate(shape) if length == 1)

    @property
    def empty_rows(self) -> np.ndarray:
        """bool [B, Hq, Sq]: queries that attend to no key."""
        return np.logical_not(self.visible.any(axis=-1))

    def options(self) -> frozenset[str]:
        """Names of the options this problem uses, as a kernel declares them."""
        used = {
            "scale": self.scale is not None,
            "causal": self.causal,
            "window": self.window is not None,
            "mask": self.mask is not None,
            "bias": self.bias is not None,
            "softcap": self.softcap is not None,
            "gqa": self.query_heads != self.kv_heads,
            "dv": self.head_dim != self.value_dim,
            "cross": self.query_length != self.key_length,
            "empty": 0 in (self.query_length, self.key_length),
        }
        return frozenset(name for name, present in used.items() if present)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; the copy no longer claims to come from the recipe."""
        return replace(self, **{"recipe": None, **changes})

    def digest(self) -> bytes:
        """Equal for problems that one expression makes: the hash of the recipe, or of every bit of the fields."""
        found = hashlib.blake2b(digest_size=16)
        for name in ["recipe"] if self.recipe is not None else [field.name for field in fields(self)]:
            value = getattr(self, name)
            is_array = isinstance(value, np.ndarray)
            found.update(repr((name, value.shape, value.dtype.str) if is_array else (name, value)).encode())
            if is_array:
                found.update(np.ascontiguousarray(value).data)
        return found.digest()

    def __repr__(self) -> str:
        if self.recipe is not None:
            return f"{self.recipe!r}.problem()"
        shown = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        arguments = [
            f"{name}={_literal(value)}"
            for name, value, default in shown
            if isinstance(value, np.ndarray) or (value != default and name != "recipe")
        ]
        return f"Problem({', '.join(arguments)})"

    def to_json(self) -> dict[str, Any]:
        """A JSON document with every bit of the problem; :meth:`from_json` reads it."""
        document = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "recipe"}
        return {k: bits.encode(v) if isinstance(v, np.ndarray) else v for k, v in document.items()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Raises :class:`ProblemError` for a document that :meth:`to_json` did not write."""
        if not isinstance(document, dict):
            raise ProblemError(f"the problem document must be an object, not {type(document).__name__}")
        known = {field.name for field in fields(cls)} - {"recipe"}
        if unknown := sorted(set(document) - known):
            raise ProblemError(f"the problem document has unknown fields {unknown}; known are {sorted(known)}")
        try:
            values: dict[str, Any] = {k: bits.decode(v) if isinstance(v, dict) else v for k, v in document.items()}
        except Exception as error:
            raise ProblemError(f"the problem document is damaged: {error}") from error
        if isinstance(values.get("window"), list):
            values["window"] = tuple(values["window"])
        try:
            return cls(**values)
        except TypeError as error:
            raise ProblemError(f"the problem document is incomplete: {error}") from error


def _literal(value: Any) -> str:
    """An expression that evaluates to ``value`` exactly, given ``np``."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    if value.dtype != np.bool_ and value.size and not value.any() and not np.signbit(value).any():
        return f"np.zeros({value.shape})"
    flat = ", ".join(repr(x) if np.isfinite(x) else f"np.{x}" for x in value.ravel().tolist())
    kind = ", dtype=bool" if value.dtype == np.bool_ else ""
    return f"np.array([{flat}]{kind}).reshape{value.shape}".replace("np.-inf", "-np.inf")


def _check_arrays(p: Problem) -> None:
    if p.dtype not in DTYPES:
        raise ProblemError(f"dtype must be one of {', '.join(DTYPES)}, not {p.dtype!r}")
    for name in ("q", "k", "v"):
        array = getattr(p, name)
        if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.ndim != 4:
            raise ProblemError(f"{name} must be a 4-dimensional float64 array of exact values, not {_shape(array)}")
        if not bits.is_representable(array, p.dtype):
            raise ProblemError(f"{name} holds values that {p.dtype} cannot; round them with bits.nearest first")
    q, k, v = p.q.shape, p.k.shape, p.v.shape
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        raise ProblemError(f"shapes must be q [B,Hq,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv]; got q {q}, k {k}, v {v}")
    if q[3] == 0 or k[1] == 0 or q[1] % k[1]:
        raise ProblemError(f"Hq must be a multiple of Hkv and D positive; got Hq={q[1]}, Hkv={k[1]}, D={q[3]}")


def _check_options(p: Problem) -> None:
    if p.scale is not None and not (isinstance(p.scale, int | float) and np.isfinite(p.scale)):
        raise ProblemError(f"scale must be a finite number or None, not {p.scale!r}")
    if p.softcap is not None and not (isinstance(p.softcap, int | float) and 0 < p.softcap < np.inf):
        raise ProblemError(f"softcap must be a positive number or None, not {p.softcap!r}")
    if p.causal_alignment not in masks.ALIGNMENTS:
        raise ProblemError(f"causal_alignment must be one of {', '.join(masks.ALIGNMENTS)}, not {p.causal_alignment!r}")
    if p.window is not None and not _is_window(p.window):
        raise ProblemError(f"window must be (left, right), each None or >= 0, not {p.window!r}")
    for name, kind in (("mask", np.bool_), ("bias", np.float64)):
        array = getattr(p, name)
        if array is None:
            continue
        if not isinstance(array, np.ndarray) or array.dtype != kind or not _broadcasts(array.shape, p.score_shape):
            wanted = f"a {np.dtype(kind).name} array broadcastable to [B, Hq, Sq, Sk] = {p.score_shape}"
            raise ProblemError(f"{name} must be {wanted}, not {_shape(array)}")
    if p.bias is not None and (np.isnan(p.bias).any() or (p.bias == np.inf).any()):
        raise ProblemError("bias must not hold NaN or +inf; -inf hides a key")
    if p.bias is not None and not bits.is_representable(p.bias, p.dtype):
        raise ProblemError(f"bias holds values that {p.dtype} cannot; round them with bits.nearest first")


def _is_window(window: Any) -> bool:
    sides = window if isinstance(window, tuple) else ()
    return len(sides) == 2 and all(side is None or (isinstance(side, int) and side >= 0) for side in sides)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return len(shape) == 4 and np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _shape(array: Any) -> str:
    return f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else repr(array)
