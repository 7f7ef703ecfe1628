"""A call of a library's function in a test, read as attention: the library's own arguments in attn-spec's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from attn_spec.kernels.calls.call import CallError
from attn_spec.kernels.presentations.appending.append import Append
from attn_spec.kernels.presentations.appending.extend import Extend
from attn_spec.kernels.presentations.states import States
from attn_spec.kernels.signatures.signature import REQUIRED, Signature, SignatureError
from attn_spec.kernels.signatures.table import signature
from attn_spec.nearest_names import suggestion
from attn_spec.problem.conventions import OF_ANSWERS
from attn_spec.problem.options import OPTIONS


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The arguments of a call: tensors and words by attn-spec's names, and the names that the caller gave them."""

    #: Signature of the library's function; None for a call in attn-spec's own words.
    row: Signature | None = None
    #: Tensors q, k and v.
    tensors: Mapping[str, Any]
    #: Options, places of sequences and conventions.
    words: Mapping[str, Any]
    #: Presentation of the call; None leaves it to the words.
    presentation: str | None
    #: Shapes of the tensors of a call that is judged as another one, by the names that the caller gave them.
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def laid(self, quantity: str, x: Any) -> Any:
        """Return an output or log-sum-exp, or its cotangent, in the presentation's axes.

        Raises :class:`CallError` for too few axes.
        """
        if self.row is None or x is None:
            return x
        axes = len(getattr(x, "shape", ()))
        if axes <= max(self.row.swapped.get(quantity, (-1,))) or (self.states and axes != 2 + (quantity == "output")):
            raise CallError(f"{quantity} must have the axes of {self.row.function}, not the shape {tuple(x.shape)}")
        if self.row.joins_heads and quantity == "output":
            heads, width = self._heads
            if axes < 2 or x.shape[-1] != heads * width:
                raise CallError(
                    f"output must have {heads * width} columns here, of {heads} heads, not {tuple(x.shape)}"
                )
            x = x.reshape(*x.shape[:-1], heads, width)
        x = self.row.of_library(quantity, x)
        return self.states.read(quantity, x) if self.states else x

    @property
    def states(self) -> States | None:
        """Presentation of a call that merges states; None for any other call."""
        return self.row.shown if self.row is not None and isinstance(self.row.shown, States) else None

    def place(self, quantity: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index of an element in the caller's tensor of a quantity."""
        if self.row is None:
            return index
        if self.row.joins_heads and quantity == "output":
            *place, head, column = index
            return (*place, head * self._heads[1] + column)
        return self.row.place(quantity, self.states.place(quantity, index) if self.states else index)

    @property
    def _heads(self) -> tuple[int, int]:
        """Number of query heads, and the width of a value."""
        assert self.row is not None
        q, v = self.tensors["q"], self.tensors["v"]
        return int(q.shape[self.row.shown.axes_of("q").index("H")]), int(v.shape[-1])

    def gradients(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return gradients by attn-spec's names, where some have the names of the library's parameters."""
        if self.row is None or not isinstance(found, Mapping):
            return found
        own = {f"d{one.name}": f"d{one.says[0]}" for one in self.row.arguments if len(one.says) == 1}
        return {own.get(name, name): x for name, x in found.items()}

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the caller's own parameters in the text of a :class:`CallError`."""
        try:
            yield
        except CallError as error:
            raise CallError(self.named(str(error))) from error

    def named(self, text: str) -> str:
        """Return a text with the names of the caller's parameters in place of attn-spec's."""
        if self.row is None:
            return text
        told = {own: self.row.keyword(own) for own in (*self.tensors, *self.words)}
        changed = {own: word for own, word in told.items() if own != word}
        if not changed:
            return text
        return re.sub(rf"(?<![\w\[.'])({'|'.join(changed)})(?![\w'])", lambda found: changed[found[1]], text)


def read(name: str, tensors: Mapping[str, Any], words: Mapping[str, Any]) -> Reading:
    """Read a call of a library's function: ``tensors`` q, k and v that were passed by place, all others by name.

    Conventions may stand beside the library's arguments; one that is not named has the value of the signature. Raises
    :class:`CallError`.
    """
    try:
        row = signature(name)
        named = {own: words[own] for own in OF_ANSWERS if own in words and own not in row.named}
        given = {word: x for word, x in words.items() if word not in named}
        found = _read(row, *_by_name(row, given, {own: x for own, x in tensors.items() if x is not None}))
    except SignatureError as error:
        raise CallError(str(error)) from error
    states = row.shown.tensors if isinstance(row.shown, States) else ()
    shapes = {row.keyword(each): tuple(getattr(found.get(each), "shape", ())) for each in states}
    own, found, presentation = _attended(row, found)
    decided = {word: value for word, value in row.conventions.items() if word in OF_ANSWERS}
    corner = row.conventions.get("causal_alignment", "top_left")
    aligned = any(OPTIONS[word].aligned for word in found if word in OPTIONS)
    return Reading(
        row=row,
        tensors=own,
        words={
            **decided,
            **found,
            **({"causal_alignment": corner} if aligned and "causal_alignment" not in found else {}),
            **named,
        },
        presentation=presentation,
        shapes=shapes,
    )


def row_of_call(rows: Sequence[Signature], arguments: Mapping[str, Any]) -> Signature:
    """Return the first of a function's signatures by which a call is read, and the first of all if there is none."""
    for row in rows:
        try:
            found = _read(row, arguments, {})
        except SignatureError:
            continue
        if found.keys() >= set(row.shown.says_where):
            return row
    return rows[0]


def _by_name(
    row: Signature, words: Mapping[str, Any], tensors: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments of a call by the library's names, and q, k and v that none of its parameters is called.

    A parameter k may be something else than the keys of the call, such as keys that are appended to these.
    """
    named = {own: x for own, x in tensors.items() if own in row.named and row.named[own].says != (own,)}
    return {**words, **named}, {own: x for own, x in tensors.items() if own not in named}


def _check_states(shown: States, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise :class:`CallError` unless the tensors of a merge, of these shapes by name, go together."""
    lengths: dict[str, set[int]] = {}
    fits = True
    for shape, own in zip(shapes.values(), shown.tensors, strict=True):
        axes = shown.lses if own.startswith("s") else shown.outputs
        fits = fits and len(shape) == len(axes)
        for axis, length in zip(axes, shape, strict=False):
            lengths.setdefault(axis, set()).add(length)
    if not fits or any(len(found) > 1 for found in lengths.values()):
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        axes = f"outputs [{', '.join(shown.outputs)}] and log-sum-exps [{', '.join(shown.lses)}]"
        raise CallError(f"a merge has {axes} of T tokens, which do not go together here: {told}")


def _attended(row: Signature, found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return q, k and v of a call, its other arguments, and their presentation.

    States that a call merges are read as the problem that they are. New keys and values of a call that appends are
    written to copies of its caches, which may be those before the call or after it. New keys that lie apart from those
    before them are put behind these. Raises :class:`CallError` for a missing tensor.
    """
    shown = row.shown
    given = {each: found.pop(each, None) for each in shown.tensors}
    if isinstance(shown, Append) and given["k_new"] is None and given["v_new"] is None:
        given = {each: x for each, x in given.items() if not each.endswith("_new")}  # a call that appends nothing
    if missing := [row.keyword(each) for each, x in given.items() if x is None]:
        raise CallError(f"a call of the signature {row.name} needs {', '.join(missing)}")
    if isinstance(shown, States):
        _check_states(shown, {row.keyword(each): tuple(x.shape) for each, x in given.items()})
        tensors, options = shown.in_words(*given.values())
        return dict(zip("qkv", tensors, strict=True)), {**found, **options}, "BHSD"
    if isinstance(shown, Extend):
        tensors, found = shown.begun(list(given.values()), found)
        return dict(zip("qkv", tensors, strict=True)), found, "token_pool"
    if not isinstance(shown, Append):
        return given, found, row.presentation
    q, *caches = (given[each] for each in ("q", "k_cache", "v_cache"))
    if len(given) > len(shown.tensors) - 2:
        caches = [x.clone() if hasattr(x, "clone") else x.copy() for x in caches]
        tensors, found = shown.begun([q, *caches, given["k_new"], given["v_new"]], found)
        q, *caches = tensors
    return dict(zip("qkv", (q, *caches), strict=True)), dict(found), row.presentation


def _read(row: Signature, words: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the arguments of a call say, beside tensors passed by place. Raises :class:`SignatureError`."""
    if unknown := [word for word in words if word not in row.named]:
        known = f"; it has {', '.join(row.named)}"
        raise SignatureError(
            f"the signature {row.name} has no parameter {unknown[0]}{suggestion(unknown[0], row.named, known)}"
        )
    found: dict[str, Any] = dict(tensors)
    for word, value in words.items():
        argument = row.named[word]
        for own, x in argument.read(value).items():
            if own in found and own != "window":
                raise SignatureError(f"{word} gives {own} a second time; leave one out")
            found[own] = _both_sides(found.get(own), x) if own == "window" else x
    for name, argument in row.named.items():
        if name not in words and argument.default is not REQUIRED:
            found |= argument.read(argument.default)  # the default of a few parameters says something
    return row.opened(found)


def _both_sides(one: Any, other: Any) -> Any:
    """Return the window with the lengths of two, each of which may have one side."""
    if one is None:
        return other
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))
