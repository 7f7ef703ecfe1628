"""PyTorch, whose tensors Triton kernels take as well.

The library is imported with the first tensor: a judge of an isolated kernel does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attn_spec.kernels.frameworks.framework import UNUSED_INTEGERS, Call, Differentiating, Pull, Strided
from attn_spec.kernels.frameworks.numpy import reach, uncommitted

if TYPE_CHECKING:
    import torch


class Torch(Strided, Differentiating):
    """PyTorch tensors of any device, with autograd."""

    name = "torch"
    usual = ("float32", "float16", "bfloat16")
    abilities = frozenset({"strides", "in_place", "autograd"})
    script_gives = "import torch\n\nreturn torch.from_numpy(array).to(DEVICE).to(getattr(torch, dtype))"
    script_takes = "import torch\n\nreturn torch.as_tensor(x).detach().double().cpu().numpy()"
    script_differentiates = """\
import torch

for x in inputs:
    x.requires_grad_()
returned = call(inputs)
pairs = [(x, y) for x, y in zip(returned, cotangents) if x.requires_grad]
for turn in range(passes):
    for x in inputs:
        x.grad = None
    if pairs:
        torch.autograd.backward([x for x, _ in pairs], [y for _, y in pairs], retain_graph=turn + 1 < passes)
return returned, [x.grad for x in inputs]"""

    @property
    def tensor_type(self) -> type:
        import torch

        return torch.Tensor

    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> torch.Tensor:
        import torch

        if values.dtype != np.float64:
            return torch.from_numpy(np.array(values, order="C")).to(device)
        return torch.from_numpy(np.array(values, dtype=np.float64, order="C")).to(getattr(torch, dtype)).to(device)

    def take(self, tensor: torch.Tensor) -> np.ndarray:
        import torch

        kind = tensor.dtype if tensor.dtype == torch.bool else torch.float64
        return tensor.detach().to(kind, copy=True).cpu().numpy()

    def dtype_of(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def device_of(self, tensor: torch.Tensor) -> str:
        return tensor.device.type

    def cast(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        import torch

        return tensor.to(getattr(torch, dtype))

    def unreadable(self, tensor: torch.Tensor) -> str:
        if tensor.is_nested:
            return "a nested tensor"
        if (layout := str(tensor.layout)) != "torch.strided":
            return f"a tensor of the layout {layout}"
        return "a tensor on the device meta" if tensor.is_meta else ""

    def missing(self, device: str) -> str:
        if device.partition(":")[0] != "cuda":
            return ""
        import torch

        if torch.cuda.is_available():
            return ""
        return "no CUDA device is available to torch; run where there is one, or choose device cpu"

    def device_name(self, device: str) -> str:
        import torch

        return torch.cuda.get_device_name(device)

    def wait(self, device: str, returned: Any) -> None:
        del returned
        if device != "cpu":
            import torch

            torch.cuda.synchronize(device)

    def release(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def lost(self, device: str) -> bool:
        try:
            self.wait(device, None)
        except Exception:
            return True
        return False

    def differentiate(self, call: Call, inputs: Mapping[str, Any]) -> tuple[Any, Pull]:
        import torch

        for tensor in inputs.values():
            tensor.requires_grad_()
        returned = call(inputs)
        outputs = returned if isinstance(returned, tuple) else (returned,)

        def pull(cotangents: Sequence[Any], *, again: bool = False) -> dict[str, Any]:
            for tensor in inputs.values():
                tensor.grad = None  # discard the gradient of the previous pass
            pairs = [
                pair for pair in zip(outputs, cotangents, strict=False) if getattr(pair[0], "requires_grad", False)
            ]
            if pairs:  # an output that depends on no input has gradients of zero
                sent = [cotangent for _, cotangent in pairs]
                torch.autograd.backward([output for output, _ in pairs], sent, retain_graph=again)
            return {name: tensor.grad for name, tensor in inputs.items()}

        return returned, pull

    def of_nan(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        import torch

        return tensor.new_full(tuple(shape), UNUSED_INTEGERS.get(self.dtype_of(tensor), torch.nan))

    def packed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous()

    def vast(self, tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
        elements = reach(tuple(tensor.shape), strides)
        if tensor.device.type == "cpu":
            import torch

            buffer = torch.frombuffer(uncommitted(elements * tensor.element_size()), dtype=tensor.dtype)
        else:
            buffer = tensor.new_empty(elements)
        return buffer.as_strided(tensor.shape, tuple(strides)).copy_(tensor)

    def placed(self, buffer: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
        return buffer.as_strided(tuple(shape), tuple(strides), offset)

    def expanded(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.expand(*shape)


TORCH = Torch()
