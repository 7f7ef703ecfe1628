"""The executable meaning of a contract: attention under any arithmetic, one method per step.

To make a mutant, write a subclass of :class:`TiledAttention` or :class:`TiledGradients` that overrides a step.
"""

from .arithmetic import Order
from .backward import TiledGradients
from .forward import TiledAttention
from .kernels import emulate, emulate_both
from .sound import PRECISE

__all__ = ["PRECISE", "Order", "TiledAttention", "TiledGradients", "emulate", "emulate_both"]
