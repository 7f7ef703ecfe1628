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
from attn_spec.judgement.long.blocks import Part, heads_of_few
from attn_spec.judgement.long.engine import EngineError
from attn_spec.judgement.long.row_sample import SampleError
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.frameworks.framework import FrameworkError, values_of
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.nearest_names import suggestion
from attn_spec.numbers.formats import DTYPES, INPUT_DTYPES, OUTPUT_DTYPES
from attn_spec.problem.conventions import OF_ANSWERS, ConventionError, Conventions
from attn_spec.problem.dtypes import spelled, with_options
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
    def batch(self) -> int:
        """Number of batch entries."""
        return int(self.q.shape[0])

    @property
    def query_heads(self) -> int:
        """Number of query heads, 1 for a layer."""
        return int(self.q.shape[1])

    @property
    def kv_heads(self) -> int:
        """Number of kv heads, 1 for a layer."""
        return int(self.k.shape[1])

    @property
    def layer(self) -> bool:
        """True if the call is a layer, whose projections mix heads so that no head can be judged alone."""
        return "query_projection" in self.options

    @property
    def output_width(self) -> int:
        """Width Dv of the output, or O of a layer."""
        output = self.options.get("output_projection") if self.layer else None
        return int(self.v.shape[-1] if output is None else output.shape[2])

    @property
    def group_size(self) -> int:
        """Number of query heads per kv head."""
        return self.query_heads // self.kv_heads

    def shape(self, quantity: str) -> tuple[int, ...]:
        """Return the shape in the test's tensors of q, k, v, the output, the LSE, or a gradient of q, k or v."""
        own = {
            "output": (*self.q.shape[:3], self.output_width),
            "lse": tuple(self.q.shape[:3]),
            **{name: tuple(getattr(self, name[-1]).shape) for name in ("q", "k", "v", "dq", "dk", "dv")},
            "dkv": tuple(self.k.shape),
        }
        return own[quantity] if quantity == "lse" else self.presentation.layout.shape(own[quantity])

    def read(self, quantity: str, x: Any) -> Any:
        """Return a tensor of the test as :meth:`numbers` takes it: a view [B, H, S, ..]."""
        return self.presentation.read(quantity, x)

    def numbers(
        self, quantity: str, x: Any, entries: range, heads: slice, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Return exact values [entries, heads, S, ..] of q, k, v or a quantity, at all rows or at some.

        Those of an output are the real numbers that it stands for, times ``o_scale``.
        """
        part = frameworks.of(x).indexable(x)[_slice(entries), heads]
        return self.real(quantity, values_of(part if rows is None else part[:, :, rows]))

    def real(self, quantity: str, values: np.ndarray) -> np.ndarray:
        """Return the real numbers that stored values of a quantity stand for."""
        d = self.options.get("o_scale") if quantity == "output" else None
        return values if d is None else values * _exact(OPTIONS["o_scale"], d).item()

    def all_numbers(self, quantity: str, x: Any) -> np.ndarray:
        """Return exact values [B, H, S, ..] of all batch entries, of q, k, v or a quantity."""
        return self.real(quantity, values_of(x))

    def place(self, quantity: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in a tensor of the test of the element at ``index`` [b, h, ..]."""
        return self.presentation.place(quantity, index)

    def index(self, quantity: str, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index [b, h, ..] of an element; the inverse of :meth:`place`."""
        return self.presentation.index(quantity, place)

    @property
    def option_dtypes(self) -> dict[str, str]:
        """Dtypes of the options that are tensors of numbers, by option."""
        return {name: _dtype_of(x) for name, x in self.options.items() if OPTIONS[name].tensor is np.float64}

    @property
    def described(self) -> list[str]:
        """Lines about the call for a failure message, beside shapes and options."""
        return []

    def check_conventions(self, conventions: Conventions) -> None:
        """Raise :class:`CallError` for a convention that decides nothing of the call."""

    def check_gradients(self, names: Iterable[str]) -> None:
        """Raise :class:`CallError` if the call's gradients of these names are none of its sequences' own."""

    def head(self, b: int, h: int) -> Problem:
        """Return the problem of one query head, or of one batch entry of a layer."""
        kv = h // self.group_size
        return self._heads(range(b, b + 1), slice(h, h + 1), slice(kv, kv + 1))

    def group(self, b: int, kv: int) -> Problem:
        """Return the problem of one kv head with its query heads, or of one batch entry of a layer."""
        return self.groups(range(b, b + 1), range(kv, kv + 1))

    def groups(self, entries: range, kv_heads: range) -> Problem:
        """Return the problem of some batch entries and kv heads, with the query heads of these."""
        return self._heads(entries, self.of_groups(kv_heads), _slice(kv_heads))

    def of_groups(self, kv_heads: range) -> slice:
        """Return the query heads of some kv heads."""
        return slice(kv_heads.start * self.group_size, kv_heads.stop * self.group_size)

    def _heads(self, entries: range, heads: slice, kv: slice) -> Problem:
        own = {"q": heads, "k": kv, "v": kv}
        q, k, v = (self.numbers(name, getattr(self, name), entries, at) for name, at in own.items())
        entry = _slice(entries)
        return self._problem(q, k, v, {"B": entry} if self.layer else {"B": entry, "H": heads, "G": kv})

    def corner(self, count: int) -> Problem:
        """Return the problem of at most ``count`` batch entries and ``count`` kv heads; a layer keeps all heads."""
        entry, kv = slice(0, count), slice(0, count)
        heads = kv if self.layer else slice(0, count * self.group_size)
        q, k, v = (values_of(x[entry, at]) for x, at in ((self.q, heads), (self.k, kv), (self.v, kv)))
        return self._problem(q, k, v, {"B": entry} if self.layer else {"B": entry, "H": heads, "G": kv})

    def whole(self) -> Problem:
        """Return the problem of all batch entries and heads."""
        return self._problem(values_of(self.q), values_of(self.k), values_of(self.v), {})

    def _problem(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, at: Mapping[str, slice], **further: np.ndarray
    ) -> Problem:
        """Return a problem with the options of the call, and with ``further`` options."""
        given: dict[str, Any] = dict(further)
        for name, value in self.options.items():
            row = OPTIONS[name]
            given[name] = value if row.tensor is None else _exact(row, _at(row, value, at))
        return Problem(q=q, k=k, v=v, dtypes=with_options(self.dtype, self.option_dtypes), **given).cleared()

    def equal_lengths(self) -> list[range]:
        """Return batch entries whose numbers of queries and of keys are equal, consecutive ones together."""
        return [range(self.batch)]

    def heads_together(self, entries: range) -> list[tuple[range, range]]:
        """Return entries and kv heads that are judged together; none if single ones have scores enough.

        ``entries`` have equal lengths. Nor are heads of a layer judged together, or those of a call with lengths of
        queries among its options.
        """
        if self.layer or any(OPTIONS[name].up_to == "Q" for name in self.options):
            return []
        queries, keys = self.lengths_of(entries[0])
        width = max(int(self.q.shape[-1]), int(self.v.shape[-1]))
        found = heads_of_few(len(entries), self.kv_heads, rows=self.group_size * queries, keys=keys, width=width)
        return [(entries[some.start : some.stop], kv_heads) for some, kv_heads in found]

    def divided(self, *, together: bool) -> Iterator[tuple[range, list[tuple[range, range]]]]:
        """Yield batch entries of equal lengths, and what of them is judged ``together``: nothing, or all, as parts."""
        for entries in self.equal_lengths():
            yield entries, self.heads_together(entries) if together and entries else []

    def lengths_of(self, b: int) -> tuple[int, int]:
        """Return the number of queries and the number of keys of a batch entry."""
        del b
        return int(self.q.shape[2]), int(self.k.shape[2])

    @property
    def longest(self) -> tuple[int, int]:
        """Largest numbers of queries and of keys of a batch entry."""
        return self.lengths_of(0)

    def parts(self, answer: Mapping[str, Any], *, together: bool = False) -> Iterator[Part]:
        """Yield the heads one after the other, each with its part of an ``answer`` that :func:`answered` returned.

        With ``together``, for a judgement of all rows, heads of few scores are one part.
        """
        for entries, few in self.divided(together=together):
            yield from (self._several(answer, *each) for each in few)
            if not few:
                yield from (self.part(answer, b, h) for b in entries for h in range(self.query_heads))

    def _several(self, answer: Mapping[str, Any], entries: range, kv_heads: range) -> Part:
        heads = self.of_groups(kv_heads)
        return Part(
            self.groups(entries, kv_heads),
            (entries.start, heads.start),
            lambda rows: {name: self.numbers(name, x, entries, heads, rows) for name, x in answer.items()},
        )

    def part(self, answer: Mapping[str, Any], b: int, h: int) -> Part:
        """Return one head, with its part of an ``answer`` that :func:`answered` returned."""
        entry, heads = range(b, b + 1), slice(None) if self.layer else slice(h, h + 1)
        lse = self.numbers("lse", answer["lse"], entry, heads)[0, 0] if "lse" in answer and not self.layer else None
        return Part(
            self.head(b, h),
            (b, h),
            lambda rows: {name: self.numbers(name, x, entry, heads, rows) for name, x in answer.items()},
            lse,
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
    dtype, heads = spelled_dtype(q=q, k=k, v=v), {"H": q.shape[1], "G": k.shape[1]}
    options = options_of(words, {"B": q.shape[0], **heads, "Q": q.shape[2], "K": k.shape[2]})
    check_corners(options, words, q.shape[2], k.shape[2])
    return Call(q=q, k=k, v=v, dtype=dtype, presentation=order, options=options)


def check_corners(options: Mapping[str, Any], words: Mapping[str, Any], queries: int, keys: int) -> None:
    """Raise :class:`CallError` if an option counts from a diagonal whose corner follows from no word of the call."""
    aligned = [name for name in options if OPTIONS[name].aligned]
    has_corners = queries != keys or any(OPTIONS[name].moves_diagonal for name in options)
    if aligned and has_corners and "causal_alignment" not in words:
        raise CallError(
            f"{aligned[0]} of {queries} queries and {keys} keys needs causal_alignment=, the corner "
            f"in which the diagonal starts: {' or '.join(map(repr, ALIGNMENTS))}"
        )


def answered(made: Call, **tensors: Any) -> dict[str, Any]:
    """Return the given tensors of an answer by name, "output" and "lse", as the call reads them; None is left out.

    Raises :class:`CallError` for another shape.
    """
    found = {name: tensor_of(name, x) for name, x in tensors.items() if x is not None}
    return {name: checked(made, name, x, name) for name, x in found.items()}


def checked(made: Call, name: str, x: Any, quantity: str) -> Any:
    """Return the tensor ``x`` of a quantity as the call reads it; messages say ``name``. Raises :class:`CallError` for
    another shape.
    """
    shape, own = tuple(x.shape), made.shape(quantity)
    if shape != own:
        fitting = [other for other in _orders(made, quantity) if other[1] == shape]
        also = f"; that is its shape {fitting[0][0]}" if fitting else ""
        raise CallError(f"{name} must have the shape {own} here, not {shape}{also}")
    return made.read(quantity, x)


def _orders(made: Call, quantity: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield other orders of the axes of a quantity, in words, each with the shape in it."""
    if quantity == "lse":
        *first, heads, rows = made.shape("lse")
        yield "with its last two axes swapped", (*first, rows, heads)
    elif made.presentation.is_view:
        axes = made.presentation.index(quantity, made.shape(quantity))
        for name, row in presentations().items():
            yield f"in the presentation {name}", row.layout.shape(axes)


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
        known = [other for other, row in PRESENTATIONS.items() if row.is_view or row.says_where]
        raise CallError(f"presentation must be one of {', '.join(known)}, not {name!r}")
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


def spelled_dtype(**tensors: Any) -> str:
    """Return the dtypes of q, k and v as ``problem.dtypes`` spells them.

    Raises :class:`CallError` for a dtype that has no error bound.
    """
    found = {name: _dtype_of(x) for name, x in tensors.items()}
    if unknown := [dtype for dtype in found.values() if dtype not in INPUT_DTYPES]:
        raise CallError(f"q, k and v must be of {', '.join(INPUT_DTYPES)}, not {unknown[0]}")
    return spelled(found)


def _dtype_of(x: Any) -> str:
    return frameworks.of(x).dtype_of(x)


def holds_integers(x: Any) -> bool:
    """Return whether a tensor holds integers."""
    return "int" in _dtype_of(x)


def dtype_of(name: str, x: Any) -> str:
    """Return the dtype of an answer. Raises :class:`CallError` for a dtype that has no error bound."""
    known = OUTPUT_DTYPES if name == "output" else DTYPES
    if (found := _dtype_of(x)) not in known:
        raise CallError(f"{name} must be of {', '.join(known)}, not {found}")
    return found


def options_of(words: Mapping[str, Any], lengths: Mapping[str, int]) -> dict[str, Any]:
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

    Raises :class:`CallError` for more axes than the option's row has, and for a factor of keys with some axes alone.
    """
    if x.ndim == 4:
        return x
    if row.factor_of and x.ndim and "K" in row.axes:  # one axis may be that of heads or of keys
        raise CallError(f"{word} must be a number or have the axes [{row.shape_text}], not the shape {tuple(x.shape)}")
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


def _slice(of: range) -> slice:
    return slice(of.start, of.stop)


def _exact(row: Option, x: Any) -> np.ndarray:
    return frameworks.of(x).take(x).astype(row.tensor)
