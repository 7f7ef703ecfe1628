"""Gradients of a call of attention in a test, read kv head by kv head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.judgement.long.blocks import blocks_of
from attn_spec.judgement.long.gradient_blocks import GradientPart
from attn_spec.kernels.calls.call import Call, CallError, checked, tensor_of, with_all_axes
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.problem.conventions import DEFAULTS, OPEN, Conventions
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import BACKWARD, OF_KEYS, QUANTITIES
from attn_spec.problem.used_places import used_places


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """Cotangents and gradients of a call, as the call reads them; those of options have their four axes."""

    made: Call
    cotangent: Any
    lse_cotangent: Any
    found: Mapping[str, Any]
    #: Conventions of the call, which say whether gradients of queries and keys that are not there are 0.
    conventions: Conventions
    #: Output of the forward pass; None if the caller has not given it.
    output: Any = None

    @property
    def whole(self) -> bool:
        """True if a gradient is a sum over heads, so that no head can be judged alone."""
        return self.made.layer or bool(self.found.keys() - {"dq", *OF_KEYS})

    def parts(self, *, together: bool = False) -> Iterator[GradientPart]:
        """Yield the kv heads one after the other, each with its query heads; or all heads at once if ``whole``.

        With ``together``, for a judgement of all rows and keys, kv heads of few scores are one part.
        """
        if self.whole:
            yield self._of_all()
            return
        for entries, few in self.made.divided(together=together):
            yield from (replace(self._groups(*each), in_one_piece=True) for each in few)
            if not few:
                yield from (self.group(b, g) for b in entries for g in range(self.made.kv_heads))

    def with_element(self, quantity: str, b: int, h: int) -> GradientPart:
        """Return the part that contains the gradient's elements of this batch entry and head."""
        if self.whole:
            return next(self.parts())
        return self.group(b, h // self.made.group_size if quantity == "dq" else h)

    def group(self, b: int, g: int) -> GradientPart:
        """Return the part of one kv head with its query heads."""
        return self._groups(range(b, b + 1), range(g, g + 1))

    def _groups(self, entries: range, groups: range) -> GradientPart:
        """Return the part of some batch entries and kv heads, with the query heads of these."""
        of_keys = slice(groups.start, groups.stop)
        own = {**dict.fromkeys(("output", "lse", "dq"), self.made.of_groups(groups)), **dict.fromkeys(OF_KEYS, of_keys)}
        at = entries.start, groups.start
        return self._part(
            self.made.groups(entries, groups), at, lambda name, x: self.made.numbers(name, x, entries, own[name])
        )

    def _of_all(self) -> GradientPart:
        """Return the part of all batch entries and heads."""

        def numbers(name: str, x: Any) -> np.ndarray:
            return values_of(x) if QUANTITIES[name].gradient_of in OPTIONS else self.made.all_numbers(name, x)

        return self._part(self.made.whole(), (0, 0), numbers)

    def _part(self, problem: Problem, at: tuple[int, int], numbers: Callable[[str, Any], np.ndarray]) -> GradientPart:
        """Return a part, whose values are those that ``numbers`` makes of a quantity's name and tensor."""
        dL = self.lse_cotangent
        found = {name: numbers(name, x) for name, x in self.found.items()}
        if self.conventions.unused_rows == OPEN:
            found = {name: _used(problem, name, x) for name, x in found.items()}
        return GradientPart(
            problem,
            _used(problem, "output", numbers("output", self.cotangent)),
            None if dL is None else _used(problem, "lse", numbers("lse", dL)),
            found,
            at,
        )

    def check_rows(self, memory: int) -> None:
        """Raise :class:`CallError` if a query sees no key, unless ``output`` shows that no gradient depends on it."""
        if not any(OPTIONS[name].sees is not None for name in self.made.options):
            return
        for b, g in np.ndindex(self.made.batch, self.made.kv_heads):
            problem = self.made.whole() if self.made.layer else self.made.group(b, g)
            for rows in blocks_of(problem, np.arange(problem.query_length), memory, 1):
                blind = problem.rows(rows).blind_queries
                if blind.any() and not self._is_constant(problem, (b, g), rows, blind):
                    raise CallError(
                        "a query sees no key, and its gradients depend on its output: pass out=, the output, "
                        "empty_row='zero' if that output is a constant, or leave such rows out"
                    )

    def _is_constant(self, problem: Problem, at: tuple[int, int], rows: np.ndarray, blind: np.ndarray) -> bool:
        """Return whether the ``blind`` queries [1, group, rows] of a kv head have outputs on which no gradient depends.

        An output of 0 is a constant where it cannot be the mean of V. In float32 or wider that mean, summed over n keys
        in any order, errs by at most n 2^-24 times the mean of abs(V).
        """
        if self.output is None or self.made.layer:
            return False
        b, g = at
        out = self.made.numbers("output", self.output, range(b, b + 1), self.made.of_groups(range(g, g + 1)), rows)
        found = out[np.broadcast_to(blind, out.shape[:-1])]
        sums, sizes = problem.v.sum(axis=-2), np.abs(problem.v).sum(axis=-2)
        return bool((found == 0).all() and (np.abs(sums) > problem.key_length * 2.0**-24 * sizes).any())


def _used(problem: Problem, name: str, x: np.ndarray) -> np.ndarray:
    """Return a gradient, or a cotangent of the named quantity, with 0 where no query or key is."""
    return np.where(used_places(problem, name, x.shape), x, 0.0) if problem.has_lengths else x


def pulled(
    made: Call,
    gradients: Mapping[str, Any],
    dout: Any,
    dlse: Any,
    conventions: Conventions = DEFAULTS,
    *,
    out: Any = None,
) -> Pulled:
    """Read gradients by name: "dq", "dk", "dv", "dkv", or "d" and the name of an option. Raises :class:`CallError`."""
    if not isinstance(gradients, Mapping):
        kind = type(gradients).__name__
        raise CallError(f"gradients must be a mapping by name, as {{'dq': dq, 'dk': dk, 'dv': dv}}, not of type {kind}")
    found = {name: tensor_of(name, x) for name, x in gradients.items() if x is not None}
    unknown = sorted(found.keys() - set(BACKWARD))
    if unknown or not found:
        raise CallError(f"gradients must be some of {', '.join(BACKWARD)}, not {', '.join(unknown) or 'none'}")
    if "dkv" in found and not made.options.get("latent"):
        raise CallError(
            "dkv is the gradient of keys whose first columns are the values; pass latent=True, or dk and dv instead"
        )
    made.check_gradients(found)
    for name, x in found.items():
        is_option = QUANTITIES[name].gradient_of in OPTIONS
        found[name] = _of_option(made, name, x) if is_option else checked(made, name, x, name)
    return Pulled(
        made=made,
        cotangent=checked(made, "dout", tensor_of("dout", dout), "output"),
        lse_cotangent=None if dlse is None else checked(made, "dlse", tensor_of("dlse", dlse), "lse"),
        found=found,
        conventions=conventions,
        output=None if out is None else checked(made, "out", tensor_of("out", out), "output"),
    )


def _of_option(made: Call, name: str, x: Any) -> Any:
    """Return the gradient of an option, with four axes. Raises :class:`CallError` unless it has the option's shape."""
    option = QUANTITIES[name].gradient_of
    assert option is not None
    if option not in made.options:
        raise CallError(f"{name} is the gradient of {option}, which this call does not use; leave {name} out")
    given, whole = made.options[option], with_all_axes(OPTIONS[option], name, x)
    if tuple(whole.shape) != tuple(given.shape):
        raise CallError(f"{name} must have the shape of {option}, {tuple(given.shape)}, not {tuple(x.shape)}")
    return whole
