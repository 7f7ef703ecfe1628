"""Functions with the signatures of libraries, declared by these, and what a property makes of them."""

import functools
import inspect

from attn_spec.implementations import triton_tiles  # noqa: F401 -- chooses how Triton runs, before PyTorch loads it
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from attn_spec import kernel
from attn_spec.contract.presets import UNDECLARED
from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from tests.kernels.signatures import own_caches, own_flashinfer, own_merges, own_modules, own_operators
from tests.kernels.signatures import own_functions as own

PROPERTIES = load_all()
ACCURATE = "accuracy.output_is_within_its_bound"
#: A function for each signature: the library's own where it has a kernel for a CPU.
FUNCTIONS = {
    "torch_sdpa": scaled_dot_product_attention,
    "torch_varlen": own.varlen_attn,
    "flex_attention": flex_attention,
    "flash_attn": own.flash_attn_func,
    "flash_attn_varlen": own.flash_attn_varlen_func,
    "flash_attn_3": own.flash_attn_3_func,
    "flash_attn_3_varlen": own.flash_attn_3_varlen_func,
    "flash_attn_3_fp8": own.flash_attn_3_func,
    "flash_attn_3_varlen_fp8": own.flash_attn_3_varlen_func,
    "fa4": own.fa4_func,
    "fa4_varlen": own.fa4_varlen_func,
    "xformers": own.memory_efficient_attention,
    "trtllm_decode": own.trtllm_batch_decode_with_kv_cache,
    "vllm_unified": own.unified_attention,
    "vllm_unified_fp8": own.unified_attention,
    "vllm_unified_scale_caches": own.unified_attention,
    "sglang_decode": own.decode_attention_fwd,
    "flash_attn_kvcache": own_caches.flash_attn_with_kvcache,
    "flash_attn_kvcache_indexed": own_caches.flash_attn_with_kvcache,
    "flash_attn_kvcache_paged": own_caches.flash_attn_with_kvcache,
    "fa3_kvcache": own_caches.flash_attn_3_with_kvcache,
    "fa3_kvcache_paged": own_caches.flash_attn_3_with_kvcache,
    "fa3_kvcache_fp8": own_caches.flash_attn_3_with_kvcache,
    "fa3_kvcache_paged_fp8": own_caches.flash_attn_3_with_kvcache,
    "flashinfer_decode": own_flashinfer.Decode(),
    "flashinfer_prefill": own_flashinfer.Prefill(),
    "flashinfer_mla": own_flashinfer.LatentPaged(),
    "vllm_merge": own_merges.merge_attn_states,
    "flashinfer_merge": own_merges.merge_state,
    "flashinfer_merge_states": own_merges.merge_states,
    "sglang_extend": own_operators.extend_attention_fwd,
    "ort_gqa": own_operators.group_query_attention,
    "te": own_modules.te_forward,
    "cudnn": own_modules.sdpa,
    "cudnn_varlen": own_modules.sdpa,
    "mlx": own_modules.mlx_attention,
}
#: Signatures whose functions return a log-sum-exp.
WITH_LSE = {name for name, row in SIGNATURES.items() if row.returns_lse}


def declared(name, function, supports=(), *, returns_lse=True, **facts):
    lse = {"lse"} if returns_lse and name in WITH_LSE else {"lse"} & set(supports)
    has_groups = name != "xformers" and SIGNATURES[name].shown.can_say("gqa")
    crossing = () if SIGNATURES[name].limits.equal_lengths else ("cross",)
    able = {*crossing, *supports, *lse, *(("gqa",) if has_groups else ())}
    facts = {"contract": UNDECLARED, **({"framework": "torch"} if name == "mlx" else {}), **facts}
    return kernel(signature=name, dtypes=("float32",), supports=able, **facts)(function)


def verdict(made, property_id, examples=10, seed=0):
    profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=seed)
    row, _ = search(PROPERTIES[property_id], Subject(made, "float32"), profile, seed=seed)
    return str(row.verdict), row.message


def with_other(function, **changes):
    """Return a function that misreads some arguments: each change maps a value to the one that is used."""

    @functools.wraps(function)
    def misread(*args, **given):
        bound = inspect.signature(function).bind(*args, **given)
        bound.apply_defaults()
        for word, change in changes.items():
            bound.arguments[word] = change(bound.arguments[word])
        return function(*bound.args, **bound.kwargs)

    return misread
