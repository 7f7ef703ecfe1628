"""The definition as a kernel, ``definition:200``, so that every property also runs against the root of truth."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpmath import mp

from attn_spec.attention import definition, gradients
from attn_spec.contract.presets import FP64
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.frameworks.numpy import NUMPY
from attn_spec.kernels.kernel import DECLARABLE, Kernel, KernelError
from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import OUTPUT
from attn_spec.problem.problem import Problem

#: Precisions in bits: the least at which only the rounding of results is visible, and the largest with bearable run
#: time.
BITS = (128, 4096)
#: Options and abilities: all but the scale of a stored output, beside which there are no gradients.
_SUPPORTS = tuple(name for name in DECLARABLE if name not in OPTIONS or OPTIONS[name].kind != OUTPUT)


def kernel_of(precision: str) -> Kernel:
    """Return the definition, computed with ``precision`` bits, as a kernel that rounds each result once.

    Raises :class:`KernelError` for a precision that is no number or out of range.
    """
    if not precision.isdecimal() or not BITS[0] <= int(precision) <= BITS[1]:
        raise KernelError(f"definition:{precision} must name a number of bits from {BITS[0]} to {BITS[1]}")

    def attention(q: Any, k: Any, v: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        problem = _problem(q, k, v, options)
        found = definition.attention(problem, int(precision)), definition.log_sum_exp(problem, int(precision))
        return NUMPY.give(_rounded(found[0], problem.dtype), problem.dtype), _rounded(found[1], "float64")

    # A product in mpmath takes a thousand times as long as one in an array, but problems of few keys have few products.
    made = kernel(
        framework="numpy", dtypes=DTYPES, contract=FP64, supports=_SUPPORTS, name=f"definition:{precision}",
        conventions={"masked_nonfinite": "excluded"}, devices=("cpu",), slowness=64.0,
    )(attention)  # fmt: skip

    @made.backward
    def attention_gradients(dout: Any, q: Any, k: Any, v: Any, *saved: Any, **options: Any) -> dict[str, np.ndarray]:
        del saved
        dL = options.pop("dlse", None)
        problem = _problem(q, k, v, options)
        dO, dL = NUMPY.take(dout), None if dL is None else NUMPY.take(dL)
        found = gradients.gradients(problem, dO, int(precision), dL)
        return {name: NUMPY.give(_rounded(x, problem.dtype), problem.dtype) for name, x in found.items()}

    return made


def _problem(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> Problem:
    seed = options.pop("dropout_seed", None)
    values: dict[str, Any] = {name: _value(x, OPTIONS[name].tensor) for name, x in options.items()}
    if "dropout_p" in values and "dropout_keep" not in values:
        drawn = np.random.default_rng(seed).random((*q.shape[:3], k.shape[2]))
        values["dropout_keep"] = drawn >= values["dropout_p"]
    dtype = NUMPY.dtype_of(q)
    q, k, v = map(NUMPY.take, (q, k, v))
    return Problem(q=q, k=k, v=v, dtypes=dtype, **values)


def _value(x: Any, kind: type | None) -> Any:
    """Return the value of an option; a tensor becomes an array of the type ``kind``."""
    return NUMPY.take(x).astype(kind) if kind else x


def _rounded(x: np.ndarray, dtype: str) -> bits.Values:
    """Return numbers of mpmath rounded to a format."""
    with mp.workprec(53):
        return bits.nearest(np.array([float(+value) for value in x.ravel()]).reshape(x.shape), dtype)
