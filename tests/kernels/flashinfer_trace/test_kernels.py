"""Solutions are called as FlashInfer-Bench calls them: three are held, and two are refuted that its rule accepts."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from attn_spec.isolation.foreign import account, found
from attn_spec.kernels.flashinfer_trace.documents import DocumentError
from attn_spec.kernels.flashinfer_trace.schema import Definition, Solution, read
from attn_spec.kernels.flashinfer_trace.sources import function_of
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import judged
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES, Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from tests.kernels.flashinfer_trace import documents, solutions

PROPERTIES = load_all()
OUTPUT, LSE = "accuracy.output_is_within_its_bound", "accuracy.log_sum_exp_is_within_its_bound"
ALONE = "lengths.each_sequence_is_solved_as_if_it_were_alone"
FEW = Profile(name="test", examples=3, floor=1, seconds=60, shrink_seconds=0, seed=0)
#: The search of the command, without shrinking.
SMOKE = replace(PROFILES["smoke"], shrink_seconds=0)


def verdict(made, name, profile=FEW):
    row, _ = search(PROPERTIES[name], Subject(made, made.dtypes[0]), profile, seed=0)
    return str(row.verdict), row.message


def resolved(folder, name, **shape):
    path, of = solutions.written(folder, name, **shape)
    return resolve(path, definition=of)


def mine(folder, text, kind="decode", **facts):
    """Return the kernel of a solution of one file."""
    made = documents.definition(kind)
    path, of = documents.write(folder, mine=documents.solution(made, text, **facts), of=made)
    return resolve(path, definition=of)


@pytest.mark.parametrize("name", solutions.RIGHT)
def test_a_right_solution_is_held(tmp_path, name):
    made = resolved(tmp_path, name)

    assert {verdict(made, asked) for asked in (OUTPUT, LSE, ALONE)} == {("held", "")}
    assert set(made.destinations) == ({"output", "lse"} if name == "writes" else set())


def test_a_solution_that_lifts_the_log_sum_exp_is_refuted(tmp_path):
    refuted, message = verdict(resolved(tmp_path, "guarded_lse"), LSE, SMOKE)

    assert (refuted, message[:7]) == ("refuted", "lse[0, ")


@pytest.mark.parametrize(("name", "refuted"), [("lost_key", True), ("gathered", False)])
def test_a_solution_that_loses_the_last_of_many_keys_is_refuted(tmp_path, name, refuted):
    """The problem is the smallest one that a search of all properties finds."""
    subject = Subject(resolved(tmp_path, name), "bfloat16")
    problem = Recipe(query_heads=4, kv_heads=2, key_length=513, head_dim=16, value_dim=16, regime="integers",
                     causal_alignment="bottom_right", dtypes="bfloat16").problem()  # fmt: skip

    assert bool(judged(subject, problem, subject(problem)).refuted) == refuted


def accepted(answer, reference):
    """Return whether FlashInfer-Bench accepts an answer: no element is farther off than 1e-2, and by more than 1 %.

    Source: flashinfer_bench 0.1.2, ``bench/utils.py`` (``compute_error_stats``) and ``bench/config.py``.
    """
    for own, other in zip(answer, reference, strict=True):
        error = (own.float() - other.float()).abs()
        if not own.isfinite().all() or ((error > 1e-2) & (error / (other.float().abs() + 1e-8) > 1e-2)).any():
            return False
    return True


@pytest.mark.parametrize("keys", [1, 2, 8192])
@pytest.mark.parametrize("name", [*solutions.WRONG, "gathered"])
def test_the_rule_of_flashinfer_bench_accepts_the_wrong_solutions(tmp_path, name, keys):
    """Inputs are normal numbers, as its random inputs are; three sequences have as many keys each."""
    path, of = solutions.written(tmp_path, name)
    solution, definition = read(Solution, documents.Path(path)), read(Definition, documents.Path(of))
    dtype, rng = getattr(torch, definition.inputs["q"].dtype), torch.Generator().manual_seed(keys)
    q = torch.randn(3, 4, 16, generator=rng).to(dtype)
    caches = [torch.randn(3 * keys + 5, 1, 2, 16, generator=rng).to(dtype) for _ in range(2)]
    pages = torch.randperm(3 * keys + 5, generator=rng)[: 3 * keys].int()
    call = (q, *caches, torch.arange(4, dtype=torch.int32) * keys, pages, 0.25)
    reference = {}
    exec(definition.reference, reference)  # noqa: S102 -- the definition of this test

    answer = function_of(solution, path)(*call)
    assert accepted(answer, reference["run"](*call))
    assert not accepted((answer[0] + 0.05, answer[1]), reference["run"](*call))


@pytest.mark.parametrize("kind", ["decode", "prefill", "ragged", "mla_decode", "mla_prefill", "dsa"])
def test_the_reference_of_a_definition_is_a_kernel(tmp_path, kind):
    right = documents.definition(kind, **({"page_size": 3} if kind in ("prefill", "dsa") else {}))
    wrong = right | {"reference": right["reference"].replace("softmax(-1), v", "softmax(-1), 2 * v")}
    assert wrong != right
    paths = documents.write(tmp_path, right=right, wrong=wrong)

    assert [verdict(resolve(path), OUTPUT)[0] for path in paths] == ["held", "refuted"]


RAGGED = documents.RAGGED.replace("def run(", "def computed(")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("output, lse", ""),
        ("[output, lse]", ""),
        ('{"output": output, "lse": lse, "further": 1}', ""),
        ("output", "the solution returned 1 results; the definition has output, lse"),
        ("output, lse, lse", "the solution returned 3 results; the definition has output, lse"),
        ('{"output": output}', "the solution returned no lse; the definition has output, lse"),
    ],
)
def test_results_are_those_of_the_definition(tmp_path, returned, message):
    text = f"{RAGGED}\n\ndef run(*inputs):\n    output, lse = computed(*inputs)\n    return {returned}\n"
    made = mine(tmp_path, text, "ragged")
    problem = Recipe(query_heads=4, kv_heads=2, query_length=2, key_length=3, head_dim=16, value_dim=16, causal=True,
                     causal_alignment="bottom_right", dtypes="bfloat16").problem()  # fmt: skip

    if not message:
        assert Subject(made, "bfloat16")(problem)["lse"].shape == (1, 4, 2)
        return
    with pytest.raises(Misbehaviour, match=message):
        Subject(made, "bfloat16")(problem)


def test_a_solution_is_given_contiguous_tensors_in_the_order_of_the_definition(tmp_path):
    text = f"""{documents.DECODE.replace("def run(", "def computed(")}

