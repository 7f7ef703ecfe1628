"""Functions with the signatures of libraries are right without an adapter, and functions that misread one are not."""

import functools
import importlib
import inspect
import math
from dataclasses import replace

import pytest
import torch
from attn_spec.implementations import triton_tiles  # noqa: F401 -- chooses how Triton runs, before PyTorch loads it
from torch.nn.functional import scaled_dot_product_attention

from attn_spec import kernel
from attn_spec.contract.presets import FUSED, UNDECLARED
from attn_spec.first_look.first_look import explain_failure
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.signatures.planned import joined
from attn_spec.kernels.signatures.signature import REQUIRED, Given, SignatureError
from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.kernels.subject import Subject
from attn_spec.search.preflight import PlainCallError, preflight
from attn_spec.search.profiles import Profile
from attn_spec.search.search import search
from tests.kernels.signatures import own_caches, own_flashinfer, own_merges, own_modules, own_operators
from tests.kernels.signatures import own_functions as own
from tests.kernels.signatures.examined import ACCURATE, FUNCTIONS, PROPERTIES, WITH_LSE, declared, verdict, with_other
from tests.kernels.signatures.own_flashinfer import misreading
from tests.kernels.signatures.sources import UNREAD, parameters

WINDOW = "masking.keys_outside_the_window_change_nothing"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
EMPTY = "states.an_empty_state_takes_no_part"
ROTATED = "appending.new_keys_are_rotated_once_on_their_way_to_the_cache"
PADDED = "lengths.padding_on_the_left_moves_a_sequence_and_changes_nothing"
#: Signatures with which three problems are enough in any run, since their functions or their tensors are slow.
SLOW = {
    *("flex_attention", "flashinfer_mla", "flashinfer_prefill", "te", "cudnn", "cudnn_varlen", "mlx", "sglang_extend"),
    *(name for name in SIGNATURES if "kvcache" in name),
}
#: Signatures of functions that another signature calls too, whose log-sum-exp it tells.
TOLD = {
    *("flash_attn_kvcache_indexed", "flash_attn_kvcache_paged", "fa3_kvcache_paged"),
    *(name for name in SIGNATURES if name.endswith("_fp8")),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("examples", [4, pytest.param(10, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_right_by_its_signature_alone(name, examples):
    made = declared(name, FUNCTIONS[name])

    for asked in (ACCURATE, LSE) if name in WITH_LSE and name not in TOLD else (ACCURATE,):
        assert verdict(made, asked, 3 if name in SLOW else examples) == ("held", "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_accused_of_nothing(name):
    made = declared(name, FUNCTIONS[name])

    found = {each: verdict(made, each, 4) for each in PROPERTIES}

    assert {each: told for each, told in found.items() if told[0] not in ("held", "not declared")} == {}


def in_base_2(function):
    @functools.wraps(function)
    def other(*args, **given):
        out, lse, *rest = function(*args, **given)
        return out, lse / torch.log(torch.tensor(2.0)), *rest

    return other


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "wrong", "property_id"),
    [
        ("flash_attn", with_other(own.flash_attn_func, causal=lambda _: False), ACCURATE),
        ("flash_attn", with_other(own.flash_attn_func, window_size=lambda pair: (pair[0], -1)), ACCURATE),
        ("flash_attn", in_base_2(own.flash_attn_func), LSE),
        ("flash_attn_varlen", with_other(own.flash_attn_varlen_func, alibi_slopes=lambda _: None), ACCURATE),
        ("flash_attn_3", with_other(own.flash_attn_3_func, attention_chunk=lambda _: 0), ACCURATE),
        ("fa4", with_other(own.fa4_func, learnable_sink=lambda _: None), "sinks.*"),
        ("torch_varlen", with_other(own.varlen_attn, scale=lambda _: None), ACCURATE),
        ("vllm_unified", with_other(own.unified_attention, softcap=lambda _: 0.0), ACCURATE),
        ("sglang_decode", with_other(own.decode_attention_fwd, sm_scale=lambda _: 1.0), ACCURATE),
        ("flash_attn_kvcache", with_other(own_caches.flash_attn_with_kvcache, causal=lambda _: False), ACCURATE),
        ("flash_attn_kvcache", with_other(own_caches.flash_attn_with_kvcache, cache_leftpad=lambda _: None), PADDED),
        (
            "flash_attn_kvcache_indexed",
            with_other(own_caches.flash_attn_with_kvcache, cache_batch_idx=lambda _: None),
            ACCURATE,
        ),
        (
            "flash_attn_kvcache",
            with_other(own_caches.flash_attn_with_kvcache, rotary_interleaved=lambda _: True),
            ROTATED,
        ),
        ("fa3_kvcache", with_other(own_caches.flash_attn_3_with_kvcache, rotary_cos=lambda _: None), ROTATED),
        ("fa3_kvcache", with_other(own_caches.flash_attn_3_with_kvcache, k=torch.zeros_like), ACCURATE),
        ("fa3_kvcache_paged", with_other(own_caches.flash_attn_3_with_kvcache, softcap=lambda _: 0.0), ACCURATE),
        (
            "flashinfer_decode",
            misreading(own_flashinfer.Decode(), "plan", last_page_len=torch.ones_like),
            ACCURATE,
        ),
        ("flashinfer_prefill", misreading(own_flashinfer.Prefill(), "plan", window_left=lambda _: -1), WINDOW),
        ("flashinfer_prefill", misreading(own_flashinfer.Prefill(), "plan", causal=lambda _: True), ACCURATE),
        ("flashinfer_prefill", misreading(own_flashinfer.Prefill(), "run", q=lambda q: q.flip(1)), ACCURATE),
        ("flashinfer_mla", misreading(own_flashinfer.LatentPaged(), "plan", sm_scale=lambda _: 512**-0.5), ACCURATE),
        ("ort_gqa", with_other(own_operators.group_query_attention, seqlens_k=lambda x: x - (x > 0)), ACCURATE),
        ("ort_gqa", with_other(own_operators.group_query_attention, local_window_size=lambda x: x + (x > 0)), ACCURATE),
        ("te", with_other(own_modules.te_forward, cu_seqlens_kv_padded=lambda x: x - (x > 0).int()), ACCURATE),
        ("te", with_other(own_modules.te_forward, attn_mask_type=lambda _: "padding"), ACCURATE),
        ("cudnn", with_other(own_modules.sdpa, window_left=lambda x: x + (x > 0)), ACCURATE),
        ("cudnn_varlen", with_other(own_modules.sdpa, sinks=lambda _: None), "sinks.*"),
        ("mlx", with_other(own_modules.mlx_attention, mask=lambda x: None if isinstance(x, str) else x), ACCURATE),
        ("flashinfer_merge", with_other(own_merges.merge_state, s_b=lambda s: s / math.log(2)), ACCURATE),
        ("flashinfer_merge_states", in_base_2(own_merges.merge_states), LSE),
        ("sglang_extend", with_other(own_operators.extend_attention_fwd, k_extend=torch.zeros_like), ACCURATE),
        ("sglang_extend", with_other(own_operators.extend_attention_fwd, is_causal=lambda _: False), ACCURATE),
        ("vllm_merge", with_other(own_merges.merge_attn_states, prefix_lse=torch.zeros_like), ACCURATE),
        ("vllm_merge", with_other(own_merges.merge_attn_states, suffix_lse=lambda s: s.nan_to_num(posinf=9)), EMPTY),
    ],
)
def test_a_function_that_misreads_an_argument_is_refuted(name, wrong, property_id):
    asked = [each for each in PROPERTIES if each.startswith(property_id.removesuffix("*"))]

    # One property alone draws some options in few problems.
    found = (verdict(declared(name, wrong), each, 24, seed)[0] for each in asked for seed in range(5))

    assert "refuted" in found


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_parameters_are_those_of_the_library(name):
    row = SIGNATURES[name]
    found = parameters(row)
    told = {one.name: one.default for one in row.arguments if found.get(one.name) is not UNREAD}

    assert told == {word: found.get(word, "no parameter") for word in told}
    if row.methods:  # plan has parameters for a single backend, which change no answer and are left out
        assert {word for word, default in found.items() if default is REQUIRED} <= set(row.named)
    else:
        assert list(row.named) == list(found)


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"torch_sdpa", "flex_attention"}))
def test_the_functions_of_these_tests_have_the_signature(name):
    found = inspect.signature(joined(FUNCTIONS[name], SIGNATURES[name])).parameters

    assert {one.name: one.default for one in SIGNATURES[name].arguments} == {n: x.default for n, x in found.items()}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_says_all_that_its_presentation_needs(name):
    row = SIGNATURES[name]
    said = {own for one in row.arguments for own in one.says}

    assert said.issuperset({*row.shown.tensors, *row.shown.says_where})
    assert set(row.option_dtypes) <= said
    assert row.facts
    assert all(fact.source for fact in row.facts)


