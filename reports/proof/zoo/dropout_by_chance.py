"""Mutants of dropout by chance: masks drawn dependently, at another rate, or differently for the gradients."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np

from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.dropout import BY_CHANCE
from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

OUTPUT = "dropout_by_chance.the_output_is_that_of_the_mask_it_shows"
GRADIENTS = "dropout_by_chance.gradients_are_those_of_the_mask_that_the_output_shows"
ZERO = "dropout_by_chance.p_of_zero_drops_nothing"
SHARES = "dropout_by_chance.each_part_keeps_its_share"
INDEPENDENT = "dropout_by_chance.weights_are_kept_independently"
SEEDS = "dropout_by_chance.seeds_choose_the_mask"
LONG = "dropout_by_chance.outputs_of_long_rows_are_on_average_those_without_dropout"

#: Keys of a mask that is too short, and of a tile.
SHORT, TILE = 512, 32

drawing = partial(mutant, takes=BY_CHANCE)


@drawing(source="made up: inverted dropout without the inverse", named_by=OUTPUT)
class DrawnWeightsNotRaised(TiledAttention):
    """The kept weights of a drawn mask are not multiplied by 1 / (1 - p)."""

    def keep_factor(self, stage: str = "softmax") -> Any:  # noqa: ARG002
        return self.array(np.array(1.0))


@drawing(source="made up: dropout of scores", named_by=OUTPUT)
class DrawnBeforeTheSoftmax(TiledAttention):
    """A drawn mask is applied to scores before the softmax, whose weights are multiplied by 1 / (1 - p)."""

    def visible(self, cols: np.ndarray) -> np.ndarray:
        seen = super().visible(cols)
        return seen if self.keep is None else seen & (self.option_tile(self.keep, cols) != 0)


@drawing(source="made up: scores set to 0 where they are dropped", named_by=OUTPUT)
class DroppedScoresCleared(TiledAttention):
    """Dropped scores are set to 0 before the softmax, and no weight is dropped."""

    def hide(self, s: Any) -> Any:
        return super().hide(s if self.keep is None else self.xp.where(self.keeps(), s, 0.0))

    def drop(self, p: Any) -> Any:
        return self.raised(p, "weights")


@drawing(source="made up: p or its default", named_by=ZERO)
class DropsWithoutBeingAsked(TiledAttention):
    """A p of 0 is taken for no p at all, which is 0.1 by default."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        given = {"dropout_p": options["dropout_p"] or 0.1} if "dropout_p" in options else {}
        super().__init__(*arguments, **options | given)


@drawing(source="made up: p taken for the share kept, as TensorFlow's keep_prob was", named_by=SHARES)
class KeepsTheShareToDrop(TiledAttention):
    """A share p of the weights is kept, and 1 - p dropped."""

    def draw_keep(self, seed: int | None) -> np.ndarray:
        return np.logical_not(super().draw_keep(seed))


@drawing(source="made up: three random bits compared with p", named_by=SHARES)
class ChanceOfThreeBits(TiledAttention):
    """p is rounded up to a multiple of 1/8 in the comparison only."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return np.floor(8 * super().random_numbers(seed, *shape)) / 8


@drawing(source="ooples/AiDotNet.Tensors#732", named_by=SHARES)
class MaskNeverDrawn(TiledAttention):
    """The mask is allocated and never written: all weights are dropped."""

    def draw_keep(self, seed: int | None) -> np.ndarray:
        return np.zeros_like(super().draw_keep(seed))


@drawing(source="Dao-AILab/flash-attention#2439", named_by=SHARES)
class LanesThatKeepAll(TiledAttention):
    """The last of eight neighbouring keys is never dropped, so that a larger share is kept than 1 - p."""

    def draw_keep(self, seed: int | None) -> np.ndarray:
        return super().draw_keep(seed) | (np.arange(self.Sk) % 8 == 7)


@drawing(source="made up: a counter without the head", named_by=INDEPENDENT)
class OneMaskForAllHeads(TiledAttention):
    """All heads drop the same weights."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return np.broadcast_to(super().random_numbers(seed, shape[0], 1, *shape[2:]), shape)


@drawing(source="made up: a counter with the kv head", named_by=INDEPENDENT, dtype="bfloat16")
class OneMaskForAGroup(TiledAttention):
    """Heads that share keys drop the same weights."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return super().random_numbers(seed, *shape)[:, self.map_kv_head()]


@drawing(source="made up: a counter without the batch entry", named_by=INDEPENDENT)
class OneMaskForTheBatch(TiledAttention):
    """All batch entries drop the same weights."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return np.broadcast_to(super().random_numbers(seed, 1, *shape[1:]), shape)


