"""Documents are read as the package of FlashInfer-Bench reads them; an error names file, field, fault and remedy."""

import json

import pytest

from attn_spec.kernels.flashinfer_trace.documents import DocumentError
from attn_spec.kernels.flashinfer_trace.schema import Definition, Solution, Trace, read, read_lines
from tests.kernels.flashinfer_trace import documents, solutions

KINDS = ("decode", "prefill", "ragged", "mla_decode", "mla_prefill", "dsa")
MADE = documents.definition("decode")
MINE = documents.solution(MADE, "def run(): ...")
TRACE = {
    "definition": MADE["name"],
    "workload": {
        "uuid": "1",
        "axes": {"batch_size": 2},
        "inputs": {
            "q": {"type": "random"},
            "sm_scale": {"type": "scalar", "value": 0.5},
            "kv_indptr": {"type": "safetensors", "path": "a.safetensors", "tensor_key": "kv_indptr"},
        },
    },
    "solution": None,
}


def changed(document, *path, to):
    """Return a copy of a document with another value at a path; None removes it."""
    found = json.loads(json.dumps(document))
    place = found
    for step in path[:-1]:
        place = place[step]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return found


FAULTS = {
    "no name": (Definition, changed(MADE, "name", to=None), "  name: Field required"),
    "axis": (
        Definition,
        changed(MADE, "inputs", "q", "shape", to=["batch"]),
        "  document: q has the axis 'batch', which axes does not define; define it there",
    ),
    "kind of axis": (Definition, changed(MADE, "axes", "head_dim", to={"type": "free"}), "  axes.head_dim: Input tag"),
    "both": (
        Definition,
        changed(MADE, "outputs", "q", to={"shape": [], "dtype": "int32"}),
        "'q' is an input and an output; rename one",
    ),
    "source": (
        Definition,
        changed(MADE, "reference", to="def run(:"),
        "reference is no Python source: invalid syntax (line 1)",
    ),
    "no run": (Definition, changed(MADE, "reference", to="x = 1"), "reference defines no function 'run'; define it"),
    "language": (
        Solution,
        changed(MINE, "spec", "language", to="cuda"),
        "  spec: language 'cuda' is not supported: attn-spec runs python and triton, and compiles no sources; wrap the",
    ),
    "entry point": (
        Solution,
        changed(MINE, "spec", "entry_point", to="main.cu::run"),
        "  spec: entry_point 'main.cu::run' must be FILE.py::FUNCTION, as in main.py::run",
    ),
    "no such file": (
        Solution,
        changed(MINE, "spec", "entry_point", to="kernel.py::run"),
        "  document: spec.entry_point names 'kernel.py', which sources do not have; add the file",
    ),
    "path": (
        Solution,
        changed(MINE, "sources", 0, "path", to="../main.py"),
        "  sources.0: path '../main.py' leaves the solution's folder; write a path below it",
    ),
    "twice": (
        Solution,
        changed(MINE, "sources", to=2 * MINE["sources"]),
        "sources have 'main.py' twice; leave one out",
    ),
    "length": (Trace, changed(TRACE, "workload", "axes", to={"batch_size": -1}), "  workload.axes.batch_size: Input"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_file_and_field(name, tmp_path):
    model, document, words = FAULTS[name]
    (path,) = documents.write(tmp_path, faulty=document)

    with pytest.raises(DocumentError) as found:
        read(model, tmp_path / "faulty.json")

    kind = model.__name__.lower()
    first, *faults = str(found.value).splitlines()
    assert first == f"{path} is no {kind} of the FlashInfer Trace schema that attn-spec reads. Change:"
    assert any(words in fault for fault in faults)


def test_what_is_no_document_is_told():
    with pytest.raises(DocumentError, match=r"missing\.json does not exist \(looked in .*\); give the path of a docu"):
        read(Definition, documents.Path("missing.json"))


def test_a_line_that_is_no_workload_is_told_by_its_number(tmp_path):
    file = tmp_path / "workloads.jsonl"
    file.write_text(f"{json.dumps(TRACE)}\n\n{{\n", encoding="utf-8")

    with pytest.raises(DocumentError, match=r"workloads\.jsonl, line 3 is not JSON: .*; write a trace of the FlashInf"):
        read_lines(Trace, file)
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=r"has no line; each line must be a trace as JSON"):
        read_lines(Trace, file)


def test_further_fields_are_left_alone(tmp_path):
    documents.write(tmp_path, further=MADE | {"description": "as in a model", "constraints": ["a == b"], "new": 1})

    assert read(Definition, tmp_path / "further.json").name == MADE["name"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_documents_of_these_tests_are_those_of_the_package(kind):
    """FlashInfer-Bench reads them too, where it is installed, and tells constants from variables alike."""
    package = pytest.importorskip("flashinfer_bench.data")
    made = documents.definition(kind)

    theirs, own = package.Definition.model_validate(made), Definition.model_validate(made)
    assert {name: own.length(name) for name in own.axes if own.length(name) is not None} == theirs.const_axes
    assert [*own.inputs] == [*theirs.inputs]
    solved = documents.solution(made, "def run(): ...")
    assert package.Solution.model_validate(solved).spec.entry_point == Solution.model_validate(solved).spec.entry_point
    assert package.Trace.model_validate(TRACE).workload.axes == Trace.model_validate(TRACE).workload.axes


@pytest.mark.parametrize("name", [*solutions.RIGHT, *solutions.WRONG])
def test_the_solutions_of_these_tests_are_solutions_of_the_package(name, tmp_path):
    package = pytest.importorskip("flashinfer_bench.data")
    path, _ = solutions.written(tmp_path, name)

    text = documents.Path(path).read_text(encoding="utf-8")
    assert package.Solution.model_validate_json(text).name == Solution.model_validate_json(text).name == name
