"""Tests of attention by others: the accept rule of each suite together with its own inputs.

Rules and recipes are facts, read in the tests named by ``source`` and written here anew. A row's verdict on a kernel is
that of the suite's rule on the suite's data, and not what its maintainers ship.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem

from . import grids, rules

_ALL = ("float32", "float16", "bfloat16")
_HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One suite's rule and recipe."""

    name: str
    #: Repository, file and version in which rule and recipe were read.
    source: str
    #: Condition under which the suite accepts, in one line.
    rule: str
    #: Inputs of the suite, and what was reduced, in one line.
    recipe: str
    #: Dtypes its own tests run.
    dtypes: tuple[str, ...]
    #: Endless iterator of its problems for a kernel.
    problems: Callable[[Subject, np.random.Generator], Iterator[Problem]] = field(repr=False)
    #: (problem, output, natural log-sum-exp or None) -> accepted.
    accepts: Callable[..., bool] = field(repr=False)
    #: (problem, cotangent, gradients by name) -> accepted; None where it tests no gradients.
    accepts_gradients: Callable[..., bool] | None = field(default=None, repr=False)
    #: The cotangent dO of a shape.
    cotangent: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] = field(
        default=lambda rng, shape: rng.standard_normal(shape), repr=False
    )
    #: True if the reference reads the inputs before the kernel could change them.
    reference_first: bool = True
    #: Layout of the tensors of a second call, whose answer must be the same bits; None is no second call.
    again: Callable[[Any], Any] | None = field(default=None, repr=False)


def nan_past_the_end(x: Any) -> Any:
    """Return a torch tensor [B, H, S, D] with NaN in memory from S to the next multiple of 256."""
    import torch

    padding = -x.shape[2] % 256
    return torch.nn.functional.pad(x, (0, 0, 0, padding), value=math.nan)[:, :, : x.shape[2]]


def _peer(applied: rules.Rule, **row: Any) -> Peer:
    has_gradients = "dq" in applied.compare
    return Peer(accepts=applied.accepts, accepts_gradients=applied.accepts_gradients if has_gradients else None, **row)


