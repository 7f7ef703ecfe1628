"""A function of a solution, called as attn-spec calls kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attn_spec.kernels.flashinfer_trace.interface import LISTED, SCALE, Interface
from attn_spec.kernels.misbehaviour import Misbehaviour


class Called:
    """A function that takes the inputs of a definition by place, as FlashInfer-Bench calls it.

    Each tensor that it is given is contiguous, as in the Bench. With ``writes`` the outputs follow as tensors to write
    into, in the order of the definition, and what the function returns is not read. Otherwise it returns them in that
    order, or by name.
    """

    def __init__(self, function: Callable[..., Any], interface: Interface, *, writes: bool, name: str) -> None:
        self.function, self.interface, self.writes = function, interface, writes
        self.outputs = tuple(interface.definition.outputs)
        self.__name__, self.__module__ = name, getattr(function, "__module__", "") or ""
        self.__signature__ = inspect.Signature(list(self._parameters()))

    def __call__(self, *tensors: Any, **own: Any) -> Any:
        """Return the output, or the output and the log-sum-exp; with ``writes`` both are in the tensors given."""
        given = dict(zip(self.interface.shown.tensors, tensors, strict=True)) | own
        passed = [self._value(name, given) for name in self.interface.definition.inputs]
        if self.writes:
            self._write(passed, own)
            return None
        found = self._named(self.function(*passed))
        lse = found.get("lse")
        return found["output"] if lse is None else (found["output"], self._as_presented(lse))

    def _value(self, name: str, given: Mapping[str, Any]) -> Any:
        if name == SCALE:
            scale = given.get("scale")
            return float(given["q"].shape[-1] ** -0.5 if scale is None else scale)
        value = given[self.interface.own(name)]
        if name == LISTED and self.interface.listed_keys is not None:
            wide = value.new_full((len(value), self.interface.listed_keys), -1)
            wide[:, : value.shape[1]] = value
            return wide
        return value.contiguous()

    def _write(self, passed: list[Any], own: Mapping[str, Any]) -> None:
        """Call the function with tensors to write into. It gets its own for a log-sum-exp whose axes are swapped."""
        buffers = {name: own[name] for name in self.outputs}
        if "lse" in buffers and self.interface.is_prefill:
            buffers["lse"] = self._as_presented(own["lse"]).contiguous()
        self.function(*passed, *buffers.values())
        if "lse" in buffers and self.interface.is_prefill:
            own["lse"].copy_(self._as_presented(buffers["lse"]))

    def _named(self, returned: Any) -> Mapping[str, Any]:
        """Return the results of a call by name. Raises :class:`Misbehaviour` for another number, or other names."""
        wanted = ", ".join(self.outputs)
        if isinstance(returned, Mapping):
            if missing := [name for name in self.outputs if name not in returned]:
                raise Misbehaviour(f"the solution returned no {missing[0]}; the definition has {wanted}")
            return returned
        every = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        if len(every) != len(self.outputs):
            raise Misbehaviour(f"the solution returned {len(every)} results; the definition has {wanted}")
        return dict(zip(self.outputs, every, strict=True))

    def _as_presented(self, lse: Any) -> Any:
        """Return a log-sum-exp [rows, heads] as the presentation has it, or the other way: sequences with bounds swap
        its axes.
        """
        return lse.swapaxes(0, 1) if self.interface.is_prefill and getattr(lse, "ndim", 0) == 2 else lse

    def _parameters(self) -> Iterable[inspect.Parameter]:
        """Yield the parameters of calls with attn-spec's names."""
        interface = self.interface
        yield from (inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in interface.shown.tensors)
        lists = [name for name in interface.shown.says_where if not name.startswith("max_")]
        for name in (*lists, *(self.outputs if self.writes else ())):
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        supports = interface.declared["supports"]
        for name, off in (("scale", None), ("causal", False), ("latent", False)):
            if name in supports and name not in interface.shown.carries:
                yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=off)
