"""``attn-spec gpu``: which kernels it takes, what it says without a GPU, and that it then leaves nothing behind."""

from dataclasses import replace

import pytest
import torch
from attn_spec.reports.gpu import command, examination, page
from click.testing import CliRunner

from attn_spec.cli import command as cli
from attn_spec.kernels.resolve import in_tree, resolve
from tests.implementations.kernel_inputs import HAS_TRITON
from tests.reports.gpu.test_page import MADE

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_the_kernels_are_those_of_triton_and_the_cuda_backends_of_torch():
    assert examination.cuda_kernels() == [
        "torch_sdpa:flash_cuda",
        "torch_sdpa:efficient",
        "torch_sdpa:cudnn",
        "triton_ragged:packed",
        "triton_ragged:paged",
        "triton_ragged:eight_bits",
        "triton_states:pair",
        "triton_tiled",
        "triton_tiled:attention_tf32",
    ]


def test_no_kernel_that_runs_on_a_gpu_alone_is_left_out():
    assert {name for name in in_tree() if resolve(name).devices == ("cuda",)} <= set(examination.cuda_kernels())


@needs_no_gpu
def test_without_a_gpu_it_says_so_and_exits_with_2(folder):
    done = CliRunner().invoke(cli.main, ["gpu", "--output", "new/gpu.html"])

    assert done.exit_code == 2
    assert "no CUDA device is available to torch; run this on a machine with one" in done.output
    assert "Nothing was examined or written" in done.output
    assert list(folder.iterdir()) == []


def test_a_cpu_is_no_gpu(folder):
    done = CliRunner().invoke(cli.main, ["gpu", "--device", "cpu"])

    assert (done.exit_code, list(folder.iterdir())) == (2, [])
    assert "cpu is no GPU; write cuda or cuda:N" in done.output


def test_the_page_is_written_again_from_a_document_and_the_verdicts_decide_on_the_exit_code(folder):
    for results, code in (
        (("certified", "passed"), 0),
        (("certified", "refuted", "inconclusive"), 1),
        (("could not run",), 3),
    ):
        examined = [replace(MADE.examined[0], result=result) for result in results]
        folder.joinpath("run.json").write_text(page.document(replace(MADE, examined=examined)))
        done = CliRunner().invoke(cli.main, ["gpu", "run.json", "-o", "again.html"])

        assert done.exit_code == code, done.output
        assert folder.joinpath("again.json").read_text() == folder.joinpath("run.json").read_text()
        assert "kernels that are made for a GPU" in folder.joinpath("again.html").read_text()
        assert "kernels that are made for a GPU" in folder.joinpath("again.md").read_text()


@pytest.mark.parametrize(
    ("text", "says"), [(None, "cannot be read"), ("{}", "is not what `attn-spec gpu` writes: its schema is not 1")]
)
def test_a_document_that_is_none_is_refused(folder, text, says):
    if text is not None:
        folder.joinpath("run.json").write_text(text)
    done = CliRunner().invoke(cli.main, ["gpu", "run.json"])

    assert done.exit_code == 2
    assert says in done.output


def test_verdicts_are_those_of_certificates_and_a_kernel_that_cannot_run_has_a_reason(monkeypatch):
    whole, told = examination.examine_kernel, []
    monkeypatch.setattr(
        examination, "examine_kernel", lambda request: whole(replace(request, only=("accuracy.output",)))
    )
    found = examination.examine(["numpy_naive", "no_such_kernel"], "cpu", "smoke", told.append)

    assert told == ["numpy_naive", "no_such_kernel"]
    assert found[0].contract
    assert found[0].counts["total"] == sum(found[0].counts.values()) / 2
    assert found[0].counts["held"] >= 3  # at each of its dtypes
    assert found[0].refuted == []
    assert found[1].result == examination.COULD_NOT_RUN
    assert "no kernel is called 'no_such_kernel'" in found[1].reason


def test_the_machine_is_told_with_what_torch_may_do_to_products():
    found = examination.machine("cpu")

    assert found["float32 products"] == torch.get_float32_matmul_precision()
    assert {"attn-spec", "torch", "device", "bfloat16 sums reduced in bfloat16"} <= found.keys()


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@needs_no_gpu
def test_the_interpreter_chooses_no_tiles():
    assert command.tiles() == {"interpreted": "{'BLOCK_Q': 32, 'BLOCK_K': 32}"}


@pytest.mark.gpu
def test_the_machine_has_a_driver():
    found = examination.machine("cuda")

    assert found["device"] == torch.cuda.get_device_name("cuda")
    assert found["capability"].partition(".")[0].isdigit()
