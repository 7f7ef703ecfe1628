"""The executable meaning of a contract: attention under any arithmetic, one method per step.

A mutant of one's own is a subclass of :class:`TiledAttention`, or of :class:`TiledGradients`, that overrides a step.
"""

from .arithmetic import Order
from .backward import TiledGradients
from .forward import TiledAttention
from .kernels import emulate, emulate_both
from .sound import PRECISE

__all__ = ["PRECISE", "Order", "TiledAttention", "TiledGradients", "emulate", "emulate_both"]
