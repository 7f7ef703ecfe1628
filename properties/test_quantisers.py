"""Quantisers: codes and scales that a kernel makes of q, k and v are those that its contract declares."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.contract.quantisers import Quantiser
from attn_spec.judgement.quantisation import quantisation_error
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.hidden_keys import assert_unused_places_have_no_influence
from attn_spec.search.property import Refutation, attention_property, observe_quantisation

#: Values of a usual size, beside which a wrong scale is seen.
TELLING = ("normal", "rising", "large")
#: Values like those of trained layers, whose quantisation error is one that users have.
USUAL = ("normal", "activations")
SAGE = "SageAttention, arXiv 2410.02367, section 4"


def without_quantisers(subject: Subject, of: str = "qkv") -> str:
    """Return why a property of quantisers does not apply; empty if the contract has one of these tensors."""
    found = any(one.of in of for one in subject.contract.quantisers)
    return "" if found else f"its contract has no quantiser{'' if of == 'qkv' else f' of {of}'}"


def lengths_past_blocks(subject: Subject, name: str) -> SearchStrategy[int] | None:
    """Draw lengths of queries (Q) or keys (K) up to three blocks of the tensor's quantiser; None if any will do."""
    blocks = [one.block for one in subject.contract.quantisers if (one.of == "q") == (name == "Q")]
    sizes = [block for block in blocks if isinstance(block, int)]
    limits = subject.kernel.limits
    if not sizes or limits.step(name) > 1 or limits.most(name) < 3 * max(sizes):
        return None
    return st.integers(max(sizes) + 1, 3 * max(sizes))


def past_blocks(subject: Subject, regimes: tuple[str, ...] = TELLING, **fixed: Any) -> SearchStrategy[Problem]:
    """Draw problems, half of them with tokens of several blocks."""
    any_length = problems(subject, without=("empty",), regimes=regimes, **fixed)
    keys, queries = lengths_past_blocks(subject, "K"), lengths_past_blocks(subject, "Q")
    lengths = {name: x for name, x in (("key_length", keys), ("query_length", queries)) if x is not None}
    if not lengths or subject.kernel.signatures is not None or not subject.supports("cross"):
        return any_length
    long = problems(subject, without=("empty",), regimes=regimes, **lengths, **fixed)
    return st.one_of(any_length, long)


def raise_part(rng: np.random.Generator, x: np.ndarray, dtype: str) -> None:
    """Make one token of x [B, H, S, D] 32 times as large, unless it would be too large, or there is none."""
    if x.size:
        at = (int(rng.integers(x.shape[0])), int(rng.integers(x.shape[1])), int(rng.integers(x.shape[2])))
        raised = 32 * x[at]
        if np.abs(raised).max() <= min(FORMATS[dtype].largest, 2.0**14):
            x[at] = raised


@attention_property(
    source=f"{SAGE}; thu-ml/SageAttention#232",
    hunts="the scale of a neighbouring block, of another head, or of the whole tensor; a scale rounded once more",
    not_applicable=without_quantisers,
    problems=past_blocks,
    each_call=True,
)
def test_each_block_has_the_scale_of_its_own_largest_number(subject: Subject, problem: Problem) -> None:
    """The answer is that of the scale of each block by itself, also where one token has numbers 32 times as large."""
    rng, changes = randomness(problem), {}
    for quantiser in subject.contract.quantisers:
        x, name = getattr(problem, quantiser.of).copy(), quantiser.of
        raise_part(rng, x, problem.dtype_of(name))
        changes[name] = x
    assert_within_bound(subject, problem, subject(problem))
    changed = problem.replace(**changes)
    assert_within_bound(subject, changed, subject(changed))


def without_columns(subject: Subject) -> str:
    """Return why the property of blocks of columns does not apply; empty if a quantiser has these."""
    found = any(one.columns is not None for one in subject.contract.quantisers)
    return "" if found else "none of its quantisers has blocks of columns"


