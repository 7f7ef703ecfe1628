"""Presentation of a whole call: from a problem to the arguments of a kernel, and from its answer to the problem.

In a presentation without the batch axis, or without batch and head axes, the kernel is called once for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.presentations.layout import Layout
from attn_spec.kernels.presentations.placement import DRAWN_ONCE, Placement
from attn_spec.problem.dtypes import Dtypes, dtype_of
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import DIFFERENTIABLE, OF_KEYS, QUANTITIES

#: Tensors and quantities in the presentation's layout, each with the argument that has its number of heads if heads are
#: joined. All others have their own axes [B, H, ..], without those that the layout lacks.
LAID_OUT = {
    **dict.fromkeys(("q", "output", "dq"), "query_heads"),
    **dict.fromkeys(("k", "v", *OF_KEYS), "kv_heads"),
}

#: Arguments of a call that are no options: tensors, numbers of heads, and where sequences lie.
_NO_OPTIONS = {"q", "k", "v", "query_heads", "kv_heads"}


@dataclass(frozen=True)
class Handed:
    """The arguments of one call, by attn-spec's own names."""

    #: Arrays of q, k, v and the options in use, with the axes that the kernel sees.
    tensors: dict[str, np.ndarray]
    #: Keyword arguments that the presentation adds: numbers, int32 arrays of them, and tables in the dtype of q.
    further: Mapping[str, int | np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """A row of the table of presentations."""

    #: Axes of the tensors that a kernel is given, in words.
    says: str
    #: Layout of q, k, v, the output and their gradients.
    layout: Layout
    #: Options that travel in the arguments of the presentation. They are not passed under names of their own.
    carries: frozenset[str] = frozenset()
    #: Abilities that every call in the presentation asks for.
    asks_for: frozenset[str] = frozenset()
    #: Dtypes of options that differ from those of the inputs unless a kernel declares others.
    option_dtypes: Mapping[str, str] = field(default_factory=dict)
    #: Limits of the problems that a call can say, within which a kernel's own limits are.
    limits: Limits = Limits()  # noqa: RUF009 -- a frozen value

    @property
    def says_where(self) -> tuple[str, ...]:
        """Names of the arguments that say where the sequences of a problem lie."""
        return ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors of a call; see :meth:`holds` for the inputs in each."""
        return ("q", "k", "v")

    @property
    def recognised_by(self) -> tuple[str, ...]:
        """Names of the arguments by which the signature of a callable shows that its calls are these."""
        return self.says_where

    @property
    def passes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the arguments in which an option and its parameters travel if a problem uses it, by this option.

        A kernel that supports such an option takes these arguments in place of the option.
        """
        return {}

    def is_passed(self, option: str) -> bool:
        """Return whether an option travels in arguments of the presentation, and not under a name of its own."""
        return option in self.carries or (OPTIONS[option].of or option) in self.passes

    @property
    def appends(self) -> bool:
        """True if a call writes new keys and values to caches that it is given."""
        return False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of a call that may have gradients, beside options: "d" and a name is a quantity."""
        return ("q", "k", "v")

    @property
    def key_gradients(self) -> tuple[str, ...]:
        """Names of the gradients of keys and values, that of keys first."""
        return tuple(f"d{name}" for name in self.inputs if name != "q")

    @property
    def differentiable(self) -> tuple[str, ...]:
        """Names of the arguments that may have gradients, in the order in which a backward function returns these."""
        return (*self.tensors, *(name for name in DIFFERENTIABLE if name in OPTIONS))

    def input_of(self, name: str) -> str:
        """Return an input that a tensor of a call holds, whose dtype it has."""
        return self.holds(name)[0]

    def dtype(self, tensor: str, dtypes: Dtypes) -> str:
        """Return the dtype of a tensor of a call for a problem of these dtypes."""
        return dtype_of(dtypes, self.input_of(tensor))

    def member(self, name: str, x: Any) -> Any:
        """Return the part of a tensor of a call, or of its gradient, that is the input ``name``."""
        del name
        return x

    def holds(self, tensor: str) -> str:
        """Return the inputs that a tensor of a call holds, each by its letter."""
        return tensor

    def apart(self, *tensors: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        """Return q, k and v from the tensors of a call, whose other arguments are ``arguments``."""
        del arguments
        holding = {name: x for given, x in zip(self.tensors, tensors, strict=True) for name in given}
        q, k, v = (self.member(name, holding[name]) for name in ("q", "k", "v"))
        return q, k, v

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return q, k and v of a call, and its options, after what a call does to its tensors before it attends."""
        return self.apart(*tensors, **options), options

    def promised(
        self,
        tensors: Mapping[str, np.ndarray],
        arguments: Mapping[str, Any],
        contract: ResolvedContract,
        dtypes: Dtypes,
    ) -> dict[str, np.ndarray]:
        """Return the values after a call of the tensors that it must change, by name; it must not change others.

        ``tensors`` are those of the call by name, ``arguments`` say where sequences lie, and ``dtypes`` are those of
        the problem, for which the kernel declares ``contract``.
        """
        del tensors, arguments, contract, dtypes
        return {}

    def as_left(self, problem: Problem, values: Mapping[str, np.ndarray], *, after: bool) -> Problem:
        """Return a problem with tokens as caches with these ``values`` have them, if calls quantise what they append.

        The values are those before the call for the problem, or ``after`` it, and before the first call there are none.
        """
        del values, after
        return problem

    def allowed(
        self, tensors: Mapping[str, np.ndarray], arguments: Mapping[str, Any], contract: ResolvedContract, dtype: str
    ) -> dict[str, np.ndarray]:
        """Return how far each number may be from what is :meth:`promised`, by tensor; those left out must be equal.

        The tensors have ``dtype``, and the kernel declares ``contract`` for it.
        """
        del tensors, arguments, contract, dtype
        return {}

    def contract(self, contract: ResolvedContract, dtype: str) -> ResolvedContract:
        """Return the contract of a kernel that takes rotary positions, for inputs of ``dtype``."""
        del dtype
        return contract

    def told(
        self, name: str, wrong: np.ndarray, now: np.ndarray, must: np.ndarray, handed: Handed, *, dtypes: Dtypes
    ) -> str:
        """Return what is wrong with a tensor after a call, which must have the values ``must`` then.

        ``wrong`` says which of its values ``now`` are; all of them where the shape is another one. ``dtypes`` are
        those of the problem.
        """
        del wrong, now, must, handed, dtypes
        return f"the kernel changed its input {name} in place; it must leave its inputs alone"

    def together(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays by name with those of q, k and v, or of their gradients, as a call has its tensors."""
        return dict(arrays)

    @property
    def calls_once(self) -> bool:
        """True if one call is given a whole problem; else each is given one batch entry or one head."""
        return not self.layout.lacks

    def axes_of(self, tensor: str) -> tuple[str, ...]:
        """Return the axes of q, k or v as a call has them."""
        del tensor
        return self.layout.axes

    def letters(self, name: str) -> str:
        """Return the letters of the axes that a call has of a tensor, a result or an option.

        A joined axis is left out, and so are last axes of one entry.
        """
        if name in OPTIONS:
            return OPTIONS[name].axes[len(self.layout.lacks) :].rstrip("1")
        if name in LAID_OUT:
            return "".join(axis for axis in self.layout.axes if axis != "HD")
        return "".join(axis for axis in "BHS" if axis not in self.layout.lacks)

    def shape_of_option(self, name: str, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape that a call has of an option with all entries along its axes, from their ``lengths``."""
        return OPTIONS[name].shape(lengths)[len(self.layout.lacks) :]

    @property
    def says_heads(self) -> tuple[str, ...]:
        """Arguments by which a call says the numbers of heads, where heads and dimensions are one axis."""
        return ("query_heads", "kv_heads") if self.layout.joins_heads else ()

    @property
    def is_view(self) -> bool:
        """True if the kernel sees the axes of a problem in another order, so that reading a tensor copies nothing."""
        return self.calls_once and not self.layout.joins_heads

    @property
    def of_one_head(self) -> bool:
        """True if each call is given one head of one batch entry."""
        return "H" in self.layout.lacks

    @property
    def has_pages(self) -> bool:
        """True if keys and values lie in pages of a cache."""
        return False

    @property
    def has_page_sizes(self) -> bool:
        """True if keys and values lie in pages that may have several keys."""
        return False

    @property
    def has_tails(self) -> bool:
        """True if a list of pages goes on behind the pages of a sequence."""
        return False

    @property
    def has_unused_rows(self) -> bool:
        """True if the output has places for queries that are not there."""
        return True

    def placed(self, placement: Placement) -> Presentation:
        """Return the presentation with other choices that change no answer; without buffers there are none."""
        del placement
        return self

    def handing(self, *, descales_by_key: bool) -> Presentation:
        """Return the presentation with descales that have a number for each key, or for each sequence, in buffers."""
        del descales_by_key
        return self

    def refusal(self, option: str) -> str:
        """Return why a call cannot pass an option, or what an ability needs; empty if it can."""
        several = option == "gqa" or (option in OPTIONS and OPTIONS[option].projects_values)
        if several and self.of_one_head:
            return "since each call has one query head and one kv head"
        return (
            "since its sequences have as many keys as queries"
            if option == "cross" and self.limits.equal_lengths
            else ""
        )

    def can_say(self, option: str) -> bool:
        """Return whether a call can pass an option, or what an ability needs."""
        return not self.refusal(option)

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        """Return the arguments of a call for one of the :meth:`parts` of a problem.

        Places that hold no query or key of the problem may hold NaN if they are ``unread``, else finite numbers.
        """
        del unread  # every place of these tensors is one of the problem's
        tensors = [name for name, row in OPTIONS.items() if row.tensor is not None]
        given = {name: getattr(problem, name) for name in ("q", "k", "v", *tensors)}
        heads = {"query_heads": problem.query_heads, "kv_heads": problem.kv_heads}
        return Handed(
            {name: self.presented(name, x) for name, x in given.items() if x is not None},
            heads if self.layout.joins_heads else {},
        )

    def shape(self, problem: Problem, name: str) -> tuple[int, ...]:
        """Return the shape in a call for ``problem`` of a tensor or quantity."""
        shape = shape_of(problem, name)
        return self.layout.shape(shape) if name in LAID_OUT else shape[len(self.layout.lacks) :]

    def taken(self, problem: Problem, name: str, x: Any) -> Any:
        """Return a quantity that a call for ``problem`` returned, with the axes [B, H, ..] of the problem."""
        return self._read(name, x, shape_of(problem, name)[1])

    def presented(self, name: str, x: Any, /, **arguments: Any) -> Any:
        """Return a tensor or quantity [B, H, ..] of one call as the kernel sees it.

        The keyword arguments are those of the call, q and k among them, as the kernel sees them.
        """
        del arguments
        return self.layout.laid_out(x) if name in LAID_OUT else self.layout.without_lacking(x)

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        """Return a tensor or quantity that a kernel sees with its axes [B, H, ..]; the inverse of :meth:`presented`.

        The keyword arguments of the call have the number of heads if heads are joined. The tensors of a layer have one
        head, which its projections map to several.
        """
        projects = arguments.get("query_projection") is not None
        return self._read(name, x, 1 if projects else arguments.get(LAID_OUT.get(name, ""), 1))

    def options_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a call, those that it carries among them.

        The arguments are all of the call: its keywords, and q and k as the kernel sees them.
        """
        return {name: x for name, x in arguments.items() if name not in _NO_OPTIONS}

    def _read(self, name: str, x: Any, heads: int) -> Any:
        return self.layout.read(x, heads) if name in LAID_OUT else self.layout.with_lacking(x)

    def place(self, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return where the kernel sees the element at ``index`` [b, h, ..]; the presentation :attr:`is_view`."""
        return self.layout.place(index) if name in LAID_OUT else index

    def index(self, name: str, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index [b, h, ..] of the element at ``place``; the inverse of :meth:`place`."""
        return self.layout.index(place) if name in LAID_OUT else place

    def turned(self, other: Presentation) -> str:
        """Return the expression that makes of ``out`` a tensor of another presentation; both :attr:`is_view`."""
        order = self.layout.places("".join(other.layout.axes))
        moved = [place for place, axis in enumerate(order) if place != axis]
        return f"out.swapaxes{tuple(moved)}" if len(moved) == 2 else f"out with its axes in the order {order}"

    def parts(self, problem: Problem) -> Iterator[Problem]:
        """Yield the problems that a kernel is called for, in the order of batch entries and heads."""
        entries = [None] if self.calls_once else range(problem.batch)
        for entry in entries:
            one = problem if entry is None else problem.take("B", [entry])
            heads = range(problem.kv_heads) if self.of_one_head else [None]
            yield from (one if head is None else one.take("H", [head]) for head in heads)

    def shares(self, name: str, problem: Problem) -> bool:
        """Return whether several calls share an option's tensor, so that its gradient is a sum over these calls."""
        broadcast = [axis for axis in problem.broadcast_axes(name) if axis < len(self.layout.lacks)]
        return not self.calls_once and any(problem.score_shape[axis] > 1 for axis in broadcast)

    def cotangent(
        self, part: Problem, name: str, values: np.ndarray, number: int, *, unread: bool = False
    ) -> np.ndarray:
        """Return the part of the cotangent [B, H, ..] of a quantity that the ``number``-th call, for ``part``, is
        given. ``unread`` is that of :meth:`handed`.
        """
        del part, unread
        if self.of_one_head:
            entry, head = divmod(number, values.shape[1])
            values = values[entry : entry + 1, head : head + 1]
        elif not self.calls_once:
            values = values[number : number + 1]
        return self.presented(name, values)

    def whole(self, problem: Problem, name: str, parts: list[np.ndarray]) -> np.ndarray:
        """Return a quantity of the problem [B, H, ..] from those of the calls for its parts."""
        shape = shape_of(problem, name)
        return np.concatenate(parts).reshape(shape) if parts else np.zeros(shape)

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands the first entry along the named axes of a tensor, see ``memory.expanded``."""
        return partial(memory.expanded, axes=self.layout.places(axes))

    def spreading(self, axes: str) -> list[Callable[[Any], Any]]:
        """Return for each named axis a function that puts its entries far apart, see ``memory.far_apart``."""
        return [partial(memory.far_apart, axis=place) for place in self.layout.places(axes)]


def shape_of(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the shape [B, H, ..] of a tensor or quantity of a problem."""
    forward: dict[str, tuple[int, ...]] = {"output": problem.output_shape, "lse": problem.score_shape[:3]}
    tensor = QUANTITIES[name].gradient_of if name in QUANTITIES else name
    return forward[name] if name in forward else getattr(problem, str(tensor)).shape


@dataclass(frozen=True, kw_only=True)
class Buffers(Presentation):
    """Presentation in which one call is given a whole problem, in buffers that a placement arranges."""

    #: Choices that change no answer.
    placement: Placement = DRAWN_ONCE

    @property
    def calls_once(self) -> bool:
        return True

    @property
    def is_view(self) -> bool:
        return False

    @property
    def of_one_head(self) -> bool:
        return False

    def placed(self, placement: Placement) -> Self:
        """Return the presentation with other choices that change no answer."""
        return replace(self, placement=placement)

    def handing(self, *, descales_by_key: bool) -> Self:
        return self.placed(replace(self.placement, descales_by_key=descales_by_key))