def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    assert all(x.is_contiguous() for x in (q, k_cache, v_cache, kv_indptr, kv_indices))
    assert type(sm_scale) is float and k_cache.shape[1:] == (1, 2, 16)
    return computed(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale)
"""
    made = mine(tmp_path, text)

    assert verdict(made, "independence.the_layout_in_memory_has_no_influence") == ("held", "")


@pytest.mark.parametrize(
    ("text", "facts", "words"),
    [
        ("import nothing_of_this_name", {}, "'main.py::run' does not import: ModuleNotFoundError: No module named"),
        ("def other(): ...", {}, "'main.py::run' names no function; the file has other"),
        (
            "def run(): ...",
            {"definition": "mla"},
            "definition is 'mla', and .*of.json defines 'gqa_paged_decode_h4_d16'",
        ),
    ],
)
def test_a_solution_that_cannot_be_called_is_told(tmp_path, text, facts, words):
    with pytest.raises(DocumentError, match=words):
        mine(tmp_path, text, **facts)


def test_declarations_beside_documents_are_told(tmp_path):
    path, of = solutions.written(tmp_path, "gathered")

    with pytest.raises(DocumentError, match="is a document, whose definition says what --supports would; leave it out"):
        resolve(path, definition=of, supports=("lse",))
    with pytest.raises(
        DocumentError, match=r"gathered\.json is a solution; name the file of its definition, --definit"
    ):
        resolve(path)
    with pytest.raises(KernelError, match=r"numpy_naive is no solution of the FlashInfer Trace schema, a \.json file"):
        resolve("numpy_naive", definition=of)
    assert resolve(path, definition=of, contract="fused").contract_declared("bfloat16").softmax != "input"


def test_an_isolated_solution_leaves_nothing_behind(tmp_path, monkeypatch):
    """Sources lie in the folder of the process; the certificate names both documents, by relative paths."""
    monkeypatch.chdir(tmp_path)
    solutions.written(tmp_path, "writes")
    made = found("writes.json", definition="of_writes.json")
    process = made.host.wire.process._running.process
    folder = documents.Path(f"/proc/{process.pid}/cwd").readlink()

    assert verdict(made, LSE) == ("held", "")
    assert [path.name for path in sorted(folder.rglob("*.py"))] == ["main.py", "rows.py"]
    assert list(account(made)["imported_sha256"]) == ["of_writes.json"]
    assert made.given == {"definition": "of_writes.json"}
    assert made.file == tmp_path / "writes.json"
    made.host.wire.process.end()
    assert not folder.exists()
    documents.write(tmp_path, of_writes=documents.definition("prefill", op_type="other"))
    with pytest.raises(KernelError, match=r"^of_writes\.json: op_type is 'other', which attn-spec does not know"):
        found("writes.json", definition="of_writes.json")


def certified(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "attn_spec", "certify", *arguments, "--json"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), done.stderr


def test_the_command_reports_a_reference_that_is_no_attention(tmp_path):
    path, of = solutions.written(tmp_path, "gathered")
    right = json.loads(documents.Path(of).read_text(encoding="utf-8"))
    documents.write(
        tmp_path, wrong=right | {"reference": right["reference"].replace("softmax(-1), v", "softmax(-1), 2 * v")}
    )
    trace = {"definition": right["name"], "workload": {"uuid": "1", "axes": {"batch_size": 2, "len_indptr": 3}}}
    trace["workload"]["axes"]["num_kv_indices"] = 300
    (tmp_path / "w.jsonl").write_text(json.dumps(trace), encoding="utf-8")

    code, document, told = certified(
        tmp_path, path, "--definition", "wrong.json", "--workload", "w.jsonl", "--property", "asked_shapes"
    )

    assert (code, document["result"], document["reference"]) == (1, "passed", "refuted")
    assert document["configuration"]["shapes"] == ["B=2,Hq=4,Hkv=2,Sq=1,Sk=150,D=16,seqused_k=150:150"]
    assert "the reference of the definition is refuted" in told
    assert (tmp_path / "certificate-reference.json").is_file()


def test_the_command_cannot_run_without_a_definition_of_that_name(tmp_path):
    solutions.written(tmp_path, "gathered")

    code, document, _ = certified(tmp_path, "gathered.json", "--definition", "missing.json")

    assert (code, document["result"]) == (2, "could not run")
    assert document["message"].startswith("missing.json does not exist")
