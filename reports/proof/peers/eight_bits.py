"""Tests of attention with 8-bit inputs by others: how they quantize, what they compare with, and what they tolerate.

Rules and recipes are facts, read in the tests named by ``source`` and written here anew. Each suite compares with
attention of the numbers before they were quantized, but for one, which compares with that of the stored numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import FUSED
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem

#: Format in which all of these suites store 8-bit inputs; some have others too.
STORED = "float8_e4m3fn"
#: Probabilities in 8 bits, as they are cast (vLLM), and times 2^8 first (FlashAttention-3 and kernels made of it).
CAST = replace(FUSED, probabilities=STORED, overflow="saturates")
SCALED = replace(CAST, probability_scale=2.0**8)


@dataclass(frozen=True)
class Rule:
    """An accept rule on outputs, of which both functions take the reference first."""

    #: Largest distance of each element, of the shape of the reference; for rules of a mean, its root mean square.
    tolerance: Callable[[np.ndarray], np.ndarray]
    #: Return whether an output is accepted.
    accepts: Callable[[np.ndarray, np.ndarray], bool]


def close(atol: float, rtol: float) -> Rule:
    """Return the rule |x - reference| <= atol + rtol |reference| for every element, as of ``assert_close``."""

    def tolerance(reference: np.ndarray) -> np.ndarray:
        return atol + rtol * np.abs(reference)

    return Rule(tolerance, lambda reference, x: bool((np.abs(x - reference) <= tolerance(reference)).all()))


def mean_square(limit: Callable[[np.ndarray], float]) -> Rule:
    """Return the rule that the root of the mean squared error is below a limit, which depends on the reference."""

    def accepts(reference: np.ndarray, x: np.ndarray) -> bool:
        return bool(np.sqrt(np.mean((x - reference) ** 2)) < limit(reference))

    return Rule(lambda reference: np.full(reference.shape, limit(reference)), accepts)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite's test of attention with 8-bit inputs."""

    name: str
    #: Repository, file, test and version in which rule and recipe were read.
    source: str
    #: Condition under which the suite accepts, and its inputs with what was reduced, in one line each.
    rule: str
    recipe: str
    #: Dtype of the numbers before they are quantized, and of the output.
    dtype: str
    #: Lengths of queries and keys, the head dimension, query heads and kv heads.
    shapes: tuple[tuple[int, int, int, int, int], ...]
    applied: Rule = field(repr=False)
    #: Factors of quantization of q, k and v by name, each [1, Hkv, 1, 1], from these numbers; a name that is left out
    #: is not quantized.
    scales: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]] = field(repr=False)
    #: The arithmetic of a kernel that the suite tests.
    contract: Contract = FUSED
    #: Sizes of q, k and v, which are normal.
    sizes: tuple[float, float, float] = (1.0, 1.0, 1.0)
    causal: bool = False
    #: True if the reference is attention of the stored numbers.
    dequantized: bool = False

    @property
    def casts(self) -> bool:
        """True if kernels that the suite tests keep probabilities in 8 bits."""
        return self.contract.probabilities == STORED

    def drawn(self, seed: int) -> list[tuple[Problem, Problem]]:
        """Return pairs of a problem before it was quantized, and with stored numbers and descales, one a shape."""
        rng, found = np.random.default_rng(seed), []
        for Sq, Sk, D, Hq, Hkv in self.shapes:
            shapes = {"q": (1, Hq, Sq, D), "k": (1, Hkv, Sk, D), "v": (1, Hkv, Sk, D)}
            sizes = dict(zip("qkv", self.sizes, strict=True))
            x = {n: bits.nearest(sizes[n] * rng.standard_normal(shape), self.dtype) for n, shape in shapes.items()}
            options: dict[str, Any] = {"causal": self.causal, "causal_alignment": "bottom_right"}
            before = Problem(**x, dtypes=self.dtype, **options)
            found.append((before, self._quantized(before, x)))
        return found

    def _quantized(self, before: Problem, x: Mapping[str, np.ndarray]) -> Problem:
        factors, most = self.scales(x), FORMATS[STORED].largest
        changes: dict[str, Any] = {}
        for name, factor in factors.items():
            d = bits.nearest(np.broadcast_to(factor, (1, before.kv_heads, 1, 1)), "float32")
            of_heads = np.repeat(d, before.group, axis=1) if name == "q" else d
            changes[name] = bits.nearest(np.clip(x[name] / of_heads, -most, most), STORED)
            changes[f"{name}_descale"] = d
        dtypes = {"qkv": self.dtype, **{name: "float32" for name in changes if name.endswith("descale")}}
        return before.replace(**changes, dtypes=dtypes)


def _fixed(**factors: float) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    return lambda x: {name: np.full((1, 1, 1, 1), d) for name, d in factors.items()}


