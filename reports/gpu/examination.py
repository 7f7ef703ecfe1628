"""Kernels of the tree that are made for a GPU, the verdicts on them, and the machine that gave these verdicts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from attn_spec import __version__
from attn_spec.evidence.provenance import environment
from attn_spec.kernels.frameworks.framework import framework
from attn_spec.kernels.resolve import in_tree, resolve
from attn_spec.search.verdict import Verdict
from attn_spec.sessions.examination import CannotRunError, Request
from attn_spec.sessions.examination import examine as examine_kernel

#: Seconds that a call may take, since the first ones compile and choose tiles.
CALL_LIMIT = 300.0
COULD_NOT_RUN = "could not run"
#: Results without a refutation, and with enough problems.
HELD = ("certified", "passed")


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The verdict on a kernel: one of ``HELD``, "refuted", "inconclusive", or COULD_NOT_RUN with the reason."""

    kernel: str
    result: str
    contract: str = ""
    #: Number of properties at a dtype that have each verdict.
    counts: dict[str, int] = field(default_factory=dict)
    #: Property and dtype of each refutation, with its message.
    refuted: list[str] = field(default_factory=list)
    reason: str = ""


def cuda_kernels() -> list[str]:
    """Return the kernels of the tree that are made for a GPU: "cuda" leads their devices."""
    return [name for name in in_tree() if resolve(name).devices[0] == "cuda"]


def missing(device: str) -> str:
    """Return the reason why no kernel can be run on a device; empty if one can."""
    return framework("torch").missing(device)


def examine(
    names: Sequence[str], device: str, profile: str, watch: Callable[[str], None] = lambda name: None
) -> list[Examined]:
    """Certify each kernel in processes of its own; call ``watch`` with each name before."""
    found = []
    for name in names:
        watch(name)
        found.append(_examined(name, device, profile))
    return found


def _examined(name: str, device: str, profile: str) -> Examined:
    try:
        document, progress = examine_kernel(Request(kernel=name, device=device, profile=profile, call_limit=CALL_LIMIT))
    except CannotRunError as error:
        return Examined(kernel=name, result=COULD_NOT_RUN, reason=str(error).splitlines()[0])
    rows = [row for row in progress.rows.values() if row.verdict is Verdict.REFUTED]
    contracts = dict.fromkeys(str(fields["summary"]) for fields in document.declarations.contracts.values())
    return Examined(
        kernel=name,
        result=document.result,
        contract="; ".join(contracts),
        counts={word: number for word, number in document.summary.items() if number},
        refuted=[f"{row.property}, {row.dtype}: {row.message}" for row in rows],
    )


def machine(device: str) -> dict[str, str]:
    """Describe the device, its driver, the libraries, and what PyTorch may do to products of matrices."""
    known = {name: value for name, value in environment(device).items() if value is not None}
    matmul = torch.backends.cuda.matmul
    allowed = {
        "float32 products": torch.get_float32_matmul_precision(),
        "float16 sums reduced in float16": str(matmul.allow_fp16_reduced_precision_reduction),
        "bfloat16 sums reduced in bfloat16": str(matmul.allow_bf16_reduced_precision_reduction),
    }
    return {"attn-spec": __version__, **known, **(_gpu(device) if device != "cpu" else {}), **allowed}


def _gpu(device: str) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    toolkit = torch.version.cuda or f"ROCm {torch.version.hip}"
    return {
        "capability": f"{properties.major}.{properties.minor}",
        "device memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "multiprocessors": str(properties.multi_processor_count),
        "toolkit": str(toolkit),
        "cuDNN": str(torch.backends.cudnn.version()),
        "driver": driver(),
    }


def driver() -> str:
    """Return the version of the NVIDIA driver that nvidia-smi prints; "unknown" if it prints none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
        return done.stdout.splitlines()[0].strip() if done.stdout else "unknown"
    return "unknown"
