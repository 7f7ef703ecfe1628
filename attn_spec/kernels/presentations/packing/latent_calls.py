"""Packed calls of multi-head latent attention: keys in one or two caches, and no values beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_spec.kernels.frameworks.framework import strided
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.presentations.packing.argument_names import VALUE_WIDTH
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.places import Further
from attn_spec.problem.problem import Problem

#: Inputs that each tensor of a call holds: columns of queries, or of keys that may be values too.
_HELD = {"q": "q", "q_nope": "q", "q_pe": "q", "kv": "kv", "ckv": "kv", "kpe": "k"}


@dataclass(frozen=True, kw_only=True)
class LatentCalls(Packed):
    """Packed calls for problems with ``latent``, whose values are the first Dv columns of the keys of one kv head.

    The call has no values. One cache, ``kv``, has keys of width D, and ``head_dim_v`` says Dv. Or ``ckv`` has the first
    Dv columns of each key, and ``kpe`` the other D - Dv, which are rotated; both lack the axis of heads. A kernel's
    output is [.., Dv]. The gradient of ``kv`` is dK + [dV, 0]. None is asked for of two caches, or of queries apart.
    """

    #: True if the keys lie in two caches, ``ckv`` and ``kpe``.
    two_caches: bool = False
    #: True if the first Dv columns of the queries, ``q_nope``, and the others, ``q_pe``, are two tensors.
    queries_apart: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "carries", self.carries | {"latent"})

    @property
    def tensors(self) -> tuple[str, ...]:
        queries = ("q_nope", "q_pe") if self.queries_apart else ("q",)
        return (*queries, *(("ckv", "kpe") if self.two_caches else ("kv",)))

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("q", "kv")

    def holds(self, tensor: str) -> str:
        return _HELD[tensor]

    @property
    def says_where(self) -> tuple[str, ...]:
        return (*super().says_where, *(() if self.two_caches else (VALUE_WIDTH,)))

    def further(self, problem: Problem) -> Further:
        width: Further = {} if self.two_caches else {VALUE_WIDTH: problem.value_dim}
        return super().further(problem) | width

    def refusal(self, option: str) -> str:
        if option in ("backward", "lse_backward") and len(self.tensors) > 2:
            return "since no released kernel has gradients of a key in two caches, or of a query in two tensors"
        if option == "descale_by_key" and self.two_caches:
            return "since the parts of a key in two caches have no descale in common"
        return super().refusal(option)

    def together(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return q, k and v, of which v says the width Dv alone, as the tensors of a call.

        Gradients have the names of the tensors already.
        """
        if "v" not in arrays:
            return dict(arrays)
        width, found = arrays["v"].shape[-1], {"q": arrays["q"], "kv": arrays["k"]}
        if self.queries_apart:
            q = found.pop("q")
            found |= {"q_nope": q[..., :width], "q_pe": q[..., width:]}
        if self.two_caches:
            keys = found.pop("kv").squeeze(self._heads)
            found |= {"ckv": keys[..., :width], "kpe": keys[..., width:]}
        return {name: found[name] for name in self.tensors}

    def apart(self, *tensors: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        given = dict(zip(self.tensors, tensors, strict=True))
        q = side_by_side(given["q_nope"], given["q_pe"]) if self.queries_apart else given["q"]
        if not self.two_caches:
            return q, given["kv"], self.values(given["kv"], arguments[VALUE_WIDTH])
        ckv, kpe = (self.with_heads(given[name]) for name in ("ckv", "kpe"))
        return q, self.keys_of(ckv, kpe), ckv

    def values(self, kv: Any, width: int) -> Any:
        """Return the values in a cache of keys, its first columns."""
        return kv[..., :width]

    def with_heads(self, cache: Any) -> Any:
        """Return a cache with an axis of one head."""
        return cache[(slice(None),) * self._heads + (None,)]

    def keys_of(self, ckv: Any, kpe: Any) -> Any:
        """Return keys from the caches of their two parts, which have an axis of one head."""
        return side_by_side(ckv, kpe)

    @property
    def _heads(self) -> int:
        return self.keys.axes.index("H")

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands heads; without an axis of heads a cache looks like queries, and all stay."""
        return memory.unchanged if self.two_caches else super().expanding(axes)


def side_by_side(left: Any, right: Any) -> Any:
    """Return the columns of two tensors of one framework, those of ``right`` behind those of ``left``."""
    width = left.shape[-1]
    whole = strided(left).of_nan(left, (*left.shape[:-1], width + right.shape[-1]))
    whole[..., :width], whole[..., width:] = left, right
    return whole
