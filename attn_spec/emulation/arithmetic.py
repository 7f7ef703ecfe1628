"""The arithmetic of a contract on float64 arrays: one rounding per operation, sums in a chosen order.

Each operation computes in float64 and rounds to the format of its stage, so that tf32 or a bfloat16 accumulator runs
where no hardware has it. A sum of exact products is first rounded to float64. That changes a result of at most 24 bits
by less than 2^-28 of its own rounding; in float64 itself a product is rounded before it is added. Arrays are NumPy's,
or those of the array namespace that a subclass names.
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

#: Formats that NumPy's casts round to, faster than ``bits.nearest`` and with equal bits.
_NATIVE = {"float64", "float32", "float16"}


@dataclass(frozen=True, kw_only=True)
class Order:
    """Choices that a contract leaves open: tiling, orders, places of a constant, and the share of allowed errors."""

    #: Keys per tile; the last tile is padded with zeros. None makes the whole row one tile.
    kv_tile: int | None = 16
    #: Order of tiles: "forward", "reverse" or "random".
    tiles: str = "forward"
    #: Order of every sum: "sequential", "pairwise" or "random".
    sums: str = "sequential"
    seed: int = 0
    #: True if a product is not rounded before it is added, or before a reference is subtracted from it.
    fused: bool = True
    #: Operand that the scale multiplies if the contract scales operands. "roots": the square root of the scale
    #: multiplies q and k. "query": the scale multiplies the query. "folded": the scale multiplies the query together
    #: with log2(e) in base 2, or with the inverse of a softcap.
    scaling: str = "roots"
    #: True if a scale of the scores and log2(e) are one constant inside the exponent, exp2(s c - m c).
    exponent_folded: bool = False
    #: True if descales multiply the scale before that multiplies the scores.
    descales_first: bool = False
    #: True if a scale of probabilities is added to the exponent where the contract lets it be: to the reference if the
    #: exponent is folded, else to the difference of score and reference. False if it multiplies weights at their cast.
    scale_in_exponent: bool = False
    #: Operand that the matrix W of the bilinear score q^T W k multiplies first: the "keys" or the "queries".
    matrix_on: str = "keys"
    #: True if a bias is divided by the scale and added before the scale multiplies.
    bias_first: bool = False
    #: Key from which ALiBi counts in causal attention: the key of the "query", the "first" or the "last" key.
    alibi_from: str = "query"
    #: True if a bias, of scores or of a projection, is rounded to the format of scores before it is added.
    bias_rounded: bool = False
    #: True if each result between q, k and v and the operands of a score is stored in the format of operands: a
    #: projection before its bias is added, q cos before q' sin is added.
    results_stored: bool = False
    #: Tile of an attention sink, which is one more key: "with_keys", that of the last keys unless it is full; or one of
    #: its own, visited "first" or "last".
    sink: str = "with_keys"
    #: True if normalization divides; False if it multiplies by a reciprocal.
    divides: bool = False
    #: True if the gradient of q / |q| is divided by |q| before what lies along q is subtracted; so that of a key.
    divides_first: bool = False
    #: Tensor that dropout multiplies by 1 / (1 - p): the kept "weights", the "probabilities" that weights are stored
    #: as, the "values", or the "output". Under "gradients" it multiplies the output and at last the gradients, as
    #: FlashAttention-2 does.
    dropout_on: str = "weights"
    #: Factor that the scale multiplies in the backward pass. "products": the products of dS with k and q. "dS": dS
    #: before these products. "slope": the scale over the softcap multiplies the slope of tanh, and the softcap the
    #: products.
    gradient_scaling: str = "products"
    #: True if P (dP - D) is computed as P dP - P D, where the contract lets delta be rowsum(P dP).
    expands_dS: bool = False
    #: Committed share of the contract's errors of exp, log and tanh; a share above 1 is a defect.
    inaccuracy: float = 0.0
    #: Signs of these errors: "random" (pseudo-random), "up" (every result too large) or "down".
    error_signs: str = "random"


def rounded(x: np.ndarray, dtype: str, rounding: str = "nearest", *, flushed: bool = False) -> np.ndarray:
    """Round to a format, to "nearest" or "toward_zero"; ``flushed`` makes subnormal results 0.

    Rounding to float64 changes nothing in either way.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if rounding == "toward_zero" and dtype != "float64":
            grid, largest = bits.spacing(x, dtype), FORMATS[dtype].largest
            y = np.where(np.isinf(x), x, np.clip(np.trunc(x / grid) * grid, -largest, largest))
            y = bits.as_stored(y, dtype)
        else:
            y = np.asarray(x, dtype).astype(np.float64) if dtype in _NATIVE else bits.nearest(x, dtype)
    return np.where(np.abs(y) < FORMATS[dtype].smallest_normal, np.copysign(0.0, y), y) if flushed else y


