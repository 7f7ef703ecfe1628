"""Environments of pinned versions, which hold this checkout of attn-spec and the implementations that share them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import attn_spec
from attn_spec import atomic
from attn_spec.evidence.report import ReportError
from attn_spec.workers.cluster import source_digest

#: Folder of the checkout, which pip installs.
ROOT = Path(attn_spec.__file__).resolve().parent.parent
#: Last lines of a failed installation that are shown.
SHOWN = 5
#: Program that prints the digest of the attn-spec of an environment.
_PRINT_DIGEST = "from attn_spec.workers.cluster import source_digest; print(source_digest())"


class ReleasedError(ReportError):
    """The page cannot be made; the text says what is missing, and what to do next."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Packages that are installed together."""

    name: str
    #: Requirements with their versions, as pip reads them.
    requirements: tuple[str, ...]
    #: Requirements that are installed without what they require, which would be a GPU's, or of other versions.
    alone: tuple[str, ...] = ()
    #: Variables of the processes that run there.
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def stated(self) -> str:
        """Requirements, one a line."""
        return "".join(f"{one}\n" for one in (*self.requirements, *self.alone))


ENVIRONMENTS = (
    Environment(
        name="torch",
        requirements=(
            "torch==2.13.0",
            "transformers==5.24.0",
            "diffusers==0.42.1",
            "x-transformers==2.31.10",
            "einops==0.8.2",
            "onnx==1.23.2",
            "onnxruntime==1.32.0",
            "openvino==2026.4.1",
            "keras==3.15.1",
            *("beartype==0.23.1", "jaxtyping==0.3.11"),  # which ring-attention-pytorch imports
            "hyper-connections==0.4.11",  # which local-attention imports
            "catalogue==2.0.10",  # which curated-transformers imports
            *("numba==0.68.1", "more-itertools==11.2.1", "tiktoken==0.14.0"),  # which openai-whisper imports
            *("ruamel.yaml==0.19.1", "tabulate==0.10.0"),  # which executorch imports
        ),
        alone=(
            *("memory-efficient-attention-pytorch==0.1.6", "ring-attention-pytorch==0.5.20"),
            *("local-attention==1.11.2", "curated-transformers==2.0.1"),
            *("openai-whisper==20250625", "executorch==1.5.1"),
        ),
        variables={"KERAS_BACKEND": "torch"},
    ),
    Environment(
        name="jax",
        requirements=(
            *("jax==0.10.2", "flax==0.12.8", "equinox==0.13.8", "keras==3.15.1", "einops==0.8.2"),
            "torch==2.13.0",  # which memory-efficient-attention imports too
            *("beartype==0.23.1", "chex==0.1.92", "jaxtyping==0.3.11", "tqdm==4.70.1"),  # which ejkernel imports
        ),
        alone=("flash-attention-jax==0.3.1", "memory-efficient-attention==0.1.3", "ejkernel==0.0.80.3"),
        variables={"KERAS_BACKEND": "jax"},
    ),
    Environment(
        name="interpreted",
        requirements=("torch==2.13.0", "triton==3.9.0", "einops==0.8.2", "transformers==5.24.0"),
        alone=("flash-linear-attention==0.6.0", "fla-core==0.6.0"),
        variables={"TRITON_INTERPRET": "1"},
    ),
    Environment(name="mlx", requirements=("mlx[cpu]==0.32.4",)),
    Environment(name="paddle", requirements=("paddlepaddle==3.3.1",)),
    Environment(
        name="tensorflow",
        requirements=("tensorflow-cpu==2.21.0", "keras==3.15.1"),
        variables={"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
    ),
)


def by_name() -> dict[str, Environment]:
    """Return the environments by name."""
    return {one.name: one for one in ENVIRONMENTS}


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An environment that was made."""

    environment: Environment
    #: Folder of its commands.
    commands: Path

    def run(self, command: Sequence[str], folder: Path, limit: float | None = None) -> CompletedProcess[str]:
        """Run a command of the environment in ``folder``, for at most ``limit`` seconds, and return what it printed."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment.variables}
        first, *others = command
        return subprocess.run(  # noqa: S603 -- a command of the table's rows
            (str(self.commands / first), *others),
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )

    def timed(self, command: Sequence[str], folder: Path) -> tuple[CompletedProcess[str], float]:
        """Run a command of the environment, and return what it printed and its seconds of processor time."""
        before = _processor_seconds()
        done = self.run(command, folder)
        return done, round(_processor_seconds() - before, 1)

    def told(self, text: str) -> str:
        """Return what a command said, with paths of the environment from its folder on, as they are on any machine."""
        return text.replace(f"{self.commands.parent}{os.sep}", "")

    def version(self, package: str) -> str:
        """Return the version of a distribution that is installed there; empty if it is not."""
        program = f"from importlib.metadata import version; print(version({package!r}))"
        return self.run(["python", "-c", program], self.commands).stdout.strip()

    @property
    def is_current(self) -> bool:
        """True if the attn-spec that is installed there has the sources of this process."""
        return self.run(["python", "-c", _PRINT_DIGEST], self.commands).stdout.strip() == source_digest()


def _processor_seconds() -> float:
    """Return the processor seconds of the processes that were run and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def last_line(*printed: str) -> str:
    """Return the last line of the first text that has one."""
    return next((text.strip().splitlines()[-1] for text in printed if text.strip()), "no output")


def made(environment: Environment, folder: Path) -> Installed:
    """Return an environment, which is made in ``folder`` unless it is there with the same requirements.

    Where only attn-spec differs from this checkout, it alone is installed again. Raises :class:`ReleasedError` if
    attn-spec runs from no checkout, or if an installation fails.
    """
    if not (ROOT / "pyproject.toml").is_file():
        raise ReleasedError(f"{ROOT} is no checkout of attn-spec; clone the repository and run `make released` there")
    place, stamp = folder / environment.name, folder / f"{environment.name}.txt"
    installed = Installed(environment=environment, commands=place / "bin")
    has_requirements = stamp.is_file() and stamp.read_text(encoding="utf-8") == environment.stated
    if has_requirements and installed.is_current:
        return installed
    install = (installed.commands / "python", "-m", "pip", "install", "--quiet")
    attn_spec_itself = ("--constraint", ROOT / "constraints.txt", ROOT)  # pip installs a folder again
    if has_requirements:
        _run(environment, (*install, *attn_spec_itself))
    else:
        _run(environment, (sys.executable, "-m", "venv", "--clear", place))
        _run(environment, (*install, *attn_spec_itself, *environment.requirements))
        if environment.alone:
            _run(environment, (*install, "--no-deps", *environment.alone))
        atomic.write(stamp, environment.stated)
    if not installed.is_current:
        raise ReleasedError(
            f"the environment {environment.name!r} holds other files of attn-spec than this process has read: remove "
            f"{ROOT / 'build'}, change no file of {ROOT} meanwhile, and run the command again"
        )
    return installed


def fresh(environment: Environment, folder: Path) -> Installed:
    """Make an environment without attn-spec in a folder that has none. Raises :class:`ReleasedError`."""
    place = folder / environment.name
    installed = Installed(environment=environment, commands=place / "bin")
    _run(environment, (sys.executable, "-m", "venv", place))
    _run(environment, (installed.commands / "python", "-m", "pip", "install", "--quiet", *environment.requirements))
    return installed


def _run(environment: Environment, command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        told = "\n".join((done.stderr or done.stdout).splitlines()[-SHOWN:])
        raise ReleasedError(
            f"the environment {environment.name!r} cannot be made: {told}\nSee that the index of packages can be "
            "reached and that it has these versions"
        )
