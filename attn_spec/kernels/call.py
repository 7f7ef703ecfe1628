"""One call of attention in a test: tensors of any framework, options under the names of any library.

Tensors are not copied as a whole. The judge reads them head by head, so a test of long sequences holds no copy of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_spec.contract.contract import ContractError
from attn_spec.judgement.long.blocks import Part
from attn_spec.judgement.long.engine import EngineError
from attn_spec.judgement.long.row_sample import SampleError
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.frameworks.framework import FrameworkError, values_of
from attn_spec.kernels.presentation import Presentation
from attn_spec.kernels.presentations import PRESENTATIONS
from attn_spec.nearest_names import suggestion
from attn_spec.numbers.formats import DTYPES
from attn_spec.problem.conventions import OF_ANSWERS, ConventionError
from attn_spec.problem.dtypes import INPUTS
from attn_spec.problem.masks import ALIGNMENTS
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import CHOICE, Option
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

#: Parameters of other libraries that ask for nothing here: heads are grouped whenever k has fewer heads than q.
_SAY_NOTHING = ("enable_gqa",)
#: Parameters of other libraries that take a bool mask or a bias, depending on the tensor.
_MASK_OR_BIAS = ("attn_mask",)


class CallError(ValueError):
    """The arguments are no call of attention; the message says which argument is wrong and what it must be."""


@contextlib.contextmanager
def call_errors() -> Iterator[None]:
    """Turn an error about a problem, contract, convention, engine or sample into :class:`CallError`."""
    try:
        yield
    except (ProblemError, ContractError, ConventionError, EngineError, SampleError) as error:
        raise CallError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of attention: tensors as views [B, H, S, D], and options by their own names with the axes of their rows.

    A plain value stands as the row of its option spells it.
    """

    q: Any
    k: Any
    v: Any
    dtype: str
    presentation: Presentation
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layer(self) -> bool:
        """True if the call is a layer, whose projections mix heads so that no head can be judged alone."""
        return "query_projection" in self.options

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output: [B, Hq, Sq, Dv], or [B, 1, Sq, O] for a layer."""
        width = self.v.shape[3]
        if self.layer:
            output = self.options.get("output_projection")
            width = width if output is None else output.shape[2]
        return (*self.q.shape[:3], width)

    @property
    def group_size(self) -> int:
        """Number of query heads per kv head."""
        return int(self.q.shape[1] // self.k.shape[1])

    def head(self, b: int, h: int) -> Problem:
        """Return the problem of one query head, or of one batch entry of a layer."""
        kv = h // self.group_size
        return self._heads(b, slice(h, h + 1), slice(kv, kv + 1))

    def group(self, b: int, kv: int) -> Problem:
        """Return the problem of one kv head with its query heads, or of one batch entry of a layer."""
        return self._heads(b, slice(kv * self.group_size, (kv + 1) * self.group_size), slice(kv, kv + 1))

    def _heads(self, b: int, heads: slice, kv: slice) -> Problem:
        entry = slice(b, b + 1)
        q, k, v = (values_of(x[entry, at]) for x, at in ((self.q, heads), (self.k, kv), (self.v, kv)))
        return self._problem(q, k, v, {"B": entry} if self.layer else {"B": entry, "H": heads})

    def corner(self, count: int) -> Problem:
        """Return the problem of at most ``count`` batch entries and ``count`` kv heads; a layer keeps all heads."""
        entry, kv = slice(0, count), slice(0, count)
        heads = kv if self.layer else slice(0, count * self.group_size)
        q, k, v = (values_of(x[entry, at]) for x, at in ((self.q, heads), (self.k, kv), (self.v, kv)))
        return self._problem(q, k, v, {"B": entry} if self.layer else {"B": entry, "H": heads})

    def whole(self) -> Problem:
        """Return the problem of all batch entries and heads."""
        return self._problem(values_of(self.q), values_of(self.k), values_of(self.v), {})

    def _problem(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, at: Mapping[str, slice]) -> Problem:
        given, dtypes = {}, {INPUTS: self.dtype}
        for name, value in self.options.items():
            row = OPTIONS[name]
            given[name] = value if row.tensor is None else _exact(row, _at(row, value, at))
            if row.tensor is np.float64:
                dtypes[name] = _dtype_of(value)
        return Problem(q=q, k=k, v=v, dtypes=dtypes, **given).cleared()

    def parts(self, answer: Mapping[str, Any]) -> Iterator[Part]:
        """Yield the heads one after the other, each with its part of an ``answer`` in views [B, Hq, Sq, ..]."""
        for b in range(self.q.shape[0]):
            yield from (self.part(answer, b, h) for h in range(self.q.shape[1]))

    def part(self, answer: Mapping[str, Any], b: int, h: int) -> Part:
        """Return one head, with its part of an ``answer`` in views [B, Hq, Sq, ..]."""
        of_head = {name: x[b : b + 1] if self.layer else x[b : b + 1, h : h + 1] for name, x in answer.items()}
        lse = values_of(answer["lse"][b, h]) if "lse" in answer and not self.layer else None
        return Part(
            self.head(b, h), (b, h), lambda rows: {name: values_of(x[:, :, rows]) for name, x in of_head.items()}, lse
        )


def call(q: Any, k: Any, v: Any, *, presentation: str = "BHSD", **words: Any) -> Call:
    """Read a call of attention. ``words`` are options under their own names or those of other libraries.

    A tensor of an option may lack leading axes, as in broadcasting: a mask [Sq, Sk], slopes [Hq]. If lengths differ and
    an option counts from the diagonal, ``causal_alignment`` must be given, and so it must beside lengths of sequences.
    Raises :class:`CallError`.
    """
    # `shape` of a tensor without values may raise an error of its library, so `tensor_of` comes first.
    q, k, v = (tensor_of(name, x) if hasattr(type(x), "shape") else x for name, x in (("q", q), ("k", k), ("v", v)))
    order = _presentation(presentation, {"q": q, "k": k, "v": v})
    q, k, v = (order.read(name, tensor_of(name, x)) for name, x in (("q", q), ("k", k), ("v", v)))
    _check_shapes(q.shape, k.shape, v.shape)
    dtype = _common_dtype(q=q, k=k, v=v)
    options = _options(words, {"B": q.shape[0], "H": q.shape[1], "Q": q.shape[2], "K": k.shape[2]})
    aligned = [name for name in options if OPTIONS[name].aligned]
    has_corners = q.shape[2] != k.shape[2] or any(OPTIONS[name].moves_diagonal for name in options)
    if aligned and has_corners and "causal_alignment" not in words:
        raise CallError(
            f"{aligned[0]} of {q.shape[2]} queries and {k.shape[2]} keys needs causal_alignment=, the corner "
            f"in which the diagonal starts: {' or '.join(map(repr, ALIGNMENTS))}"
        )
    return Call(q=q, k=k, v=v, dtype=dtype, presentation=order, options=options)


def answered(made: Call, **tensors: Any) -> dict[str, Any]:
    """Return the given tensors by name, the output as a view [B, Hq, Sq, Dv], the LSE [B, Hq, Sq]; None is left out.

    Raises :class:`CallError` for another shape.
    """
    found = {name: tensor_of(name, x) for name, x in tensors.items() if x is not None}
    wanted = made.output_shape[:3]
    if "lse" in found and tuple(found["lse"].shape) != wanted:
        raise CallError(f"lse must have the shape {wanted} here, not {tuple(found['lse'].shape)}")
    if "output" in found:
        output = checked(made, "output", found["output"], made.output_shape)
        found["output"] = made.presentation.read("output", output)
    return found


def checked(made: Call, name: str, x: Any, wanted: tuple[int, ...]) -> Any:
    """Return the tensor ``x`` if it has the shape ``wanted`` [B, H, S, D] in the presentation. Raises
    :class:`CallError`.
    """
    shape, own = tuple(x.shape), made.presentation.layout.shape(tuple(wanted))
    if shape != own:
        fitting = [other for other, row in presentations().items() if row.layout.shape(tuple(wanted)) == shape]
        also = f"; that is its shape in the presentation {fitting[0]}" if fitting else ""
        raise CallError(f"{name} must have the shape {own} here, not {shape}{also}")
    return x


def tensor_of(name: str, x: Any) -> Any:
    """Return a tensor of a known framework unchanged, and another DLPack tensor as a PyTorch view of its memory.

    Raises :class:`CallError` for anything else.
    """
    try:
        library = frameworks.of(x)
    except FrameworkError as error:
        if not hasattr(x, "__dlpack__"):
            raise CallError(f"{name}: {error}") from None
        import torch

        return torch.from_dlpack(x)
    if what := library.unreadable(x):
        raise CallError(f"{name} must be a dense tensor with values, not {what}")
    return x


def _presentation(name: str, tensors: Mapping[str, Any]) -> Presentation:
    if name not in presentations():
        raise CallError(f"presentation must be one of {', '.join(presentations())}, not {name!r}")
    for letter, x in tensors.items():
        if len(getattr(x, "shape", ())) != 4:
            kind = f"of shape {tuple(x.shape)}" if hasattr(x, "shape") else repr(type(x).__name__)
            raise CallError(f"{letter} must be a tensor with the axes {name}, not {kind}")
    return PRESENTATIONS[name]


def presentations() -> dict[str, Presentation]:
    """Return the presentations whose tensors are views of [B, H, S, D], by name."""
    return {name: row for name, row in PRESENTATIONS.items() if row.is_view}


def _check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    if q[0] == k[0] and tuple(k[:3]) == tuple(v[:3]) and q[3] == k[3] and k[1] and q[1] % k[1] == 0:
        return
    shapes = ", ".join(f"{name} {tuple(x)}" for name, x in zip("qkv", (q, k, v), strict=True))
    raise CallError(
        "q [B, Hq, Sq, D], k [B, Hkv, Sk, D] and v [B, Hkv, Sk, Dv], Hq a multiple of Hkv, do not go together here: "
        f"{shapes}; if lengths stand before heads, say presentation='BSHD'"
    )


def _common_dtype(**tensors: Any) -> str:
    found = {name: _dtype_of(x) for name, x in tensors.items()}
    if len(set(found.values())) > 1:
        raise CallError(f"q, k and v must have one dtype, not {', '.join(found.values())}")
    if found["q"] not in DTYPES:
        raise CallError(f"q, k and v must be of {', '.join(DTYPES)}, not {found['q']}")
    return found["q"]


def _dtype_of(x: Any) -> str:
    return frameworks.of(x).dtype_of(x)


def dtype_of(name: str, x: Any) -> str:
    """Return the dtype of an answer. Raises :class:`CallError` for a dtype that has no error bound."""
    if (found := _dtype_of(x)) not in DTYPES:
        raise CallError(f"{name} must be of {', '.join(DTYPES)}, not {found}")
    return found


def _options(words: Mapping[str, Any], lengths: Mapping[str, int]) -> dict[str, Any]:
    """Return the options in use by their own names, checked against the axis lengths of the call."""
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for word, value in words.items():
        if word in _SAY_NOTHING:
            continue
        row = _row(word, value)
        if row.name in found:
            raise CallError(f"{word} gives {row.name} a second time; leave one out")
        found[row.name], spelled[row.name] = _value(row, word, value), word
    if (projection := found.get("query_projection")) is not None:
        lengths = {**lengths, "H": projection.shape[1]}
    for name, x in found.items():
        if OPTIONS[name].tensor is not None and x is not None:
            _check_axes(OPTIONS[name], spelled[name], words[spelled[name]], x, lengths)
    return {name: x for name, x in found.items() if OPTIONS[name].kind == CHOICE or OPTIONS[name].is_used(x)}


def _check_axes(row: Option, word: str, given: Any, x: Any, lengths: Mapping[str, int]) -> None:
    """Raise :class:`CallError` unless the batch, head, query and key axes of an option broadcast to the call's axes."""
    shape = tuple(x.shape)
    axes = tuple(zip(row.axes, shape, strict=True))
    if all(length in (1, lengths.get(axis, length)) for axis, length in axes):
        return
    full = tuple(1 if axis == "1" else lengths.get(axis, length) for axis, length in axes)
    also, own = "", tuple(given.shape)
    if own != shape:
        also = f", which is read as {shape}"
        if own and own[0] == lengths["B"] and "B" in row.axes:
            added = ", None" * (4 - len(own))
            also += f"; if its first axis is that of batch entries, pass {word}[:{added}]"
    raise CallError(f"{word} must be broadcastable to [{row.shape_text}] = {full} here, not {own}{also}")


