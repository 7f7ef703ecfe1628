"""One call of a watched function: its arguments as an assertion takes them, and what tells kinds of calls apart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_spec.kernels.calls.call import CallError
from attn_spec.watching import autocast
from attn_spec.watching.backward import Backward
from attn_spec.watching.target import Target


@dataclass
class Seen:
    """One call, as the watch reads it."""

    #: The watched function, with the signature by which this call is read.
    target: Target
    key: Any
    #: All arguments by the names of parameters.
    passed: dict[str, Any]
    #: Tensors by attn-spec's names, q, k and v in most calls, and the parameters that hold them.
    tensors: dict[str, Any]
    names: dict[str, str]
    #: Dtype to which autocast rounds the operands of a function of PyTorch; None if it rounds none.
    cast: Any = None

    @property
    def device(self) -> str:
        """Type of the device of the tensors."""
        first = next(iter(self.tensors.values()))
        return str(getattr(getattr(first, "device", None), "type", "cpu"))

    @property
    def is_one_entry(self) -> bool:
        """True if q has three axes, heads, queries and columns, as PyTorch lets it."""
        return self.names.get("q") == "query" and len(self.tensors["q"].shape) == 3

    def with_batch(self, x: Any) -> Any:
        """Return a tensor with the axis of batch entries, where the call leaves it out."""
        return x[None] if self.is_one_entry and getattr(x, "ndim", 0) == 3 else x

    def given(self, x: Any) -> Any:
        """Return a tensor of the call as the function computes with it: rounded by autocast, without a graph."""
        return self.with_batch(autocast.rounded(without_graph(x), self.cast))

    def words(self) -> dict[str, Any]:
        """Return the arguments of an assertion about the call."""
        plain = {name: self.given(x) for name, x in self.passed.items()}
        if self.target.row is not None:
            return {"signature": self.target.row.name, **plain}
        own = {letter: plain.pop(name) for letter, name in self.names.items()}
        return {**own, **{name: x for name, x in plain.items() if x is not None}}

    def with_views(self, backward: Backward, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the positional arguments with views in place of q, k and v."""
        return tuple(self._view(backward, x) for x in args)

    def keywords(self, backward: Backward, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments with views in place of q, k and v."""
        return {name: self._view(backward, x) for name, x in kwargs.items()}

    def _view(self, backward: Backward, x: Any) -> Any:
        return next((view for letter, view in backward.views.items() if self.tensors[letter] is x), x)


def tensors_of(target: Target, passed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors of a call by attn-spec's names, and the parameters that hold them.

    Raises :class:`CallError` for a call without one, or without q, k or v if it has no signature.
    """
    if target.row is not None:
        names = {own: target.row.keyword(own) for own in target.row.shown.tensors}
    else:
        own = [name for name, x in passed.items() if hasattr(x, "shape") and len(x.shape) > 1][:3]
        names = dict(zip("qkv", own, strict=False))
        if missing := [letter for letter in "qkv" if letter not in names]:
            raise CallError(f"the call has no tensor {missing[0]}")
    tensors = {own: passed[name] for own, name in names.items() if passed.get(name) is not None}
    if not tensors:
        raise CallError(f"the call has no tensor {', '.join(names.values())}")
    return tensors, names


def without_values(passed: Mapping[str, Any]) -> str:
    """Return the reason for which tensors of a call have no values to judge; empty if they have."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    for name, x in passed.items():
        if isinstance(x, torch.Tensor) and type(x) not in (torch.Tensor, torch.nn.Parameter):
            return f"{name} is a {type(x).__name__}"
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 -- torch.func has no public word for it
        if isinstance(x, torch.Tensor) and (x.is_meta or wrapped(x)):
            return f"{name} has no values here, as on the device meta or inside torch.func"
    return ""


def versions_of(tensors: Mapping[str, Any]) -> list[int]:
    """Return how often each tensor of PyTorch was changed in place."""
    return [x._version for x in tensors.values()]  # noqa: SLF001 -- PyTorch has no other name for it


def kind_of(x: Any) -> Any:
    """Return what tells kinds of calls apart: shape, strides, dtype and device of a tensor, or the value itself."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return repr(x)
    strides = x.stride() if callable(getattr(x, "stride", None)) else getattr(x, "strides", None)
    return (
        tuple(x.shape),
        strides,
        str(x.dtype),
        str(getattr(x, "device", "")),
        bool(getattr(x, "requires_grad", False)),
    )


def without_graph(x: Any) -> Any:
    """Return a tensor without its graph."""
    return x.detach() if callable(getattr(x, "detach", None)) else x
