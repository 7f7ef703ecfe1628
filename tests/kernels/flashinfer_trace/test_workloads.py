"""Workloads of a definition are shapes; keys and queries are dealt out evenly among their sequences."""

import json

import pytest

from attn_spec.kernels.flashinfer_trace.documents import DocumentError
from attn_spec.kernels.flashinfer_trace.workloads import shapes_of
from tests.kernels.flashinfer_trace import documents

DECODE = {"batch_size": 2, "num_pages": 99, "len_indptr": 3, "num_kv_indices": 9}
PREFILL = {"total_q": 5, "num_pages": 9, "len_indptr": 3, "num_kv_indices": 4}
RAGGED = {"total_q": 4, "total_kv": 9, "len_indptr": 3}


def shapes(folder, kind, *axes, **changes):
    made = documents.definition(kind, **changes)
    traces = [{"definition": made["name"], "workload": {"uuid": "1", "axes": one, "inputs": {}}} for one in axes]
    (folder / "w.jsonl").write_text("\n".join(map(json.dumps, traces)), encoding="utf-8")
    documents.write(folder, d=made)
    return shapes_of(folder / "w.jsonl", str(folder / "d.json"))


@pytest.mark.parametrize(
    ("kind", "axes", "page_size", "text"),
    [
        ("decode", DECODE, 1, "B=2,Hq=4,Hkv=2,Sq=1,Sk=5,D=16,seqused_k=5:4"),
        ("prefill", PREFILL, 4, "B=2,Hq=4,Hkv=2,Sq=3,Sk=8,D=16,seqused_q=3:2,seqused_k=8:8"),
        ("ragged", RAGGED, 1, "B=2,Hq=4,Hkv=2,Sq=2,Sk=5,D=16,seqused_q=2:2,seqused_k=5:4"),
        ("dsa", {"batch_size": 3}, 64, "B=3,Hq=4,Hkv=1,Sq=1,Sk=700,D=24,Dv=16,seqused_k=700:700:700"),
        ("mla_decode", DECODE, 1, "B=2,Hq=4,Hkv=1,Sq=1,Sk=5,D=24,Dv=16,seqused_k=5:4"),
    ],
)
def test_a_workload_is_a_shape(tmp_path, kind, axes, page_size, text):
    assert [*map(str, shapes(tmp_path, kind, axes, axes, page_size=page_size))] == [text]


@pytest.mark.parametrize(
    ("kind", "axes", "words"),
    [
        ("decode", {"batch_size": 2}, "axes lack 'len_indptr', a variable axis of the definition; add its length"),
        ("decode", DECODE | {"len_indptr": 1}, "axes give no sequence"),
        ("decode", DECODE | {"num_kv_indices": 1}, "axes give 2 sequences 2 queries and 1 keys; each needs one"),
        ("ragged", RAGGED | {"total_q": 12}, "axes give 12 queries and 9 keys; a causal prefill has a key for each"),
    ],
)
def test_axes_that_are_no_shape_are_told(tmp_path, kind, axes, words):
    with pytest.raises(DocumentError) as found:
        shapes(tmp_path, kind, axes)
    assert str(found.value) == f"{tmp_path / 'w.jsonl'}, workload 1: {words}"


def test_a_scale_that_a_workload_gives_is_that_of_the_shape(tmp_path):
    made = documents.definition("decode")
    documents.write(tmp_path, d=made)

    def shape(**scale):
        trace = {"definition": made["name"], "workload": {"uuid": "1", "axes": DECODE, "inputs": {"sm_scale": scale}}}
        (tmp_path / "w.jsonl").write_text(json.dumps(trace), encoding="utf-8")
        return shapes_of(tmp_path / "w.jsonl", str(tmp_path / "d.json"))[0]

    assert shape(type="scalar", value=0.0884).scale == 0.0884
    assert shape(type="random").scale is None
    with pytest.raises(DocumentError, match=r"workload 1: inputs\.sm_scale is -1; it must be above 0"):
        shape(type="scalar", value=-1)


def test_workloads_of_another_definition_are_told(tmp_path):
    shapes(tmp_path, "decode", DECODE)
    documents.write(tmp_path, d=documents.definition("mla_decode"))

    with pytest.raises(
        DocumentError, match=r"workload 1: definition is 'gqa_paged_decode_h4_d16', and .* defines 'mla_"
    ):
        shapes_of(tmp_path / "w.jsonl", str(tmp_path / "d.json"))