def several_blocks_of_columns(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems, half of them with several blocks of columns where the kernel takes any head dimension."""
    usual = past_blocks(subject)
    width = max((one.columns or 0 for one in subject.contract.quantisers), default=0)
    if subject.kernel.limits.head_dims is not None or not 0 < width <= 64:
        return usual
    wide = problems(subject, without=("empty",), regimes=TELLING, head_dim=st.sampled_from((2 * width, 3 * width)))
    return st.one_of(wide, usual)


@attention_property(
    source="OCP Microscaling Formats 1.0, section 6; SageAttention3, arXiv 2505.11594, section 3",
    hunts="a scale of neighbouring columns, or rounded otherwise; a scale of all blocks that is used twice or never",
    not_applicable=without_columns,
    problems=several_blocks_of_columns,
    each_call=True,
)
def test_each_block_of_columns_has_a_scale_of_its_own(subject: Subject, problem: Problem) -> None:
    """The answer is that of the scale of each block of columns, also where one block of one token is 32 times as large.

    A second level has that block in it as well.
    """
    rng, changes = randomness(problem), {}
    for quantiser in subject.contract.quantisers:
        if quantiser.columns is not None:
            x = getattr(problem, quantiser.of).copy()
            start = quantiser.columns * int(rng.integers(-(-x.shape[-1] // quantiser.columns)))
            raise_part(rng, x[..., start : start + quantiser.columns], problem.dtype_of(quantiser.of))
            changes[quantiser.of] = x
    assert_within_bound(subject, problem, subject(problem))
    changed = problem.replace(**changes)
    assert_within_bound(subject, changed, subject(changed))


@attention_property(
    source="FlashAttention-3, arXiv 2407.08608, section 3.3: q.k is that of vectors that one matrix has rotated",
    hunts="queries or keys that are not rotated, other signs, another order of the rows of the matrix",
    not_applicable=lambda subject: (
        "" if any(one.rotates for one in subject.contract.quantisers) else "none of its quantisers rotates"
    ),
    problems=past_blocks,
    each_call=True,
)
def test_an_outlier_in_one_column_is_rotated_as_declared(subject: Subject, problem: Problem) -> None:
    """The answer is that of rotated codes, also where one column of q and of k is 16 times as large."""
    rng, changes = randomness(problem), {}
    column = int(rng.integers(problem.head_dim))
    for name in "qk":
        x = getattr(problem, name).copy()
        x[..., column] *= 16.0
        if np.abs(x).max(initial=0.0) <= min(FORMATS[problem.dtype_of(name)].largest, 2.0**14):
            changes[name] = x
    assert_within_bound(subject, problem, subject(problem))
    changed = problem.replace(**changes)
    assert_within_bound(subject, changed, subject(changed))


@attention_property(
    source="softmax is invariant under q.c, which one vector c added to all keys adds to all scores of a row",
    hunts="a log-sum-exp without the mean of keys, the mean of another head, a mean that is not subtracted",
    not_applicable=lambda subject: without_quantisers(subject, "k"),
    problems=lambda subject: past_blocks(subject, ("normal", "rising")),
    each_call=True,
)
def test_a_vector_added_to_all_keys_moves_the_log_sum_exp(subject: Subject, problem: Problem) -> None:
    """With one vector added to all keys of a head, output and log-sum-exp are within their bounds."""
    rng = randomness(problem)
    c = 4.0 * rng.standard_normal((*problem.k.shape[:2], 1, problem.head_dim))
    changed = problem.replace(k=bits.nearest(problem.k + c, problem.dtype_of("k")))
    assert_within_bound(subject, changed, subject(changed))


def at_ties(subject: Subject, problem: Problem) -> dict[str, np.ndarray]:
    """Return q, k and v whose quotients by scales are halves, for tensors with codes that are integers.

    Each token has the largest code once, so that its scale is a power of 2. Half of 254 numbers has 8 bits, which each
    dtype of inputs holds.
    """
    rng, found = randomness(problem), {}
    for quantiser in subject.contract.quantisers:
        x = getattr(problem, quantiser.of)
        if may_tie(quantiser):
            largest = int(quantiser.most)
            halves = rng.integers(1 - largest, largest - 1, x.shape) + 0.5
            halves[..., :1] = largest
            found[quantiser.of] = halves * 2.0**-7
    return found


def may_tie(quantiser: Quantiser) -> bool:
    """Return whether halves of integers are quotients of a quantiser: it scales by the largest integer as it is."""
    plain = not (quantiser.subtracts or quantiser.rotates or quantiser.is_of_appended) and quantiser.columns is None
    return plain and quantiser.has_integers and quantiser.most == quantiser.largest_code


def without_ties(subject: Subject) -> str:
    """Return why no quotient of the kernel's quantisers can be a tie on purpose; empty if one can."""
    able = any(map(may_tie, subject.contract.quantisers))
    return "" if able else "none of its quantisers makes integers, up to the largest, of numbers as they are"


@attention_property(
    source=f"{SAGE}; IEEE 754-2019, 4.3.1: a tie is rounded to even",
    hunts="quotients that are cut, or whose ties are rounded away from 0; codes of -128",
    not_applicable=without_ties,
    problems=lambda subject: problems(subject, without=("empty",), regimes=TELLING),
    each_call=True,
)
def test_halves_are_rounded_as_declared(subject: Subject, problem: Problem) -> None:
    """The answer is that of the codes that the contract declares, where quotients lie halfway between two codes."""
    changed = problem.replace(**at_ties(subject, problem))
    assert_within_bound(subject, changed, subject(changed))


def counts_the_buffer(subject: Subject) -> str:
    """Return why the property of padding does not apply; empty if scales and means are of each sequence alone."""
    if reason := without_quantisers(subject):
        return reason
    counts_all = any(one.over == "buffer" for one in subject.contract.quantisers)
    return "a quantiser counts all of the buffer" if counts_all else ""


@attention_property(
    source="thu-ml/SageAttention#232, flashinfer-ai/flashinfer#3838",
    hunts="means of keys, or largest magnitudes, that count what lies behind a sequence",
    needs=("seqused_k",),
    not_applicable=counts_the_buffer,
    problems=lambda subject: problems(subject, needs=("seqused_k",), without=("empty",), regimes=TELLING),
    each_call=True,
)
def test_what_lies_behind_a_sequence_enters_no_scale(subject: Subject, problem: Problem) -> None:
    """Other contents behind the sequences leave answers within their bounds, with the same bits if these are promised.

    Scales and means count the tokens of each sequence alone.
    """
    assert_unused_places_have_no_influence(subject, problem)


@attention_property(
    source=f"{SAGE}, table 4",
    hunts="a quantiser that is too coarse for what its kernel promises",
    not_applicable=without_quantisers,
    problems=lambda subject: past_blocks(subject, USUAL),
    each_call=True,
)
def test_the_quantisation_error_is_what_is_declared(subject: Subject, problem: Problem) -> None:
    """The answer is within its bound, and the quantisation error within the share that the contract declares, if any.

    The quantisation error is |o^ - o| / |o|, in the 2-norm, of attention o^ of the quantised numbers. No kernel takes
    part in it. It is shown beside the verdict.
    """
    assert_within_bound(subject, problem, subject(problem))
    error, within = quantisation_error(problem, subject.contract), subject.contract.quantisation_within
    if np.isfinite(error):
        observe_quantisation(error)
        if within is not None and error > within:
            raise Refutation(
                f"the quantisation error is {error:.3g} of the output; quantisation_within={within:g} is declared"
            )
