"""Functions with the signatures and conventions of libraries that have no kernel for a CPU, written in PyTorch."""
# ruff: noqa: PLR0917 -- the parameters are those of the libraries

import math

import torch


def attend(q, k, v, *, scale=None, causal=False, window=(None, None), softcap=0.0, chunk=0, slopes=None, sinks=None):
    """Return out [S, Hq, Dv] and the natural LSE [Hq, S] of one sequence q [S, Hq, D], its diagonal bottom right.

    A query that sees no key has the output 0 and the LSE -inf, unless there are ``sinks`` [Hq]. ``slopes`` are [Hq].
    """
    q, k, v = (x.transpose(0, 1).double() for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    aligned = torch.arange(s.shape[1])[:, None] + s.shape[2] - s.shape[1]
    distance = torch.arange(s.shape[2]) - aligned
    left, right = (math.inf if side is None else side for side in window)
    s = s if slopes is None else s - slopes.double()[:, None, None] * distance.abs()
    seen = (distance >= -left) & (distance <= (0 if causal else right))
    if chunk:
        seen = seen & (torch.arange(s.shape[2]) // chunk == aligned.div(chunk, rounding_mode="floor"))
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[:, None, None].expand(*s.shape[:2], 1)], dim=2)
        v = torch.cat([v, v.new_zeros(len(v), 1, v.shape[2])], dim=1)
    if not s.shape[2]:
        return q.new_zeros(q.shape[1], q.shape[0], v.shape[-1]), q.new_full(q.shape[:2], -torch.inf)
    lse = s.logsumexp(-1)
    weights = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return (weights @ v).transpose(0, 1), lse


def stored(like):
    """Return the dtype of an output: that of the queries, but bfloat16 of queries of 8 bits."""
    return torch.bfloat16 if like.dtype.itemsize == 1 else like.dtype


def each(found, like, empty_lse=-torch.inf):
    """Return outputs [B, S, Hq, Dv] and LSEs [B, Hq, S] of a batch, in the inputs' dtype and in float32."""
    outs, lses = zip(*found, strict=True)
    lse = torch.stack(lses).masked_fill(torch.stack(lses) == -torch.inf, empty_lse)
    return torch.stack(outs).to(stored(like)), lse.float() if like.dtype != torch.float64 else lse


def of_pair(pair):
    """Return window lengths with None for -1."""
    return tuple(None if side == -1 else side for side in pair)


def of_entry(slopes, entry):
    """Return the slopes [Hq] of a batch entry."""
    return slopes if slopes is None or slopes.ndim == 1 else slopes[entry]


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": of_pair(window_size), "softcap": softcap}
    found = [attend(q[b], k[b], v[b], slopes=of_entry(alibi_slopes, b), **masking) for b in range(len(q))]
    out, lse = each(found, q, empty_lse=torch.inf)
    return (out, lse, None) if return_attn_probs else out


def spans(bounds):
    """Return the slots of each sequence."""
    ends = bounds.tolist()
    return list(map(slice, ends[:-1], ends[1:]))


def packed(q, k, v, cu_seqlens_q, cu_seqlens_k, empty_lse, slopes=None, descales=(None,) * 3, **masking):
    """Return out [Tq, Hq, Dv] and LSE [Hq, Tq] of packed sequences, NaN behind the last one."""
    out = torch.full((*q.shape[:2], v.shape[-1]), torch.nan, dtype=stored(q))
    lse = torch.full((q.shape[1], len(q)), torch.nan, dtype=torch.promote_types(stored(q), torch.float32))
    for b, (rows, keys) in enumerate(zip(spans(cu_seqlens_q), spans(cu_seqlens_k), strict=True)):
        real = descaled(q[rows], k[keys], v[keys], descales, b)
        o, one = attend(*real, slopes=of_entry(slopes, b), **masking)
        out[rows], lse[:, rows] = o.to(out.dtype), one.masked_fill(one == -torch.inf, empty_lse).to(lse.dtype)
    return out, lse


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": of_pair(window_size), "softcap": softcap}
    out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, torch.inf, alibi_slopes, **masking)
    return (out, lse, None) if return_attn_probs else out


def descaled(q, k, v, descales, b=None):
    """Return q, k and v [S, H, D] times the descales of a sequence, of [B, Hkv] each or None."""
    found = []
    for x, d in zip((q, k, v), descales, strict=True):
        own = None if d is None else d[b].double().repeat_interleave(x.shape[1] // d.shape[1])[:, None]
        found.append(x if own is None else x.double() * own)
    return found


def flash_attn_3_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": of_pair(window_size), "softcap": softcap}
    real = [descaled(q[b], k[b], v[b], (q_descale, k_descale, v_descale), b) for b in range(len(q))]
    out, lse = each([attend(*one, chunk=attention_chunk, **masking) for one in real], q)
    return (out, lse) if return_attn_probs else out


def flash_attn_3_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": of_pair(window_size), "softcap": softcap}
    masking |= {"chunk": attention_chunk, "descales": (q_descale, k_descale, v_descale)}
    out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, -torch.inf, **masking)
    return (out, lse) if return_attn_probs else out


