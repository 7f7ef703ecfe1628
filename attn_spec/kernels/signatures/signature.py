"""The record of a signature: a row for each function of a library, with all that its callers must know."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.presentations.table import presented
from attn_spec.nearest_names import suggestion

#: Default of a parameter that has none.
REQUIRED = inspect.Parameter.empty


class SignatureError(ValueError):
    """A signature that does not exist, or arguments that no call of it has; the message says what to do next."""


class Given(dict[str, Any]):
    """Values of one call, by attn-spec's names: tensors, options in use, places of sequences, abilities asked for."""

    def __init__(self, shown: Presentation, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.shown = shown

    def length(self, tensor: str, axis: str) -> int:
        """Return the length of an axis of q or k, "B", "H" or "D", as the call has it."""
        return int(self[tensor].shape[self.shown.axes_of(tensor).index(axis)])

    @property
    def query_heads(self) -> int:
        """Number of query heads."""
        return int(self["query_heads"]) if "query_heads" in self else self.length("q", "H")

    @property
    def kv_heads(self) -> int:
        """Number of kv heads."""
        return int(self["kv_heads"]) if "kv_heads" in self else self.length("k", "H")

    @property
    def scale(self) -> float:
        """Factor of the scores: the given one, or 1 / sqrt(D)."""
        return self["scale"] if "scale" in self else self.length("q", "D") ** -0.5


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One parameter of a function of a library."""

    #: Name of the parameter.
    name: str
    #: Names, by attn-spec, of the tensors, options, arguments of a presentation and abilities that the parameter says.
    #: Empty for one that changes no answer, or whose other values attn-spec does not judge.
    says: tuple[str, ...] = ()
    #: Default of the library's function.
    default: Any = REQUIRED
    #: Function that returns the parameter's value in a call.
    spell: Callable[[Given], Any]
    #: Function that returns what a value says, by attn-spec's names.
    read: Callable[[Any], Mapping[str, Any]]
    #: Description of the values, where they are not written in attn-spec's own way.
    means: str = ""
    #: Method whose parameter it is, in a signature of methods.
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact of a signature beside its parameters, and where it can be read."""

    says: str
    source: str


def _first_and_second(result: Any, passed: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the output, and the second result if there are several."""
    del passed
    return (result[0], result[1]) if isinstance(result, tuple | list) else (result, None)


def _as_they_are(found: dict[str, Any]) -> dict[str, Any]:
    return found


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A row of the table of signatures: one function of a library."""

    #: Name of the row.
    name: str = ""
    #: The function, or the class of a wrapper, as Python imports it.
    function: str
    #: Methods of a wrapper, in the order in which a call calls them; empty for a function.
    methods: tuple[str, ...] = ()
    #: Framework of its tensors.
    framework: str
    #: Presentation of a call.
    presentation: str
    #: Parameters, in the function's order.
    arguments: tuple[Argument, ...]
    #: Conventions that differ from the defaults.
    conventions: Mapping[str, Any] = field(default_factory=dict)
    #: Limits of what a call can say.
    limits: Limits = Limits()  # noqa: RUF009 -- a frozen value
    #: Input dtypes that the library takes.
    dtypes: tuple[str, ...]
    #: Dtypes of option tensors that differ from the inputs' dtype.
    option_dtypes: Mapping[str, str] = field(default_factory=dict)
    #: Dtypes of the integers that say where sequences lie, where they are not int32.
    index_dtypes: Mapping[str, str] = field(default_factory=dict)
    #: Function that returns the output and the log-sum-exp, or None, from the result and the arguments of a call.
    answer: Callable[[Any, Mapping[str, Any]], tuple[Any, Any]] = _first_and_second
    #: True if every call returns the log-sum-exp, though no parameter asks for it.
    always_lse: bool = False
    #: Abilities that no call has, such as "dv" where values must be as wide as keys, though none is refused.
    lacks: frozenset[str] = frozenset()
    #: Abilities that every call asks for, beside those of its presentation.
    asks_for: frozenset[str] = frozenset()
    #: Two axes that are swapped in the library's output ("output") or log-sum-exp ("lse") beside the presentation.
    swapped: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: True if heads and dimensions are one axis of the library's output, behind the presentation's others.
    joins_heads: bool = False
    #: True if the function takes further keyword arguments, none of which changes an answer. A model passes them on.
    ignores_others: bool = False
    #: Function from what all arguments of a call say to the same with the presentation's axes. It raises
    #: :class:`SignatureError`.
    opened: Callable[[dict[str, Any]], dict[str, Any]] = _as_they_are
    #: Further facts.
    facts: tuple[Fact, ...] = ()
    #: File or document that states the names and defaults of the parameters.
    source: str

    @cached_property
    def shown(self) -> Presentation:
        """Presentation of a call."""
        return presented(self.presentation, self.conventions.get("lse_base", "e"))

    @cached_property
    def named(self) -> dict[str, Argument]:
        """Parameters by name."""
        return {argument.name: argument for argument in self.arguments}

    @property
    def returns_lse(self) -> bool:
        """True if a call can return the log-sum-exp."""
        return self.always_lse or any("lse" in one.says for one in self.arguments)

    def keyword(self, own: str) -> str:
        """Return the name of the parameter that says what attn-spec calls ``own``; that name itself if none does."""
        return next((one.name for one in self.arguments if own in one.says), own)

    def of_library(self, quantity: str, x: Any) -> Any:
        """Return an output or log-sum-exp with the axes of the presentation; or, from these, with the library's."""
        return x if x is None or quantity not in self.swapped else x.swapaxes(*self.swapped[quantity])

    def place(self, quantity: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return an index of a quantity in the library's axes from that in the presentation's, or the other way.

        Heads are not joined.
        """
        if quantity not in self.swapped:
            return index
        found, (one, other) = list(index), self.swapped[quantity]
        found[one], found[other] = found[other], found[one]
        return tuple(found)


def named_in(table: Mapping[str, Signature], name: str) -> Signature:
    """Return the row of a name. Raises :class:`SignatureError`."""
    if name not in table:
        known = f"; known are {', '.join(table)}"
        raise SignatureError(f"unknown signature {name!r}{suggestion(name, table, known)}")
    return table[name]
