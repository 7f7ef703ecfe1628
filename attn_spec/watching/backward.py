"""Gradients of one call of PyTorch, taken while autograd makes them, without a change of the program's numbers.

The call is given views of q, k and v. The gradient of a view is that of this call alone, also where a tensor is used
elsewhere. Views add no arithmetic: autograd passes their gradients on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def differentiates(tensors: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors whose gradients autograd will make."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return []
    return [name for name, x in tensors.items() if isinstance(x, torch.Tensor) and x.requires_grad]


class Backward:
    """The gradients of one call, which are handed on once all of them are there."""

    def __init__(self, tensors: Mapping[str, Any], done: Callable[[Any, dict[str, Any]], None]) -> None:
        """Take views of the ``tensors``; ``done`` gets the cotangent of the output, and the gradients by name."""
        self._out: Any = None
        self._version = 0
        self.views = {name: x.view_as(x) for name, x in tensors.items()}
        self._done = done
        self._found: dict[str, Any] = {}
        self._dout: Any = None
        for name, view in self.views.items():
            view.register_hook(lambda gradient, name=name: self._take(name, gradient))

    @property
    def output(self) -> Any:
        """The output of the call; None once the program has changed it in place."""
        is_same = self._out is not None and self._out._version == self._version  # noqa: SLF001 -- as in follow
        return self._out if is_same else None

    def follow(self, out: Any) -> bool:
        """Wait for the cotangent of the output; return whether there will be one.

        Hooks of the program on the output, which may change its cotangent, come before that of its node.
        """
        if getattr(out, "grad_fn", None) is None:
            return False
        place = out.output_nr
        self._out, self._version = out.detach(), out._version  # noqa: SLF001 -- PyTorch has no other name for it
        out.grad_fn.register_prehook(lambda cotangents: self._begin(cotangents[place]))
        return True

    def _begin(self, dout: Any) -> None:
        self._dout = None if dout is None else dout.detach()
        self._found.clear()

    def _take(self, name: str, gradient: Any) -> None:
        if self._dout is None:
            return
        self._found[name] = gradient.detach()
        if len(self._found) == len(self.views):
            dout, self._dout = self._dout, None
            self._done(dout, dict(self._found))
