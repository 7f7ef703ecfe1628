"""The arithmetic of a contract on float64 arrays: one rounding per operation, sums in a chosen order.

Each operation computes in float64 and rounds to the format of its stage, so that tf32 or a bfloat16 accumulator
can be run where no hardware has it. A sum of exact products is first rounded to float64, which moves a result of at
most 24 bits by less than 2^-28 of its own rounding; in float64 itself a product is rounded before it is added.
Arrays are NumPy's, or those of the array namespace that a subclass names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import elementary_error
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS

#: Formats that NumPy rounds to faster, the same bits as bits.nearest.
_NATIVE = {"float64", "float32", "float16"}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a contract leaves open: tiling, orders, places of a constant, how much of the allowed error is spent."""

    #: Keys per tile; the last tile is padded with zeros. None is the whole row.
    kv_tile: int | None = 16
    #: "forward", "reverse" or "random".
    tiles: str = "forward"
    #: Order of every sum: "sequential", "pairwise" or "random".
    sums: str = "sequential"
    seed: int = 0
    #: Whether a product is added, or a reference subtracted from it, before it is rounded.
    fused: bool = True
    #: Which operand a scale multiplies under a contract that scales operands: "roots" of it q and k; itself the
    #: "query"; or "folded" the query, together with log2(e) in base 2, or with the inverse of a softcap.
    scaling: str = "roots"
    #: Whether a scale of the scores and log2(e) are one constant inside the exponent, exp2(s c - m c).
    exponent_folded: bool = False
    #: The operand that a kernel multiplies by the matrix W of the bilinear score q^T W k first: the "keys" or the
    #: "queries".
    matrix_on: str = "keys"
    #: Whether a bias is divided by the scale and added before it.
    bias_first: bool = False
    #: Where ALiBi counts keys from in causal attention: the "query", or the "first" or the "last" key.
    alibi_from: str = "query"
    #: Whether a bias, of scores or of a projection, is rounded to the format of scores before it is added.
    bias_rounded: bool = False
    #: True where a kernel stores each result on the way from q, k and v to the operands of a score in the format of
    #: operands: a projection before its bias is added, q cos before q' sin is added.
    results_stored: bool = False
    #: Whether normalization divides, or else multiplies by a reciprocal.
    divides: bool = False
    #: What dropout multiplies by 1 / (1 - p): the "weights" it keeps, the "probabilities" that they are stored as, the
    #: "values", the "output", or the output and at last the "gradients", as FlashAttention-2 does.
    dropout_on: str = "weights"
    #: What the scale multiplies in the backward pass: the "products" of dS with k and q; "dS" before them; or, divided
    #: by a softcap, the "slope" of its tanh, and the softcap the products.
    gradient_scaling: str = "products"
    #: Whether P (dP - D) is formed as P dP - P D where a contract lets delta be rowsum(P dP).
    expands_dS: bool = False
    #: Share of the contract's errors of exp, log and tanh committed; above 1 is a defect.
    inaccuracy: float = 0.0
    #: Signs of those errors: "random" (they look so), "up" (every result too large) or "down".
    error_signs: str = "random"