#: Parameters whose default is no default of attn-spec: a scale of 1, and an order of axes that is not read.
SAY_SOMETHING = {
    ("trtllm_decode", "bmm1_scale"),
    ("trtllm_decode", "kv_layout"),
    ("ort_gqa", "causal"),
    ("vllm_unified_fp8", "kv_quant_mode"),
    ("vllm_unified_scale_caches", "kv_quant_mode"),
    ("te", "qkv_format"),
    ("te", "attn_mask_type"),
    ("cudnn", "causal_bottom_right"),
    ("cudnn_varlen", "causal_bottom_right"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_default_says_nothing(name):
    for one in SIGNATURES[name].arguments:
        if one.default is not REQUIRED and (name, one.name) not in SAY_SOMETHING:
            assert not one.read(one.default), one.name


def test_what_is_written_is_read_again():
    shown = SIGNATURES["flash_attn"].shown
    q, k = torch.zeros(2, 5, 4, 8), torch.zeros(2, 7, 2, 8)
    values = {"window": (3, None), "softcap": 2.5, "scale": 0.5, "causal": True}
    given = Given(shown, {"q": q, "k": k, "v": k, **values})

    found = {}
    for one in SIGNATURES["flash_attn"].arguments:
        found |= one.read(one.spell(given))
    assert {name: x for name, x in found.items() if name not in "qkv"} == values


def with_less(q, k, v, softmax_scale=None, causal=True):
    return own.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal)


def test_a_function_with_a_part_of_the_parameters_limits_itself_to_these():
    made = kernel(signature="flash_attn", dtypes=("float32",), contract=UNDECLARED, supports=("cross",))(with_less)

    assert made.supports == {"scale", "causal", "cross"}
    assert verdict(made, ACCURATE) == ("held", "")  # its own default, causal=True, is turned off by False
    assert not made.option_dtypes
    with pytest.raises(KernelError, match=r"no parameter that it has of the signature flash_attn says lse, softcap"):
        kernel(signature="flash_attn", supports=("softcap", "lse"))(with_less)


def other_names(a, b, c, causal=False):
    return own.flash_attn_func(a, b, c, causal=causal)


def test_tensors_of_other_names_are_passed_by_place():
    made = kernel(signature="flash_attn", dtypes=("float32",), contract=UNDECLARED)(other_names)

    assert verdict(made, ACCURATE) == ("held", "")


def test_what_is_declared_besides_wins():
    made = kernel(signature="flash_attn", conventions={"empty_lse": "-inf"}, positive_scale=True)(own.flash_attn_func)

    assert (made.framework, made.dtypes, made.presentation) == ("torch", ("float16", "bfloat16"), "BSHD")
    assert (made.conventions.causal_alignment, made.conventions.empty_lse) == ("bottom_right", "-inf")
    assert made.limits.positive_scale
    assert made.signature == "flash_attn"


def test_what_no_call_of_a_signature_has_is_not_tried():
    found = preflight(from_callable(own.unified_attention, signature="vllm_unified"), ["float32"])

    assert not found.subjects[0].supports("dv")
    assert found.declined["dv"] == "no call of the signature vllm_unified has it"


def requires_more(q, k, v, page_size):
    return q + page_size


@pytest.mark.parametrize(
    ("function", "facts", "text"),
    [
        (own.flash_attn_func, {"signature": "flash_atn"}, r"unknown signature 'flash_atn'; did you mean 'flash_attn'"),
        (own.flash_attn_func, {"presentation": "BHSD"}, r"are in the presentation BSHD, not BHSD"),
        (own.flash_attn_func, {"merge": "mask"}, r"merge changes the call that signature='flash_attn' describes"),
        (own.flash_attn_func, {"supports": ("mask",)}, r"no parameter .* says mask"),
        (own.flash_attn_func, {"supports": "lse"}, r"supports must be several names"),
        (own.unified_attention, {"signature": "vllm_unified", "supports": ("dv",)}, r"no call .* has dv; leave dv out"),
        (own.flash_attn_func, {"signature": "flash_attn_varlen"}, r"takes no cu_seqlens_k, cu_seqlens_q"),
        (requires_more, {}, r"requires_more requires page_size, which flash_attn has not"),
    ],
)
def test_what_contradicts_the_signature_is_refused(function, facts, text):
    with pytest.raises(KernelError, match=text):
        kernel(**{"signature": "flash_attn", **facts})(function)


def test_a_call_with_an_option_that_no_parameter_says_is_refused():
    made = kernel(signature="torch_sdpa")(scaled_dot_product_attention)
    x = torch.zeros(1, 1, 2, 4)

    with pytest.raises(ValueError, match=r"no parameter of .* says softcap"):
        made(x, x, x, softcap=1.0)


def test_an_undecorated_function_has_the_conventions_of_the_signature():
    made = from_callable(own.flash_attn_func, signature="flash_attn")

    assert not made.declared
    assert made.conventions.empty_lse == "+inf"
    assert made.supports == {"scale", "causal", "window", "softcap", "alibi_slopes"}
    assert from_callable(own.flash_attn_func, signature="flash_attn", without=("window",)).supports == made.supports - {
        "window"
    }


def test_a_wrapper_is_found_by_its_name_and_called_method_by_method():
    spec = "tests.kernels.signatures.own_flashinfer:decode"
    made = resolve(spec, signature="flashinfer_decode")

    assert made.supports >= {"scale", "window", "softcap"}
    assert made.presentation == "decode_csr"
    for refused in ({}, {"signature": "flashinfer_mla"}, {"signature": "flash_attn"}):
        with pytest.raises(KernelError, match=r"own_flashinfer:decode is|takes no|requires"):
            resolve(spec, **refused)


def plans_and_runs(q, paged_kv_cache, *, indptr, indices, last_page_len, page_size, sm_scale=None):
    lies = own_flashinfer.keys_of(indptr, last_page_len, page_size)
    rows = [slice(b, b + 1) for b in range(len(q))]
    return own_flashinfer.over_pages(q, paged_kv_cache, rows, indptr, indices, lies, scale=sm_scale)[0]


def test_a_function_may_take_the_parameters_of_all_methods():
    made = declared("flashinfer_decode", plans_and_runs, returns_lse=False)

    assert not {"lse", "window", "softcap"} & made.supports
    assert verdict(made, ACCURATE, 3) == ("held", "")


def test_abilities_are_tried_within_the_limits_of_the_signature():
    found = preflight(from_callable(own.decode_attention_fwd, signature="sglang_decode"), ["float32"])
    made = found.subjects[0].kernel

    assert made.supports >= {"gqa", "cross", "softcap", "sinks"}
    assert "empty" not in made.supports
    assert "each sequence must have at least 1 keys" in found.declined["empty"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_that_fails_under_any_signature_is_left_to_its_own_words(name):
    made = declared(name, FUNCTIONS[name]).wrapped(lambda *tensors, **options: 1 / 0)

    with pytest.raises(PlainCallError, match="the kernel's call raised ZeroDivisionError") as no:
        preflight(made, ["float32"])
    explain_failure(no.value.subjects, no.value.failures)


@pytest.mark.parametrize("name", ["vllm_merge", "flashinfer_merge_states"])
def test_an_undecorated_function_of_a_signature_passes_preflight(name):
    made = preflight(from_callable(FUNCTIONS[name], signature=name), ["float32"])

    assert made.subjects[0].kernel.signature == name
    assert "backward" in made.declined


def test_every_library_function_of_the_table_is_found_by_its_module():
    found = [name for name, row in SIGNATURES.items() if importlib.util.find_spec(row.function.partition(".")[0])]

    assert {"torch_sdpa", "torch_varlen", "flex_attention", "jax"} <= set(found)


#: Signatures of calls with descales, each with a change by which a function misreads them.
MISREAD = {
    "flash_attn_3_fp8": {"k_descale": lambda d: d if d is None else d.roll(1, 0)},
    "flash_attn_3_varlen_fp8": {"v_descale": lambda d: d if d is None else d.roll(1, 1)},
    "fa3_kvcache_fp8": {"q_descale": lambda _: None},
    "fa3_kvcache_paged_fp8": {"v_descale": lambda _: None},
    "vllm_unified_fp8": {"k_descale": lambda d: d * d},
    "vllm_unified_scale_caches": {"k_scale_cache": lambda d: d.roll(1, 0)},
    "sglang_decode": {"v_scale": lambda _: 1.0},
}


@pytest.mark.parametrize("name", MISREAD)
def test_descales_of_a_signature_reach_the_function_and_a_misread_one_is_refuted(name):
    lacking = SIGNATURES[name].lacks
    able = [each for each in ("descale_by_head", "descale_by_key") if each not in lacking]
    dtype = next((dtype for dtype in SIGNATURES[name].dtypes if "float8" in dtype), "float16")
    of = "v_descale" if any(word.startswith("v_") for word in MISREAD[name]) else "k_descale"
    asked = {
        "v_descale": "descales.doubling_the_descale_of_values_doubles_the_output",
        "k_descale": "descales.each_key_has_its_own_descale",
    }[of]
    contract = replace(FUSED, output="bfloat16", probabilities="work") if dtype == "float8_e4m3fn" else FUSED
    for function, expected in ((FUNCTIONS[name], "held"), (with_other(FUNCTIONS[name], **MISREAD[name]), "refuted")):
        made = kernel(signature=name, dtypes=(dtype,), supports=("cross", "gqa", *able), contract=contract)(function)
        examples = 4 if expected == "held" else 24
        profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=0)
        row, _ = search(PROPERTIES[asked], Subject(made, dtype), profile, seed=0)
        assert str(row.verdict) == expected, row.message


def test_a_mode_of_another_signature_is_refused():
    words = {one.name: one.spell for one in SIGNATURES["vllm_unified_fp8"].arguments}
    assert words["kv_quant_mode"](None) == 1
    for name, value in (("vllm_unified", 1), ("vllm_unified_fp8", 0), ("vllm_unified_scale_caches", 2)):
        argument = SIGNATURES[name].named["kv_quant_mode"]
        with pytest.raises(SignatureError, match=f"kv_quant_mode is {value}, and this signature is of calls with"):
            argument.read(value)


def test_descales_are_read_as_they_are_written():
    x = torch.rand(3, 2) + 0.5
    by_sequence = SIGNATURES["flash_attn_3_varlen_fp8"].named["k_descale"]
    assert torch.equal(by_sequence.read(x)["k_descale"], x[:, :, None, None])
    with pytest.raises(SignatureError, match=r"k_descale must be \[B, Hkv\], not of the shape \(3,\)"):
        by_sequence.read(x[:, 0])
    first = SIGNATURES["vllm_unified_fp8"].named["v_descale"]
    assert first.read(torch.full((3, 2), 0.5))["v_descale"] == 0.5
    with pytest.raises(SignatureError, match="v_descale must have equal numbers, since the first one is that of all"):
        first.read(x)
    with pytest.raises(SignatureError, match="v_descale must be a tensor in a call of kv_quant_mode 1"):
        first.read(None)
    number = SIGNATURES["sglang_decode"].named["k_scale"]
    assert (number.read(1.0), number.read(0.25)["k_descale"].shape) == ({}, ())
