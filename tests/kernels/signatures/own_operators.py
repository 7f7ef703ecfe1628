"""Functions with the inputs and attributes of operators, written in NumPy and PyTorch."""

import torch

from tests.kernels.signatures.own_functions import attend


def group_query_attention(
    query,
    key,
    value,
    past_key=None,
    past_value=None,
    *,
    seqlens_k,
    total_sequence_length,
    cos_cache=None,
    sin_cache=None,
    position_ids=None,
    attention_bias=None,
    head_sink=None,
    k_scale=None,
    v_scale=None,
    q_norm_weight=None,
    k_norm_weight=None,
    query_seqlens=None,
    num_heads,
    kv_num_heads,
    scale=None,
    softcap=0.0,
    causal=True,
    local_window_size=-1,
    do_rotary=0,
    rotary_interleaved=0,
    smooth_softmax=-1,
    qk_output=0,
):
    assert total_sequence_length == query.shape[1]
    heads = (num_heads, kv_num_heads, kv_num_heads)
    q, k, v = (
        torch.from_numpy(x).unflatten(2, (count, -1)) for x, count in zip((query, key, value), heads, strict=True)
    )
    out = q.new_full((*q.shape[:3], v.shape[-1]), torch.nan)
    window = (None if local_window_size < 0 else local_window_size - 1, None)
    sinks = None if head_sink is None else torch.from_numpy(head_sink)
    for b, last in enumerate(seqlens_k.tolist()):
        own = slice(last + 1)
        masking = {"scale": scale, "causal": causal, "window": window, "softcap": softcap, "sinks": sinks}
        out[b, own] = attend(q[b, own], k[b, own], v[b, own], **masking)[0].to(q.dtype)
    return out.flatten(2).numpy(), k.transpose(1, 2).numpy(), v.transpose(1, 2).numpy()
