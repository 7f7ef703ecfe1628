"""Mutants of packed calls with descales: sound kernels that read the descales of their calls wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.packed_descales import OF_KEYS
from attn_spec.kernels.presentations.packing.places import integers

from .descales import DESCALED, VALUES
from .packed import packed_mutant

OWN = "descales.each_sequence_has_its_own_descales"
#: Descales by sequence and kv head.
BY_HEAD = tuple(name for name in DESCALED if name != "descale_by_key")


class Misread(Packed):
    """A packed call of which the descales of keys are misread."""

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        return self.misread(name, x, arguments) if name in OF_KEYS else super().read(name, x, **arguments)

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        """Return a descale as the kernel reads it."""
        return super().read(name, x, **arguments)


@packed_mutant(source="made up: a row of descales of the entry before", named_by=OWN, takes=BY_HEAD)
class DescaleOfAnotherSequence(Misread):
    """A sequence has the descales of the sequence before it in the batch."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        return super().misread(name, x.roll(1, 0), arguments)


@packed_mutant(source="made up: descales [Hkv, B] read as [B, Hkv]", named_by=OWN, takes=BY_HEAD)
class DescaleTransposed(Misread):
    """The axes of sequences and of kv heads are swapped in memory."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        return super().misread(name, x.T.reshape(x.shape), arguments)


@packed_mutant(
    source="made up: a descale of all sequences for a batch of graphs",
    named_by=OWN,
    presentation="decode",
    takes=BY_HEAD,
)
class DescaleOfTheFirstSequence(Misread):
    """All sequences have the descales of the first one."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        return super().misread(name, x[:1].expand(x.shape), arguments)


@packed_mutant(source="made up: a cache of scales without a table", named_by=OWN, presentation="paged", takes=DESCALED)
class ScaleCacheByNumberOfPage(Misread):
    """A cache of scales is read by the number of a page in its sequence, and not by the table of pages."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        table = integers(arguments["block_table"])
        counted = np.broadcast_to(np.arange(table.shape[1]) % x.shape[0], table.shape)
        return super().misread(name, x, {**arguments, "block_table": counted})


@packed_mutant(source="made up: a cache of scales without places", named_by=OWN, presentation="paged", takes=DESCALED)
class ScaleOfThePage(Misread):
    """All keys of a page have the scales of its first key."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        return super().misread(name, x[:, :1].expand(x.shape), arguments)


@packed_mutant(source="made up: an offset by one slot", named_by=OWN, presentation="token_pool", takes=DESCALED)
class ScaleOfTheNextSlot(Misread):
    """A key has the scale of the slot behind its own, which may be nobody's."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        return super().misread(name, x.roll(-1, 0), arguments)


@packed_mutant(
    source="made up: a cache of scales [pages, size, heads] read as one of [pages, heads, size]",
    named_by=OWN,
    presentation="paged_hnd",
    takes=DESCALED,
)
class ScaleCacheHeadsBehindPlaces(Misread):
    """The heads of a page of scales are looked for behind its places."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        pages, heads, size = x.shape
        return super().misread(name, x.reshape(pages, size, heads).transpose(1, 2), arguments)


@packed_mutant(
    source="made up: one pointer of scales for both caches",
    named_by=VALUES,
    presentation="decode_paged",
    takes=DESCALED,
)
class ScalesOfKeysForValues(Misread):
    """Values are multiplied by the scales of their keys, if these have any."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        own = arguments.get("k_descale")
        return super().misread(name, x if own is None or name == "k_descale" else own, arguments)


@packed_mutant(source="made up: one scale for each page", named_by=OWN, presentation="paged_csr", takes=DESCALED)
class LargestScaleOfThePage(Misread):
    """All keys of a page have the largest of its scales, those of free slots among them."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        return super().misread(name, x.amax(1, keepdim=True).expand(x.shape), arguments)


@packed_mutant(source="made up: a load of scales without a mask", named_by=OWN, presentation="paged", takes=DESCALED)
class ScalesBehindTheLastKey(Misread):
    """The scales of a last page are read to its end, and multiply weights that are 0."""

    def misread(self, name: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        lengths, size = integers(arguments["seqused_k"]), x.shape[1]
        whole = super().misread(name, x, {**arguments, "seqused_k": -(-lengths // size) * size})
        return whole[:, :, : int(lengths.max(initial=0))]
