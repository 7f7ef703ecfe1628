"""The command ``attn-spec``: certify, replay, report, teeth, statistics, gpu, properties, explain, probe.

Exit codes: 0 certified or passed, 1 refuted, 2 could not run, 3 inconclusive or still suspect, 130 interrupted. Replay
exits with 4 if a failure by chance did not occur again. This process imports neither torch nor a kernel.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from attn_spec import __version__, faults
from attn_spec.cli import configuration, exit_codes, explanations
from attn_spec.cli.exit_codes import CODES, INTERRUPTED, Command, CouldNotRun, check_apart, check_writable
from attn_spec.probe.command import probe
from attn_spec.problem.shape_spec import EXAMPLE, AskedShape, ShapeError
from attn_spec.search.profiles import PROFILES
from attn_spec.workers.sweep import SCHEDULER

#: Help text of the option for a report's path.
PAGE = "Path of the page; Markdown and JSON are written next to it."


def choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what to examine and how hard, which ``certify`` and ``report`` share."""
    for option in (
        click.option("--profile", type=click.Choice(list(PROFILES)), default="smoke", show_default=True),
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
        click.option(
            "--dtype", "dtypes", multiple=True, help="Dtype to examine; may be repeated. Default: all declared."
        ),
    ):
        command = option(command)
    return command


