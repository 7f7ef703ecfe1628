"""Watch runs: models of a project, of random weights, run while each of their calls of attention is judged.

The models stand in ``watched/``, one file of pytest for each project. pytest judges their calls by ``--attn-watch``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_spec.watching.tally import Tally, load

from .environments import Installed, last_line
from .outcome import COULD_NOT_RUN, Watched

#: Folder of the files of pytest.
MODELS = Path(__file__).parent / "watched"
#: Share of the time that the judge may take. The models are small, so that nearly all calls are judged.
SHARE = "0.95"
#: Options that keep pytest from reading the configuration of this checkout, or from writing beside the models.
ALONE = ("-q", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", "/dev/null")
SDPA = "torch.nn.functional:scaled_dot_product_attention"


@dataclass(frozen=True, kw_only=True)
class WatchRun:
    """The models of one project, and the functions whose calls are judged."""

    #: Name of the row, in lower case with hyphens.
    name: str
    project: str
    #: Distribution whose version is stated.
    package: str
    #: Name of its environment.
    environment: str
    #: File in ``MODELS``.
    file: str
    functions: tuple[str, ...]


WATCH_RUNS = (
    WatchRun(
        name="watched-transformers",
        project="Transformers",
        package="transformers",
        environment="torch",
        file="of_transformers.py",
        functions=(SDPA, "transformers.models.llama.modeling_llama:eager_attention_forward"),
    ),
    WatchRun(
        name="watched-diffusers",
        project="Diffusers",
        package="diffusers",
        environment="torch",
        file="of_diffusers.py",
        functions=(SDPA,),
    ),
    WatchRun(
        name="watched-x-transformers",
        project="x-transformers",
        package="x-transformers",
        environment="torch",
        file="of_x_transformers.py",
        functions=(SDPA,),
    ),
)


def by_name() -> dict[str, WatchRun]:
    """Return the watch runs by name."""
    return {one.name: one for one in WATCH_RUNS}


def watch(run: WatchRun, installed: Installed, folder: Path) -> Watched:
    """Run the models of a project, and return what was judged; cases of refuted calls are stored in ``folder``."""
    with tempfile.TemporaryDirectory() as name:
        written = Path(name) / "seen.json"
        command = ["python", "-m", "pytest", *ALONE, "--rootdir", name, str(MODELS / run.file)]
        command += [part for function in run.functions for part in ("--attn-watch", function)]
        command += ["--attn-watch-share", SHARE, "--attn-watch-report-only", "--attn-watch-report", str(written)]
        done, seconds = installed.timed(command, folder)
        functions = tuple(load(written)) if written.is_file() else ()
    version = installed.version(run.package)
    if done.returncode:
        reason = f"pytest ended with {done.returncode}: {last_line(done.stdout, done.stderr)}"
        return Watched(name=run.name, result=COULD_NOT_RUN, reason=reason, version=version, seconds=seconds)
    result, reason = _result(functions)
    return Watched(name=run.name, result=result, reason=reason, version=version, functions=functions, seconds=seconds)


def _result(functions: Sequence[Tally]) -> tuple[str, str]:
    """Return the result in the words of a certificate, and the reason of an inconclusive one."""
    if any(one.refuted for one in functions):
        return "refuted", ""
    unjudged = [one.function for one in functions if not one.judged]
    return ("inconclusive", f"no call of {', '.join(unjudged)} was judged") if unjudged else ("passed", "")
