"""Masking: masked keys have no influence, however they are masked; a convention decides about rows without a key."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.presentations.memory import of_two_axes
from attn_spec.kernels.subject import Subject
from attn_spec.problem.conventions import OPEN
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import Trait, moves_diagonal, other_tensor, positional, weighs_linearly
from attn_spec.search.assertions import (
    assert_rows_within_bound,
    assert_unchanged,
    assert_within_bound,
    compares_bits,
    selected,
)
from attn_spec.search.drawing.strategies import named, problems
from attn_spec.search.hidden_keys import assert_hidden_keys_have_no_influence
from attn_spec.search.property import attention_property

SOFTMAX = "exp(-inf) = 0: a hidden key has weight 0"
#: Masks of which kernels skip whole tiles.
SPARSE = ("strided", "blocks", "specks")
#: Masks of no batch entry or head of its own.
TWO_AXES = tuple(f"{name}@11QK" for name in ("random", "checkerboard", "padding"))
EMPTY = "problem.Conventions.empty_row and empty_lse, which the kernel declares"


def visible_of(problem: Problem) -> np.ndarray:
    """Return the mask that the problem has, [B, Hq, Sq, Sk]."""
    return np.broadcast_to(np.asarray(problem.mask), problem.score_shape)


def masked(subject: Subject, *without: Trait) -> SearchStrategy[Problem]:
    """Draw problems with a bool mask that masks some keys, without options of some traits."""
    names = (
        "padding",
        "random",
        "checkerboard",
        "documents",
        "one_key",
        "leading_hidden",
        "empty_middle_rows",
        *SPARSE,
    )
    return problems(subject, needs=("mask",), without=("empty", *without), mask=named(names))


def padded(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose batch entries have lengths of their own, and no diagonal that would move with them.

    Queries without keys are left out if values of the padding may change their answer, as in a mean of all values.
    """
    shared = named(("padding",)).filter(lambda name: "H" not in name)
    found = problems(subject, needs=("mask",), without=(positional, "empty"), mask=shared)
    constant = subject.conventions.empty_rows_are_constant
    return found if constant else found.filter(lambda problem: not problem.blind_queries.any())


def windowed(subject: Subject, *without: Trait) -> SearchStrategy[Problem]:
    """Draw problems with a narrow window without sinks, without options of some traits."""
    sides = st.sampled_from((0, 1, 2, 5, 16, None))
    windows = st.tuples(sides, sides).filter(lambda window: window != (None, None))
    return problems(subject, needs=("window",), without=("empty", "window_sinks", *without), window=windows)