_ROWS = (
    _peer(
        rules.FLASH_ATTENTION_2,
        name="FlashAttention 2",
        source="Dao-AILab/flash-attention tests/test_flash_attn.py at 0251105",
        rule="max error <= 2 x that of same-dtype PyTorch with k scaled, + 1e-5 (gradients 3 x); a repeat is bit-equal",
        recipe="randn; causal, window, ALiBi, softcap 50; 1 of 4 batches, 2 of 6 heads or 6:2, lengths cut",
        dtypes=_HALVES,
        problems=grids.FLASH_ATTENTION_2,
        reference_first=False,
        again=lambda x: x,
    ),
    _peer(
        rules.FLASH_ATTENTION_3,
        name="FlashAttention 3",
        source="Dao-AILab/flash-attention hopper/test_flash_attn.py at 0251105",
        rule="max error <= 2 x that of same-dtype PyTorch (3 x with softcap) + 2 x rounding of out + 0.3 - 0.3",
        recipe="randn; causal, window, softcap 15, Dv != D; 1 of 9 batches, 2 of 6 heads or 6:2, lengths cut",
        dtypes=_HALVES,
        problems=grids.FLASH_ATTENTION_3,
    ),
    _peer(
        rules.TORCH_SDPA,
        name="PyTorch SDPA",
        source="pytorch/pytorch test/test_transformers.py, lists at 00030eb, fudge factors of 2025",
        rule="max error <= max(1e-5, F x that of backend MATH); F: out 4, dq 180, dk 16-25, dv 8, mask 45",
        recipe="rand; causal, additive mask, scale 1/D, GQA; 1 of 8 batches, 2 of 4 heads, lengths cut",
        dtypes=_ALL,
        problems=grids.TORCH_SDPA,
        cotangent=lambda rng, shape: rng.random(shape),
    ),
    _peer(
        rules.FLEX_ATTENTION,
        name="FlexAttention",
        source="pytorch/pytorch test/inductor/test_flex_attention.py at 00125ef, sizes of 2025",
        rule="mean error against float64 <= 1.1 x that of eager (10 x in float32, LSE 20 x)",
        recipe="randn; causal, biases and masks as score_mods, GQA, Dv != D; 2 of 4 heads",
        dtypes=_ALL,
        problems=grids.FLEX_ATTENTION,
    ),
    _peer(
        rules.XFORMERS,
        name="xformers",
        source="facebookresearch/xformers tests/test_mem_eff_attention.py, xformers/ops/fmha/common.py at 22b6f0c",
        rule="allclose: atol 3e-4, 4e-3, 2e-2 and rtol 2e-5, 4e-4, 5e-3; LSE 2e-4; repeat with NaN past the end",
        recipe="3 x randn; causal, local, tensor biases with -inf; odd and 200 random shapes; fewer batches and heads",
        dtypes=_ALL,
        problems=grids.XFORMERS,
        reference_first=False,
        again=nan_past_the_end,
    ),
    _peer(
        rules.JAX_NN,
        name="JAX nn",
        source="jax-ml/jax tests/nn_test.py at 000f87c",
        rule="allclose 1e-2 (gradients 1e-2 to 2e-2) against the same dtype, NaN equals NaN",
        recipe="normal; S = T = 128, D = 32; bias, causal, padding, custom mask, window, GQA; nothing reduced",
        dtypes=_HALVES,
        problems=grids.JAX_NN,
    ),
    _peer(
        rules.TRITON_TUTORIAL,
        name="Triton tutorial",
        source="triton-lang/triton python/tutorials/06-fused-attention.py at 003da47",
        rule="allclose with atol 1e-2, rtol 0 against float16 PyTorch, gradients too",
        recipe="0.5 x normal, scale 0.5, causal, D = 64; 1 of 2 heads, 1024 cut to 512",
        dtypes=("float16",),
        problems=grids.TRITON_TUTORIAL,
    ),
    _peer(
        rules.KERNEL_BENCH,
        name="KernelBench",
        source="ScalingIntelligence/KernelBench KernelBench/level1/97, src/kernelbench/eval.py at 423217d",
        rule="torch.allclose 1e-4 in float32, 1e-2 in halves, against the same dtype; no gradients",
        recipe="rand; 512 x 512, no option; 1 of 32 batches and of 32 heads, D cut from 1024 to 64",
        dtypes=_ALL,
        problems=grids.KERNEL_BENCH,
    ),
    _peer(
        rules.FLASHINFER_BENCH,
        name="flashinfer-bench",
        source="flashinfer-ai/flashinfer-bench flashinfer_bench/bench/utils.py, evaluators/default.py at 40e6ca7",
        rule="no element off by more than 1e-2 both absolutely and relatively, none NaN or infinite; LSE too",
        recipe="randn; GQA decode and causal prefill, D = 128; lengths made up: workloads are not in the repository",
        dtypes=("bfloat16",),
        problems=grids.FLASHINFER_BENCH,
    ),
    _peer(
        rules.FLASHINFER,
        name="FlashInfer",
        source="flashinfer-ai/flashinfer tests/attention/test_single_prefill.py at 20fee34",
        rule="assert_close 1e-3 against float16 PyTorch; no gradients",
        recipe="randn; causal from the last key, MQA 4:1 and 7:1, D 64 to 256; lengths cut",
        dtypes=("float16",),
        problems=grids.FLASHINFER,
        reference_first=False,
    ),
    _peer(
        rules.TRANSFORMER_ENGINE,
        name="TransformerEngine",
        source="NVIDIA/TransformerEngine tests/pytorch/attention/test_attention.py at 00d14cd",
        rule="assert_close 1e-3 in float16, 1.5e-2 in bfloat16, gradients too; here against exact instead of a backend",
        recipe="0.1 x randn; masks, padding, window, bias, GQA, Dv != D; 1 batch, 2 heads or 16:2, lengths cut",
        dtypes=_HALVES,
        problems=grids.TRANSFORMER_ENGINE,
        cotangent=lambda rng, shape: 0.001 * rng.integers(0, 200, shape),
    ),
    _peer(
        rules.BACKEND_BENCH,
        name="BackendBench",
        source="meta-pytorch/BackendBench BackendBench/eval.py at 66e0dbc, inputs of torch 2.13's OpInfo",
        rule="assert_close 1e-2 against aten, NaN equals NaN; no gradients; refuses one sound bfloat16 in thousands",
        recipe="uniform in (-9, 9); 3 x 6, D = 8, causal or additive mask; nothing reduced",
        dtypes=_ALL,
        problems=grids.BACKEND_BENCH,
    ),
    _peer(
        rules.ASSERT_CLOSE,
        name="assert_close",
        source="torch.testing.assert_close of torch 2.13: what a first test of one's own looks like",
        rule="atol 1e-5, rtol 1.3e-6, 1e-3 or 1.6e-2 by dtype, against backend MATH; refuses sound halves",
        recipe="randn; causal or not, lengths 64 to 1024, D 64 and 128; lengths cut",
        dtypes=_ALL,
        problems=grids.ASSERT_CLOSE,
    ),
)

#: Peers by name.
PEERS: dict[str, Peer] = {row.name: row for row in _ROWS}
