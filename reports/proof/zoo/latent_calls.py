"""Mutants of calls of latent attention without values: sound kernels that misread a cache, or lose a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.packing.latent_calls import LatentCalls, side_by_side
from attn_spec.kernels.presentations.packing.pages import CountedPages
from attn_spec.kernels.presentations.table import PRESENTATIONS

from .latent import ABSORBED
from .lengths import ALONE
from .mutants import introduce
from .packed import TAKES, packed_mutant

GRADIENTS = "gradients.query_and_key_gradients_are_within_their_bounds"


def gradient_mutant(*, source: str) -> Callable[[type[TiledGradients]], type[TiledGradients]]:
    """Register a wrong backward pass of a sound kernel that is called without values."""

    def register(gradients: type[TiledGradients]) -> type[TiledGradients]:
        def build(name: str, dtype: str) -> Kernel:
            supports = [each for each in TAKES if PRESENTATIONS["mla_joined"].can_say(each)]
            declared = {"dtypes": (dtype,), "contract": "fused", "conventions": {"unused": "unread"}}
            return emulate_both(
                name, PRECISE, gradients=gradients, supports=supports, presentation="mla_joined", **declared
            )

        return introduce(gradients, build, source=source, named_by=GRADIENTS, dtype="float32")

    return register


def rows_apart(cache: Any, width: int, step: int) -> Any:
    """Return rows [.., width] that begin ``step`` numbers behind one another in the memory of a cache [.., columns].

    Rows that would begin behind its last ``width`` numbers begin there.
    """
    flat, rows = cache.reshape(-1), cache.shape[:-1].numel()
    first = np.minimum(np.arange(rows) * step, max(len(flat) - width, 0))
    return flat[first[:, None] + np.arange(width)].reshape(*cache.shape[:-1], width)


@packed_mutant(
    source="made up: the table of one cache used for another", named_by=ABSORBED, presentation="mla_paged_apart"
)
class KpeOfAnotherPage(LatentCalls):
    """The rotated part of a key is read in the page before that of its compressed part."""

    def keys_of(self, ckv: Any, kpe: Any) -> Any:
        return super().keys_of(ckv, kpe.roll(1, 0))


@packed_mutant(source="ROCm/aiter#3698", named_by=ABSORBED, presentation="mla_paged_apart")
class KpeByTheWidthOfCkv(LatentCalls):
    """The rotated parts of keys are looked for as far from one another as the compressed parts are."""

    def keys_of(self, ckv: Any, kpe: Any) -> Any:
        return super().keys_of(ckv, rows_apart(kpe, kpe.shape[-1], ckv.shape[-1]))


@packed_mutant(
    source="made up: a rotated part that is loaded for the first head of a block",
    named_by=ABSORBED,
    presentation="mla_csr",
)
class KpeForOneHead(LatentCalls):
    """The rotated part of a key counts for the first query head, and for no other."""

    def apart(self, *tensors: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        q, k, v = super().apart(*tensors, **arguments)
        q[:, 1:, v.shape[-1] :] = 0
        return q, k, v


@packed_mutant(
    source="made up: the order (rotated, compressed) of another engine", named_by=ABSORBED, presentation="mla_csr"
)
class RotatedKeysFirst(LatentCalls):
    """The rotated part of a key is put before its compressed part, and that of a query behind it."""

    def keys_of(self, ckv: Any, kpe: Any) -> Any:
        return side_by_side(kpe, ckv)


@packed_mutant(source="made up: lengths that a list of pages implies", named_by=ALONE, presentation="mla_csr")
class WholePagesCounted(CountedPages):
    """A sequence has all keys of its pages, whatever kv_len_arr says."""

    def lengths(self, needed: np.ndarray, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> np.ndarray:
        del arguments
        return needed * buffer[1]


@packed_mutant(source="ROCm/aiter#3698, the reverse", named_by=ABSORBED, presentation="mla_joined")
class ValuesByTheirOwnWidth(LatentCalls):
    """Values are read from the cache of keys as if its rows had Dv columns."""

    def values(self, kv: Any, width: int) -> Any:
        return rows_apart(kv, width, width)


@packed_mutant(
    source="made up: columns of values split over two groups of warps", named_by=ABSORBED, presentation="mla_decode"
)
class HalfOfTheValuesLost(LatentCalls):
    """The second half of the columns of a value is not read."""

    def values(self, kv: Any, width: int) -> Any:
        found = super().values(kv, width).clone()
        found[..., width // 2 :] = 0
        return found


@gradient_mutant(source="made up: the backward pass of attention whose values are another tensor")
class GradientOfValuesLost(TiledGradients):
    """The gradient of a key is dK: what reaches it as a value is not added."""

    def key_gradient(self, dk: Any, dv: Any) -> Any:
        del dv
        return dk


@gradient_mutant(source="made up: dV added where the rotated part comes first")
class GradientOfValuesAtTheEnd(TiledGradients):
    """dV is added to the last columns of dK, which are those of the rotated part."""

    def key_gradient(self, dk: Any, dv: Any) -> Any:
        return super().key_gradient(dk.flip(-1), dv.flip(-1)).flip(-1)
