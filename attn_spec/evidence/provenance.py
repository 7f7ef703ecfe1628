"""The provenance that a certificate records: kernel, machine, suite, and configuration of the search."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attn_spec
from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import describe
from attn_spec.isolation.installed import providers
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.limits import Limits
from attn_spec.search.preflight import Preflight
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Property, load_all
from attn_spec.search.property import home as property_home

#: Distributions whose version may change a verdict.
DISTRIBUTIONS = ("hypothesis", "jax", "mlx", "mpmath", "numpy", "onnxruntime", "python-flint", "torch", "triton")
#: Prefixes of environment variables that may change a verdict.
VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NPY_", "ATEN_", "TORCH", "PYTORCH_", "JAX_"),
    *("XLA_", "TRITON_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_TF32", "HIP_", "HSA_", "ROCR_", "MIOPEN_"),
    *("MLX_", "LD_PRELOAD", "NPROC", "PYTHONHASHSEED"),
)


def subject(kernel: Kernel) -> dict[str, Any]:
    """Identify the code that was examined."""
    folder = Path(kernel.file or ".").resolve().parent
    found = providers(kernel.module.partition(".")[0])
    return {
        "spec": kernel.spec,
        "name": kernel.name,
        "source_sha256": kernel.digest,
        "distribution": f"{found[0].name} {found[0].version}" if found else None,
        "git_commit": _git_commit(folder),
    }


def environment(device: str) -> dict[str, str | None]:
    """Record Python, machine, packages, and the environment variables that affect results.

    The value of a variable that holds a path is replaced by "(a path)", since paths differ between machines.
    """
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "device": _device_name(device),
        **{name: _version(name) for name in DISTRIBUTIONS},
        **{name: "(a path)" if os.sep in value else value for name, value in variables.items()},
    }


def suite() -> dict[str, str]:
    """Identify the attn-spec that examines the kernel."""
    files = sorted(path for folder in property_home().__path__ for path in Path(folder).glob("*.py"))
    digest = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files))
    return {"version": attn_spec.__version__, "properties_sha256": digest.hexdigest()}


def configuration(checked: Preflight, device: str, profile: Profile, seed: int) -> dict[str, Any]:
    """Record the effort of the search, and whether its seed is the public seed of the profile."""
    return {
        "dtypes": [subject.dtype for subject in checked.subjects],
        "device": device,
        "profile": profile.name,
        "examples": profile.examples,
        "floor": profile.floor,
        "seed": seed,
        "seed_of_profile": seed == profile.seed,
        "isolated": checked.subjects[0].kernel.isolated,
    }


def declarations(checked: Preflight) -> dict[str, Any]:
    """Record what the kernel declares, and the options of an undecorated callable that failed."""
    kernel = checked.subjects[0].kernel
    contracts = {subject.dtype: kernel.contract_declared(subject.dtype) for subject in checked.subjects}
    return {
        "declared": kernel.declared,
        "signature": kernel.signature,
        "supports": sorted(kernel.supports),
        "conventions": asdict(kernel.conventions),
        "limits": limits(kernel.limits),
        "backward_limits": limits(kernel.backward_limits),
        "forward_only": list(kernel.forward_only),
        "contracts": {dtype: contract_fields(contract, dtype) for dtype, contract in contracts.items()},
        "declined": checked.declined,
        "signatures": kernel.signatures,
        "cost_of_new_shapes": checked.cost_of_new_shapes,
    }


def limits(declared: Limits) -> dict[str, Any]:
    """Return the limits that are declared, as JSON holds them."""
    found = {item.name: getattr(declared, item.name) for item in fields(Limits)}
    return json.loads(json.dumps({name: value for name, value in found.items() if value != getattr(Limits(), name)}))


def contract_fields(contract: Contract, dtype: str) -> dict[str, Any]:
    """Return a contract in words, and every field of it at a dtype; its alternatives are in words too.

    A weak contract has the reason as ``weakness``.
    """
    resolved = contract.at(dtype)
    found = {item.name: getattr(resolved, item.name) for item in fields(Contract)}
    found["quantisers"] = "; ".join(map(repr, contract.quantisers))
    others = {"alternatives": "; ".join(map(describe, contract.alternatives))}
    return {
        "summary": describe(contract),
        **found,
        **others,
        **({"weakness": why} if (why := contract.weakness) else {}),
    }


def catalogue() -> list[dict[str, Any]]:
    """Return an entry for every property."""
    return [catalogue_entry(property_) for _, property_ in sorted(load_all().items())]


def catalogue_entry(property_: Property) -> dict[str, Any]:
    """Return a property's entry, as the certificate and the catalogue show it."""
    return {name: getattr(property_, name) for name in ("id", "statement", "source", "hunts", "needs", "false_alarm")}


def _git_commit(folder: Path) -> str | None:
    """Return the commit checked out in the kernel's folder; None if git does not know one."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _device_name(device: str) -> str:
    if device != "cpu":
        import torch

        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
