"""Attention that quantises inside, in PyTorch: int8 by blocks, int4, mxfp8, nvfp4, and float8 of rotated vectors.

``int8_blocks`` is that of SageAttention: Zhang et al., arXiv 2410.02367, section 4. The mean of the keys of each head
is subtracted first, since it moves all scores of a row alike. A block of 32 queries, or of 64 keys, has the scale
s = max |x| / 127 and the codes round(x / s), from -127 to 127. The products of codes are sums of integers in int32,
which are exact, times both scales. Weights are rounded to the dtype of v for their product with it, which float32
accumulates.

``int4_tokens`` has int4 and a scale for each query and each key, of keys without their mean. ``mxfp8`` has a scale for
32 columns of a query or key: the power of 2 from amax / 448 up (OCP Microscaling Formats 1.0). ``mxfp8_values`` has one
for 32 values of a column too. It takes float16 alone, whose subnormal numbers still have scales in float32. ``nvfp4``
has codes of float4_e2m1fn, a scale in float8_e4m3fn for 16 columns, and one for the tensor. For these three, codes
times scales are the operands. ``rotated_fp8`` multiplies queries and keys by signs and Sylvester's matrix
over sqrt(n), and has float8_e4m3fn with a scale for each head (FlashAttention-3, arXiv 2407.08608, section 3.3).

The log-sum-exp of keys without their mean is that of the keys with their mean, so that q.mean is added to it again.
Blocks and means count all tokens of the tensors, masked ones too. Each division is correctly rounded, as PyTorch's on a
CPU is.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel
from attn_spec.contract.quantisers import Quantiser

from .lengths import first_aligned
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

QUERY_BLOCK, KEY_BLOCK = 32, 64
LARGEST = 127.0
SIGNS = (1, -1, -1, 1, -1)
INT8 = (
    Quantiser(of="q", block=QUERY_BLOCK, over="buffer", division_error=0.0),
    Quantiser(of="k", block=KEY_BLOCK, over="buffer", division_error=0.0, subtracts="mean_of_keys"),
)
_QUERIES, _KEYS = Quantiser.of_both(format="int4", block=1, over="buffer", division_error=0.0)
INT4 = (_QUERIES, replace(_KEYS, subtracts="mean_of_keys"))
_MX: dict[str, Any] = {
    "format": "float8_e4m3fn",
    "over": "buffer",
    "scale_dtype": "float8_e8m0fnu",
    "scale_rounding": "up",
    "division_error": 0.0,
}
MXFP8 = Quantiser.of_both(block=1, columns=32, **_MX)
MXFP8_VALUES = (*MXFP8, Quantiser(of="v", block=32, columns=1, **_MX))
NVFP4 = Quantiser.of_both(
    format="float4_e2m1fn",
    block=1,
    columns=16,
    over="buffer",
    scale_dtype="float8_e4m3fn",
    second_level="tensor",
    division_error=0.0,
)
ROTATED = Quantiser.of_both(format="float8_e4m3fn", over="buffer", rotates="hadamard", signs=SIGNS, division_error=0.0)


def quantised(x: Tensor, block: int, most: float = LARGEST) -> tuple[Tensor, Tensor]:
    """Return the codes of x [B, H, S, D] in int32, up to ``most``, and the scale of each token, [B, H, S, 1]."""
    B, H, S, D = x.shape
    blocks = -(-S // block)
    padded = torch.nn.functional.pad(x, (0, 0, 0, blocks * block - S)).reshape(B, H, blocks, block, D)
    largest = padded.abs().amax((-1, -2)) if padded.numel() else padded.new_zeros(B, H, blocks)
    scale = (largest / most).repeat_interleave(block, dim=2)[:, :, :S, None]
    codes = torch.round(x / torch.where(scale == 0, 1.0, scale)).clamp(-most, most)
    return codes.to(torch.int32), scale


def by_columns(x: Tensor, columns: int) -> Tensor:
    """Return the largest magnitude of each block of so many columns of x [.., D], for each number of it."""
    D = x.shape[-1]
    blocks = -(-D // columns)
    padded = torch.nn.functional.pad(x.abs(), (0, blocks * columns - D)).unflatten(-1, (blocks, columns))
    return padded.amax(-1).repeat_interleave(columns, dim=-1)[..., :D]


def in_mxfp8(x: Tensor) -> Tensor:
    """Return x [.., D] as float8_e4m3fn times a power of 2 for each 32 columns."""
    fraction, exponent = torch.frexp(by_columns(x, 32) / 448.0)
    scale = torch.ldexp(torch.ones_like(x), exponent - (fraction == 0.5).int())
    return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float() * scale


def in_nvfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [.., D] as float4_e2m1fn times float8_e4m3fn for each 16 columns, and the scale of the tensor."""
    whole = (x.abs().amax() if x.numel() else x.new_zeros(())) / (6.0 * 448.0)
    whole = torch.where(whole == 0, 1.0, whole)
    scale = (by_columns(x, 16) / 6.0 / whole).clamp(max=448.0).to(torch.float8_e4m3fn).float()
    quotient = (x / torch.where(scale == 0, 1.0, scale * whole)).clamp(-6.0, 6.0)
    step = torch.where(quotient.abs() < 2, 0.5, torch.where(quotient.abs() < 4, 1.0, 2.0))
    return torch.round(quotient / step) * step * scale, whole