def _of_head(x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the largest number of each head over 448; these suites have a kv head for each query head."""
    return {name: np.abs(x[name]).max(axis=(2, 3), keepdims=True) / FORMATS[STORED].largest for name in "qkv"}


def _of_tensor(x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.abs(x[name]).max(keepdims=True) / FORMATS[STORED].largest for name in "qkv"}


def _calibrated(x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x[name].max(keepdims=True) / 256 for name in "kv"}


_VLLM = "vllm-project/vllm tests/kernels/attention/test_triton_unified_attention.py at 003ee61"
_FLASHINFER = "flashinfer-ai/flashinfer tests/attention/test_fp8_prefill.py at 2c6d0e4"

SUITES = (
    Suite(
        name="vLLM, 8-bit queries",
        source=f"{_VLLM}, test_triton_unified_attn",
        rule="assert_close with atol 0.15, rtol 0.15, against bfloat16 attention before quantization",
        recipe="randn; q / 0.75, k / 0.5, v / 0.25; causal; decode and chunks; lengths, heads cut",
        dtype="bfloat16",
        shapes=((1, 256, 128, 4, 1), (33, 97, 128, 2, 2)),
        applied=close(0.15, 0.15),
        scales=_fixed(q=0.75, k=0.5, v=0.25),
        contract=CAST,
        causal=True,
    ),
    Suite(
        name="vLLM, 16-bit queries",
        source=f"{_VLLM}, test_triton_unified_attn_bf16_query_fp8_kv",
        rule="assert_close with atol 0.15, rtol 0.15, against bfloat16 attention before quantization",
        recipe="randn; k / 0.5, v / 0.25; causal; decode and chunks; lengths, heads cut",
        dtype="bfloat16",
        shapes=((1, 256, 128, 4, 1), (33, 97, 128, 2, 2)),
        applied=close(0.15, 0.15),
        scales=_fixed(k=0.5, v=0.25),
        causal=True,
    ),
    Suite(
        name="FlashInfer, Hopper",
        source="flashinfer-ai/flashinfer tests/attention/test_hopper_fp8_attention.py at 1d91316, test_single_prefill",
        rule="mean squared error below 1.0, against float16 attention before quantization",
        recipe="randn; each head of q, k, v over its largest number / 448; causal left out; lengths, heads cut",
        dtype="float16",
        shapes=((117, 117, 64, 2, 2), (117, 117, 128, 2, 2)),
        applied=mean_square(lambda reference: 1.0),
        scales=_of_head,
        contract=SCALED,
    ),
    Suite(
        name="FlashInfer, calibrated",
        source=f"{_FLASHINFER}, test_batch_prefill_with_paged_kv_cache_fp8_calibration_scale",
        rule="assert_close with atol 0.01, rtol 0.2, against float16 attention before quantization",
        recipe="randn, k and v 0.05 x; k, v over their largest number / 256; heads cut",
        dtype="float16",
        shapes=((53, 97, 64, 2, 2), (7, 54, 128, 4, 1)),
        applied=close(1e-2, 2e-1),
        scales=_calibrated,
        sizes=(1.0, 0.05, 0.05),
    ),
    Suite(
        name="FlashInfer, ragged",
        source=f"{_FLASHINFER}, test_batch_prefill_with_ragged_kv_cache_fp8",
        rule="assert_close with atol 0.01, rtol 0.01, against float16 attention of the stored numbers",
        recipe="randn; k, v rounded without a factor; causal left out; heads cut",
        dtype="float16",
        shapes=((53, 97, 64, 2, 2), (7, 54, 128, 4, 1)),
        applied=close(1e-2, 1e-2),
        scales=_fixed(k=1.0, v=1.0),
        dequantized=True,
    ),
    Suite(
        name="TransformerEngine",
        source="NVIDIA/TransformerEngine tests/pytorch/attention/test_attention.py at 368117b, test_dpa_fp8_vs_f16",
        rule="root mean square of the error below 0.11 x range of the output, against 16 bits; assert_close is logged",
        recipe="randn; each tensor over its largest number / 448; lengths, heads cut",
        dtype="bfloat16",
        shapes=((128, 128, 128, 2, 2), (128, 128, 64, 2, 2)),
        applied=mean_square(lambda reference: 0.11 * float(np.ptp(reference))),
        scales=_of_tensor,
        contract=SCALED,
    ),
    Suite(
        name="torchao",
        source="pytorch/ao test/prototype/attention/test_fp8_attention.py at 0986316, test_sdpa_accuracy",
        rule="signal over error above 25 dB, against 16-bit attention before quantization",
        recipe="randn; each head of q, k, v over its largest number / 448; lengths 1024 cut, heads cut",
        dtype="bfloat16",
        shapes=((256, 256, 64, 2, 2), (128, 128, 128, 2, 2)),
        applied=mean_square(lambda reference: float(10 ** (-25 / 20) * np.sqrt(np.mean(reference**2)))),
        scales=_of_head,
        contract=SCALED,
    ),
)
