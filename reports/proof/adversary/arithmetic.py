"""An arithmetic whose every rounding is chosen, as the standard model allows, instead of made.

An operation returns x(1 + u e) where the contract lets it round, and x + eta e where the result is subnormal, for an
e in [-1, 1] of its own (``attn_spec.contract.roundoff``). The kernels are those of ``attn_spec.emulation``, in
torch, so that what ``attack`` does to an e is done to what the other tests execute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from array_api_compat import torch as namespace
from torch import Tensor

from attn_spec.bounds.backward.weight_gradient_bounds import cotangent_format
from attn_spec.contract import products
from attn_spec.contract.roundoff import elementary_error, is_power_of
from attn_spec.contract.stages import Rounding
from attn_spec.emulation.arithmetic import Arithmetic
from attn_spec.emulation.matrix_products import MatrixProducts
from attn_spec.emulation.operands import Operands
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS, Format

#: Roundings smaller than this are not worth a choice.
SMALLEST = 2.0**-40


@dataclass
class Choices:
    """The e of every operation, in the order of a run."""

    found: list[Tensor] = field(default_factory=list)
    place: int = 0

    def next(self, shape: torch.Size) -> Tensor:
        """Return the choices of the next operation, 0 when it is met for the first time."""
        if self.place == len(self.found):
            self.found.append(torch.zeros(shape, dtype=torch.float64, requires_grad=True))
        self.place += 1
        return self.found[self.place - 1]


class Adversary(Arithmetic):
    """Steps of an arithmetic whose roundings are chosen; to stand in front of those of an emulated kernel."""

    xp = namespace
    #: The formats of q, k and v, and the choices of all calls.
    dtype: str
    choices: Choices
    #: Batch entries, in each of which one element is attacked.
    entries: int

    def array(self, x: Any) -> Tensor:
        return torch.from_numpy(np.array(x))

    def read(self, tensor: Any) -> Tensor:
        """Return the values of a tensor, with the choices they depend on."""
        return tensor if isinstance(tensor, Tensor) else self.array(values_of(tensor))

    # Roundings

    def chosen(self, x: Any, rounding: Rounding, form: Format) -> Tensor:
        """Return x with a chosen rounding error wherever it is no number of the format."""
        x = self.as_array(x)
        if rounding.u < SMALLEST and not rounding.eta:
            return x
        at, e = x.detach().numpy(), self.choices.next(x.shape)
        subnormal = torch.from_numpy((np.abs(at) < form.smallest_normal) & (at != 0))
        tiny = torch.from_numpy(np.minimum(rounding.eta, np.abs(at)))
        exact = torch.from_numpy(bits.nearest(at, form.name) == at) & ~(
            subnormal & (rounding.eta >= form.smallest_normal)
        )
        return torch.where(exact, x, torch.where(subnormal, x + tiny * e, x * (1 + rounding.u * e)))

    def round(self, x: Any, stage: str) -> Tensor:
        return self.chosen(x, self.c.stage(stage), self.c.format(stage))

    def convert(self, x: Any, stage: str, source: str) -> Tensor:
        if stage == "row_sum":  # its terms may be cast weights, whose format is not known here
            return self.chosen(x, products.row_sum_entry(self.c), self.c.format(stage))
        return self.chosen(x, self.c.stage(stage).of(self.format_of(source)), self.c.format(stage))

    def format_of(self, source: str) -> Format:
        """Return the format of a stage, of "input", or of a format's own name."""
        return (
            FORMATS[{"input": self.dtype}.get(source, source)]
            if source in {"input", *FORMATS}
            else self.c.format(source)
        )

    def enter(self, x: Any, source: str = "input") -> Tensor:
        return self.chosen(
            x, products.rounding_on_entry(self.c, self.format_of(source)), self.c.format("multiplicands")
        )

    def constant(self, x: float, roundings: int = 1, stage: str = "score_accumulation") -> Tensor:
        """Return ``x`` rounded anew for each batch entry; no tensor holds it, so that no format makes it exact."""
        u = self.c.stage(stage).u
        if is_power_of(2, abs(float(x))) or u < SMALLEST:
            return torch.full((1,), float(x), dtype=torch.float64)
        y = torch.full((self.entries, 1, 1, 1), float(x), dtype=torch.float64)
        for _ in range(roundings):
            y = y * (1 + u * self.choices.next(y.shape))
        return y

    @cached_property
    def _exponent_factor(self) -> Any:
        return super().exponent_factor()  # type: ignore[misc]

    def exponent_factor(self) -> Any:
        """Return the exponent's factor, one number that a kernel computes once."""
        return self._exponent_factor

    def times(self, x: Any, constant: Any, stage: str) -> Tensor:
        value = np.abs(self.as_array(constant).detach().numpy())
        exact = bool(((value == 0) | (np.frexp(value)[0] == 0.5)).all())
        return self.as_array(x * constant) if exact else self.round(x * constant, stage)

    def rescale(self, x: Any, alpha: Any, stage: str) -> Tensor:
        alpha = self.as_array(alpha)
        y = x * alpha
        return torch.where((alpha == 1) | (alpha == 0), y, self.round(y, stage))

    # Elementary functions

    def error_of(self, function: str, x: Tensor) -> Tensor:
        """Return the chosen relative error of an elementary function, of the shape of ``x``."""
        size = elementary_error(self.c, function)
        return size * self.choices.next(x.shape) if size > SMALLEST else torch.zeros_like(x)

    # Sums

    def add(self, total: Any, term: Any, stage: str) -> Tensor:
        """Return total + term, rounded; adding 0, or adding to 0, rounds nothing."""
        total, term = self.as_array(total), self.as_array(term)
        y = total + term
        return torch.where((total == 0) | (term == 0), y, self.round(y, stage))

    def products(self, x: Any, y: Any) -> list[Tensor]:
        """Return x y, rounded to a format of products if there is one, or else less the omitted products of pieces.

        These are of the narrowest factors, whose format is unknown here.
        """
        if self.c.products is not None:
            return [self.round(x * y, "products")]
        sources = (self.format_of("input"), self.c.format("probabilities"), cotangent_format(self.c))
        narrowest = min(sources, key=lambda form: form.precision)
        left = products.skipped_pieces(self.c, narrowest, narrowest)
        return [x * y * (1 + left * self.choices.next((x * y).shape))] if left > SMALLEST else [x * y]

    def add_block(self, total: Any, block: list[Any], accumulator: str) -> Tensor:
        """Add a block to a total: truncate all terms but the largest, and the sum, if the block has any term."""
        form, parts = self.c.format(accumulator), torch.broadcast_tensors(self.as_array(total), *block)
        sizes = torch.stack([part.detach().abs() for part in parts])
        largest = sizes.amax(0)
        cut = 2 * form.unit_roundoff
        fits = 2 * self.c.format("multiplicands").precision <= form.precision + self.c.matrix_extra_bits
        terms = (sizes > 0).sum(0) - (1 if fits and self.c.matrix_extra_bits >= 0 else 0)
        lost = terms.clamp(min=0) * cut * 2.0**-self.c.matrix_extra_bits * largest if self.c.matrix_block > 1 else 0.0
        y = sum(parts) + lost * self.choices.next(largest.shape)
        exact = (terms <= 0) | ~(sizes[1:] > 0).any(0)
        return torch.where(exact, sum(parts), self.chosen(y, Rounding(cut, 0.0), form))


def operands_of(of: type[Operands], dtype: str, choices: Choices, entries: int) -> type[Any]:
    """Return the operands of feature maps, or of a layer, with all roundings chosen."""
    return type("WorstOperands", (of,), {"arithmetic": kernel_of((MatrixProducts,), dtype, choices, entries)})


def kernel_of(steps: tuple[type[Any], ...], dtype: str, choices: Choices, entries: int) -> type[Any]:
    """Return the emulated kernel of these steps, adversary's steps before others, with all roundings chosen."""
    front = [one for one in steps if issubclass(one, Adversary)] or [Adversary]
    others = [one for one in steps if not issubclass(one, Adversary)]
    return type("Worst", (*front, *others), {"dtype": dtype, "choices": choices, "entries": entries})
