"""One concrete attention input: q, k, v and every option. Immutable, validated once, exact in JSON."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.dtypes import Dtypes, dtype_of, simplified, spelled, with_dtypes
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.options.option import ADDEND, MASK
from attn_spec.problem.sequences import Sequences
from attn_spec.problem.used_places import used_places
from attn_spec.problem.validation import ProblemError, check_arrays, check_dtypes, check_options


class Recipe(Protocol):
    """Parameters that generate a problem; the repr is an expression that makes the recipe again."""

    def problem(self) -> Problem: ...


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Problem(Sequences):
    """One attention input: scores as :class:`Options` defines them, then softmax over the keys.

    In a layer q, k and v have one head, from which projections make the heads. Arrays hold exact values as float64 (see
    ``bits``). Query head h reads kv head ``h // (Hq // Hkv)``. Raises :class:`ProblemError`.
    """

    #: Dtype in which a kernel receives all tensors, or dtypes by name: ``{"qkv": "float16", "bias": "float32"}``, or
    #: ``{"q": "float32", "kv": "bfloat16"}``.
    dtypes: Dtypes = "float32"
    #: Origin of the problem, for a short repr; None if it is unknown.
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        check_dtypes(self.dtypes)
        object.__setattr__(self, "dtypes", simplified(self.dtypes))
        for name in "qkv":
            if isinstance(getattr(self, name), np.ndarray) and not FORMATS[self.dtype_of(name)].negative_zero:
                object.__setattr__(self, name, getattr(self, name) + 0.0)  # -0.0, as of a negated 0, is 0.0 there
        check_arrays(self)
        check_options(self)
        for name in [field.name for field in fields(self)]:
            if isinstance(array := getattr(self, name), np.ndarray):
                array = array.copy()
                array.flags.writeable = False
                object.__setattr__(self, name, array)

    def dtype_of(self, name: str, other: str | None = None) -> str:
        """Return the dtype of a tensor: that of its name, else ``other``, else the dtype of q."""
        return dtype_of(self.dtypes, name, other)

    @cached_property
    def dtype(self) -> str:
        """Dtype of q, k and v, or theirs as ``problem.dtypes`` spells them, for which a contract is resolved."""
        return spelled(self.dtypes)

    @cached_property
    def visible(self) -> np.ndarray:
        """Visible keys of each query, all options taken together: bool [B, Hq, Sq, Sk]."""
        return self._seen(OPTIONS)

    def _seen(self, names: Iterable[str]) -> np.ndarray:
        """Return the keys that some options leave visible, bool [B, Hq, Sq, Sk]."""
        seen = np.ones(self.score_shape, dtype=bool)
        for row in map(OPTIONS.__getitem__, names):
            if row.sees is not None and row.is_used(getattr(self, row.name)):
                seen &= row.sees(self)
        return seen

    @cached_property
    def has_addends(self) -> bool:
        """True if an option adds to the score of each pair of query and key a number of its own."""
        return any(row.kind == ADDEND and getattr(self, name) is not None for name, row in OPTIONS.items())

    def broadcast_axes(self, name: str) -> tuple[int, ...]:
        """Return the axes along which the tensor of an option is broadcast; empty if the problem has no such tensor."""
        shape = () if getattr(self, name) is None else getattr(self, name).shape
        return tuple(axis for axis, length in enumerate(shape) if length == 1)

    def per_query_head(self, of_kv_heads: np.ndarray) -> np.ndarray:
        """Return k, v or a similar tensor by query head, [B, Hq, ..]. No copy is made if each query head has its own kv
        head.
        """
        return of_kv_heads if self.group == 1 else np.repeat(of_kv_heads, self.group, axis=1)

    def options_by_query_head(self) -> dict[str, np.ndarray]:
        """Return the options that have numbers of their own for kv heads, with axes [B, Hq, ..], by name."""
        tensors = {name: getattr(self, name) for name, row in OPTIONS.items() if row.tensor and row.axes[1] == "G"}
        return {name: self.per_query_head(x) for name, x in tensors.items() if x is not None and x.shape[1] != 1}

    def by_pair(self, name: str) -> np.ndarray:
        """Return the numbers of an option as four axes that broadcast to those of scores, [B, Hq, Sq, Sk].

        A tensor of kv heads is repeated for the query heads of each, and the keys of its third axis go to the last.
        """
        x, axes = np.asarray(getattr(self, name), dtype=np.float64), OPTIONS[name].axes
        if x.ndim == 0:
            return x.reshape(1, 1, 1, 1)
        x = self.per_query_head(x) if axes[1] == "G" and x.shape[1] != 1 else x
        return x.swapaxes(2, 3) if axes[2] == "K" else x

    @property
    def empty_rows(self) -> np.ndarray:
        """Queries, there or not, whose row sum has no term, neither of a key nor of a sink: bool [B, Hq, Sq]."""
        return ~self._sees_keys & ~self.sees_sink

    @property
    def sink_alone(self) -> np.ndarray:
        """Queries that see no key but have a sink, which holds all of the weight: bool [B, Hq, Sq]."""
        return ~self._sees_keys & self.sees_sink

    @property
    def _sees_keys(self) -> np.ndarray:
        return np.any(self.visible, axis=-1)

    @property
    def sees_sink(self) -> np.ndarray:
        """Queries whose row sum has the term of a sink: bool [B, Hq, Sq]."""
        return np.broadcast_to((self.sinks_of_heads[..., 0] > -np.inf) & self.there, self.score_shape[:3])

    @property
    def sinks_of_heads(self) -> np.ndarray:
        """Sink of each query head, -inf where there is none, [1, Hq, 1, 1]."""
        sinks = np.array(-np.inf) if self.sinks is None else self.sinks
        return np.broadcast_to(sinks, (1, self.score_shape[1], 1, 1))

    def without_sinks(self) -> Self:
        """Return the problem without sinks."""
        return self if self.sinks is None else self.replace(sinks=None)

    @property
    def blind_queries(self) -> np.ndarray:
        """Queries that are there and attend to no key, whose answer is a convention: bool [B, Hq, Sq]."""
        return self.empty_rows if self.seqused_q is None else self.empty_rows & self.there

    @property
    def blind_by_bias(self) -> tuple[np.ndarray, np.ndarray]:
        """Queries that attend to no key, but would if no bias were -inf, and those of which another option hides some
        keys: bool [B, Hq, Sq] each.
        """
        blind = self.blind_queries
        if self.bias is None or not blind.any():
            return np.zeros_like(blind), np.zeros_like(blind)
        seen = self._seen(name for name in OPTIONS if name != "bias")
        by_bias = blind & seen.any(axis=-1)
        return by_bias, by_bias & ~seen.all(axis=-1)

    @property
    def empty_output_rows(self) -> np.ndarray:
        """Rows of the output that see no key: bool [B, Hq, Sq].

        For a layer: bool [B, 1, Sq], rows in which no head sees a key.
        """
        return np.all(self.empty_rows, axis=1, keepdims=True) if self.projects else self.empty_rows

    def options(self) -> frozenset[str]:
        """Return the names of the options and abilities that this problem uses, as a kernel declares them."""
        asked = {name for name, row in OPTIONS.items() if row.is_used(getattr(self, name))}
        return frozenset(asked | {name for name, row in ABILITIES.items() if row.is_used(self)})

    def take(self, axis: str, index: Sequence[int] | np.ndarray) -> Self:
        """Return the problem of some batch entries ("B"), kv heads with their groups ("H"), queries ("Q") or keys
        ("K").

        ``index`` picks them, in any order; every tensor that has the axis follows. For a layer "H" picks heads, all of
        which read the same q, k and v. Options that depend on a position are left unchanged. Lengths become the number
        of picked places that were counted. The caller must know whether these options still mean the same.
        """
        index = np.asarray(index, dtype=np.intp)
        moved = {}
        if self.diagonal is not None and axis == "Q":
            moved["diagonal"] = self.diagonal[..., index]
        elif self.diagonal is not None and axis == "B" and self.diagonal.ndim > 1:
            moved["diagonal"] = self.diagonal[index]
        grouped = axis == "H" and not self.projects
        places = (index[:, None] * self.group + np.arange(self.group)).ravel() if grouped else index
        return self._taken(axis, index, places, **moved)

    def head(self, number: int) -> Self:
        """Return the problem of one query head and of the kv head that it reads; not for a layer, whose heads have no
        own q.
        """
        return self._taken("H", np.array([number // self.group]), np.array([number]))

    def of_groups(self, size: int) -> Self:
        """Return the problem of the first ``size`` query heads of each kv head; not for a layer."""
        places = np.arange(self.kv_heads)[:, None] * self.group + np.arange(size)
        return self._taken("H", np.arange(self.kv_heads), places.ravel())

    def _taken(self, axis: str, index: np.ndarray, places: np.ndarray, **changes: Any) -> Self:
        """Return parts along an axis: ``index`` picks from k and v, ``places`` from tensors with the axis of queries or
        heads.
        """
        at, shared = "BHQK".index(axis), axis == "H" and self.projects
        kv = "kv" if axis in "BHK" and not shared else ""
        changes |= {name: np.take(getattr(self, name), index, "BHK".index(axis)) for name in kv}
        if axis in "BHQ" and not shared:
            changes["q"] = np.take(self.q, places, at)
        own = {axis: places, "G": np.array([0]) if shared else index} if axis == "H" else {axis: places}
        for name, row in OPTIONS.items():
            tensor = getattr(self, name) if row.tensor else None
            along = next((letter for letter in own if letter in row.axes), "")
            place = row.axes.find(along) if along else 0
            if tensor is not None and along and tensor.shape[place] != 1:
                changes[name] = np.take(tensor, own[along], place)
            elif tensor is not None and row.up_to == axis:
                changes[name] = (index < tensor).sum(axis=-1, keepdims=True)
        return self._of_parts(changes)

    def _of_parts(self, parts: dict[str, np.ndarray]) -> Self:
        """Return a copy in which parts replace some tensors, without validation; the copy shares the other tensors."""
        made = object.__new__(type(self))
        for name in [field.name for field in fields(self)]:
            object.__setattr__(made, name, parts.get(name, getattr(self, name)))
        for part in parts.values():
            part.flags.writeable = False
        object.__setattr__(made, "recipe", None)
        return made

    def cleared(self) -> Self:
        """Return the same problem with 0 in q, k and v where no query or key is: its answer is the same."""
        if not self.has_lengths:
            return self
        inputs = {name: getattr(self, name) for name in "qkv"}
        return self.replace(**{n: np.where(used_places(self, n, x.shape), x, 0.0) for n, x in inputs.items()})

    def sequence(self, entry: int) -> Self:
        """Return the problem of one batch entry with the queries and keys that it has, without lengths.

        Positions of ``rotary`` that are counted start behind the padding on the left there. With ``rotary_from_tables``
        they stay what they are, since rounded cosines and sines do not depend on distances alone.
        """
        one = self.take("B", [entry])
        if not one.has_lengths:
            return one
        first = int(one.first_keys[0])
        cut = one.take("Q", range(int(one.used_queries[0]))).take("K", range(first, int(one.end_keys[0])))
        changes: dict[str, Any] = {name: row.off for name, row in OPTIONS.items() if row.moves_diagonal}
        if cut.diagonal is not None:
            changes["diagonal"] = cut.diagonal - first
        if cut.rotary_from_tables and first:
            if cut.rotary_key_positions is None:
                changes["rotary_key_positions"] = np.arange(first, first + cut.key_length).reshape(1, 1, 1, -1)
            if cut.rotary_query_positions is None:
                rows = one.aligned_keys[..., : cut.query_length]
                changes["rotary_query_positions"] = rows.reshape(1, 1, -1, 1).astype(np.int64)
        return cut.replace(**changes)

    def rows(self, index: Sequence[int] | np.ndarray) -> Self:
        """Return the problem of some queries with all keys; its answer is those rows of this problem's answer.

        ``index`` picks the queries, in any order. The ``diagonal`` of the result keeps the alignment of each query,
        which :meth:`take` does not. Raises :class:`ProblemError` if a query that is not there is picked before one that
        is, since lengths count the first queries.
        """
        index = np.asarray(index, dtype=np.intp)
        there = self.there[..., index]
        if (there[..., 1:] & ~there[..., :-1]).any():
            raise ProblemError("rows that are there must be picked before rows behind their length, seqused_q")
        return self._taken("Q", index, index, diagonal=self.aligned_keys[..., index])

    def merged(self, into: str) -> Self:
        """Return the same attention with every masking option written into one tensor, "mask" or "bias".

        In a bias -inf masks a key. A problem that masks nothing, or only by that tensor, is returned unchanged. Lengths
        of sequences stay beside the tensor if another option counts from the diagonal that they move, or adds to the
        row sum of each query that is there.
        """
        hiding = [name for name, row in OPTIONS.items() if row.kind == MASK and row.is_used(getattr(self, name))]
        if not set(hiding) - {into}:
            return self
        seen = functools.reduce(np.logical_and, (OPTIONS[name].sees(self) for name in hiding))  # type: ignore[misc]
        seen = seen.reshape((1,) * (4 - seen.ndim) + seen.shape)
        own = {row.name for name in hiding for row in (OPTIONS[name], *parameters(name))}
        others = [row for name, row in OPTIONS.items() if name not in own and row.is_used(getattr(self, name))]
        stay = any(row.adds_to_row_sum or row.positional for row in others)
        gone = [name for name in hiding if not (stay and OPTIONS[name].moves_diagonal)]
        changes: dict[str, Any] = {row.name: row.off for name in gone for row in (OPTIONS[name], *parameters(name))}
        if into == "mask":
            return self.replace(**{**changes, "mask": seen})
        bias = 0.0 if self.bias is None else self.bias
        return self.replace(**{**changes, "bias": np.where(seen, bias, -np.inf)})

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; the recipe of the copy is None."""
        return replace(self, **{"recipe": None, **changes})

    def with_inputs(self, **inputs: np.ndarray) -> Self:
        """Return a copy with other numbers in q, k or v, by name.

        Under ``latent`` v becomes the first columns of the given k. If v is given without k, these columns of k become
        the given v. Under ``states`` q and k stay 0.
        """
        if self.states:
            inputs |= {name: np.zeros_like(x) for name, x in inputs.items() if name != "v"}
        if self.latent and "k" in inputs:
            inputs["v"] = inputs["k"][..., : self.value_dim]
        elif self.latent and "v" in inputs:
            inputs["k"] = np.concatenate([inputs["v"], self.k[..., self.value_dim :]], axis=-1)
        return self.replace(**inputs)

    def digest(self) -> bytes:
        """Return a hash of the recipe, or of every bit of the fields if there is no recipe."""
        return self.digest_of_bits() if self.recipe is None else self._hashed(["recipe"])

    def digest_of_bits(self) -> bytes:
        """Return a hash of every bit of the fields: equal problems have equal hashes, with or without a recipe."""
        return self._hashed([field.name for field in fields(self) if field.name != "recipe"])

    @property
    def entries(self) -> int:
        """Number of elements of all tensors."""
        return sum(x.size for field in fields(self) if isinstance(x := getattr(self, field.name), np.ndarray))

    def _hashed(self, names: Sequence[str]) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        for name in names:
            value = getattr(self, name)
            is_array = isinstance(value, np.ndarray)
            found.update(repr((name, value.shape, value.dtype.str) if is_array else (name, value)).encode())
            if is_array:
                found.update(np.ascontiguousarray(value).data)
        return found.digest()

    def __repr__(self) -> str:
        if self.recipe is not None:
            return f"{self.recipe!r}.problem()"
        ordered = sorted(fields(self), key=lambda field: field.name in OPTIONS)
        shown = [(field.name, getattr(self, field.name), field.default) for field in ordered]
        arguments = [
            f"{name}={_literal(value)}"
            for name, value, default in shown
            if isinstance(value, np.ndarray) or (value != default and name != "recipe")
        ]
        return f"Problem({', '.join(arguments)})"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document with every bit of the problem; :meth:`from_json` reads it."""
        document = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "recipe"}
        return {k: bits.encode(v) if isinstance(v, np.ndarray) else v for k, v in document.items()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return the problem of a document that :meth:`to_json` wrote. Raises :class:`ProblemError` for another
        document.
        """
        if not isinstance(document, dict):
            raise ProblemError(f"the problem document must be an object, not {type(document).__name__}")
        document = with_dtypes(document)
        known = {field.name for field in fields(cls)} - {"recipe"}
        if unknown := sorted(set(document) - known):
            raise ProblemError(f"the problem document has unknown fields {unknown}; known are {sorted(known)}")
        try:
            values: dict[str, Any] = {k: bits.decode(v) if isinstance(v, dict) else v for k, v in document.items()}
        except Exception as error:
            raise ProblemError(f"the problem document is damaged: {error}") from error
        try:
            return cls(**bits.with_tuples(values))
        except TypeError as error:
            raise ProblemError(f"the problem document is incomplete: {error}") from error


def _literal(value: Any) -> str:
    """Return an expression that evaluates to ``value`` exactly, given ``np``."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    if value.dtype == np.float64 and value.size and not value.any() and not np.signbit(value).any():
        return f"np.zeros({value.shape})"
    flat = ", ".join(repr(x) if np.isfinite(x) else f"np.{x}" for x in value.ravel().tolist())
    kind = {"bool": ", dtype=bool", "int64": ", dtype=np.int64"}.get(value.dtype.name, "")
    return f"np.array([{flat}]{kind}).reshape{value.shape}".replace("np.-inf", "-np.inf")
