"""A definition says the presentation of a call and the limits of its problems; an unknown one is told."""

import pytest

from attn_spec.kernels.flashinfer_trace.documents import DocumentError
from attn_spec.kernels.flashinfer_trace.interface import Interface
from attn_spec.kernels.flashinfer_trace.schema import Definition
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from tests.kernels.flashinfer_trace import documents

PRESENTED = {
    "decode": "decode_csr",
    "prefill": "paged_csr",
    "ragged": "THD",
    "mla_decode": "mla_decode_csr",
    "mla_prefill": "mla_csr_last_page",
    "dsa": "mla_sparse",
}


def interface(kind, **changes):
    return Interface(Definition.model_validate(documents.definition(kind, **changes)), "d.json")


@pytest.mark.parametrize("kind", PRESENTED)
def test_a_definition_says_how_its_kernels_are_called(kind, tmp_path):
    size, latent = 4 if kind in ("prefill", "dsa") else 1, kind in ("mla_decode", "mla_prefill", "dsa")
    made = documents.definition(kind, page_size=size, heads=8, kv_heads=2)
    (path,) = documents.write(tmp_path, made=made)
    found = resolve(path)

    assert found.presentation == PRESENTED[kind]
    assert found.limits.query_heads == (8,)
    assert found.limits.kv_heads == ((1,) if latent else (2,))
    assert found.limits.widths == (((24, 16),) if latent else ((16, 16),))
    assert found.limits.page_sizes == (None if kind == "ragged" else (size,))
    assert found.conventions.causal_alignment == "bottom_right"
    assert found.conventions.lse_base == "2"
    assert (
        ("causal" in found.limits.always)
        == found.limits.keys_reach_queries
        == (kind in ("prefill", "ragged", "mla_prefill"))
    )
    assert found.limits.largest == ({"K": 700} if kind == "dsa" else {})
    assert (found.dtypes, found.framework, found.declared) == (("bfloat16",), "torch", True)
    assert found.limits.tight_buffers
    assert "gqa" in found.limits.needed


def test_an_axis_that_workloads_give_is_no_limit():
    made = documents.definition("decode")
    made["axes"] |= {name: {"type": "var"} for name in ("num_qo_heads", "num_kv_heads", "head_dim", "page_size")}
    made["inputs"]["kv_last_page_len"] = {"shape": ["batch_size"], "dtype": "int64"}
    declared = Interface(Definition.model_validate(made), "d.json").declared

    assert {declared[name] for name in ("query_heads", "kv_heads", "head_dims")} == {None}
    assert "page_sizes" not in declared
    assert declared["index_dtypes"]["kv_last_page_len"] == "int64"
    assert Limits().page_sizes is None


def test_a_prefill_is_causal_by_its_name():
    assert interface("prefill").is_causal
    assert not interface("prefill", name="gqa_paged_prefill_h4_d16").is_causal
    assert not interface("decode", name="causal_decode").is_causal


def without(kind, part, name):
    made = documents.definition(kind)
    return {part: {key: value for key, value in made[part].items() if key != name}}


def altered(kind, part, name, **facts):
    made = documents.definition(kind)
    return {part: made[part] | {name: made[part].get(name, {"shape": None, "dtype": "float32"}) | facts}}


REFUSED = {
    "op type": (
        "decode",
        {"op_type": "gqa_page"},
        "op_type is 'gqa_page', which attn-spec does not know; did you mean 'gqa_paged'",
    ),
    "other op type": (
        "decode",
        {"op_type": "moe"},
        "op_type is 'moe', which attn-spec does not know; known: gqa_paged (",
    ),
    "input": (
        "decode",
        altered("decode", "inputs", "window"),
        "inputs has 'window', which attn-spec does not know; an input of gqa_paged is q, k_cache, v_cache, kv_indptr,",
    ),
    "no input": (
        "ragged",
        without("ragged", "inputs", "qo_indptr"),
        "inputs lacks 'qo_indptr'; an input of gqa_ragged",
    ),
    "output": (
        "decode",
        altered("decode", "outputs", "max"),
        "outputs has 'max', which attn-spec does not know; known",
    ),
    "no output": ("decode", without("decode", "outputs", "output"), "outputs lacks 'output'; add it"),
    "scale": (
        "decode",
        altered("decode", "inputs", "sm_scale", shape=["batch_size"]),
        "inputs.sm_scale must be a number, with the shape null",
    ),
    "axes": (
        "decode",
        altered("decode", "inputs", "q", shape=["batch_size", "head_dim"]),
        "q has axes (batch_size, head_dim), and must have the axes (rows, query heads, D)",
    ),
    "lengths": (
        "decode",
        altered("decode", "inputs", "k_cache", shape=["num_pages", "page_size", "num_kv_heads", "num_qo_heads"]),
        "k_cache has the axis num_qo_heads of length 4 for the D, which is 16 elsewhere",
    ),
    "pages": (
        "decode",
        {"axes": documents.definition("decode", page_size=16)["axes"]},
        "inputs has no kv_last_page_len, and its pages may have several keys; add kv_last_page_len",
    ),
    "dtype": (
        "decode",
        altered("decode", "inputs", "k_cache", dtype="float8_e4m3fn"),
        "inputs.k_cache.dtype is 'float8_e4m3fn'; known are float64, float32, float16, bfloat16",
    ),
    "dtypes": (
        "decode",
        altered("decode", "inputs", "q", dtype="float16"),
        "inputs.q.dtype is float16, and that of output is bfloat16; attn-spec takes one dtype of both",
    ),
    "integers": (
        "decode",
        altered("decode", "inputs", "kv_indptr", dtype="int16"),
        "inputs.kv_indptr.dtype is 'int16'; known are int32 and int64",
    ),
    "lse": (
        "decode",
        altered("decode", "outputs", "lse", dtype="float16"),
        "outputs.lse.dtype is 'float16'; attn-spec knows float32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_definition_that_is_not_known_is_told(name):
    kind, changes, words = REFUSED[name]

    with pytest.raises(DocumentError) as found:
        interface(kind, **changes)
    assert str(found.value).startswith(f"d.json: {words}")
