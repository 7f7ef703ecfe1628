"""A tile of keys, which the steps of emulated kernels visit one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Tile:
    """Keys that are visited together."""

    #: Key indices; Sk is the sink if there is one, and other indices from Sk on are padding.
    cols: np.ndarray
    #: Visibility of these keys for each query, bool [B, Hq, Sq, tile].
    visible: Any
    #: True if the tile is visited last.
    is_last: bool
