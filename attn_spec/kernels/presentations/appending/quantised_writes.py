"""Writes to caches with scales of each token and head: a call that appends makes a scale, and codes, of new numbers.

The contract's quantisers with ``over="appended"`` say how. After the call the cache holds a code, and the cache of
scales a scale, within what the replay of the quantiser leaves open (``bounds.codes``). That is nothing if divisions are
correctly rounded. A token of zeros may have any scale, since its codes are 0.

Source: vLLM ``triton_reshape_and_cache_flash_per_token_head_quant``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from attn_spec.bounds.codes import FLOAT64, Codes, quantised
from attn_spec.contract.contract import Contract
from attn_spec.contract.quantisers import Quantiser
from attn_spec.numbers.formats import EIGHT_BITS
from attn_spec.problem.dtypes import Dtypes, dtype_of


def of_contract(contract: Contract) -> dict[str, Quantiser]:
    """Return the quantisers of what a call appends, by the input that they quantise."""
    return {one.of: one for one in contract.quantisers if one.is_of_appended}


def attending(contract: Contract) -> Contract:
    """Return a contract for tokens that are in caches already, without quantisers of what a call appends."""
    others = tuple(one for one in contract.quantisers if not one.is_of_appended)
    return replace(contract, quantisers=others, alternatives=tuple(map(attending, contract.alternatives)))


def written(quantiser: Quantiser, new: np.ndarray) -> Codes:
    """Return the codes and scales of new keys or values [B, S, Hkv, D], with the axes of these."""
    x = new.swapaxes(1, 2)
    found = quantised(quantiser, x, x, np.ones((len(x), 1, x.shape[2], 1), dtype=bool), np.zeros(len(x), dtype=int))
    return Codes(**{name: np.asarray(y).swapaxes(1, 2) if np.ndim(y) == 4 else y for name, y in vars(found).items()})


def open_codes(found: Codes) -> np.ndarray:
    """Return how far a code that a call writes may be from its replay, [B, S, Hkv, D]: a zero may have either sign."""
    either_sign = np.where(found.codes == 0, np.finfo(np.float64).tiny, 0.0)
    return np.maximum(found.radius, either_sign)


def open_scales(found: Codes) -> np.ndarray:
    """Return how far a scale that a call writes may be from its replay, [B, S, Hkv, 1]; inf where it may be any.

    The share of a scale, and its product here, are rounded in float64.
    """
    return np.where(found.inside, found.scales * found.scale_error * (1 + FLOAT64), np.inf)


def refusals(
    contract: Contract, supports: Collection[str], always: Collection[str], dtypes: Dtypes, *, appends: bool
) -> Iterator[str]:
    """Yield reasons why a kernel with this contract for these ``dtypes`` cannot make scales of what it appends.

    ``supports`` are its options and abilities, of which every call uses those in ``always``.
    """
    makes = of_contract(contract)
    if makes and not appends:
        yield 'the contract has a quantiser with over="appended", and calls append nothing; declare another over'
    for name in "kv" if appends and (makes or "descale_by_key" in supports) else "":
        descale = f"{name}_descale"
        if name not in makes and descale in supports:
            yield (
                f"a call that appends would have to append {descale} of new tokens, and the contract does not say how; "
                f'add Quantiser(of="{name}", block=1, over="appended", ..) to its quantisers, or leave descale_by_key '
                "out of supports"
            )
        if name in makes:
            for each in (descale, "descale_by_key", "descale_by_head"):
                if each not in supports:
                    yield f"a quantiser of appended {name} needs {each} in supports, for its scales; add it"
            if descale not in always:
                yield f"every call that quantises appended {name} has a cache of scales; add {descale} to always"
            yield from _of_dtypes(makes[name], dtypes)


def _of_dtypes(quantiser: Quantiser, dtypes: Dtypes) -> Iterator[str]:
    """Yield reasons why the dtypes of a call are not those of a quantiser's codes and scales."""
    name, descale = quantiser.of, f"{quantiser.of}_descale"
    of_q, cache, scale = (dtype_of(dtypes, each) for each in ("q", name, descale))
    if cache != quantiser.format:
        yield f"a quantiser of appended {name} makes codes in {quantiser.format}, and the cache is of {cache}"
    if of_q in EIGHT_BITS:
        yield f"new {name} has the dtype of q, {of_q}, and is not quantised; declare a wider q"
    if scale != quantiser.scale_dtype:
        yield (
            f"a quantiser of appended {name} keeps scales in {quantiser.scale_dtype}, and {descale} is of {scale}; "
            f"declare option_dtypes={{{descale!r}: {quantiser.scale_dtype!r}}}"
        )
