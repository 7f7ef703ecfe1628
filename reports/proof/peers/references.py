"""Attention in plain PyTorch, in the precisions and the order of operations of other suites' references.

A reference is not the truth: it rounds where its suite rounds. References differ in a few choices, one field each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attn_spec.kernels.frameworks.torch import TORCH

if TYPE_CHECKING:
    import torch

    from attn_spec.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Roundings of a reference. Formats are dtypes, "input", or "higher": float64 for float32, float32 for halves."""

    #: Format of q, k and the scores.
    scores: str = "input"
    #: Format in which the softmax is taken.
    softmax: str = "input"
    #: Format in which weights and v meet.
    weights: str = "input"
    #: Format of the output.
    result: str = "input"
    #: Factor that the scale multiplies: "query", "key", "both" (each by the square root) or "scores".
    scale_on: str = "scores"
    #: True if the reference gets copies of the inputs in the result's format, so that gradients stay in it too.
    copies: bool = False

    def __call__(self, problem: Problem, leaves: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq] from the tensors of :func:`tensors`."""
        s = self._scores(problem, leaves)
        if problem.softcap is not None:
            s = (s / problem.softcap).tanh() * problem.softcap
        s = s.to(self.format("softmax", problem))
        if problem.bias is not None:
            s = s + leaves["bias"].to(_wide(s.dtype))
        visible = _torch().from_numpy(np.array(problem.visible))
        s = s.masked_fill(~visible, -float("inf"))
        p = s.softmax(-1).masked_fill(~visible.any(-1, keepdim=True), 0.0).to(self.format("weights", problem))
        v = leaves["v"].to(p.dtype).repeat_interleave(problem.group, 1)
        return (p @ v).to(self.format("result", problem)), s.logsumexp(-1)

    def _scores(self, problem: Problem, leaves: Mapping[str, torch.Tensor]) -> torch.Tensor:
        wide, scale = self.format("scores", problem), problem.scale_value
        q, k = (leaves[name].to(wide) for name in "qk")
        on_q = {"query": scale, "both": abs(scale) ** 0.5}.get(self.scale_on, 1.0)
        on_k = {"key": scale, "both": np.copysign(abs(scale) ** 0.5, scale)}.get(self.scale_on, 1.0)
        q, k = (x if factor == 1.0 else x * float(factor) for x, factor in ((q, on_q), (k, on_k)))
        s = q @ k.repeat_interleave(problem.group, 1).transpose(-1, -2)
        return s * scale if self.scale_on == "scores" else s

    def format(self, stage: str, problem: Problem) -> torch.dtype:
        """Return the format of a stage for a problem's dtype."""
        form = getattr(self, stage)
        higher = "float64" if problem.dtype in ("float32", "float64") else "float32"
        return getattr(_torch(), problem.dtype if form == "input" else higher if form == "higher" else form)


#: q, k and v raised to float32, the output rounded back.
FLOAT32 = Reference(scores="float32", softmax="float32", weights="float32", scale_on="query")
#: Reference in float64, whose result is not rounded back to the dtype.
FLOAT64 = Reference(scores="float64", softmax="float64", weights="float64", result="float64", copies=True)
#: torch.nn.functional.scaled_dot_product_attention, backend MATH: halves are raised to float32 inside.
MATH = Reference(scores="float32", softmax="float32", weights="float32", scale_on="both")
#: MATH one precision higher, with which suites compare the output of MATH.
HIGHER_MATH = Reference(
    scores="higher", softmax="higher", weights="higher", result="higher", scale_on="both", copies=True
)


def tensors(problem: Problem) -> dict[str, torch.Tensor]:
    """Return q, k, v and, if there is one, the bias, each in its dtype."""
    names = [name for name in ("q", "k", "v", "bias") if getattr(problem, name) is not None]
    return {name: TORCH.give(getattr(problem, name), problem.dtype_of(name)) for name in names}


def gradients(reference: Reference, problem: Problem, cotangent: np.ndarray) -> dict[str, torch.Tensor]:
    """Compute dQ, dK, dV and, if there is a bias, dBias, by autograd."""
    leaves = tensors(problem)
    if reference.copies:
        leaves = {name: leaf.to(reference.format("result", problem)) for name, leaf in leaves.items()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    out, _ = reference(problem, leaves)
    out.backward(TORCH.give(cotangent, problem.dtype).to(out.dtype))
    return {f"d{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the wider of a dtype and float32: no peer adds a bias in less."""
    return _torch().promote_types(dtype, _torch().float32)


def _torch() -> Any:
    import torch

    return torch
