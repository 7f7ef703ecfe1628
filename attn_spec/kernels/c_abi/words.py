"""Parameters that a C function may have: the name of each says what a call passes in it.

A name is a tensor, a count, a number that says an option, or the stride of an axis of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_spec.faults import with_article
from attn_spec.kernels.c_abi.prototype import INTEGERS, REALS, Parameter, Prototype, PrototypeError
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.nearest_names import suggestion
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import ADDEND, MASK, WEIGHT

#: Lengths of axes, by word.
COUNTS = {
    "B": "batch entries",
    "Hq": "query heads",
    "Hkv": "key and value heads",
    "Sq": "queries",
    "Sk": "keys",
    "D": "columns of a query and of a key",
    "Dv": "columns of a value and of the output",
}
#: Abilities of a function that is passed both counts; with one of them it cannot know the other.
COUNTED = {"gqa": ("Hq", "Hkv"), "cross": ("Sq", "Sk"), "dv": ("D", "Dv")}
#: Inputs by word, with the axes of the presentation.
INPUTS = {"q": "queries", "k": "keys", "v": "values"}
#: Quantities that a function writes, by word.
RESULTS = {"out": "output", "lse": "lse"}
#: Options whose tensors a function may be passed, each with all entries along its axes. An option that a problem does
#: not use is a null pointer.
TENSOR_OPTIONS = tuple(
    name
    for name, row in OPTIONS.items()
    if row.tensor is not None and row.kind in (MASK, ADDEND, WEIGHT) and set(row.axes) <= set("BHQK1")
)
#: Words that are tensors, each with what a call passes.
TENSORS = {
    **INPUTS,
    "out": "output, for the function to write; it holds NaN before the call",
    "lse": "log-sum-exp, for the function to write; it holds NaN before the call",
    **{name: f"{OPTIONS[name].says.removeprefix('takes ')}; null without the option" for name in TENSOR_OPTIONS},
}


@dataclass(frozen=True)
class Number:
    """A number that says an option."""

    option: str
    #: Meaning of the number, and its value for a problem without the option.
    says: str
    #: True if it is real, False if it is an integer.
    real: bool
    #: Function of the option's value and of D; the value is None if a problem does not use the option.
    value: Callable[[Any, int], float]


def _or_off(off: float) -> Callable[[Any, int], float]:
    """Return the function that gives an option's own value, and ``off`` without the option."""
    return lambda value, width: off if value is None else value


def _side(place: int) -> Callable[[Any, int], float]:
    """Return the function that gives one side of a window; -1 is unbounded, as in flash-attention."""
    return lambda value, width: -1 if value is None or value[place] is None else value[place]


#: Numbers that say options, by word.
NUMBERS = {
    "scale": Number(
        "scale",
        "factor of q.k; 1 / sqrt(D) where a problem has no scale",
        True,
        lambda value, width: width**-0.5 if value is None else value,
    ),
    "softcap": Number("softcap", "softcap; 0 where there is none", True, _or_off(0.0)),
    "dropout_p": Number("dropout_p", "probability of a dropped weight; 0 without dropout", True, _or_off(0.0)),
    "causal": Number("causal", "1 for causal attention, else 0", False, _or_off(0)),
    "window_left": Number("window", "keys before the diagonal; -1 is unbounded", False, _side(0)),
    "window_right": Number("window", "keys behind the diagonal; -1 is unbounded", False, _side(1)),
    "window_sinks": Number("window_sinks", "first keys that a window never masks; 0 for none", False, _or_off(0)),
    "attention_chunk": Number("attention_chunk", "length of a chunk; 0 without chunks", False, _or_off(0)),
}
#: Words that are no strides, each with what a call passes.
PLAIN = {**TENSORS, **COUNTS, **{name: row.says for name, row in NUMBERS.items()}}
#: Part of a word between a tensor and the axis whose stride it is.
STRIDE = "_stride_"


def letters(tensor: str, shown: Presentation) -> str:
    """Return the letters of a tensor's axes in a call, without a joined one and without last axes of one entry."""
    return shown.letters(RESULTS.get(tensor, tensor))


def words(shown: Presentation) -> dict[str, str]:
    """Return the words that a parameter may be in a presentation, each with what a call passes."""
    strides = {
        f"{name}{STRIDE}{axis}": f"stride of {name} along {axis}, in elements, which may be 0"
        for name in TENSORS
        for axis in letters(name, shown)
        if axis != "1"
    }
    return {**PLAIN, **strides}


def check(prototype: Prototype, shown: Presentation) -> None:
    """Raise :class:`PrototypeError` unless each parameter has a word for its name, and a type for that word."""
    known, symbol = words(shown), prototype.symbol
    names = [each.name for each in prototype.parameters]
    for parameter in prototype.parameters:
        if parameter.name not in known:
            near = suggestion(parameter.name, known, f"; words are {', '.join(PLAIN)}, and strides such as q{STRIDE}S")
            raise PrototypeError(f"{symbol}: no call passes {parameter.name!r}{near}")
        _check_type(symbol, parameter)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PrototypeError(f"{symbol} has two parameters {twice}; leave one out")
    if missing := [name for name in (*INPUTS, "out") if name not in names]:
        raise PrototypeError(f"{symbol} has no pointer {missing[0]}; a function is passed q, k, v and out")
    if ("window_left" in names) != ("window_right" in names):
        raise PrototypeError(f"{symbol} has one side of a window; it needs window_left and window_right")


def _check_type(symbol: str, parameter: Parameter) -> None:
    """Raise :class:`PrototypeError` if the type of a parameter is none for its word."""
    name, number = parameter.name, NUMBERS.get(parameter.name)
    is_tensor = name in TENSORS
    if is_tensor and not parameter.points:
        raise PrototypeError(
            f"{symbol}: {name} is a tensor, and {parameter} no pointer; write {parameter.type} *{name}"
        )
    wanted: Mapping[str, Any] = REALS if number is not None and number.real else INTEGERS
    if not is_tensor and (parameter.points or parameter.type not in wanted):
        kind = "real number" if wanted is REALS else "integer"
        raise PrototypeError(
            f"{symbol}: {name} is {with_article(kind)}, and {parameter} none; its type may be {' or '.join(wanted)}"
        )


def supported(prototype: Prototype, shown: Presentation) -> set[str]:
    """Return the options and abilities that a function has parameters for."""
    names = {each.name for each in prototype.parameters}
    options = {NUMBERS[name].option for name in names & set(NUMBERS)} | names & set(TENSOR_OPTIONS)
    counted = {ability for ability, both in COUNTED.items() if names.issuperset(both) and shown.can_say(ability)}
    return options | counted | names & {"lse"}
