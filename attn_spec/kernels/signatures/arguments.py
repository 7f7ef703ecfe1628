"""Constructors of the parameters of signatures, one for each way in which libraries write a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Given, SignatureError


def is_same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal and of one kind; tensors are the same only as one object."""
    if one is other:
        return True
    plain = (bool, int, float, str, tuple, list)
    if not (isinstance(one, plain) and isinstance(other, plain)) or isinstance(one, bool) != isinstance(other, bool):
        return False
    return (tuple(one) if isinstance(one, list) else one) == (tuple(other) if isinstance(other, list) else other)


def says(own: str, unless: Any = None) -> Callable[[Any], Mapping[str, Any]]:
    """Return the reading of a value that attn-spec writes in the same way; ``unless`` is one that says nothing."""
    return lambda value: {} if value is None or is_same(value, unless) else {own: value}


def tensor(name: str, own: str = "") -> Argument:
    """Return the parameter of a tensor of the call: q, k or v."""
    own = own or name
    return Argument(name=name, says=(own,), spell=lambda given: given[own], read=lambda x: {own: x})


#: Tensors of a function that calls them query, key and value.
QUERY_KEY_VALUE = (tensor("query", "q"), tensor("key", "k"), tensor("value", "v"))


def same(name: str, own: str = "", default: Any = REQUIRED, off: Any = None, **more: Any) -> Argument:
    """Return a parameter whose values attn-spec writes in the same way; ``off`` is the default if there is one."""
    own, unused = own or name, off if default is REQUIRED else default
    return Argument(
        name=name,
        says=(own,),
        default=default,
        spell=lambda given: given.get(own, unused),
        read=says(own, unused),
        **more,
    )


def where(*names: str, **renamed: str) -> tuple[Argument, ...]:
    """Return required parameters that say where sequences lie: ``names``, and others by the name of each of these."""
    return tuple(same(name, own) for name, own in (dict(zip(names, names, strict=True)) | renamed).items())


def scale(name: str, default: Any = None) -> Argument:
    """Return the parameter of the factor of scores; a required one is given 1 / sqrt(D) where a problem has none."""
    required = default is REQUIRED
    return Argument(
        name=name,
        says=("scale",),
        default=default,
        spell=lambda given: given.scale if required else given.get("scale", default),
        read=says("scale"),
        means="a number in every call" if required else "None is 1 / sqrt(D)",
    )