@drawing(source="NVIDIA/TransformerEngine#227", named_by=INDEPENDENT)
class OneMaskForAllQueries(TiledAttention):
    """The mask is [B, Hq, 1, Sk]: a key is dropped for all queries or for none."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return np.broadcast_to(super().random_numbers(seed, *shape[:2], 1, shape[3]), shape)


@drawing(source="made up: a counter that starts again in each tile", named_by=INDEPENDENT)
class OneMaskForAllTiles(TiledAttention):
    """Every tile of 32 keys drops the same weights."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return super().random_numbers(seed, *shape)[..., np.arange(self.Sk) % TILE]


@drawing(source="Dao-AILab/flash-attention#2088", named_by=INDEPENDENT)
class OneMaskForAllCalls(TiledAttention):
    """The generator starts from the same constants in every call."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return super().random_numbers(0x1BF58 if seed is None else seed, *shape)


@drawing(source="made up: one random number for two lanes", named_by=INDEPENDENT)
class NeighboursDroppedTogether(TiledAttention):
    """Keys 2m and 2m + 1 are dropped together."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return super().random_numbers(seed, *shape)[..., np.arange(self.Sk) // 2 * 2]


@drawing(source="made up: the stride of a row left out of a counter", named_by=INDEPENDENT)
class CountersOverlap(TiledAttention):
    """The counter of query i and key j is i + j, so that diagonals are dropped together."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        counters = np.arange(self.Sq)[:, None] + np.arange(self.Sk)
        return super().random_numbers(seed, *shape[:2], self.Sq + self.Sk)[..., counters]


@drawing(source="made up: a head of rows where there is one of scores", named_by=INDEPENDENT)
class HeadsOverlap(TiledAttention):
    """The counters of a head start one row after those of the head before."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        B, H, Sq, Sk = shape
        rows = np.arange(H)[:, None] + np.arange(Sq)
        return super().random_numbers(seed, B, H + Sq, Sk)[:, rows]


#: Addresses of calls; those that memory gives may come twice.
_ADDRESSES = itertools.count(2**20)


@drawing(source="facebookresearch/xformers#173", named_by=SEEDS)
class SeedOfTheAddress(TiledAttention):
    """The address of the seed takes its place: equal seeds drop other weights."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.address = next(_ADDRESSES)
        super().__init__(*arguments, **options)

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return super().random_numbers(seed if seed is None else self.address, *shape)


@drawing(source="made up: a seed kept in 16 bits", named_by=SEEDS)
class SeedCutShort(TiledAttention):
    """Seeds that differ beyond their 16 lowest bits drop the same weights."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return super().random_numbers(seed if seed is None else seed % 2**16, *shape)


@drawing(source="made up: a buffer for random numbers of fixed size", named_by=LONG)
class KeysPastTheMask(TiledAttention):
    """Keys from the 513th on find no mask, and are dropped."""

    def draw_keep(self, seed: int | None) -> np.ndarray:
        return super().draw_keep(seed) & (np.arange(self.Sk) < SHORT)


@drawing(source="made up: a loop over the last keys without the factor", named_by=LONG)
class TailNotRaised(TiledAttention):
    """Keys from the 513th on are dropped, and not multiplied by 1 / (1 - p)."""

    def drop(self, p: Any) -> Any:
        tail = self.keep is not None and self.tile.cols[0] >= SHORT
        return self.xp.where(self.keeps(), p, 0.0) if tail else super().drop(p)


@drawing(source="made up: a generator that has moved on", named_by=GRADIENTS)
class BackwardDrawsAnew(TiledGradients):
    """The backward pass draws a mask of its own."""

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        return super().random_numbers(seed if seed is None else seed + 1, *shape)


@drawing(source="pytorch/pytorch#102038", named_by=GRADIENTS)
class BackwardDropsOthersPastATile(TiledGradients):
    """The gradients of keys past the 64th are computed with another mask."""

    def draw_keep(self, seed: int | None) -> np.ndarray:
        keep = super().draw_keep(seed)
        return np.where(np.arange(self.Sk) >= 64, np.roll(keep, 1, axis=-1), keep)


@drawing(source="NVIDIA/apex#816", named_by=GRADIENTS)
class BackwardRaisesByP(TiledGradients):
    """The backward pass multiplies by p where the forward pass divides by 1 - p."""

    def keep_factor(self, stage: str = "softmax") -> Any:
        return self.constant(self.dropout_p, stage=stage)