def output(default: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: A002
    """Return the option for the path of a document."""
    path = click.Path(path_type=Path)
    return click.option("-o", "--output", type=path, default=default, show_default=True, help=help)


call_limit = click.option(
    "--call-limit",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds one kernel call may take, on a core of its own.",
)


isolate = click.option(
    "--isolate/--no-isolate",
    default=None,
    help="Run the kernel in a process of its own, which cannot touch the judge. Default: for kernels outside "
    "attn-spec.",
)


def _shapes(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shapes that the user asked for in canonical form. Raises :class:`click.BadParameter`."""
    try:
        return tuple(str(AskedShape.parse(text)) for text in texts)
    except ShapeError as error:
        raise click.BadParameter(str(error)) from None


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="attn-spec")
def main() -> None:
    """Report, with a proved bound and a minimal counterexample, whether a kernel computes attention."""


@main.command()
@click.argument("kernels", nargs=-1, is_eager=True, callback=configuration.kernels)
@choices
@click.option(
    "--property", "only", multiple=True, help="Exercise only properties whose id contains this; may be repeated."
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="SPEC",
    callback=_shapes,
    help=f"Examine the kernel at this shape too, by sampled rows: {EXAMPLE}. S is Sq and Sk, H is Hq and Hkv. "
    "seqused_k=1:4096:17 gives each sequence a number of keys. May be repeated.",
)
@click.option("--seed", type=int, help="Seed of the search. Default: the profile's.")
@call_limit
@isolate
@click.option(
    "--memory", type=click.FloatRange(0, min_open=True), help="Limit of this process's address space, in GiB."
)
@click.option(
    "--known-defects",
    type=click.Path(path_type=Path),
    help="TOML file of expected refutations, with their reasons; they do not fail the run. Or own: "
    "the table beside KERNEL.",
)
@click.option("--framework", help="For undecorated callables: jax, mlx, numpy or torch.")
@click.option("--contract", help="For undecorated callables: the arithmetic they declare, e.g. fused.")
@click.option("--supports", help="For undecorated callables: options they support; a - removes one: dv,-lse.")
@click.option(
    "--signature",
    metavar="NAME",
    help="For undecorated callables: the library's signature with which they are called, e.g. flash_attn_varlen.",
)
@click.option(
    "--slowness",
    type=click.FloatRange(1),
    help="For undecorated callables: the time of a call as a multiple of that on ordinary hardware, e.g. 100 in an "
    "interpreter; problems are smaller.",
)
@click.option(
    "--definition",
    type=click.Path(),
    help="For a solution of FlashInfer-Bench, KERNEL.json: the file of its definition. Of a definition as KERNEL the "
    "reference is examined.",
)
@click.option(
    "--reference/--no-reference",
    default=True,
    help="Examine the reference of --definition too, by the accuracy of its answers. Default: yes, unless --fail-fast "
    "ends with a refutation.",
)
@click.option(
    "--workload",
    type=click.Path(),
    help="For documents of FlashInfer-Bench: a file of workloads of the definition, at whose shapes KERNEL is examined "
    "too, with numbers of attn-spec's own.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes. Default: two on a CPU with two cores or more, one elsewhere. With --scheduler: shares "
    "of the work, 8 by default; each costs a start.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help=f"{SCHEDULER} Workers must be alike, and find KERNEL by the same name in the same folder, or installed.",
)
@output("certificate.json", "Path of the certificate.")
@click.option("--report", type=click.Path(path_type=Path), help="Write the numeric error report here too (HTML).")
@click.option("--fail-fast", is_flag=True, help="Stop at the first refutation.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate, and nothing else, on stdout.")
def certify(kernels: tuple[str, ...], output: Path, report: Path | None, **chosen: Any) -> None:
    """Examine KERNELS: file.py:name, package.module:name, a short name, a model of ONNX, or a document of
    FlashInfer-Bench.

    Without KERNELS, the kernels and options of the table [tool.attn_spec] of pyproject.toml are used. Each of several
    kernels has a certificate and a report of its own, whose names end with the kernel's name.
    """
    if chosen["as_json"] and len(kernels) > 1:
        raise CouldNotRun(f"--json prints one document, so it takes one kernel, not {len(kernels)}")
    codes = []
    for kernel in kernels:
        suffix = "-" + re.sub(r"\W+", "_", kernel) if len(kernels) > 1 else ""
        both = (output, report)
        places: list[Any] = [path.with_stem(f"{path.stem}{suffix}") if path and suffix else path for path in both]
        codes.append(_certify_one(kernel, *places, **chosen))
        if codes[-1] == INTERRUPTED:
            break
    sys.exit(exit_codes.of_all(codes))


def _certify_one(
    kernel: str, output: Path, report: Path | None, *, as_json: bool, reference: bool, **chosen: Any
) -> int:
    """Examine one kernel, show and write the findings, and return the exit code."""
    from attn_spec.cli import certification, github
    from attn_spec.evidence import certificate

    document, progress = certification.show_examination(kernel, output, report, as_json=as_json, **chosen)
    if chosen["definition"] and reference and not progress.stopped:
        judged = certification.examine_reference(chosen["definition"], output, chosen)
        document = document.model_copy(update={"reference": judged and judged.result})
        certificate.save(document, output)
    if report is not None:
        from attn_spec.isolation.choices import isolate_word
        from attn_spec.kernels.resolve import OF_COMMANDS, declarations

        declared = declarations(**{name: chosen[name] for name in OF_COMMANDS})
        shared = {name: chosen[name] for name in ("dtypes", "device", "profile")}
        shared["isolate"] = isolate_word(chosen["isolate"])
        missing: list[str] = []
        with (
            faults.told(f"report {report}", missing),
            contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(),
        ):
            _write("report", report, kernels=[kernel], certificate=output, declared=declared, **shared)
        for line in missing:
            click.echo(line, err=True)
    code = certification.conclude(document, progress, as_json=as_json)
    github.tell(document, progress)
    return code


@main.command()
@click.argument("case", required=False)
@click.option("--kernel", help="Replay against this kernel, e.g. one that is meant to be fixed.")
@click.option("--list", "listed", is_flag=True, help="Show what is stored, and run nothing.")
@click.option("--clean", is_flag=True, help="Delete the cases that turn out to be fixed, and their scripts.")
@click.option("--html", "page", type=Path, help="Page to write on the problem of one case that still fails.")
@call_limit
@isolate
def replay(  # noqa: PLR0917 -- the arguments of a command
    case: str | None,
    kernel: str | None,
    listed: bool,
    clean: bool,
    page: Path | None,
    call_limit: float,
    isolate: bool | None,
) -> None:
    """Run stored cases again: CASE is an id, the start of one, or a file; without it, every stored case."""
    from attn_spec.search import cases
    from attn_spec.sessions import replay as runner

    try:
        paths = cases.find(case)
    except cases.CaseError as error:
        raise CouldNotRun(str(error)) from None
    if listed:
        click.echo("\n".join(line for path in paths for line in cases.described(path)))
        return
    if page is not None:
        if len(paths) > 1:
            many = f"--html shows one case, and {len(paths)} are stored"
            raise CouldNotRun(f"{many}; name one: attn-spec replay CASE --html FILE")
        check_writable(page)
    codes = []
    for path, done in runner.replays(paths, kernel, call_limit, isolate, page):
        codes.append(done.code)
        deleted = clean and runner.OUTCOMES[done.code] == "fixed"
        click.echo(f"{path.stem}  {done}{', deleted' if deleted else ''}")
        if page is not None:
            click.echo(f"page: {page}" if done.shown else "no page: no failing answer came")
        if deleted:
            cases.delete(path)
    click.echo(", ".join(f"{codes.count(code)} {word}" for code, word in enumerate(runner.OUTCOMES)))
    sys.exit(exit_codes.of_all(codes))


@main.command()
@click.argument("kernels", nargs=-1)
@choices
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Certificate whose verdicts the page shows too.",
)
@click.option(
    "--watched", type=click.Path(dir_okay=False, path_type=Path), help="JSON report of a watch, shown on the page too."
)
@output("report.html", PAGE)
def report(kernels: tuple[str, ...], output: Path, certificate: Path | None, **chosen: Any) -> None:
    """Measure the numeric error of KERNELS (default: all built in), or compare two certificates (two .json files)."""
    if certificate is not None:
        check_apart(output, certificate, "--output")
    if kernels and all(name.endswith(".json") for name in kernels):
        _compare(kernels)
        return
    _write("report", output, kernels=kernels, certificate=certificate, **chosen)


@main.command()
@click.argument("document", required=False, type=click.Path(path_type=Path))
@click.option("--sample", type=int, help="Only this many mutants, spread over their families; the rest in proportion.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("--scheduler", metavar="ADDRESS", help=SCHEDULER)
@click.option("--seed", type=int, default=0, show_default=True)
@output("teeth.html", PAGE)
def teeth(document: Path | None, output: Path, **chosen: Any) -> None:
    """Measure the suite itself: mutants it detects, mutants other rules detect, false accusations. Takes an hour.

    With DOCUMENT, the JSON of an earlier run, only the page is written again.
    """
    _write("teeth", output, document=document, **chosen)


@main.command()
@click.argument("kernels", nargs=-1)
@click.option("--dtype", help="float64 or float32: others round too coarsely. Default: the first declared.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--draws", type=click.IntRange(8), default=4096, show_default=True, help="Heads drawn at each place.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--memory/--no-memory", "with_memory", default=True, help="Measure the memory of the kernels built in.")
@output("statistics.html", PAGE)
def statistics(kernels: tuple[str, ...], output: Path, **chosen: Any) -> None:
    """Measure training statistics of KERNELS beside exact values: scores, weights, gradients, memory.

    Exits with 1 if a statistic contradicts attention, with 3 if the draws are too few to decide.
    """
    *_, document = _write("statistics", output, kernels=kernels, **chosen)
    found = json.loads(document.read_text(encoding="utf-8"))
    click.echo(found["headline"])
    agree, tell = (all(point[word] for point in found["points"]) for word in ("agrees", "tells"))
    sys.exit(0 if agree and tell else CODES["inconclusive" if agree else "refuted"])


@main.command()
@click.argument("document", required=False, type=click.Path(path_type=Path))
@click.option("--device", default="cuda", show_default=True, help="cuda or cuda:N.")
@click.option("--profile", type=click.Choice(list(PROFILES)), default="ci", show_default=True)
@click.option("--timing/--no-timing", default=True, help="Time the Triton kernel beside flash and eager attention.")
@output("gpu.html", PAGE)
def gpu(document: Path | None, output: Path, **chosen: Any) -> None:
    """Certify every built-in kernel that is made for a GPU, on the GPU, and measure the cost of calls.

    With DOCUMENT, the JSON of an earlier run, only the page is written again. Exits with 1 if a kernel is refuted, with
    2 without a GPU, with 3 if a kernel could not be run or was not examined enough.
    """
    *_, written = _write("gpu", output, document=document, **chosen)
    found = json.loads(written.read_text(encoding="utf-8"))
    click.echo(found["headline"])
    sys.exit(exit_codes.of_all(CODES.get(one["result"], CODES["inconclusive"]) for one in found["examined"]))


main.add_command(explanations.explain)
main.add_command(explanations.properties)
main.add_command(probe)


def _write(name: str, path: Path, **chosen: Any) -> list[Path]:
    """Write a report to ``path`` and next to it: HTML, Markdown, JSON. Return the paths."""
    from attn_spec.evidence import report
    from attn_spec.evidence.certificate import CertificateError
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.watching.tally import TallyError
    from attn_spec.workers.task import WorkersError

    try:
        written = report.writer(name)(path, **chosen)
    except (KernelError, CertificateError, TallyError, WorkersError, report.ReportError) as error:
        raise CouldNotRun(str(error)) from None
    for file in written:
        click.echo(f"{name}: {file}")
    return written


def _compare(paths: tuple[str, ...]) -> None:
    """Print the differences between two certificates."""
    from attn_spec.evidence import certificate

    if len(paths) != 2:
        raise CouldNotRun(f"compare two certificates, not {len(paths)}")
    try:
        old, new = (certificate.load(Path(path)) for path in paths)
    except certificate.CertificateError as error:
        raise CouldNotRun(str(error)) from None
    lines = certificate.compare(old, new)
    click.echo("\n".join(lines) if lines else "the certificates say the same")
