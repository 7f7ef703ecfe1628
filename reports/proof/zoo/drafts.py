"""Mutants of masks made for trees of drafts and for packed documents: what a mask shows beside a diagonal or a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

CHAIN = "drafts.a_chain_of_drafts_is_causal_attention"
PATH = "drafts.each_path_of_a_tree_is_attention_of_its_own"
ALONE = "documents.documents_in_one_row_are_each_attention_of_their_own"


class _Masks(TiledAttention):
    """Attention that takes another mask for the one it is given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.mask is not None:
            self.mask = self.instead(self.mask != 0)

    def instead(self, mask: np.ndarray) -> np.ndarray:
        """Return the mask [B, Hq, Sq, Sk] that is taken for ``mask``."""
        raise NotImplementedError

    def distance(self) -> np.ndarray:
        """Return the distance of each key from the diagonal that ends in the last key, [Sq, Sk]."""
        return np.arange(self.Sk) - (np.arange(self.Sq)[:, None] + self.Sk - self.Sq)


@mutant(source="PaddlePaddle/FastDeploy#3514", named_by=PATH)
class TreeBelowDiagonalSeen(_Masks):
    """The mask is read on the diagonal and after it; keys before it are visible."""

    def instead(self, mask: np.ndarray) -> np.ndarray:
        return mask | (self.distance() < 0)


@mutant(source="huggingface/transformers#30311", named_by=PATH)
class TreeNotPassed(_Masks):
    """The mask is not passed on; attention is causal, and ends in the last key."""

    def instead(self, mask: np.ndarray) -> np.ndarray:
        return np.broadcast_to(self.distance() <= 0, mask.shape)


@mutant(source="made up: bits of a packed mask read from the other end of each byte", named_by=CHAIN)
class TreeBitsReversed(_Masks):
    """The mask is packed into bytes of eight keys, and each byte is read from its last bit on."""

    def instead(self, mask: np.ndarray) -> np.ndarray:
        return np.unpackbits(np.packbits(mask, axis=-1, bitorder="big"), axis=-1, count=self.Sk, bitorder="little") != 0


@mutant(source="made up: a mask of parents in place of ancestors", named_by=PATH)
class ParentsAlone(_Masks):
    """A query sees only the nearest of the drafts before it that its mask shows; the prefix stays visible."""

    def instead(self, mask: np.ndarray) -> np.ndarray:
        of_drafts = np.arange(self.Sk) >= self.Sk - self.Sq
        later = np.cumsum((mask & of_drafts)[..., ::-1], axis=-1)[..., ::-1]  # drafts that are seen from here on
        return mask & (~of_drafts | (later <= 2))


@mutant(source="made up: boundaries of documents off by one", named_by=ALONE)
class LeakOverTheBoundary(_Masks):
    """Each document sees the last key of the one before."""

    def instead(self, mask: np.ndarray) -> np.ndarray:
        return mask | np.concatenate([mask[..., 1:], mask[..., -1:]], axis=-1)


@mutant(source="made up: a block map that knows documents by tiles alone", named_by=ALONE)
class DocumentsByTiles(_Masks):
    """The mask is asked once for each tile of 16 keys: a tile of which a query sees one key is visible to it."""

    def instead(self, mask: np.ndarray) -> np.ndarray:
        starts = np.arange(0, self.Sk, 16)
        return (
            np.repeat(np.logical_or.reduceat(mask, starts, axis=-1), 16, axis=-1)[..., : self.Sk] if self.Sk else mask
        )
