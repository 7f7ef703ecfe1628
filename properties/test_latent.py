"""Multi-head latent attention: keys are compressed vectors beside a rotated part, and values are these vectors."""

import math

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.bounds.intermediates import intermediates
from attn_spec.judgement.analysis import ORACLE_FRACTION
from attn_spec.judgement.oracle import Oracle
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import replaces_score
from attn_spec.search.assertions import judged
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import Refutation, attention_property

#: Largest widths N and U of the queries and the values of a head before projections are absorbed.
WIDEST = 8


def absorbed(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of integers whose values are part of the keys, and narrower than these if the kernel allows it."""
    narrower = ("dv",) if subject.supports("dv") else ()
    needs = ("latent", "scale", *narrower)
    return problems(subject, needs=needs, without=("empty", replaces_score), regimes=["integers", "integers+v_one_hot"])


def absorbing(problem: Problem) -> tuple[Problem, Problem, np.ndarray]:
    """Return a problem with absorbed projections, the same problem before they are, and W_UV [Hq, U, Dv].

    With the compressed part c of a key and its rotated part r, query head h before that has the keys (W_UK c, r) and
    the values W_UV c. Its queries (n, p) become (W_UK^T n, p). Both problems have the scale 1/sqrt(N + R). All entries
    are integers, and those of W_UK and W_UV are -1, 0 and 1, one at most in each column, so that nothing rounds.
    """
    rng, Dv, R = randomness(problem), problem.value_dim, problem.head_dim - problem.value_dim
    B, H, Sq, Sk = problem.score_shape
    N, U = (int(n) for n in rng.integers(1, WIDEST, size=2, endpoint=True))
    W_UK, W_UV = (_of_signs(rng, H, width, Dv) for width in (N, U))
    n = rng.integers(-2, 2, size=(B, H, Sq, N), endpoint=True).astype(float)
    p = np.clip(problem.q[..., Dv:], -2, 2)
    c, r = problem.per_query_head(problem.k[..., :Dv]), problem.per_query_head(problem.k[..., Dv:])
    scale = 1 / math.sqrt(N + R)
    after = problem.replace(q=np.concatenate([n @ W_UK, p], axis=-1), scale=scale)
    before = problem.replace(
        q=np.concatenate([n, p], axis=-1),
        k=np.concatenate([c @ W_UK.swapaxes(-1, -2), np.broadcast_to(r, (B, H, Sk, R))], axis=-1),
        v=c @ W_UV.swapaxes(-1, -2),
        scale=scale,
        latent=False,
        dtypes="float64",  # which holds the keys and values of a head, and every option
        **problem.options_by_query_head(),
    )
    return after, before, W_UV


def _of_signs(rng: np.random.Generator, heads: int, rows: int, columns: int) -> np.ndarray:
    """Return matrices [heads, rows, columns] of -1, 0 and 1 with one number other than 0 in each column."""
    place = rng.integers(rows, size=(heads, 1, columns)) == np.arange(rows)[:, None]
    return place * rng.choice((-1.0, 1.0), size=(heads, 1, columns))


@attention_property(
    source="DeepSeek-V2 (arXiv 2405.04434), section 2.1.2: (W_UK c).n = c.(W_UK^T n), and W_UV sum P c = sum P W_UV c",
    hunts="1/sqrt(D) in place of the scale of a head, values with the rotated part, a rotated part that is left out",
    needs=("latent", "scale"),
    problems=absorbed,
)
def test_absorbing_the_projections_changes_nothing(subject: Subject, problem: Problem) -> None:
    """W_UV applied to the output of absorbed queries is the attention of each head's own keys and values.

    The bound is that of the absorbed problem, multiplied by |W_UV|. The truth is that of the problem before.
    """
    after, before, W_UV = absorbing(problem)
    measured = judged(subject, after, subject(after)).measurements[0]
    project = W_UV.swapaxes(-1, -2)
    speaks = (measured.measured.all(axis=-1) & ~after.empty_rows)[..., None]
    with np.errstate(all="ignore"):  # rows that nothing is said of may hold anything
        got, allowed = measured.got @ project, measured.allowed @ np.abs(project)
        rounded = 2.0**-48 * (np.abs(measured.got) @ np.abs(project))  # the products are rounded here
        truth = Oracle(intermediates(before))(output=np.where(speaks, ORACLE_FRACTION * allowed, np.inf))["output"]
        gap = np.abs((got - truth.value) - truth.low) - truth.radius - rounded
    wrong = speaks & ~(gap <= allowed)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(
            f"W_UV times the output is {got[at]:.9g} at {list(at)}, but {truth.value[at]:.9g} for the head's own keys "
            f"and values; allowed error {allowed[at]:.3g}"
        )