def fa4_func(
    q,
    k,
    v,
    qv=None,
    gather_kv_indices=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    aux_tensors=None,
    aux_scalars=None,
    block_sparse_tensors=None,
    block_sparse_tensors_bwd=None,
    return_lse=False,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": window_size, "softcap": softcap}
    found = [attend(q[b], k[b], v[b], sinks=learnable_sink, **masking) for b in range(len(q))]
    out, lse = each(found, q)
    return (out, lse) if return_lse else out


def fa4_varlen_func(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    gather_kv_indices=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    block_sparse_tensors=None,
    aux_tensors=None,
    aux_scalars=None,
    return_lse=False,
    scheduler_metadata=None,
    seqlen_k_per_split=None,
    disable_scheduler_metadata=False,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": window_size, "softcap": softcap}
    out, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, -torch.inf, sinks=learnable_sink, **masking)
    return (out, lse) if return_lse else out


def varlen_attn(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    assert enable_gqa == (query.shape[1] != key.shape[1])
    out, lse = packed(query, key, value, cu_seq_q, cu_seq_k, torch.inf, scale=scale, window=of_pair(window_size))
    return (out, lse) if return_aux is not None and return_aux.lse else out


def unified_attention(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    max_seqlen_q,
    seqused_k,
    max_seqlen_k,
    softmax_scale,
    causal,
    window_size,
    block_table,
    softcap,
    q_descale,
    k_descale,
    v_descale,
    seq_threshold_3D=None,
    num_par_softmax_segments=None,
    softmax_segm_output=None,
    softmax_segm_max=None,
    softmax_segm_expsum=None,
    alibi_slopes=None,
    output_scale=None,
    qq_bias=None,
    sinks=None,
    mm_prefix_range=None,
    rswa_prefix_lens=None,
    rswa_window=None,
    use_alibi_sqrt=False,
    kv_quant_mode=0,
    k_scale_cache=None,
    v_scale_cache=None,
    chunk_lookback=-1,
    use_td=False,
    mm_prefix_clamp_sliding_window=False,
):
    assert causal, "Only causal attention is supported"
    masking = {"scale": softmax_scale, "causal": True, "window": (of_pair(window_size)[0], 0), "softcap": softcap}
    for rows, length, pages in zip(spans(cu_seqlens_q), seqused_k.tolist(), block_table, strict=True):
        own = pages[: -(-length // k.shape[1])]
        keys, values = (cache[own].flatten(0, 1)[:length] for cache in (k, v))
        if kv_quant_mode == 1:
            keys, values = (x.double() * d.reshape(-1)[0] for x, d in ((keys, k_descale), (values, v_descale)))
        if kv_quant_mode == 3:
            caches = (k_scale_cache, v_scale_cache)
            scales = (cache[own].flatten(0, 1)[:length, :, None] for cache in caches)
            keys, values = (x.double() * d for x, d in zip((keys, values), scales, strict=True))
        out[rows] = attend(q[rows], keys, values, sinks=sinks, **masking)[0].to(out.dtype)


def decode_attention_fwd(
    q,
    k_buffer,
    v_buffer,
    o,
    kv_indptr,
    kv_indices,
    attn_logits,
    attn_lse,
    num_kv_splits,
    max_kv_splits,
    sm_scale,
    k_scale,
    v_scale,
    logit_cap=0.0,
    sinks=None,
    xai_temperature_len=-1,
    has_mla=False,
    use_pdl=False,
    page_size=1,
    score_mod=None,
    aux_tensors=None,
    enable_lean=None,
    lean_Mp=None,
    lean_Lp=None,
    lean_Op=None,
    lean_locks=None,
    uneven_batch=None,
):
    assert max_kv_splits == attn_logits.shape[2]
    assert attn_lse.shape == attn_logits.shape[:3]
    assert num_kv_splits.shape[0] == len(q)
    for b, span in enumerate(spans(kv_indptr)):
        keys, values = (pool[kv_indices[span]] for pool in (k_buffer, v_buffer))
        found = attend(q[b : b + 1], keys, values, scale=sm_scale * k_scale, softcap=logit_cap, sinks=sinks)[0]
        o[b] = (found[0] * v_scale).to(o.dtype)


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
    q, k, v = (x.transpose(1, 2).double() for x in (query, key, value))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if attn_bias is None else s + attn_bias.double()
    sees_nothing = s.isneginf().all(-1, keepdim=True)
    return (s.softmax(-1).masked_fill(sees_nothing, 0.0) @ v).transpose(1, 2).to(query.dtype)


def trtllm_batch_decode_with_kv_cache(
    query,
    kv_cache,
    workspace_buffer,
    block_tables,
    seq_lens,
    max_seq_len,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    window_left=-1,
    out=None,
    out_dtype=None,
    o_sf_scale=None,
    o_sf_vec_size=None,
    sinks=None,
    kv_layout="HND",
    enable_pdl=None,
    backend="auto",
    q_len_per_req=1,
    o_scale=1.0,
    mask=None,
    max_q_len=None,
    cum_seq_lens_q=None,
    skip_softmax_threshold_scale_factor=None,
    kv_cache_sf=None,
    uses_shared_paged_kv_idx=True,
    lse=None,
    return_lse=False,
    bmm1_scale_log2=None,
    multi_ctas_kv_counter_buffer=None,
    enable_block_sparse_attention=False,
    cp_world=1,
    cp_rank=0,
    causal_seqlens_kv_global=None,
    bf16q_fp8kv_transform_mode=None,
    request_order=None,
    request_order_plan=None,
    sparse_top_k=0,
    length_aware_schedule=False,
):
    assert kv_layout == "NHD"
    k, v = kv_cache
    out = query.new_zeros(*query.shape[:2], v.shape[-1])
    for b, (length, pages) in enumerate(zip(seq_lens.tolist(), block_tables, strict=True)):
        assert length <= max_seq_len
        keys, values = (cache[pages[: -(-length // k.shape[1])]].flatten(0, 1)[:length] for cache in (k, v))
        window = of_pair((window_left, -1))
        out[b] = (
            attend(query[b : b + 1], keys, values, scale=bmm1_scale, window=window)[0][0].to(out.dtype) * bmm2_scale
        )
    return out