def rounding_of(contract: ResolvedContract, stage: str) -> Callable[[Any], np.ndarray]:
    """Return the function that rounds results of a stage; it is the innermost loop of emulated kernels."""
    form, way = contract.format(stage), contract.direction(stage)
    flushed = contract.flushes(form, entering=stage == "multiplicands")
    if way == "nearest" and not flushed and form.name in _NATIVE:
        return lambda x: np.asarray(x, form.name).astype(np.float64)
    return lambda x: rounded(np.asarray(x, np.float64), form.name, way, flushed=flushed)


class Arithmetic:
    """The operations of a kernel under a resolved contract."""

    #: Array namespace of the operations.
    xp: Any = np

    def __init__(self, contract: ResolvedContract, order: Order) -> None:
        self.c, self.order = contract, order
        self._roundings: dict[str, Callable[[Any], np.ndarray]] = {}

    def array(self, x: Any) -> Any:
        """Return a NumPy array as an array of this namespace."""
        return x

    @property
    def is_base2(self) -> bool:
        """True if scores are in units of ln 2 when they are exponentiated."""
        return self.c.base2

    @property
    def log2e(self) -> Any:
        return self.constant(math.log2(math.e))

    @property
    def ln2(self) -> Any:
        return self.constant(math.log(2))

    # Roundings

    def round(self, x: Any, stage: str) -> Any:
        """Round one result of a stage."""
        if stage not in self._roundings:
            self._roundings[stage] = rounding_of(self.c, stage)
        return self._roundings[stage](x)

    def convert(self, x: Any, stage: str, source: str) -> Any:  # noqa: ARG002 - exact conversions read it
        """Convert a number rounded by the stage ``source``, or in the format ``source``, to a number of a stage."""
        return self.round(x, stage)

    def constant(self, x: float, roundings: int = 1, stage: str = "score_accumulation") -> Any:  # noqa: ARG002
        """Return a number that no tensor holds, as the kernel holds it after at most this many ``roundings``."""
        return self.round(x, stage)

    def times(self, x: Any, constant: Any, stage: str) -> Any:
        """Return the rounded product with a constant."""
        return self.round(x * constant, stage)

    # Elementary functions

    def exponential(self, x: Any) -> Any:
        """Return exp(x), or exp2(x) under a base-2 contract; exactly 1 at 0 if the contract says so."""
        y = self.xp.exp2(x) if self.is_base2 else self.xp.exp(x)
        exact = (x == 0) & self.c.exp_of_zero_is_one
        return self.round(y * (1 + self.xp.where(exact, 0.0, self.error_of("exp_error", x))), "softmax")

    def logarithm(self, x: Any) -> Any:
        """Return the logarithm that inverts :meth:`exponential`."""
        y = self.xp.log2(x) if self.is_base2 else self.xp.log(x)
        return self.round(y + self.error_of("log_error", x) * (1 + abs(y)), "softmax")

    def tanh(self, x: Any) -> Any:
        return self.round(self.xp.tanh(x) + self.error_of("tanh_error", x), "stored_scores")

    def error_of(self, function: str, x: Any) -> Any:
        """Return the error committed at x: the order's share of the error that the contract allows, with its sign."""
        return self.order.inaccuracy * elementary_error(self.c, function) * self._sign_of_error(x)

    def _sign_of_error(self, x: Any) -> Any:
        if self.order.error_signs == "random":
            return np.where(np.sin(1e4 * x + 1) > 0, 1.0, -1.0)
        return {"up": 1.0, "down": -1.0}[self.order.error_signs]

    # Sums

    def accumulate(self, term: Callable[[int], Any], count: int, stage: str, start: Any = 0.0) -> Any:
        """Return start + term(0) + .. + term(count - 1) in the stage's format, with one rounding per addition."""
        if self.order.sums == "pairwise" and count:
            return self.add(start, self._tree(term, 0, count, stage), stage)
        total = start
        for t in self.visited(count):
            total = self.add(total, term(t), stage)
        return self.as_array(total)

    def as_array(self, x: Any) -> Any:
        """Return an array, or a number as an array of this namespace."""
        return x if hasattr(x, "shape") else self.array(np.asarray(x, np.float64))

    def add(self, total: Any, term: Any, stage: str) -> Any:
        """Return total + term in the stage's format."""
        return self.round(total + term, stage)

    def visited(self, count: int) -> Iterable[int]:
        """Return the numbers below ``count`` in the order of sums."""
        return (
            np.random.default_rng(self.order.seed).permutation(count) if self.order.sums == "random" else range(count)
        )

    def _tree(self, term: Callable[[int], Any], first: int, last: int, stage: str) -> Any:
        if last - first == 1:
            return self.round(term(first), stage)
        middle = (first + last) // 2
        return self.add(self._tree(term, first, middle, stage), self._tree(term, middle, last, stage), stage)
