"""Functions with the inputs and attributes of operators, written in NumPy and PyTorch."""
# ruff: noqa: PLR0917 -- the parameters are those of the libraries

import torch

from tests.kernels.signatures.own_functions import attend, spans


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


def extend_attention_fwd(
    q_extend,
    k_extend,
    v_extend,
    o_extend,
    k_buffer,
    v_buffer,
    qo_indptr,
    kv_indptr,
    kv_indices,
    custom_mask,
    is_causal,
    mask_indptr,
    max_len_extend,
    k_scale,
    v_scale,
    sm_scale=None,
    logit_cap=0.0,
    skip_prefix_custom_mask=True,
    sliding_window_size=-1,
    sinks=None,
    window_kv_offsets=None,
    xai_temperature_len=-1,
    lse_extend=None,
    skip_prefix=False,
    skip_extend=False,
    page_size=1,
    score_mod=None,
    aux_tensors=None,
    extend_seq_lens_cpu=None,
    identity_kv_indices=False,
):
    window = (sliding_window_size if sliding_window_size > 0 else None, None)
    masking = {"scale": sm_scale, "causal": is_causal, "window": window, "softcap": logit_cap, "sinks": sinks}
    for rows, span in zip(spans(qo_indptr), spans(kv_indptr), strict=True):
        assert rows.stop - rows.start <= max_len_extend
        pools = (k_buffer, k_extend), (v_buffer, v_extend)
        keys, values = (torch.cat([pool[kv_indices[span]], new[rows]]) for pool, new in pools)
        out, lse = attend(q_extend[rows], keys, values, **masking)
        o_extend[rows] = out.to(o_extend.dtype)
        if lse_extend is not None:
            lse_extend[rows] = lse.T.to(lse_extend.dtype)
