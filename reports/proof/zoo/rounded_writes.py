"""Mutants of calls that append to caches of 8 bits: sound kernels that store other numbers than the nearest ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.presentations.appending import rounded_writes
from attn_spec.kernels.presentations.appending.append import Append
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS

from .packed import packed_mutant

ROUNDED = "appending.new_numbers_are_rounded_once_over_their_descales"
#: Dtypes of the calls.
CACHE = "q:bfloat16,kv:float8_e4m3fn"
#: Descales of keys and values, a number for each head.
DESCALES = ("k_descale", "v_descale", "descale_by_head")
#: Queries and caches of a call, and its options.
Begun = tuple[tuple[Any, ...], dict[str, Any]]
Wrong = TypeVar("Wrong", bound=Append)


def writes(*, source: str, presentation: str = "append") -> Callable[[type[Wrong]], type[Wrong]]:
    """Register how a sound kernel stores new numbers, other than it must."""
    saturating = {"cache_overflow": "saturates"}
    told: dict[str, Any] = {"presentation": presentation, "takes": DESCALES, "dtype": CACHE, "conventions": saturating}
    return partial(packed_mutant, named_by=ROUNDED, **told)(source=source)


def quotient(name: str, new: np.ndarray, arguments: Mapping[str, Any]) -> np.ndarray:
    """Return new keys or values over their descales."""
    d = rounded_writes.of_new(name, arguments)
    return new if d is None else new / d


@writes(source="sgl-project/sglang#18818")
class WrittenWithoutDescale(Append):
    """New keys and values are rounded as they are, and read times their descales."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        others = {key: x for key, x in arguments.items() if key != f"{name}_descale"}
        return super().rounded(name, new, cache, others)


@writes(source="vllm-project/vllm-xpu-kernels#3")
class WrittenTimesDescale(Append):
    """New keys and values are multiplied by their descales in place of a division."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        d = rounded_writes.of_new(name, arguments)
        return rounded_writes.stored(new if d is None else new * d, None, cache)


@writes(source="made up: a descale that the caller has divided by already", presentation="append_paged")
class WrittenOverDescaleTwice(Append):
    """New keys and values are divided by their descales twice."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        return super().rounded(name, quotient(name, new, arguments), cache, arguments)


@writes(source="sgl-project/sgl-kernel-xpu#252", presentation="append_paged")
class WrittenOverDescaleOfTheFirstHead(Append):
    """New keys and values of every head are divided by the descale of the first one."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        d = rounded_writes.of_new(name, arguments)
        return rounded_writes.stored(new, None if d is None else d[:, :, :1], cache)


@writes(source="sgl-project/sglang#26852")
class ValuesOverDescaleOfKeys(Append):
    """New values are divided by the descales of the keys."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        return super().rounded(name, new, cache, {**arguments, f"{name}_descale": arguments.get("k_descale")})


@writes(source="made up: bits of a float that are shifted to the right")
class WrittenTowardZero(Append):
    """New keys and values are cut to the cache, toward zero."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        x, found = quotient(name, new, arguments), super().rounded(name, new, cache, arguments)
        below = bits.nearest(found - bits.spacing(np.nextafter(found, 0.0), cache) * np.sign(found), cache)
        return np.where(np.abs(found) > np.abs(x), below, found)


@writes(source="made up: half a step that is added before bits are cut")
class WrittenTiesAwayFromZero(Append):
    """A new number in the middle of two numbers of the cache is stored as the larger one."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        x = quotient(name, new, arguments)
        return rounded_writes.stored(np.nextafter(x, np.copysign(np.inf, x)), None, cache)


@writes(source="openvinotoolkit/openvino#36751, jax-ml/ml_dtypes#260")
class WrittenNanForLarge(Append):
    """A new number beyond the largest of the cache is stored as NaN."""

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        x, form = quotient(name, new, arguments), FORMATS[cache]
        return np.where(np.abs(x) > form.rounds_to_largest, np.nan, super().rounded(name, new, cache, arguments))


@writes(source="made up: a first call of a prompt, which reads its own keys before they are stored")
class AttendsToUnroundedKeys(Append):
    """Queries attend to new keys and values as they were before they were rounded."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        (q, *caches), after = super().begun(tensors, options)
        read = []
        for name, cache, new in zip("kv", caches, tensors[3:], strict=True):
            whole = values_of(cache).copy()
            self.append(whole, quotient(name, values_of(new), options), after)
            read.append(whole)
        return (q, *read), after
