"""JAX on its CPU or GPU; its arrays are immutable, and the compiler chooses their layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from attn_spec.kernels.frameworks.framework import Call, Differentiating, FrameworkError, Pull
from attn_spec.kernels.frameworks.numpy import array_of

#: Platform name of JAX, by the type of the device.
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}


class Jax(Differentiating):
    """JAX arrays, differentiated by ``jax.vjp``. float64 needs ``jax_enable_x64``, which the kernel's module sets."""

    name = "jax"
    usual = ("float32", "float16", "bfloat16")
    abilities = frozenset({"autograd"})
    script_gives = (
        "import jax\n\n"
        "made = jax.numpy.asarray(array, dtype=dtype)\n"
        "return jax.device_put(made, jax.devices('gpu' if DEVICE[:4] == 'cuda' else 'cpu')[0])"
    )
    script_takes = "return np.asarray(x, dtype=np.float64)"
    script_differentiates = """\
import jax

returned, pull = jax.vjp(call, inputs)
if not passes:
    return returned, []
sent = [jax.numpy.zeros_like(x) for x in returned]
sent[: len(cotangents)] = [y.astype(x.dtype) for x, y in zip(returned, cotangents)]
return returned, pull(sent)[0]"""

    @property
    def tensor_type(self) -> type:
        return jax.Array

    def is_own(self, tensor: Any) -> bool:
        return isinstance(tensor, jax.Array)

    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> jax.Array:
        kind, _, number = device.partition(":")
        made = jax.device_put(array_of(values, dtype), jax.devices(_PLATFORMS[kind])[int(number or 0)])
        if values.dtype == np.float64 and self.dtype_of(made) != dtype:
            raise FrameworkError(
                f"jax has no {dtype} as it is set; call jax.config.update('jax_enable_x64', True) in the kernel's "
                f"file, or leave {dtype} out"
            )
        return made

    def take(self, tensor: jax.Array) -> np.ndarray:
        array = np.asarray(tensor)
        return array.astype(np.bool_ if array.dtype == np.bool_ else np.float64)

    def device_of(self, tensor: jax.Array) -> str:
        (device,) = tensor.devices()
        return "cuda" if device.platform == "gpu" else device.platform

    def unreadable(self, tensor: jax.Array) -> str:
        return "a traced array; assert outside of jit and grad" if isinstance(tensor, Tracer) else ""

    def missing(self, device: str) -> str:
        try:
            jax.devices(_PLATFORMS[device.partition(":")[0]])
        except (KeyError, RuntimeError) as error:
            return f"jax has no device {device}: {error}"
        return ""

    def device_name(self, device: str) -> str:
        return jax.devices(_PLATFORMS[device.partition(":")[0]])[0].device_kind

    def differentiate(self, call: Call, inputs: Mapping[str, Any]) -> tuple[Any, Pull]:
        def parted(given: dict[str, Any]) -> tuple[list[jax.Array | None], Any]:
            """Return the results that have a gradient, None in place of others, and all that ``call`` returns."""
            returned = call(given)
            results = returned if isinstance(returned, tuple) else (returned,)
            return [x if _has_gradient(x) else None for x in results], returned

        outputs, pullback, returned = jax.vjp(parted, dict(inputs), has_aux=True)

        def pull(cotangents: Sequence[Any], *, again: bool = False) -> dict[str, Any]:
            del again  # a JAX pullback can always be called again
            sent: list[Any] = [None if x is None else jax.numpy.zeros_like(x) for x in outputs]
            for place, (output, cotangent) in enumerate(zip(outputs, cotangents, strict=False)):
                sent[place] = None if output is None else cotangent.astype(output.dtype)
            return pullback(sent)[0]

        return returned, pull

    def wait(self, device: str, returned: Any) -> None:
        del device
        jax.block_until_ready(returned)


def _has_gradient(x: Any) -> bool:
    return isinstance(x, jax.Array) and bool(jax.numpy.issubdtype(x.dtype, jax.numpy.floating))


JAX = Jax()
