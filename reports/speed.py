"""Speed of the suite itself: ``python -m attn_spec.reports.speed``.

Speeds are ratios of times taken side by side in one run: the candidates take turns, round after round, and their
medians are compared. The definition, the slowest by far, runs once, and for the output alone; enclosure and tier 0 give
the log-sum-exp too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click
import numpy as np
import torch

from attn_spec.attention import definition, error_free, error_free_gradients
from attn_spec.attention.enclosure import enclose
from attn_spec.bounds.intermediates import intermediates
from attn_spec.judgement.oracle import float64_truth
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.sessions.examination import examine
from attn_spec.sessions.progress import Request

from . import long_speed
from .side_by_side import side_by_side, timed

#: Bits of the definition and of the enclosure, those of a quadruple-precision number.
PRECISION = 113
#: At least how many times faster than the definition.
EXPECTED = {"enclosure": 20.0, "tier 0": 300.0}
#: At most how many times slower than float64 attention of PyTorch, 4,096 queries and keys, D = 64: what is aimed at.
LIMITS = {"tier 1": 12.0, "tier 1 with gradients": 20.0}


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The ratio of the times of ``slow`` and ``fast``."""

    slow: str
    fast: str
    value: float
    #: The least it should be; None when nothing was promised.
    expected: float | None = None
    #: The most it should be.
    limit: float | None = None

    def __str__(self) -> str:
        promised = "" if self.expected is None else f"  (at least {self.expected:g} expected)"
        promised += "" if self.limit is None else f"  (at most {self.limit:g} wanted)"
        return f"{self.slow} / {self.fast}: {self.value:,.3g}{promised}"


@click.command()
@click.option("--kernel", default="numpy_tiled", show_default=True, help="Whose examples and certificate are timed.")
@click.option("--length", default=128, show_default=True, help="Queries and keys of the problem for the ratios.")
@click.option("--head-dim", default=64, show_default=True)
@click.option("--long", default=4096, show_default=True, help="Queries and keys of the float64 problem of tier 1.")
@click.option("--rounds", default=7, show_default=True)
def main(kernel: str, length: int, head_dim: int, long: int, rounds: int) -> None:
    """Print the speed of the oracle's tiers, of the search and of a certificate."""
    problem = Recipe(query_length=length, key_length=length, head_dim=head_dim, value_dim=head_dim).problem()
    click.echo(f"one head, {length} queries and keys, D = {head_dim}, float32, medians of {rounds} rounds")
    seconds = side_by_side(candidates(problem), rounds) | {
        "definition": timed(lambda: definition.attention(problem, PRECISION))
    }
    for name, taken in seconds.items():
        click.echo(f"  {name:<18}{taken:>12.6f} s")
    for ratio in ratios(seconds):
        click.echo(f"  {ratio}")
    taken = side_by_side(score_functions(problem), rounds)
    for name in sorted(set(taken) - {"dot"}):
        click.echo(
            f"  {Ratio(slow=f'attention with {name} scores', fast='with products', value=taken[name] / taken['dot'])}"
        )
    few = min(rounds, 3)
    click.echo(f"one head, {long} queries and keys, D = {head_dim}, float64, medians of {few} rounds")
    for ratio in long_ratios(side_by_side(long_candidates(long, head_dim), few)):
        click.echo(f"  {ratio}")
    subject = Subject(resolve(kernel), "float32")
    click.echo(f"examples per second of {kernel}, float32, profile smoke")
    for property_id, rate in example_rates(subject):
        click.echo(f"  {property_id:<60}{rate:>8.1f}")
    taken = timed(lambda: examine(Request(kernel=kernel, profile="smoke")))
    click.echo(f"certificate of {kernel}, every dtype, profile smoke: {taken:.1f} s")
    for line in long_speed.lines():
        click.echo(line)


def candidates(problem: Problem) -> dict[str, Callable[[], object]]:
    """Return the calls that take turns on one problem; the float64 attention is the plain NumPy kernel itself."""
    attention = resolve("numpy_naive")
    return {
        "float64 attention": lambda: attention(problem.q, problem.k, problem.v),
        "tier 0": lambda: float64_truth(intermediates(problem)),
        "enclosure": lambda: enclose(problem, PRECISION),
    }


def long_candidates(length: int, head_dim: int) -> dict[str, Callable[[], object]]:
    """Return tier 1 and PyTorch's float64 attention of one problem, forward and with gradients.

    PyTorch is given one thread. NumPy's products take as many as OPENBLAS_NUM_THREADS says, all else takes one.
    """
    rng = np.random.default_rng(0)
    q, k, v, dO = (rng.standard_normal((1, 1, length, head_dim)) for _ in range(4))
    problem = Problem(q=q, k=k, v=v, dtypes="float64")
    of_q, of_k, of_v = (torch.from_numpy(x).requires_grad_() for x in (q, k, v))

    def attend(*, gradients: bool) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with torch.set_grad_enabled(gradients):
            found = torch.nn.functional.scaled_dot_product_attention(of_q, of_k, of_v)
        if gradients:
            found.backward(torch.from_numpy(dO))
        torch.set_num_threads(threads)

    return {
        "float64": lambda: attend(gradients=False),
        "tier 1": lambda: error_free.enclose(problem),
        "float64 with gradients": lambda: attend(gradients=True),
        "tier 1 with gradients": lambda: (
            error_free.enclose(problem),
            error_free_gradients.enclose_gradients(problem, dO),
        ),
    }


def long_ratios(seconds: dict[str, float]) -> list[Ratio]:
    """Return the ratios of tier 1 to the float64 attention of PyTorch."""
    return [
        Ratio(slow=slow, fast=fast, value=seconds[slow] / seconds[fast], limit=LIMITS[slow])
        for slow, fast in (("tier 1", "float64"), ("tier 1 with gradients", "float64 with gradients"))
    ]


def score_functions(problem: Problem) -> dict[str, Callable[[], object]]:
    """Return textbook attention in PyTorch with each score function, all of the same q, k, v."""
    needed = {
        "bilinear": ("score_weight",),
        "cosine": ("score_gamma",),
        "rotary": ("rotary",),
        "additive": ("score_vector", "score_key_weight", "score_query_weight"),
    }
    runs = {"dot": _run(resolve("torch_eager"), problem)}
    for name, options in needed.items():
        rows = ((option, OPTIONS[option].plain) for option in options)
        values = {option: plain(problem.lengths) for option, plain in rows if plain}
        runs[name] = _run(resolve(f"torch_scores:{name}"), problem.replace(**values))
    return runs


def _run(kernel: Kernel, problem: Problem) -> Callable[[], object]:
    subject = Subject(kernel, problem.dtype)
    return lambda: subject(problem)


def ratios(seconds: dict[str, float]) -> list[Ratio]:
    """Return the ratios of the definition to both tiers, and of both tiers to the float64 attention."""
    faster = [("definition", name, EXPECTED[name]) for name in EXPECTED]
    slower = [(name, "float64 attention", None) for name in EXPECTED]
    return [
        Ratio(slow=slow, fast=fast, value=seconds[slow] / seconds[fast], expected=expected)
        for slow, fast, expected in (*faster, *slower)
    ]


def example_rates(subject: Subject, only: str = "") -> Iterator[tuple[str, float]]:
    """Yield the examples per second of each declared property whose id contains ``only``, judged one by one."""
    for property_id, property_ in sorted(load_all().items()):
        if only in property_id and subject.supports(*property_.needs):
            start = time.perf_counter()
            row, _ = search(property_, subject, PROFILES["smoke"], seed=0)
            yield property_id, row.examples / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
