"""Calls of a merge of attention states: outputs and log-sum-exps of parts of the keys, for each token and head.

A token is a batch entry of the problem, a state a key. So each token has states of its own, as each batch entry has
keys of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.presentations import memory, placement
from attn_spec.kernels.presentations.layout import reordered
from attn_spec.kernels.presentations.packing.places import Bounds
from attn_spec.kernels.presentations.packing.slots import Slots
from attn_spec.kernels.presentations.presentation import Buffers, Handed, shape_of
from attn_spec.numbers import bits
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem

#: Abilities that a merge of states may have beside what its calls carry.
_ABLE = frozenset({"lse", "cross", "empty", "strides", "in_place", "autograd"})
#: Axes of outputs of states, of their log-sum-exps, and of what merges them, inside attn-spec: tokens, heads, states.
_OUTPUTS, _LSES = "THND", "THN"


@dataclass(frozen=True, kw_only=True)
class States(Buffers):
    """Outputs and log-sum-exps of states in two tensors: T tokens, N states, H heads, D dimensions.

    Log-sum-exps of base 2 are those of the problem divided by ln 2, each rounded once to its dtype. A contract whose
    exponent is of base 2 counts this rounding: it has a kernel multiply each bias by log2(e) before it is used.

    The log-sum-exp of a state without keys is minus infinity, or what the placement says. Its output is that of the
    problem, which may be any finite number, or anything where ``masked_nonfinite`` is "excluded".
    """

    #: Axes of the outputs of states.
    outputs: tuple[str, ...] = ("T", "N", "H", "D")
    #: Axes of their log-sum-exps.
    lses: tuple[str, ...] = ("T", "N", "H")

    def __post_init__(self) -> None:
        object.__setattr__(self, "carries", frozenset({"states", "bias", "mask"}))

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("v", "s")

    @property
    def differentiable(self) -> tuple[str, ...]:
        return ()

    def input_of(self, name: str) -> str:
        return "bias" if name.startswith("s") else "v"

    @property
    def stacked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Axes of the outputs of all states, and of their log-sum-exps, once :meth:`apart` has them in one tensor."""
        return self.outputs, self.lses

    def apart(self, *tensors: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        """Return q, k and v of a call: log-sum-exps stand for q and k, of which :meth:`read` makes zeros."""
        del arguments
        v, s = tensors
        return s, s, v

    def refusal(self, option: str) -> str:
        """Return why a call cannot pass an option, or what an ability needs; empty if it can."""
        if option in self.carries | _ABLE:
            return ""
        if option in ("backward", "lse_backward"):
            return "since no gradients of states are judged"
        return "since a state has nothing but its output and its log-sum-exp"

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        del unread  # every place of these tensors is one of the problem's
        return Handed({"v": self._of_outputs(problem.v), "s": self._of_lses(self.log_sum_exps(problem))}, {})

    def log_sum_exps(self, problem: Problem) -> np.ndarray:
        """Return the log-sum-exps of all states, [tokens, heads, states]; those without keys as the placement says.

        Raises :class:`NotTaken` for a problem with an option that no call can pass.
        """
        used = (name for name, row in OPTIONS.items() if row.is_used(getattr(problem, name)))
        if unsaid := sorted(set(used) - self.carries):
            raise NotTaken(f"a merge of states cannot pass {unsaid[0]}, {self.refusal(unsaid[0])}")
        seen = problem.visible[:, :, 0, :]
        bias = np.zeros((1, 1, 1, 1)) if problem.bias is None else problem.bias
        given = np.broadcast_to(bias, problem.score_shape)[:, :, 0, :]
        among = np.array(self.placement.empty_states)
        empty = among[self.placement.chance(problem, "empty states").integers(len(among), size=seen.shape)]
        if self.placement.lse_base == "2":
            given = bits.nearest(given / np.log(2.0), problem.dtype_of("bias"))
        return np.where(seen, given, empty)

    def _of_outputs(self, v: np.ndarray) -> np.ndarray:
        """Return outputs of states [tokens, heads, states, D] as a call has them."""
        return reordered(v, _OUTPUTS, self.outputs)

    def _of_lses(self, s: np.ndarray) -> np.ndarray:
        """Return log-sum-exps of states [tokens, heads, states] as a call has them."""
        return reordered(s, _LSES, self.lses)

    def _axes(self, name: str) -> tuple[str, ...]:
        """Return the axes of a quantity in a call: those of a state without the axis of states."""
        of_states = self.lses if name == "lse" else self.outputs
        return tuple(axis for axis in of_states if axis != "N")

    def shape(self, problem: Problem, name: str) -> tuple[int, ...]:
        if name not in ("output", "lse"):
            return tuple(self.handed(problem).tensors[name].shape)
        T, H, _, *D = shape_of(problem, name)
        lengths = dict(zip("THD", (T, H, *D), strict=False))
        return tuple(lengths[axis] for axis in self._axes(name))

    def taken(self, problem: Problem, name: str, x: Any) -> Any:
        del problem
        return self.read(name, x)

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        """Return a tensor of a call, or a quantity, with its axes [B, H, S, ..]; queries and keys are 0."""
        if name in ("q", "k"):
            T, H, N = reordered(arguments["k"], self.stacked[1], _LSES).shape
            return np.zeros((T, H, 1 if name == "q" else N, 1))
        if name == "v":
            return reordered(x, self.stacked[0], _OUTPUTS)
        if name not in ("output", "lse"):
            return x
        given = self._axes(name)
        return reordered(x, given, [axis for axis in "THD" if axis in given])[:, :, None]

    def presented(self, name: str, x: Any, /, **arguments: Any) -> Any:
        del arguments
        return reordered(x[:, :, 0], [axis for axis in "THD" if axis in self._axes(name)], self._axes(name))

    def place(self, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return where a call has the element at ``index`` [token, head, 0, ..] of its output or log-sum-exp."""
        token, head, _, *column = index
        own = {"T": [token], "H": [head], "D": column}
        return tuple(own[axis][0] for axis in self._axes(name))

    def options_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        s = values_of(reordered(arguments["k"], self.stacked[1], _LSES))[:, :, None, :]
        return {"bias": np.where(np.isinf(s), -np.inf, s) * (np.log(2.0) if self.placement.lse_base == "2" else 1.0)}

    def in_words(self, *tensors: Any) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        """Return q, k and v of the problem [B, H, S, ..] that a call with these tensors is, and its options.

        Tensors keep their frameworks and dtypes. But log-sum-exps of base 2 become natural ones of float64, whose
        rounding is far below that of the float32 in which a merge computes.
        """
        _, s, v = self.apart(*tensors)
        values, bias = self.read("v", v, k=s), self.options_of({"k": s})["bias"]
        frame, dtype = of(values), of(values).dtype_of(values)
        q, k = (frame.give(self.read(name, s, k=s), dtype, "cpu") for name in ("q", "k"))
        if self.placement.lse_base == "e":
            bias = of(s).give(bias, of(s).dtype_of(s), "cpu")
        return (q, k, values), {"states": True, "bias": bias}

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands the first token if "B", and the first head if "H", are among the axes."""
        named = ["TH"["BH".index(axis)] for axis in axes]
        places = {len(own): [own.index(axis) for axis in named] for own in (self.outputs, self.lses)}
        return lambda x: memory.expanded(x, places[x.ndim])

    def spreading(self, axes: str) -> list[Callable[[Any], Any]]:
        """Return one function that puts entries along the first axis far apart, whichever axes are named."""
        del axes
        return [partial(memory.far_apart, axis=0)]


@dataclass(frozen=True, kw_only=True)
class Pairs(States):
    """Two states in four tensors, without the axis of states: v_a, s_a, v_b, s_b.

    A problem of fewer states is handed over with empty states, whose outputs are 0. Where its one state has no keys
    either, the other has the same output, since a merge may give the mean of both.
    """

    outputs: tuple[str, ...] = ("T", "H", "D")
    lses: tuple[str, ...] = ("T", "H")

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("v_a", "s_a", "v_b", "s_b")

    @property
    def recognised_by(self) -> tuple[str, ...]:
        return self.tensors

    @property
    def stacked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("N", *self.outputs), ("N", *self.lses)

    def apart(self, *tensors: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        del arguments
        v_a, s_a, v_b, s_b = tensors
        return super().apart(_stack(v_a, v_b), _stack(s_a, s_b))

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        del unread
        missing = 2 - problem.key_length
        v = np.pad(problem.v, ((0, 0), (0, 0), (0, missing), (0, 0)))
        if missing == 1:
            v[:, :, 1] = np.where(problem.visible[:, :, 0], 0.0, v[:, :, 0])
        s = np.pad(self.log_sum_exps(problem), ((0, 0), (0, 0), (0, missing)), constant_values=-np.inf)
        found = {}
        for place, side in enumerate("ab"):
            found[f"v_{side}"] = reordered(v[:, :, place], "THD", self.outputs)
            found[f"s_{side}"] = reordered(s[:, :, place], "TH", self.lses)
        return Handed(found, {})


@dataclass(frozen=True, kw_only=True)
class Lists(States):
    """States of all tokens one behind the other: [states, H, D] and [states, H]; bounds say which token has which.

    Slots behind the last state hold the numbers of others, or anything where ``unused`` is "unread".
    """

    outputs: tuple[str, ...] = ("T", "H", "D")
    lses: tuple[str, ...] = ("T", "H")
    #: Places of states.
    places: Bounds = Bounds(side="k", bounds="indptr", states_longest=False)  # noqa: RUF009 -- a frozen value

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "carries", self.carries | self.places.carries)

    @property
    def says_where(self) -> tuple[str, ...]:
        return self.places.says_where

    @property
    def stacked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("T", "H", "N", "D"), ("T", "H", "N")

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        if name in ("q", "k", "v"):
            arguments |= {"k": self._slots(arguments).back(arguments["k"])}
            x = self._slots(arguments).back(x) if name == "v" else x
        return super().read(name, x, **arguments)

    def options_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        slots = self._slots(arguments)
        found = super().options_of({**arguments, "k": slots.back(arguments["k"])})
        return {"bias": np.where((slots.of >= 0)[:, None, None, :], found["bias"], -np.inf)}

    def _slots(self, arguments: Mapping[str, Any]) -> Slots:
        """Return the slots of the states of each token, as the bounds of a call say."""
        return self.places.slots(tuple(arguments["k"].shape[:1]), arguments)

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands the first head if heads are among the axes; no slot stands for another."""
        return super().expanding(axes.replace("B", ""))

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        further = self.places.further(problem, self.placement)
        slots = self.places.slots(self.places.buffer(problem, self.placement), further, problem.key_length)
        poison = placement.poison(problem, "v", unread)
        s = slots.fill(self.log_sum_exps(problem), None if poison is None else 0.0)
        return Handed({"v": slots.fill(problem.v, poison), "s": s}, further)


def _stack(one: Any, other: Any) -> Any:
    """Return two tensors of a framework as one with a leading axis, on the CPU."""
    both = np.stack([values_of(one), values_of(other)])
    return of(one).give(both, of(one).dtype_of(one), "cpu")