def of_whole_sequences(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with a narrow window whose sequences have all queries and keys, so that they share one diagonal."""
    return windowed(subject, moves_diagonal)


def pierced(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose bias holds -inf."""
    return problems(subject, needs=("bias",), without=("empty",), bias=named(("minus_inf", "leading_minus_inf")))


def filled(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose bias is a low number at some keys, or at all that a query sees."""
    return problems(subject, needs=("bias",), without=("empty",), bias=named(("finite_fill",)))


def blinded(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with a mask that leaves some queries without any key."""
    names = ("empty_first_rows", "empty_middle_rows", "empty_last_rows", "all_hidden")
    return problems(subject, needs=("mask",), without=("empty",), mask=named(names))


def blinded_by_bias(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with a bias of -inf everywhere, or at most places of few keys."""
    return problems(subject, needs=("bias",), without=("empty",), bias=named(("all_minus_inf", "minus_inf")))


def left_open(subject: Subject) -> str:
    """Return why nothing is known of a query that sees no key; an empty text if a convention decides its answer."""
    agreed = subject.conventions
    decided = agreed.empty_row != OPEN or (agreed.empty_lse != OPEN and subject.supports("lse"))
    return "" if decided else "its conventions leave a query that sees no key open: empty_row='zero' decides"


def without_keys(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of no queries, no keys, or neither."""
    return problems(subject, needs=("empty",))


@attention_property(
    source=SOFTMAX,
    hunts="a finite fill value that leaks, 0 * NaN in hidden values, a mask applied along the wrong axis",
    needs=("mask",),
    problems=masked,
)
def test_masked_keys_change_nothing(subject: Subject, problem: Problem) -> None:
    """Rewriting keys and values that the mask hides from a query does not change one bit of its result.

    causality.future_keys_change_nothing says what is written, attn_spec.search.assertions when bits are compared.
    """
    assert_hidden_keys_have_no_influence(subject, problem)


@attention_property(
    source=SOFTMAX,
    hunts="a window that is one key too wide, values loaded outside the window",
    needs=("window",),
    problems=windowed,
)
def test_keys_outside_the_window_change_nothing(subject: Subject, problem: Problem) -> None:
    """Rewriting keys and values outside a query's window does not change one bit of its result."""
    assert_hidden_keys_have_no_influence(subject, problem)


@attention_property(
    source=SOFTMAX,
    hunts="-inf in a bias clamped to a finite number, a softcap applied after it",
    needs=("bias",),
    problems=pierced,
)
def test_keys_with_a_bias_of_minus_infinity_change_nothing(subject: Subject, problem: Problem) -> None:
    """Rewriting keys and values whose bias is -inf for a query does not change one bit of its result."""
    assert_hidden_keys_have_no_influence(subject, problem)


@attention_property(
    source=EMPTY,
    hunts="NaN from (-inf) - (-inf), the mean of V from a finite fill value, stale memory, at any row position",
    needs=("mask",),
    problems=blinded,
    not_applicable=left_open,
    each_call=True,
)
def test_queries_that_see_no_key_follow_the_convention(subject: Subject, problem: Problem) -> None:
    """A query whose every key is masked gets the output and the log-sum-exp that the kernel declared for it."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source=EMPTY,
    hunts="(-inf) - (-inf) where the -inf comes from the bias",
    needs=("bias",),
    problems=blinded_by_bias,
    not_applicable=left_open,
    each_call=True,
)
def test_queries_whose_bias_is_minus_infinity_follow_the_convention(subject: Subject, problem: Problem) -> None:
    """A query whose bias is -inf at every key is a query that sees no key."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source=EMPTY,
    hunts="a loop over no tiles that leaves the output unwritten, a division by zero, a launch of no blocks",
    needs=("empty",),
    problems=without_keys,
    each_call=True,
)
def test_no_keys_or_no_queries_is_no_error(subject: Subject, problem: Problem) -> None:
    """With no key every query follows the convention; with no query the answer is empty; neither raises."""
    answer = subject(problem)
    if problem.key_length or subject.conventions.empty_row != "mean_of_v":  # of no values there is no mean
        assert_within_bound(subject, problem, answer)


@attention_property(
    source="the definition of a window: -left <= j - (i + offset) <= right, both ends inclusive",
    hunts="an exclusive end where an inclusive one was meant, sides swapped, the offset for Sq != Sk forgotten",
    needs=("window",),
    problems=of_whole_sequences,
    each_call=True,
)
def test_a_window_is_the_mask_of_its_band(subject: Subject, problem: Problem) -> None:
    """Attention with a window is attention under the mask of the band around the diagonal.

    The band is written out here key by key, on purpose not by attn_spec.problem.masks.
    """
    left, right = problem.window or (None, None)
    Sq, Sk = problem.query_length, problem.key_length
    first = Sk - Sq if problem.causal_alignment == "bottom_right" else 0

    def inside(distance: int) -> bool:
        return (left is None or distance >= -left) and (right is None or distance <= right)

    band = np.array([[inside(j - i - first) for j in range(Sk)] for i in range(Sq)]).reshape(1, 1, Sq, Sk)
    mask = band if problem.mask is None else band & problem.mask
    assert_within_bound(subject, problem.replace(window=None, mask=mask), subject(problem))


@attention_property(
    source="block-sparse attention computes what dense attention does under the same mask: Dao et al., FlashAttention "
    "(arXiv 2205.14135), section 3.3",
    hunts="a tile with one visible key skipped, one with a hidden key not masked, a block map of another head or row",
    needs=("mask",),
    problems=lambda subject: problems(subject, needs=("mask",), without=("empty",), mask=named(SPARSE)),
    each_call=True,
)
def test_sparse_masks_give_dense_attention_under_them(subject: Subject, problem: Problem) -> None:
    """Under masks of strides, of blocks, and of blocks but for one key in each, the answer is within its bound.

    The truth knows no tiles: it is attention under the mask.
    """
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="broadcasting: leading axes that are left out are 1",
    hunts="a mask [Sq, Sk] taken for one of batch entries, or of heads, and keys where as many of them are",
    needs=("mask", "mask_of_two_axes"),
    problems=lambda own: problems(own, needs=("mask",), without=(other_tensor,), mask=st.sampled_from(TWO_AXES)),
    each_call=True,
)
def test_a_mask_of_two_axes_is_that_of_every_head(subject: Subject, problem: Problem) -> None:
    """A mask [Sq, Sk] hides the same keys in all batch entries and heads."""
    assert_within_bound(subject, problem, subject(problem, arrange_options=of_two_axes))


@attention_property(
    source="attention runs over the keys that exist",
    hunts="a page or tile of padding that is read, lengths of one batch entry used for another",
    needs=("mask",),
    problems=padded,
)
def test_a_padded_sequence_is_solved_as_the_shorter_one(subject: Subject, problem: Problem) -> None:
    """With a padding mask each batch entry gets the answer of its sequence without the padding."""
    answer = subject(problem)
    for entry in range(problem.batch):
        keys = range(int(visible_of(problem)[entry, 0, 0].sum()))
        shorter = problem.take("B", [entry]).take("K", keys).replace(mask=None)
        assert_rows_within_bound(subject, shorter, selected(answer, (slice(entry, entry + 1),)))


@attention_property(
    source="adding -inf to a score and excluding its key are the same",
    hunts="a float mask read as bool, a bool mask read as float, one of two mask paths that is wrong",
    needs=("mask", "bias"),
    problems=lambda subject: masked(subject, weighs_linearly),
    each_call=True,
)
def test_a_mask_is_a_bias_of_minus_infinity(subject: Subject, problem: Problem) -> None:
    """The kernel solves a problem with a bool mask, and also when the mask is written as a bias of 0 and -inf.

    The truth is the same; what adding the bias rounds is allowed to the second answer alone.
    """
    assert_within_bound(subject, problem, subject(problem))
    bias = np.where(visible_of(problem), 0.0 if problem.bias is None else problem.bias, -np.inf)
    assert_within_bound(subject, written := problem.replace(mask=None, bias=bias), subject(written))


@attention_property(
    source="a mask that hides nothing is no mask",
    hunts="a mask with its meaning inverted, or applied along the wrong axis after broadcasting",
    needs=("mask",),
    problems=lambda subject: problems(subject, needs=("mask",), mask=named(("all",))),
    each_call=True,
)
def test_a_mask_of_true_changes_nothing(subject: Subject, problem: Problem) -> None:
    """With a mask that is True everywhere the kernel solves the problem without a mask."""
    assert_within_bound(subject, problem.replace(mask=None), subject(problem))


@attention_property(
    source="softmax is invariant under a constant for each row; the log-sum-exp moves by it",
    hunts="a bias indexed with the wrong strides when an axis is broadcast, a bias without the factor log2(e)",
    needs=("bias",),
    problems=lambda subject: problems(subject, needs=("bias",), bias=named(("zero", "row_constant"))),
    each_call=True,
)
def test_a_bias_constant_along_each_row_moves_only_the_log_sum_exp(subject: Subject, problem: Problem) -> None:
    """A bias that is the same for all keys of a query leaves its output alone and adds itself to the log-sum-exp."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="softmax is invariant under a constant for each row: a fill at all keys of a query hides none of them",
    hunts="a low bias taken for minus infinity, a running maximum with a floor, a fill that overflows when rescaled",
    needs=("bias",),
    problems=filled,
    each_call=True,
)
def test_a_bias_as_low_as_a_fill_is_a_number(subject: Subject, problem: Problem) -> None:
    """Biases of -1e4, -1e9, -1e30 and -1e37, which programs write for minus infinity, are added like any other.

    A key that has one beside others that have none has no weight that a format could hold. A query whose keys all have
    it attends as if there were none, as far as the contract's scores still tell keys apart.
    """
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="problem.Conventions.masked_nonfinite",
    hunts="a bias read where the mask hides the key, added after the fill value or rescaled with it",
    needs=("mask", "bias"),
    problems=lambda subject: problems(
        subject, needs=("mask", "bias"), without=("empty",), mask=named(("random",)), bias=named(("normal",))
    ),
    each_call=True,
)
def test_the_bias_at_masked_keys_changes_nothing(subject: Subject, problem: Problem) -> None:
    """Raising the bias by 64 where the mask hides the key from every query that shares the entry changes no bit."""
    bias, seen = np.asarray(problem.bias), visible_of(problem)
    for axis in (axis for axis, length in enumerate(bias.shape) if length == 1):
        seen = np.any(seen, axis=axis, keepdims=True)
    raised = problem.replace(bias=np.where(seen, bias, 64.0))
    rows = None if subject.conventions.empty_rows_are_constant else ~problem.empty_rows
    if compares_bits(subject):
        assert_unchanged(subject(problem), subject(raised), "after the bias at masked keys was replaced by 64", rows)
    else:
        assert_within_bound(subject, raised, subject(raised))