def rotated(x: Tensor) -> Tensor:
    """Return x [.., D] times the signs, then Sylvester's matrix over sqrt(n), n the power of 2 that divides D."""
    D = x.shape[-1]
    n = D & -D
    matrix = torch.ones(1, 1)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.tensor([float(SIGNS[d % len(SIGNS)]) for d in range(D)])
    return ((x * signs).unflatten(-1, (D // n, n)) @ (matrix / math.sqrt(n))).flatten(-2)


def in_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes of x [B, H, S, D] in float8_e4m3fn, and the scale of each head, [B, H, 1, 1]."""
    largest = x.abs().amax((-1, -2), keepdim=True) if x.numel() else x.new_zeros(*x.shape[:2], 1, 1)
    scale = torch.where(largest == 0, 1.0, largest / 448.0)
    return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float(), scale


def attended(
    s: Tensor,
    v: Tensor,
    dtype: torch.dtype,
    *,
    causal_alignment: str = "top_left",
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    **by_position: Any,
) -> tuple[Tensor, Tensor]:
    """Return the output in float32 and the log-sum-exp [.., Sq, 1] of scores and of v, weights rounded to a dtype."""
    Sq, Sk = s.shape[-2:]
    diagonal = torch.arange(Sq)[:, None] + first_aligned(causal_alignment, Sq, Sk, None, None)
    seen = band(**by_position).sees(diagonal, torch.arange(Sk)).expand(s.shape)
    seen = seen if mask is None else seen & mask
    if bias is not None:
        s, seen = s + bias, seen & (bias != -math.inf)
    s = s.masked_fill(~seen, -math.inf)
    m = s.amax(-1, keepdim=True) if Sk else s.new_full((*s.shape[:3], 1), -math.inf)
    p = torch.exp(s - torch.where(m == -math.inf, 0.0, m))
    total = p.sum(-1, keepdim=True)
    nonzero = torch.where(total == 0, 1.0, total)
    return p.to(dtype).float() @ v / nonzero, m + torch.log(nonzero)


def declared(quantisers: tuple[Quantiser, ...], *dtypes: str) -> Any:
    """Return the declaration of a kernel that quantises so, at these dtypes or at three."""
    return kernel(
        framework="torch",
        dtypes=dtypes or ("float16", "bfloat16", "float32"),
        contract=Contract(exponent="natural", matrix_rounding=None, kv_tile=None, quantisers=quantisers),
        supports=("scale", *BY_POSITION, "mask", "bias", "gqa", "dv", "cross", "empty", "lse"),
        devices=("cpu",),
    )


def of_integers(
    q: Tensor, k: Tensor, v: Tensor, *, blocks: tuple[int, int], most: float, scale: float | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attend to codes that are integers, of queries, and of keys without their mean."""
    group, scale = q.shape[1] // k.shape[1], 1 / math.sqrt(q.shape[3]) if scale is None else scale
    mean = k.float().sum(2, keepdim=True) / max(k.shape[2], 1)
    (codes_q, scale_q), (codes_k, scale_k) = (
        quantised(x, block, most) for x, block in zip((q.float(), k.float() - mean), blocks, strict=True)
    )
    codes_k, scale_k, mean = (x.repeat_interleave(group, 1) for x in (codes_k, scale_k, mean))
    s = (codes_q @ codes_k.mT).float() * scale_q * scale_k.mT * scale
    out, lse = attended(s, v.float().repeat_interleave(group, 1), v.dtype, **options)
    return out.to(q.dtype), (lse + q.float() @ mean.mT * scale)[..., 0]


def of_floats(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dtype: torch.dtype,
    scale: float | None,
    factor: Tensor | float = 1.0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend to operands in float32; the scale and a further factor multiply scores."""
    group, scale = q.shape[1] // k.shape[1], 1 / math.sqrt(q.shape[3]) if scale is None else scale
    s = q @ k.repeat_interleave(group, 1).mT * factor * scale
    out, lse = attended(s, v.float().repeat_interleave(group, 1), dtype, **options)
    return out.to(dtype), lse[..., 0]


@declared(INT8)
def int8_blocks(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attend to the codes of queries, and of keys without their mean, in int8 by blocks."""
    return of_integers(q, k, v, blocks=(QUERY_BLOCK, KEY_BLOCK), most=LARGEST, scale=scale, **options)


@declared(INT4)
def int4_tokens(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attend to the codes of queries, and of keys without their mean, in int4, each with a scale."""
    return of_integers(q, k, v, blocks=(1, 1), most=7.0, scale=scale, **options)


@declared(MXFP8)
def mxfp8(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Attend to queries and keys in mxfp8."""
    return of_floats(in_mxfp8(q.float()), in_mxfp8(k.float()), v, dtype=q.dtype, scale=scale, **options)


@declared(MXFP8_VALUES, "float16")
def mxfp8_values(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attend to queries, keys and values in mxfp8; blocks of values are along tokens."""
    return mxfp8.function(q, k, in_mxfp8(v.float().mT).mT, scale=scale, **options)


@declared(NVFP4)
def nvfp4(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Attend to queries and keys in nvfp4, whose scales of the tensor multiply scores."""
    (held_q, of_q), (held_k, of_k) = in_nvfp4(q.float()), in_nvfp4(k.float())
    return of_floats(held_q, held_k, v, dtype=q.dtype, scale=scale, factor=of_q * of_k, **options)


@declared(ROTATED)
def rotated_fp8(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attend to rotated queries and keys in float8_e4m3fn, with a scale for each head."""
    (codes_q, scale_q), (codes_k, scale_k) = in_fp8(rotated(q.float())), in_fp8(rotated(k.float()))
    factor = scale_q * scale_k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return of_floats(codes_q, codes_k, v, dtype=q.dtype, scale=scale, factor=factor, **options)
