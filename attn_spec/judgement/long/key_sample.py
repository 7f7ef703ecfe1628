"""The sample of keys of a long problem for dK and dV; ``row_sample`` bounds the probability of a missed defect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.judgement.long.row_sample import Sampled, check_count, drawn_beside, extremes, tile_edges


@dataclass(frozen=True)
class KeySample:
    """Sample of keys of each kv head: half by strata, where defects are frequent, and half at random.

    Strata are the first and last keys, the longest and shortest keys and values, and the edges of tiles.
    """

    #: Number of keys of each kv head; a head with no more keys is judged at all of them.
    keys: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("keys", self.keys)

    def of(self, k: np.ndarray, v: np.ndarray, number: int) -> Sampled:
        """Return the sampled keys of the ``number``-th kv head of all, k [Sk, D] and v [Sk, Dv]."""
        n = len(k)
        if n <= self.keys:
            return Sampled(np.arange(n), drawn=n, of=n)
        rng = np.random.default_rng([self.seed, number])
        few = max(self.keys // 32, 1)
        found = [0, n - 1, 1, n - 2, *extremes(np.linalg.norm(k, axis=-1), few)]
        found += [*extremes(np.linalg.norm(v, axis=-1), few), *tile_edges(n, rng, few)]
        return drawn_beside(found, self.keys, n, rng)
