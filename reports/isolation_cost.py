"""The cost of a kernel in a process of its own: ``python -m attn_spec.reports.isolation_cost``.

One kernel runs in this process and in its own. Compared are one call of a small problem, where both take turns, and one
certificate of each, smoke profile. Certificates are compared in processor seconds of all processes, which depend less
on the load of the machine than time. The verdicts of both are compared too, and the largest memory of judge and worker
for one large problem.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter

import click
import numpy as np

from attn_spec.isolation.foreign import isolated
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.plain_calls import plain
from attn_spec.sessions.examination import examine
from attn_spec.sessions.progress import Request

from .side_by_side import side_by_side

#: Limits: milliseconds that one call may cost more, and the largest ratio of the costs of certificates.
CALL, CERTIFICATE = 1.0, 1.15


@click.command()
@click.option("--kernel", default="numpy_tiled", show_default=True)
@click.option("--rounds", default=301, show_default=True, help="Calls of the small problem.")
@click.option("--length", default=4096, show_default=True, help="Queries and keys of the large problem.")
@click.option("--certificate/--no-certificate", default=True, show_default=True, help="Time certificates too.")
def main(kernel: str, rounds: int, length: int, certificate: bool) -> None:
    """Print what isolation costs."""
    here, there = call_seconds(kernel, rounds)
    dearer = 1e3 * (there - here)
    click.echo(f"one small call of {kernel}: {1e3 * here:.2f} ms here, {1e3 * there:.2f} ms in its own process")
    click.echo(f"  {dearer:.2f} ms more  (at most {CALL:g} wanted)")
    if certificate:
        taken, verdicts = zip(*(certified(kernel, isolate) for isolate in (False, True)), strict=True)
        click.echo(f"certificate, profile smoke: {taken[0]:.1f} s of processors here, {taken[1]:.1f} s with its own")
        click.echo(f"  ratio {taken[1] / taken[0]:.3f}  (at most {CERTIFICATE:g} wanted)")
        click.echo(f"  {'the same' if verdicts[0] == verdicts[1] else 'other'} verdicts: {dict(verdicts[1])}")
    judge, worker = peaks(kernel, length)
    click.echo(f"peak memory for {length} queries and keys: judge {judge:.0f} MiB, worker {worker:.0f} MiB")


def call_seconds(kernel: str, rounds: int) -> tuple[float, float]:
    """Return seconds of one small call here and in a process of its own, medians of calls that take turns."""
    here, there = (Subject(made, made.dtypes[0]) for made in (resolve(kernel), isolated(kernel)))
    problem = plain(here.kernel, here.dtype)
    taken = side_by_side({"here": lambda: here(problem), "there": lambda: there(problem)}, rounds)
    return taken["here"], taken["there"]


def certified(kernel: str, isolate: bool) -> tuple[float, Counter[str]]:
    """Return processor seconds of all processes of one certificate, and the number of verdicts of each kind."""
    before = sum(os.times()[:4])
    document, _ = examine(Request(kernel=kernel, isolate=isolate))
    return sum(os.times()[:4]) - before, Counter({str(name): number for name, number in document.summary.items()})


def peaks(kernel: str, length: int) -> tuple[float, float]:
    """Return the peak MiB of this process and of the largest that it started, after a call of one large problem."""
    made = isolated(kernel)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, length, 64)).astype(np.float32).astype(np.float64) for _ in range(3))
    Subject(made, "float32")(Problem(q=q, k=k, v=v, dtypes="float32"))
    made.host.end()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    unit = 2**20 if sys.platform == "darwin" else 2**10
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    judge, worker = (size / unit for size in used)
    return judge, worker


if __name__ == "__main__":
    main()
