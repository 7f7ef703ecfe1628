"""Five solutions: three are right; two are wrong in a way that the rule of FlashInfer-Bench accepts."""

from tests.kernels.flashinfer_trace import documents

#: Decoding of all sequences at once, over keys that are gathered into a rectangle.
GATHERED = """
import torch


def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    lengths = kv_indptr.diff()
    j = torch.arange(int(lengths.max()))
    there = j < lengths[:, None]
    pages = kv_indices[(kv_indptr[:-1, None] + j).clamp(max=len(kv_indices) - 1)].long()
    group = q.shape[1] // k_cache.shape[2]
    k, v = (cache[pages, 0].float().repeat_interleave(group, dim=2) for cache in (k_cache, v_cache))
    s = (torch.einsum("bhd,bjhd->bhj", q.float(), k) * sm_scale).masked_fill(~there[:, None], -torch.inf)
    top = s.amax(-1, keepdim=True)
    p = (s - top).exp()
    total = p.sum(-1, keepdim=True)
    output = torch.einsum("bhj,bjhd->bhd", p, v) / total
    return output.to(q.dtype), (top + total.log())[..., 0] / 0.6931471805599453
"""

#: Prefill that writes into tensors it is given, in two files.
ROWS = """
import math

import torch


def rows(q, k, v, scale, output, lse):
    unseen = torch.ones(len(q), len(k), dtype=torch.bool).triu(1 + len(k) - len(q))
    for h in range(q.shape[1]):
        own = h // (q.shape[1] // k.shape[1])
        s = (q[:, h].float() @ k[:, own].float().T * scale).masked_fill(unseen, -torch.inf)
        total = s.logsumexp(-1)
        output[:, h] = (s - total[:, None]).exp() @ v[:, own].float()
        lse[:, h] = total / math.log(2.0)
"""
WRITES = """
from .rows import rows


def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, output, lse):
    for b in range(len(qo_indptr) - 1):
        own = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
        pages = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])].long()
        count = (len(pages) - 1) * k_cache.shape[1] + int(kv_last_page_len[b])
        k, v = (cache[pages].flatten(0, 1)[:count] for cache in (k_cache, v_cache))
        rows(q[own], k, v, sm_scale, output[own], lse[own])
"""

#: Latent attention of one query each, with the results by name.
LATENT = """
import math

import torch


def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale):
    output, lse = torch.empty_like(q_nope), torch.empty(q_nope.shape[:2])
    for b, (first, last) in enumerate(zip(kv_indptr[:-1].tolist(), kv_indptr[1:].tolist())):
        pages = kv_indices[first:last].long()
        ckv, kpe = ckv_cache[pages, 0].float(), kpe_cache[pages, 0].float()
        s = (q_nope[b].float() @ ckv.T + q_pe[b].float() @ kpe.T) * sm_scale
        output[b] = (s.softmax(-1) @ ckv).to(output.dtype)
        lse[b] = s.logsumexp(-1) / math.log(2.0)
    return {"lse": lse, "output": output}
"""

#: The log-sum-exp of a small number guarded against zero, which lifts it where one key counts.
GUARDED_LSE = GATHERED.replace("total.log()", "(total + 6e-3).log()")
#: The last key lost where a sequence has more than 512.
LOST_KEY = GATHERED.replace(
    "lengths = kv_indptr.diff()", "lengths = kv_indptr.diff()\n    lengths = lengths - (lengths > 512).int()"
)

#: The definition of each solution, its text, and further facts of its document.
RIGHT = {
    "gathered": ("decode", GATHERED, {}),
    "writes": (
        "prefill",
        WRITES,
        {"writes": True, "sources": [{"path": "main.py", "content": WRITES}, {"path": "rows.py", "content": ROWS}]},
    ),
    "latent": ("mla_decode", LATENT, {}),
}
WRONG = {"guarded_lse": ("decode_float16", GUARDED_LSE, {}), "lost_key": ("decode", LOST_KEY, {})}


def written(folder, name, **shape):
    """Write the documents of a solution into a folder; return the paths of the solution and its definition."""
    kind, text, facts = (RIGHT | WRONG)[name]
    kind, _, dtype = kind.partition("_float")
    facts_of = {"dtype": f"float{dtype}"} if dtype else {}
    made = documents.definition(kind, **({"page_size": 4} if kind == "prefill" else {}), **facts_of, **shape)
    return documents.write(folder, **{name: documents.solution(made, text, name=name, **facts), f"of_{name}": made})