def _row(word: str, value: Any) -> Option:
    """Return the row of the option that a parameter name means. Raises :class:`CallError` for an unknown name."""
    if word in _MASK_OR_BIAS and value is not None and _dtype_of(tensor_of(word, value)) != "bool":
        return OPTIONS["bias"]
    spelled = {spelling: row for row in OPTIONS.values() for spelling in (row.name, *row.spellings)}
    if word not in spelled:
        known = f"; known are {', '.join(OPTIONS)}"
        raise CallError(f"unknown option {word!r}{suggestion(word, (*spelled, *OF_ANSWERS), known)}")
    return spelled[word]


def _value(row: Option, word: str, value: Any) -> Any:
    """Return a plain value as the option's row spells it, or a tensor with four axes. Raises :class:`CallError`."""
    if value is None or (row.tensor is None and value in row.spelled_off):
        return row.off
    if row.tensor is None:
        plain = value.item() if getattr(value, "shape", None) == () else value
        sides = row.name == "window" and isinstance(plain, Iterable)
        return tuple(None if side == -1 else side for side in plain) if sides else plain
    x = tensor_of(word, value)
    own, wanted = _dtype_of(x), np.dtype(row.tensor).name
    if (own == "bool") != (row.tensor is np.bool_) or ("int" in own) != (row.tensor is np.int64):
        also = "; numbers that are added to scores are bias=" if row.name == "mask" else ""
        raise CallError(
            f"{word} must be a tensor of {'numbers' if wanted == 'float64' else wanted}, not of {own}{also}"
        )
    return with_all_axes(row, word, x)


def with_all_axes(row: Option, word: str, x: Any) -> Any:
    """Return the tensor with four axes; missing leading axes get length 1.

    Raises :class:`CallError` for more axes than the option's row has.
    """
    if x.ndim == 4:
        return x
    places = [place for place, axis in enumerate(row.axes) if axis != "1"]
    if x.ndim > len(places):
        raise CallError(f"{word} must have the axes [{row.shape_text}], not the shape {tuple(x.shape)}")
    shape = [1, 1, 1, 1]
    for place, length in zip(places[len(places) - x.ndim :], x.shape, strict=True):
        shape[place] = length
    return x.reshape(tuple(shape))


def _at(row: Option, x: Any, at: Mapping[str, slice]) -> Any:
    """Return the part of an option's tensor that belongs to some heads or to a batch entry."""
    for place, axis in enumerate(row.axes):
        if axis in at and x.shape[place] != 1:
            x = x[(slice(None),) * place + (at[axis],)]
    return x


def _exact(row: Option, x: Any) -> np.ndarray:
    return frameworks.of(x).take(x).astype(row.tensor)
