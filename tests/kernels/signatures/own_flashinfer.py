"""Wrappers with the methods of FlashInfer's, written in PyTorch."""
# ruff: noqa: ARG002, PLR0917 -- the parameters are those of the library

import functools
import math

import torch

from tests.kernels.signatures.own_functions import attend, spans


def over_pages(q, caches, rows, bounds, indices, lengths, **masking):
    """Return out [T, Hq, Dv] and the LSE of base 2 [T, Hq] of queries with these ``rows``, and keys in listed pages."""
    out = q.new_full((*q.shape[:2], caches[1].shape[-1]), torch.nan)
    lse = torch.full(q.shape[:2], torch.nan)
    for own, pages, length in zip(rows, spans(bounds), lengths, strict=True):
        keys, values = (cache[indices[pages].long()].flatten(0, 1)[:length] for cache in caches)
        o, one = attend(q[own], keys, values, **masking)
        out[own], lse[own] = o.to(q.dtype), one.T.to(lse.dtype) / math.log(2)
    return out, lse


def keys_of(bounds, last, size):
    """Return the number of keys of each sequence."""
    return ((bounds.diff() - 1) * size + last).tolist()


class Decode:
    """A wrapper of BatchDecodeWithPagedKVCacheWrapper's methods."""

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        *,
        pos_encoding_mode="NONE",
        window_left=-1,
        window_right=0,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        sm_scale=None,
        q_len_per_req=1,
    ):
        assert num_qo_heads in {size * num_kv_heads for size in (1, 2, 3, 4, 6, 8, 16)}
        self.lies = indptr, indices, keys_of(indptr, last_page_len, page_size)
        window = (None if window_left == -1 else window_left, None)
        self.masking = {
            "scale": head_dim**-0.5 if sm_scale is None else sm_scale,
            "window": window,
            "softcap": logits_soft_cap or 0.0,
        }
        self.dtypes = q_data_type, kv_data_type

    def run(
        self,
        q,
        paged_kv_cache,
        *,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        sinks=None,
    ):
        assert (q.dtype, paged_kv_cache[0].dtype) == self.dtypes
        assert paged_kv_cache[0].stride() == paged_kv_cache[1].stride()
        rows = [slice(b, b + 1) for b in range(len(q))]
        found = over_pages(q, paged_kv_cache, rows, *self.lies, **scaled(self.masking, q, q_scale, k_scale))
        return found if return_lse else found[0]


def scaled(masking, q, *factors):
    """Return the arguments of a call with its scale times those factors that are not None."""
    scale = q.shape[-1] ** -0.5 if masking["scale"] is None else masking["scale"]
    return {**masking, "scale": scale * math.prod(1.0 if factor is None else factor for factor in factors)}


class Prefill:
    """A wrapper of BatchPrefillWithPagedKVCacheWrapper's methods."""

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
    ):
        lengths = keys_of(paged_kv_indptr, paged_kv_last_page_len, page_size)
        self.lies = spans(qo_indptr), paged_kv_indptr, paged_kv_indices, lengths
        window = (None if window_left == -1 else window_left, None)
        self.masking = {"scale": sm_scale, "causal": causal, "window": window, "softcap": logits_soft_cap or 0.0}

    def run(
        self,
        q,
        paged_kv_cache,
        *,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        lse_base="log2",
        lse_layout="NH",
        enable_pdl=None,
        sinks=None,
    ):
        assert q.shape[0] == self.lies[0][-1].stop
        found = over_pages(q, paged_kv_cache, *self.lies, **scaled(self.masking, q, q_scale, k_scale))
        return found if return_lse else found[0]


class LatentPaged:
    """A wrapper of BatchMLAPagedAttentionWrapper's methods."""

    def plan(
        self,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        num_heads=None,
        head_dim_ckv=None,
        head_dim_kpe=None,
        page_size=None,
        causal=None,
        sm_scale=None,
        q_data_type=None,
        kv_data_type=None,
        lse_mode="none",
    ):
        assert (head_dim_ckv, head_dim_kpe) == (512, 64)
        self.lies = spans(qo_indptr), kv_indptr, kv_indices, kv_len_arr.tolist()
        self.masking, self.mode = {"scale": sm_scale, "causal": causal}, lse_mode

    def run(
        self,
        q_nope=None,
        q_pe=None,
        ckv_cache=None,
        kpe_cache=None,
        out=None,
        lse=None,
        return_lse=False,
        return_lse_base_on_e=False,
        o_scale=None,
        sinks=None,
    ):
        assert return_lse == (self.mode == "base2")
        keys = torch.cat([ckv_cache, kpe_cache], -1)[:, :, None]
        caches = keys, ckv_cache[:, :, None]
        found = over_pages(torch.cat([q_nope, q_pe], -1), caches, *self.lies, **self.masking)
        return found if return_lse else found[0]


#: A wrapper as a user has one, for the command.
decode = Decode()


def misreading(wrapper, method, **changes):
    """Return a wrapper whose ``method`` misreads some arguments: each change maps a value to the one that is used."""
    right = getattr(wrapper, method)

    @functools.wraps(right)
    def misread(**given):
        return right(**{**given, **_changed(given, changes)})

    setattr(wrapper, method, misread)
    return wrapper


def _changed(given, changes):
    return {name: change(given.get(name)) for name, change in changes.items()}
