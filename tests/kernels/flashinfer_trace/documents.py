"""Documents of the FlashInfer Trace schema for tests, with names and inputs as the public ones have them."""

import json
from pathlib import Path

#: Dtypes of inputs that are no tensors of the definition's own dtype.
LISTS = dict.fromkeys(("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"), "int32")

#: Sequences in pages: the keys of sequence b lie in its pages, one behind the other.
_PAGED = """
def keys_of(cache, kv_indptr, kv_indices, kv_last_page_len, b):
    pages = kv_indices[kv_indptr[b] : kv_indptr[b + 1]].long()
    keys = cache[pages].float().flatten(0, 1)
    unused = 0 if kv_last_page_len is None or not len(pages) else cache.shape[1] - int(kv_last_page_len[b])
    return keys[: len(keys) - unused]
"""

#: One sequence in float32: the output [n, Hq, Dv], and the log-sum-exp [n, Hq] to the base 2.
_ATTEND = """
import math

import torch


def attend(q, k, v, scale, causal):
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    s = torch.einsum("ihd,jhd->hij", q.float(), k) * scale
    if causal:
        s = s.masked_fill(torch.ones(s.shape[1:], dtype=torch.bool).triu(1 + len(k) - len(q)), -torch.inf)
    return torch.einsum("hij,jhd->ihd", s.softmax(-1), v), s.logsumexp(-1).T / math.log(2.0)
"""

DECODE = (
    _ATTEND
    + _PAGED
    + """
def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    assert len(kv_indptr) == len(q) + 1 and len(kv_indices) == int(kv_indptr[-1])
    output, lse = torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
    for b in range(len(q)):
        k, v = (keys_of(cache, kv_indptr, kv_indices, None, b) for cache in (k_cache, v_cache))
        output[b : b + 1], lse[b : b + 1] = attend(q[b : b + 1], k, v, sm_scale, False)
    return output, lse
"""
)

PREFILL = (
    _ATTEND
    + _PAGED
    + """
def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    assert len(q) == int(qo_indptr[-1])
    output, lse = torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
    for b in range(len(qo_indptr) - 1):
        own = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
        k, v = (keys_of(cache, kv_indptr, kv_indices, kv_last_page_len, b) for cache in (k_cache, v_cache))
        output[own], lse[own] = attend(q[own], k, v, sm_scale, True)
    return {"output": output, "lse": lse}
"""
)

RAGGED = (
    _ATTEND
    + """
def run(q, k, v, qo_indptr, kv_indptr, sm_scale):
    assert len(q) == int(qo_indptr[-1]) and len(k) == int(kv_indptr[-1])
    output, lse = torch.zeros(*q.shape[:2], v.shape[-1], dtype=q.dtype), torch.full(q.shape[:2], -torch.inf)
    for b in range(len(qo_indptr) - 1):
        own, seen = (slice(int(bounds[b]), int(bounds[b + 1])) for bounds in (qo_indptr, kv_indptr))
        output[own], lse[own] = attend(q[own], k[seen], v[seen], sm_scale, True)
    return output, lse
"""
)

MLA_DECODE = (
    _ATTEND
    + _PAGED
    + """
def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale):
    q = torch.cat([q_nope, q_pe], dim=-1)
    output, lse = torch.zeros_like(q_nope), torch.full(q.shape[:2], -torch.inf)
    for b in range(len(q)):
        ckv, kpe = (keys_of(cache[:, :, None], kv_indptr, kv_indices, None, b) for cache in (ckv_cache, kpe_cache))
        output[b : b + 1], lse[b : b + 1] = attend(q[b : b + 1], torch.cat([ckv, kpe], -1), ckv, sm_scale, False)
    return output, lse
"""
)

MLA_PREFILL = (
    _ATTEND
    + _PAGED
    + """
def run(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):
    q = torch.cat([q_nope, q_pe], dim=-1)
    output, lse = torch.zeros_like(q_nope), torch.full(q.shape[:2], -torch.inf)
    for b in range(len(qo_indptr) - 1):
        own = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
        ckv, kpe = (keys_of(cache[:, :, None], kv_indptr, kv_indices, None, b) for cache in (ckv_cache, kpe_cache))
        output[own], lse[own] = attend(q[own], torch.cat([ckv, kpe], -1), ckv, sm_scale, True)
    return output, lse
"""
)

SPARSE = (
    _ATTEND
    + """
def run(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale):
    assert sparse_indices.shape == (len(q_nope), 700)
    output, lse = torch.zeros_like(q_nope), torch.full(q_nope.shape[:2], -torch.inf)
    for t, row in enumerate(sparse_indices):
        listed = row[row != -1].long()
        ckv, kpe = (cache.flatten(0, 1)[listed][:, None] for cache in (ckv_cache, kpe_cache))
        q = torch.cat([q_nope[t], q_pe[t]], dim=-1)[None]
        output[t : t + 1], lse[t : t + 1] = attend(q, torch.cat([ckv, kpe], -1), ckv, sm_scale, False)
    return output, lse
"""
)