def window(name: str, default: Any = REQUIRED, unbounded: Any = -1) -> Argument:
    """Return the parameter of a pair of window lengths, both inclusive."""

    def sides(pair: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(None if is_same(side, unbounded) else side for side in pair)

    def read(value: Any) -> Mapping[str, Any]:
        found = (None, None) if value is None else sides(value)
        return {} if found == (None, None) else {"window": found}

    def spell(given: Given) -> Any:
        own = given.get("window")
        unused = (unbounded, unbounded) if default is REQUIRED else default
        return unused if own is None else tuple(unbounded if side is None else side for side in own)

    means = f"(left, right), both inclusive, {unbounded} is unbounded"
    return Argument(name=name, says=("window",), default=default, spell=spell, read=read, means=means)


def left_window(name: str, default: Any = -1, inclusive: bool = True) -> Argument:
    """Return the parameter of the left length of a window, whose right side causality bounds; -1 is unbounded.

    A window that is not ``inclusive`` counts the key that the query is aligned with.
    """
    more = 0 if inclusive else 1

    def spell(given: Given) -> Any:
        left = (given.get("window") or (None, None))[0]
        return default if left is None else left + more

    def read(value: Any) -> Mapping[str, Any]:
        return {} if value is None or value < more else {"window": (value - more, None)}

    means = f"keys to the left{'' if inclusive else ', the own one counted'}; {default} is unbounded"
    return Argument(name=name, says=("window",), default=default, spell=spell, read=read, means=means)


def per_head(name: str, own: str, default: Any = None, by_entry: bool = False) -> Argument:
    """Return the parameter of a tensor [Hq], or [B, Hq] too if ``by_entry``, that is [1 or B, Hq, 1, 1] here."""

    def spell(given: Given) -> Any:
        x = given.get(own)
        return default if x is None else _heads(x, given.query_heads)

    means = "[Hq] or [B, Hq]" if by_entry else "[Hq]"
    return Argument(name=name, says=(own,), default=default, spell=spell, read=says(own), means=means)


def _heads(x: Any, heads: int) -> Any:
    """Return a tensor [B, Hq or 1, 1, 1] as [B, Hq], and as [Hq] if it is of one batch entry."""
    found = x[:, :, 0, 0]
    found = found if found.shape[1] == heads else frameworks.of(x).repeated(found, 1, heads)
    return found[0] if found.shape[0] == 1 else found


def by_sequence(name: str, default: Any = None) -> Argument:
    """Return the parameter of a descale [B, Hkv], that is [B, Hkv, 1, 1] here."""

    def spell(given: Given) -> Any:
        x = given.get(name)
        if x is None or len(x.shape) == 2:
            return default if x is None else x
        entries, heads, library = given.length("q", "B"), given.kv_heads, frameworks.of(x)
        found = x[:, :, 0, 0]
        found = found if found.shape[0] == entries else library.repeated(found, 0, entries)
        return found if found.shape[1] == heads else library.repeated(found, 1, heads)

    def read(value: Any) -> Mapping[str, Any]:
        if value is not None and len(value.shape) != 2:
            raise SignatureError(f"{name} must be [B, Hkv], not of the shape {tuple(value.shape)}")
        return {} if value is None else {name: value[:, :, None, None]}

    return Argument(name=name, says=(name,), default=default, spell=spell, read=read, means="[B, Hkv]")


def one_number(name: str, own: str, default: Any = REQUIRED, off: Any = None) -> Argument:
    """Return the parameter of a descale that is one number of Python; calls pass ``off`` where a problem has none."""
    unused = off if default is REQUIRED else default

    def spell(given: Given) -> Any:
        x = given.get(own)
        return unused if x is None else float(x.reshape(-1)[0]) if math.prod(x.shape) else 1.0

    def read(value: Any) -> Mapping[str, Any]:
        return {} if value is None or is_same(value, unused) else {own: np.array(float(value))}

    return Argument(name=name, says=(own,), default=default, spell=spell, read=read, means="one number")


def mode(name: str, default: int, value: int, means: str) -> Argument:
    """Return the parameter of a number by which a function reads other parameters: this row is of one ``value``."""

    def read(found: Any) -> Mapping[str, Any]:
        if int(found) != value:
            raise SignatureError(f"{name} is {int(found)}, and this signature is of calls with {value}, {means}")
        return {}

    return Argument(name=name, default=default, spell=lambda given: value, read=read, means=f"{value}, {means}")


def lengths(name: str, own: str, default: Any = None) -> Argument:
    """Return the parameter of lengths, int32 [B], that are an option [B, 1, 1, 1] here."""

    def spell(given: Given) -> Any:
        x = given.get(own)
        if x is None:
            return default
        found, entries, library = x.reshape(-1), given.length("q", "B"), frameworks.of(x)
        return library.cast(found if found.shape[0] == entries else library.repeated(found, 0, entries), "int32")

    return Argument(name=name, says=(own,), default=default, spell=spell, read=says(own), means="int32 [B]")


def mask_or_bias(
    name: str, default: Any = None, takes: tuple[str, ...] = ("mask", "bias"), broadcasts: bool = True
) -> Argument:
    """Return the parameter of a bool mask, True = attend, or of a bias, which its dtype tells apart.

    If it is not one that ``broadcasts`` along keys, a call passes a number for each key.
    """

    def read(value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not broadcasts and value.shape[-1] == 1:
            raise SignatureError(f"{name} must have a number for each key here, since it is padded and not broadcast")
        own = "mask" if str(value.dtype).endswith("bool") else "bias"
        if own not in takes:
            raise SignatureError(f"{name} must be a {takes[0]} here, not a tensor of {value.dtype}")
        return {own: value}

    def spell(given: Given) -> Any:
        x = next((given[own] for own in takes if own in given), None)
        if broadcasts or x is None or x.shape[-1] != 1:
            return x
        return frameworks.of(x).repeated(x, len(x.shape) - 1, given.length("k", "S"))

    return Argument(
        name=name,
        says=takes,
        default=default,
        spell=spell,
        read=read,
        means="bool, True = attend, or numbers that are added" if len(takes) > 1 else "numbers that are added",
    )


def grouped(name: str = "enable_gqa") -> Argument:
    """Return the parameter that says whether k has fewer heads than q."""
    return Argument(
        name=name, says=("gqa",), default=False, spell=lambda given: given.query_heads != given.kv_heads, read=_nothing
    )


def asks_lse(name: str, default: Any = False) -> Argument:
    """Return the parameter that asks for the log-sum-exp."""
    return Argument(
        name=name, says=("lse",), default=default, spell=lambda given: given.get("lse", default), read=_nothing
    )


def fixed(name: str, default: Any, *others: Any, value: Any = ...) -> Argument:
    """Return a parameter that says nothing attn-spec judges: it must have its default, or one of ``others``.

    Calls pass ``value``, by default the parameter's default.
    """
    passed = default if value is ... else value

    def read(found: Any) -> Mapping[str, Any]:
        allowed = (default, passed, *others)
        if not any(is_same(found, one) for one in allowed):
            known = " or ".join(map(repr, dict.fromkeys(x for x in allowed if x is not REQUIRED)))
            raise SignatureError(f"attn-spec judges no call with this {name}; it must be {known}")
        return {}

    return Argument(name=name, default=default, spell=lambda given: passed, read=read, means="left at its default")


def idle(name: str, default: Any = None, value: Any = ...) -> Argument:
    """Return a parameter that changes no answer beyond its rounding, such as a number of splits.

    Calls pass ``value``, by default the parameter's default; ``value`` may be a function of what a call says.
    """
    passed = default if value is ... else value
    return Argument(
        name=name,
        default=default,
        spell=passed if callable(passed) and passed is not REQUIRED else lambda given: passed,
        read=_nothing,
        means="changes no answer",
    )


def _nothing(value: Any) -> Mapping[str, Any]:
    del value
    return {}