def rounded(x: np.ndarray, dtype: str, rounding: str = "nearest", *, flushed: bool = False) -> np.ndarray:
    """Round to a format, to "nearest" or "toward_zero"; ``flushed`` makes subnormal results 0.

    float64 has no bits to truncate.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if rounding == "toward_zero" and dtype != "float64":
            grid, largest = bits.spacing(x, dtype), FORMATS[dtype].largest
            y = np.where(np.isinf(x), x, np.clip(np.trunc(x / grid) * grid, -largest, largest))
        else:
            y = np.asarray(x, dtype).astype(np.float64) if dtype in _NATIVE else bits.nearest(x, dtype)
    return np.where(np.abs(y) < FORMATS[dtype].smallest_normal, np.copysign(0.0, y), y) if flushed else y


def rounding_of(c: ResolvedContract, stage: str) -> Callable[[Any], np.ndarray]:
    """What rounds results of a stage: the innermost loop of emulated kernels, found once for all of them."""
    form, way = c.format(stage), c.direction(stage)
    flushed = c.flushes(form, entering=stage == "multiplicands")
    if way == "nearest" and not flushed and form.name in _NATIVE:
        return lambda x: np.asarray(x, form.name).astype(np.float64)
    return lambda x: rounded(np.asarray(x, np.float64), form.name, way, flushed=flushed)


class Arithmetic:
    """The operations of a kernel under a resolved contract."""

    #: The array namespace.
    xp: Any = np

    def __init__(self, contract: ResolvedContract, order: Order) -> None:
        self.c, self.order = contract, order
        self._roundings: dict[str, Callable[[Any], np.ndarray]] = {}

    def array(self, x: Any) -> Any:
        """An array of this namespace from one of NumPy's."""
        return x

    @property
    def is_base2(self) -> bool:
        """Whether scores are in units of ln 2 when they are exponentiated."""
        return self.c.base2

    @property
    def log2e(self) -> Any:
        return self.constant(math.log2(math.e))

    @property
    def ln2(self) -> Any:
        return self.constant(math.log(2))

    # Roundings

    def round(self, x: Any, stage: str) -> Any:
        """One result of a stage."""
        if stage not in self._roundings:
            self._roundings[stage] = rounding_of(self.c, stage)
        return self._roundings[stage](x)

    def convert(self, x: Any, stage: str, source: str) -> Any:  # noqa: ARG002 - where conversions are exact it is read
        """A number that the stage ``source`` has rounded, or one of the format ``source``, as a number of a stage."""
        return self.round(x, stage)

    def constant(self, x: float, roundings: int = 1, stage: str = "score_accumulation") -> Any:  # noqa: ARG002
        """A number that no tensor holds, as the kernel holds it after so many ``roundings`` at most."""
        return self.round(x, stage)

    def times(self, x: Any, constant: Any, stage: str) -> Any:
        """The product with a constant."""
        return self.round(x * constant, stage)

    # Elementary functions

    def exponential(self, x: Any) -> Any:
        """exp(x), or exp2(x) under a base-2 contract; exactly 1 at 0 if the contract says so."""
        y = self.xp.exp2(x) if self.is_base2 else self.xp.exp(x)
        exact = (x == 0) & self.c.exp_of_zero_is_one
        return self.round(y * (1 + self.xp.where(exact, 0.0, self.error_of("exp_error", x))), "softmax")

    def logarithm(self, x: Any) -> Any:
        """The logarithm that inverts :meth:`exponential`."""
        y = self.xp.log2(x) if self.is_base2 else self.xp.log(x)
        return self.round(y + self.error_of("log_error", x) * (1 + abs(y)), "softmax")

    def tanh(self, x: Any) -> Any:
        return self.round(self.xp.tanh(x) + self.error_of("tanh_error", x), "stored_scores")

    def error_of(self, function: str, x: Any) -> Any:
        """The error committed at x: the order's share of what the contract allows, of the order's sign."""
        return self.order.inaccuracy * elementary_error(self.c, function) * self._sign_of_error(x)

    def _sign_of_error(self, x: Any) -> Any:
        if self.order.error_signs == "random":
            return np.where(np.sin(1e4 * x + 1) > 0, 1.0, -1.0)
        return {"up": 1.0, "down": -1.0}[self.order.error_signs]

    # Sums

    def accumulate(self, term: Callable[[int], Any], count: int, stage: str, start: Any = 0.0) -> Any:
        """start + term(0) + .. + term(count - 1) in the stage's format, one rounding per addition."""
        if self.order.sums == "pairwise" and count:
            return self.add(start, self._tree(term, 0, count, stage), stage)
        total = start
        for t in self.visited(count):
            total = self.add(total, term(t), stage)
        return self.as_array(total)

    def as_array(self, x: Any) -> Any:
        """An array of this namespace from one, or from a number."""
        return x if hasattr(x, "shape") else self.array(np.asarray(x, np.float64))

    def add(self, total: Any, term: Any, stage: str) -> Any:
        """total + term in the stage's format."""
        return self.round(total + term, stage)

    def visited(self, count: int) -> Iterable[int]:
        """The numbers below ``count`` in the order of sums."""
        return (
            np.random.default_rng(self.order.seed).permutation(count) if self.order.sums == "random" else range(count)
        )

    def _tree(self, term: Callable[[int], Any], first: int, last: int, stage: str) -> Any:
        if last - first == 1:
            return self.round(term(first), stage)
        middle = (first + last) // 2
        return self.add(self._tree(term, first, middle, stage), self._tree(term, middle, last, stage), stage)