_POOL = ("num_pages", "page_size", "num_kv_heads", "head_dim")
_LATENT_POOL = ("num_pages", "page_size")
_BOUNDS, _PAGES = ("len_indptr",), ("num_kv_indices",)


def definition(kind, *, dtype="bfloat16", heads=4, kv_heads=2, dim=16, page_size=1, reference=None, **changes):
    """Return a definition: of "decode", "prefill" (pages), "ragged", "mla_decode", "mla_prefill" or "dsa"."""
    if kind == "dsa":
        return _of_listed_keys(heads, dim, page_size, dtype) | changes
    rows = "batch_size" if "decode" in kind else "total_q"
    of_queries = {} if "decode" in kind else {"qo_indptr": _BOUNDS}
    if "mla" in kind:
        shapes = {
            "q_nope": (rows, "num_qo_heads", "head_dim_ckv"),
            "q_pe": (rows, "num_qo_heads", "head_dim_kpe"),
            "ckv_cache": (*_LATENT_POOL, "head_dim_ckv"),
            "kpe_cache": (*_LATENT_POOL, "head_dim_kpe"),
            **of_queries,
            "kv_indptr": _BOUNDS,
            "kv_indices": _PAGES,
        }
    elif kind == "ragged":
        keys = ("total_kv", "num_kv_heads", "head_dim")
        shapes = {"q": (rows, "num_qo_heads", "head_dim"), "k": keys, "v": keys, **of_queries, "kv_indptr": _BOUNDS}
    else:
        shapes = {"q": (rows, "num_qo_heads", "head_dim"), "k_cache": _POOL, "v_cache": _POOL, **of_queries}
        shapes |= {"kv_indptr": _BOUNDS, "kv_indices": _PAGES}
        shapes |= {"kv_last_page_len": (rows,)} if kind == "prefill" else {}
    op_type = "mla_paged" if "mla" in kind else "gqa_ragged" if kind == "ragged" else "gqa_paged"
    stage = "decode" if "decode" in kind else "prefill_causal"
    constants = {"num_qo_heads": heads, "head_dim_ckv": dim, "head_dim_kpe": dim // 2} if "mla" in kind else {}
    constants |= {} if "mla" in kind else {"num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    constants |= {} if kind == "ragged" else {"page_size": page_size}
    variable = {axis for shape in shapes.values() for axis in shape} - set(constants)
    out = (rows, "num_qo_heads", "head_dim_ckv" if "mla" in kind else "head_dim")
    sources = {"decode": DECODE, "prefill": PREFILL, "ragged": RAGGED, "mla_decode": MLA_DECODE}
    made = {
        "name": f"{op_type}_{stage}_h{heads}_d{dim}",
        "op_type": op_type,
        "tags": ["status:test"],
        "axes": {
            **{name: {"type": "const", "value": value} for name, value in constants.items()},
            **{name: {"type": "var"} for name in sorted(variable)},
        },
        "inputs": {
            **{name: {"shape": list(shape), "dtype": LISTS.get(name, dtype)} for name, shape in shapes.items()},
            "sm_scale": {"shape": None, "dtype": "float32"},
        },
        "outputs": {
            "output": {"shape": list(out), "dtype": dtype},
            "lse": {"shape": list(out[:2]), "dtype": "float32"},
        },
        "reference": reference or sources.get(kind, MLA_PREFILL),
    }
    return made | changes


def _of_listed_keys(heads, dim, page_size, dtype):
    """Return a definition of attention to listed keys: that of latent decoding, with 700 keys in place of pages."""
    made = definition("mla_decode", heads=heads, dim=dim, page_size=page_size, dtype=dtype, reference=SPARSE)
    axes = {name: axis for name, axis in made["axes"].items() if name not in ("len_indptr", "num_kv_indices")}
    inputs = {name: x for name, x in made["inputs"].items() if name not in ("kv_indptr", "kv_indices", "sm_scale")}
    inputs["sparse_indices"] = {"shape": ["batch_size", "topk"], "dtype": "int32"}
    inputs["sm_scale"] = made["inputs"]["sm_scale"]
    axes["topk"] = {"type": "const", "value": 700}
    return made | {"name": f"dsa_sparse_h{heads}", "op_type": "dsa_paged", "axes": axes, "inputs": inputs}


def solution(made, content, *, writes=False, language="python", name="mine", **changes):
    """Return a solution of one file, main.py, whose function is run, for a definition."""
    found = {
        "name": name,
        "definition": made["name"],
        "author": "somebody",
        "spec": {
            "language": language,
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": writes,
        },
        "sources": [{"path": "main.py", "content": content}],
    }
    return found | changes


def write(folder, **documents):
    """Write documents into a folder, each under its name, and return their paths."""
    paths = {name: Path(folder) / f"{name}.json" for name in documents}
    for name, path in paths.items():
        path.write_text(json.dumps(documents[name]), encoding="utf-8")
    return [str(path) for path in paths.values()]
