"""The price of a format of codes: quantisation errors of attention by format, block and regime, without a kernel.

Run it as ``python -m attn_spec.reports.errors.quantisation``. It prints a table: for each format of k and v, or of q, k
and v, and each number of tokens that share a scale, the error |o^ - o| / |o| in the 2-norm, as a median over seeds. The
formats mxfp8, mxfp4 and nvfp4 have scales of 32 or 16 numbers, along columns of q and k and along tokens of v.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.contract.quantisers import Quantiser
from attn_spec.judgement.analysis import Analysis
from attn_spec.judgement.quantisation import quantisation_error
from attn_spec.search.drawing.regimes import REGIMES, Recipe

from .tables import number, table

#: Formats of codes, and tokens that share a scale: each its own, a block, all of a head.
FORMATS = ("int8", "int4", "float8_e4m3fn", "float8_e5m2")
BLOCKS: tuple[int | str, ...] = (1, 64, "head")
#: Formats with scales of so many numbers: the format of codes, and fields of scales.
SCALED: dict[str, tuple[int, dict[str, Any]]] = {
    "mxfp8": (32, {"format": "float8_e4m3fn", "scale_dtype": "float8_e8m0fnu", "scale_rounding": "up"}),
    "mxfp4": (32, {"format": "float4_e2m1fn", "scale_dtype": "float8_e8m0fnu", "scale_rounding": "up"}),
    "nvfp4": (16, {"format": "float4_e2m1fn", "scale_dtype": "float8_e4m3fn", "second_level": "tensor"}),
}
#: Steps before codes: none, the mean of keys that is subtracted, a rotation of q and k.
BEFORE = ("", "mean", "rotation")
#: Tensors that are quantised: a cache of keys and values, or all inputs.
TENSORS = ("kv", "qkv")
#: Regimes of values as trained layers have them, or of scores from flat to steep.
USUAL = ("normal", "activations", "large", "rising")
#: Shape of each problem: one head, as many queries as a tile, and several blocks of keys.
SHAPE: dict[str, Any] = {"query_length": 16, "key_length": 256, "head_dim": 64, "value_dim": 64}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to quantise, and its error in each regime, as a share of the output."""

    tensors: str
    format: str
    #: Tokens of a scale, or for instance "32 numbers".
    block: int | str
    #: Step before codes, one of ``BEFORE``.
    before: str
    errors: dict[str, float]


def choices(regimes: Sequence[str], seeds: int) -> Iterator[Choice]:
    """Yield every way to quantise, with its errors: the median of so many problems of each regime."""
    recipes = {
        regime: [Recipe(regime=regime, dtypes="float32", seed=seed, **SHAPE) for seed in range(seeds)]
        for regime in regimes
    }
    known = {regime: [Analysis(recipe.problem()) for recipe in found] for regime, found in recipes.items()}
    rows = [*itertools.product(FORMATS, BLOCKS), *((form, f"{size} numbers") for form, (size, _) in SCALED.items())]
    for tensors, (form, block), before in itertools.product(TENSORS, rows, BEFORE):
        if before == "rotation" and not {"q", "k"} <= set(tensors):
            continue  # scores of one rotated vector alone are others
        made = tuple(_quantiser(name, form, block, before) for name in tensors)
        contract = replace(FUSED, quantisers=made).at("float32")
        errors = {
            regime: float(np.median([quantisation_error(each, contract) for each in found]))
            for regime, found in known.items()
        }
        yield Choice(tensors=tensors, format=form, block=block, before=before, errors=errors)


def _quantiser(of: str, form: str, block: int | str, before: str) -> Quantiser:
    """Return the quantiser of a tensor in a format of either table."""
    first: dict[str, Any] = {"subtracts": "mean_of_keys"} if of == "k" and before == "mean" else {}
    first |= {"rotates": "hadamard"} if of != "v" and before == "rotation" else {}
    if form not in SCALED:
        return Quantiser(of=of, format=form, block=block, division_error=0.0, **first)
    size, fields = SCALED[form]
    along = {"block": size, "columns": 1} if of == "v" else {"block": 1, "columns": size}
    return Quantiser(of=of, division_error=0.0, **along, **fields, **first)


def markdown(found: Sequence[Choice]) -> str:
    """Return a Markdown table of the choices, errors in percent of the output."""
    regimes = list(found[0].errors)
    lines = [
        [
            ", ".join(one.tensors),
            one.format,
            str(one.block),
            one.before or "nothing",
            *(number(100 * one.errors[regime]) for regime in regimes),
        ]
        for one in found
    ]
    return table(["quantised", "format", "tokens of a scale", "first", *regimes], lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Quantisation errors of attention, in percent of the output.")
    parser.add_argument("--regimes", nargs="+", default=list(USUAL), choices=list(REGIMES), help="regimes of values")
    parser.add_argument("--seeds", type=int, default=3, help="problems of each regime (default 3)")
    chosen = parser.parse_args(arguments)
    sys.stdout.write(markdown(list(choices(chosen.regimes, chosen.seeds))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
