"""MLX on its default device; an operation is evaluated when its values are asked for, in the thread that asked it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from attn_spec.kernels.frameworks.framework import Call, Differentiating, FrameworkError, Pull
from attn_spec.kernels.frameworks.numpy import array_of


class Mlx(Differentiating):
    """MLX arrays, differentiated by ``mlx.core.vjp``, which calls the kernel once more for each backward pass.

    All devices share the memory of an array, which is said to be on "cpu". A call computes on MLX's default device,
    which the kernel's module may set.
    """

    name = "mlx"
    usual = ("float32", "float16", "bfloat16")
    abilities = frozenset({"in_place", "autograd"})
    script_gives = "import mlx.core as mx\n\nreturn mx.array(array, dtype=getattr(mx, dtype, mx.bool_))"
    script_takes = "import mlx.core as mx\n\nreturn np.array(x.astype(mx.float64, stream=mx.cpu))"
    script_differentiates = """\
import mlx.core as mx

returned = call(inputs)
if not passes:
    return returned, []
sent = [mx.zeros_like(x) for x in returned]
sent[: len(cotangents)] = cotangents
return returned, mx.vjp(lambda *inputs: call(list(inputs)), inputs, sent)[1]"""

    @property
    def tensor_type(self) -> type:
        return mx.array

    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> mx.array:
        del device
        if values.dtype != np.float64:
            return mx.array(np.array(values, order="C"))
        if not isinstance(own := getattr(mx, dtype, None), mx.Dtype):
            raise FrameworkError(f"mlx has no {dtype}; leave {dtype} out")
        return mx.array(array_of(values, dtype), dtype=own)

    def take(self, tensor: mx.array) -> np.ndarray:
        kind = tensor.dtype if tensor.dtype == mx.bool_ else mx.float64
        return np.array(tensor.astype(kind, stream=mx.cpu))  # a GPU has no float64

    def dtype_of(self, tensor: mx.array) -> str:
        return str(tensor.dtype).removeprefix("mlx.core.")

    def unreadable(self, tensor: mx.array) -> str:
        try:
            mx.eval(tensor)
        except ValueError:
            return "a traced array; assert outside of compile and vmap"
        return ""

    def missing(self, device: str) -> str:
        if device == "cpu":
            return ""
        return (
            f"arrays of mlx are on no device, {device} neither; choose device cpu, and call "
            "mlx.core.set_default_device in the kernel's file"
        )

    def indexable(self, tensor: mx.array) -> np.ndarray:
        if tensor.dtype != mx.bfloat16:
            return np.asarray(tensor)
        return np.asarray(tensor.view(mx.uint16)).view(ml_dtypes.bfloat16)  # NumPy has no bfloat16 of its own

    def repeated(self, tensor: mx.array, axis: int, count: int) -> mx.array:
        return mx.repeat(tensor, count, axis=axis)

    def cast(self, tensor: mx.array, dtype: str) -> mx.array:
        return tensor.astype(getattr(mx, dtype))

    def differentiate(self, call: Call, inputs: Mapping[str, Any]) -> tuple[Any, Pull]:
        def called_again(*tensors: mx.array) -> list[mx.array]:
            return list(_differentiable(call(dict(zip(inputs, tensors, strict=True)))).values())

        drawn = _seed()
        returned = call(inputs)

        def pull(cotangents: Sequence[Any], *, again: bool = False) -> dict[str, Any]:
            del again  # each pass records a call of its own
            mx.random.seed(drawn)  # a kernel that drops weights by chance drops those again that the results show
            sent = {place: mx.zeros_like(x) for place, x in _differentiable(returned).items()}
            sent |= {place: cotangent for place, cotangent in enumerate(cotangents) if place in sent}
            _, gradients = mx.vjp(called_again, list(inputs.values()), list(sent.values()))
            return dict(zip(inputs, gradients, strict=True))

        return returned, pull

    def wait(self, device: str, returned: Any) -> None:
        del device
        mx.eval(returned)


def _differentiable(returned: Any) -> dict[int, mx.array]:
    """Return the results of a call that have a gradient, by their places."""
    results = enumerate(returned if isinstance(returned, tuple) else (returned,))
    return {place: x for place, x in results if isinstance(x, mx.array) and mx.issubdtype(x.dtype, mx.floating)}


def _seed() -> int:
    """Return the seed that sets MLX's random state to what it is."""
    state: Any = mx.random.state
    high, low = np.asarray(state[0]).tolist()
    return high << 32 | low


MLX = Mlx()
