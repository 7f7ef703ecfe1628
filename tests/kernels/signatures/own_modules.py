"""Functions with the signatures of TransformerEngine, cuDNN and MLX, written in PyTorch."""
# ruff: noqa: PLR0917 -- the parameters are those of the libraries

import torch

from tests.kernels.signatures.own_functions import attend, each, of_pair, packed


def te_forward(
    query_layer=None,
    key_layer=None,
    value_layer=None,
    attention_mask=None,
    qkv_format=None,
    cu_seqlens_q=None,
    cu_seqlens_kv=None,
    cu_seqlens_q_padded=None,
    cu_seqlens_kv_padded=None,
    max_seqlen_q=None,
    max_seqlen_kv=None,
    attn_mask_type=None,
    window_size=None,
    bottom_right_diagonal=None,
    softcap=None,
    checkpoint_core_attention=False,
    core_attention_bias_type="no_bias",
    core_attention_bias=None,
    alibi_slopes=None,
    fast_zero_fill=True,
    inference_params=None,
    pad_between_seqs=None,
    fp8_output=False,
    num_splits=1,
    score_mod=None,
    qkv_layer=None,
    kv_layer=None,
    thd_attention_policies=None,
):
    assert qkv_format == "thd"
    causal = attn_mask_type == "padding_causal_bottom_right"
    window = of_pair(window_size or (-1, -1))
    assert causal or None in window == (None, None) or window[0] is not None
    q, k, v = query_layer, key_layer, value_layer
    out = q.new_full((*q.shape[:2], v.shape[-1]), torch.nan)
    lies = zip(cu_seqlens_q_padded, cu_seqlens_kv_padded, cu_seqlens_q.diff(), cu_seqlens_kv.diff(), strict=False)
    for first, start, queries, keys in ((int(a), int(b), int(m), int(n)) for a, b, m, n in lies):
        rows, own = slice(first, first + queries), slice(start, start + keys)
        found, _ = attend(q[rows], k[own], v[own], causal=causal, window=window, softcap=softcap or 0.0)
        out[rows] = found.to(q.dtype)
    return out.flatten(1)


def sdpa(
    query,
    key,
    value,
    *,
    scale=None,
    is_causal=False,
    causal_bottom_right=False,
    window_left=-1,
    window_right=-1,
    sinks=None,
    seq_len_q=None,
    seq_len_kv=None,
    cu_seqlens_q=None,
    cu_seqlens_kv=None,
    max_seqlen_q=0,
    max_seqlen_kv=0,
    return_lse=False,
):
    assert window_left
    assert causal_bottom_right == (is_causal or max(window_left, window_right) >= 0)
    assert (seq_len_q is None) == (seq_len_kv is None)
    window = of_pair((window_left - (window_left > 0), window_right))
    masking = {"scale": scale, "causal": is_causal, "window": window, "sinks": sinks}
    if cu_seqlens_q is not None:
        assert min(max_seqlen_q, max_seqlen_kv) >= 0
        out, lse = packed(query, key, value, cu_seqlens_q, cu_seqlens_kv, -torch.inf, **masking)
        return (out, lse.T[..., None]) if return_lse else out
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    ends = zip(seq_len_q, seq_len_kv, strict=True) if seq_len_q is not None else [(q.shape[1], k.shape[1])] * len(q)
    found = []
    for b, (m, n) in enumerate(ends):
        out, lse = attend(q[b, :m], k[b, :n], v[b, :n], **masking)
        behind = q.shape[1] - int(m)
        pad = torch.nn.functional.pad
        found.append((pad(out, (0, 0, 0, 0, 0, behind), value=torch.nan), pad(lse, (0, behind), value=torch.nan)))
    out, lse = each(found, query)
    return (out.transpose(1, 2), lse[..., None]) if return_lse else out.transpose(1, 2)


def mlx_attention(q, k, v, *, scale, mask=None, sinks=None, force_fused=False, stream=None):
    s = (q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT) * scale
    if isinstance(mask, str):
        assert mask == "causal"
        mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril(s.shape[-1] - s.shape[-2])
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min) if mask.dtype == torch.bool else s + mask.double()
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[None, :, None, None].expand(*s.shape[:3], 1)], -1)
        v = torch.cat([v, v.new_zeros(*v.shape[:2], 1, v.shape[3])], 2)
    return (s.softmax(-1) @ v).to(q.dtype)
