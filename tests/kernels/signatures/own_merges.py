"""Functions with the signatures of libraries that merge attention states, written in PyTorch."""
# ruff: noqa: PLR0917 -- the parameters are those of the libraries

import torch


def merged(v, s):
    """Return the output [T, H, D] and the natural LSE [T, H] of states v [N, T, H, D] and s [N, T, H], in float64."""
    s = s.double()
    s = s.masked_fill(s.isinf(), -torch.inf)
    lse = s.logsumexp(0)
    weights = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0))
    return (weights[..., None] * v.double()).sum(0), lse


def as_read(x):
    """Return an output [T, H, D] as vLLM's kernel reads it: tokens are one stride of heads for each head apart."""
    return x.as_strided(x.shape, (x.shape[1] * x.stride(1), x.stride(1), 1))


def merge_attn_states(
    output,
    prefix_output,
    prefix_lse,
    suffix_output,
    suffix_lse,
    output_lse=None,
    prefill_tokens_with_context=None,
    output_scale=None,
):
    states = torch.stack([as_read(prefix_output), as_read(suffix_output)])
    out, lse = merged(states, torch.stack([prefix_lse.T, suffix_lse.T]))
    output.copy_(out)
    if output_lse is not None:
        output_lse.copy_(lse.T)


def in_base_2(v, s):
    """Return the output and the LSE of base 2, float32, of states whose LSEs s [N, T, H] are of base 2."""
    s = s.float()
    top = s.amax(0)
    weights = torch.exp2(s - top.masked_fill(top == -torch.inf, 0.0))
    total = weights.sum(0)
    out = (weights[..., None] * v.float()).sum(0) / total.masked_fill(total == 0, 1.0)[..., None]
    return out.to(v.dtype), top + torch.log2(total)


def merge_state(v_a, s_a, v_b, s_b):
    return in_base_2(torch.stack([v_a, v_b]), torch.stack([s_a, s_b]))


def merge_states(v, s):
    return in_base_2(v.transpose(0, 1), s.transpose(0, 1))
