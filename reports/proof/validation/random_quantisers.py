"""Quantisers of random kernels: of q and k, of v, or of all three, in blocks of any size; or of what calls append."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import Contract
from attn_spec.contract.coverage import silences
from attn_spec.contract.quantisers import Quantiser
from attn_spec.numbers.formats import EVERY
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS

from .random_options import one_of

#: Options of calls in a presentation that leave nothing to quantise.
NOT_QUANTISED = {"states", "latent"}
#: Share of kernels that quantise.
SHARE = 0.15
#: Share, of kernels that append in the dtype of q otherwise, that make a scale of each new token and head.
SHARE_OF_APPENDED = 0.4


def drawn_quantisers(seed: int, executes: Contract) -> dict[str, Any]:
    """Draw the quantisers of a kernel of a seed, and what it promises of their error; mostly none.

    A contract whose reference bounds a row by the lengths of its vectors has none.
    """
    rng, apart = (np.random.default_rng([seed, n]) for n in (17, 20))  # other draws stay as they are
    if rng.random() >= SHARE or executes.reference == "upper_bound":
        return {}
    of = one_of(rng, ("qk", "qk", "qk", "k", "kv", "qkv", "v"))
    form = one_of(rng, ("int8", "int8", "float8_e4m3fn", "float8_e5m2"))
    within = one_of(rng, (None, None, 100.0))
    plain = tuple(_drawn(rng, name, form) for name in of)
    return {"quantisers": with_blocks(apart, plain), "quantisation_within": within}


def of_appended(quantisers: Sequence[Quantiser], dtype: str) -> dict[str, Any]:
    """Return what a kernel with q of this dtype and these quantisers of appended keys and values declares with them."""
    scales = tuple(f"{one.of}_descale" for one in quantisers)
    formats = {scale: one.scale_dtype for scale, one in zip(scales, quantisers, strict=True)}
    return {"dtypes": (f"q:{dtype},kv:{quantisers[0].format}",), "always": scales, "option_dtypes": formats}


def _drawn(rng: np.random.Generator, of: str, form: str) -> Quantiser:
    ways = ("nearest_even", "nearest", "toward_zero", *(("add_half",) if form == "int8" else ()))
    block = one_of(rng, (1, 3, 8, 16, "head", "head"))
    return Quantiser(
        of=of,
        format=form,
        block=block,
        lanes=one_of(rng, (1, 1, 4)) if isinstance(block, int) else 1,
        lane_width=one_of(rng, (1, 2)),
        largest=one_of(rng, (None, None, 100.0)),
        scale=one_of(rng, (None,) * 5 + (0.05,)),
        epsilon=one_of(rng, (0.0, 0.0, 1e-7)),
        scale_dtype=one_of(rng, ("float32", "float32", "float16", "bfloat16")),
        division_error=one_of(rng, (0.0, 2.0, 4.0)),
        rounding=one_of(rng, ways),
        subtracts="mean_of_keys" if of == "k" and rng.random() < 0.5 else None,
        mean_dtype=one_of(rng, ("float32", "input", "float16", "bfloat16")),
    )


def drawn_of_appended(rng: np.random.Generator, executes: Contract) -> tuple[Quantiser, ...]:
    """Draw the quantisers of the keys and values that the calls of a kernel append; mostly none."""
    if rng.random() >= SHARE_OF_APPENDED or executes.reference == "upper_bound":
        return ()
    form = one_of(rng, ("int8", "int8", "float8_e4m3fn", "float8_e5m2"))
    steps = {
        "format": form,
        "block": 1,
        "over": "appended",
        "largest": one_of(rng, (None, None, 100.0)),
        "epsilon": one_of(rng, (0.0, 0.0, 1e-7)),
        "least_scale": one_of(rng, (0.0, 1e-6)),
        "scale_dtype": one_of(rng, ("float32", "float32", "float16", "bfloat16")),
        "division_error": one_of(rng, (0.0, 0.0, 2.0, 4.0)),
        "rounding": one_of(rng, ("nearest_even", "nearest", "toward_zero", *(("add_half",) if form == "int8" else ()))),
    }
    return tuple(Quantiser(of=name, **steps) for name in "kv")


def with_blocks(rng: np.random.Generator, quantisers: tuple[Quantiser, ...]) -> tuple[Quantiser, ...]:
    """Draw further formats, blocks of columns, a second level and a rotation for quantisers; half of them stay."""
    if rng.random() < 0.5:
        return quantisers
    both = {"q", "k"} <= {one.of for one in quantisers}
    way = one_of(rng, ("format", "columns", "columns", "levels", "rotated", "rotated columns"))
    form = one_of(rng, (None, "int4", "float4_e2m1fn", "float6_e3m2fn", "float6_e2m3fn"))
    rotation: dict[str, Any] = {}
    if "rotated" in way and both:
        rotation = {"rotates": "hadamard", "signs": one_of(rng, ((), (1, -1), (-1, 1, 1, -1, 1)))}
        rotation["rotated_dtype"] = one_of(rng, ("float32", "input", "bfloat16"))
    return tuple(
        _with_blocks(rng, one, way, form or one.format, rotation if one.of != "v" else {}) for one in quantisers
    )


def _with_blocks(rng: np.random.Generator, one: Quantiser, way: str, form: str, rotation: dict[str, Any]) -> Quantiser:
    changes: dict[str, Any] = {"format": form, **rotation}
    if one.rounding == "add_half" and not form.startswith("int"):
        changes["rounding"] = "nearest"
    if one.largest is not None and one.largest > EVERY[form].largest:
        changes["largest"] = one_of(rng, (None, 3.0))
    if way in ("columns", "rotated columns", "levels"):
        changes |= {"scale": None, "columns": one_of(rng, (1, 3, 4, 16, 32))}
        changes["scale_dtype"] = one_of(rng, ("float8_e8m0fnu", "float8_e8m0fnu", "float8_e4m3fn", "float32"))
        changes["scale_rounding"] = one_of(rng, ("nearest_even", "up", "down"))
    if rng.random() < 0.15:
        changes["rounding"] = "either"
    if way == "levels":
        # Kernels of some presentations are executed sequence by sequence, and none of these calls has all of a tensor.
        changes |= {"scale_dtype": "float8_e4m3fn", "second_level": "head"}
    return replace(one, **changes)


def without_silent(names: Sequence[str], contract: Contract) -> list[str]:
    """Return the options of which a contract with quantisers says something."""
    silent = {silence.option for silence in silences(contract) if silence.field == "quantisers"}
    owners = {name: (OPTIONS[name] if name in OPTIONS else ABILITIES[name]).of for name in names}
    return [name for name in names if name not in silent and owners[name] not in silent]
