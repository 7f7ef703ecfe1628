"""Limits say why a kernel does not take a problem: the caller gets that reason, and the kernel is not blamed."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import Limits, NotTaken
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import REFUSED, search
from attn_spec.search.verdict import Verdict

TURNED = {"rotary": "half", "head_dim": 4, "query_length": 5, "key_length": 5}
REFUSALS = {
    "D": (Limits(head_dims=(64, 128)), {"head_dim": 64, "value_dim": 128}, {"value_dim": 8}, "among (64, 128)"),
    "a pair": (
        Limits(head_dims=((24, 16),)),
        {"head_dim": 24, "value_dim": 16},
        {"value_dim": 24},
        "among ((24, 16),)",
    ),
    "pairs": (Limits(head_dims=(64, (24, 16))), {"head_dim": 24, "value_dim": 16}, {"value_dim": 16}, "(64, (24, 16))"),
    "query heads": (
        Limits(query_heads=(2, 8)),
        {"query_heads": 8},
        {"query_heads": 4},
        "query heads must be among (2, 8)",
    ),
    "tight buffers": (
        Limits(tight_buffers=True),
        {"batch": 2, "seqused_k": "some_empty@B111"},
        {"batch": 2, "seqused_k": "none@B111"},
        "there must be a query and a key",
    ),
    "kv heads": (Limits(kv_heads=(1, 4)), {"query_heads": 4}, {"query_heads": 4, "kv_heads": 2}, "among (1, 4)"),
    "groups": (
        Limits(group_sizes=(1, 4)),
        {"query_heads": 8, "kv_heads": 2},
        {"query_heads": 6, "kv_heads": 2},
        "the number of query heads for each kv head must be among (1, 4)",
    ),
    "Q": (Limits(multiples={"Q": 4}), {"query_length": 8}, {"query_length": 6}, "length of Q must be a multiple of 4"),
    "K": (Limits(multiples={"K": 4}), {"key_length": 0}, {"key_length": 6}, "length of K must be a multiple of 4"),
    "decoding": (Limits(query_lengths=(1,)), {}, {"query_length": 2}, "the number of queries must be among (1,)"),
    "self-attention": (Limits(equal_lengths=True), {}, {"key_length": 3}, "there must be as many keys as queries"),
    "keys": (Limits(keys_reach_queries=True), {"key_length": 1}, {"query_length": 2}, "a key for every query"),
    "positions": (Limits(largest_position=4), TURNED, {**TURNED, "rotary_query_positions": "far"}, "be at most 4"),
    "counted positions": (Limits(largest_position=4), {"query_length": 6}, {**TURNED, "key_length": 6}, "be at most 4"),
    "batch": (Limits(largest={"B": 2}), {"batch": 2}, {"batch": 3}, "the number of batch entries must be at most 2"),
    "heads": (
        Limits(largest={"H": 2}),
        {"query_heads": 2},
        {"query_heads": 3},
        "the number of query heads must be at most 2",
    ),
    "blocks": (
        Limits(largest={"BH": 4}),
        {"batch": 2, "query_heads": 2},
        {"batch": 3, "query_heads": 2},
        "the number of batch entries times query heads must be at most 4",
    ),
    "queries": (
        Limits(largest={"Q": 5}),
        {"query_length": 5},
        {"query_length": 6},
        "number of queries must be at most 5",
    ),
    "many keys": (Limits(largest={"K": 5}), {"key_length": 5}, {"key_length": 6}, "number of keys must be at most 5"),
    "scale": (Limits(positive_scale=True), {"scale": 2.0}, {"scale": 0.0}, "the scale must be above 0"),
    "always": (Limits(always=("causal",)), {"causal": True}, {}, "it always uses causal"),
    "never": (
        Limits(exclusive=(("causal", "scale"),)),
        {"causal": True},
        {"causal": True, "scale": 2.0},
        "it does not combine causal and scale",
    ),
    "beside": (
        Limits(beside={"scale": ("causal", "window")}),
        {"scale": 2.0, "window": (1, 0)},
        {"scale": 2.0},
        "it takes scale only beside causal or window",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_problem_that_is_not_taken_is_told_from_one_that_is(name):
    limits, taken, refused, reason = REFUSALS[name]
    dims = {"head_dim": 64, "value_dim": 64} if name in ("D", "pairs") else {}

    assert limits.refusal(Recipe(**{**dims, **taken}).problem()) == ""
    assert reason in limits.refusal(Recipe(**{**dims, **refused}).problem())


def test_numbers_combine_and_pairs_stay_together():
    limits = Limits(head_dims=(64, (24, 16), 8, (24, 24)))

    assert limits.widths == ((64, 64), (64, 8), (24, 16), (8, 64), (8, 8), (24, 24))
    assert (limits.query_dims, limits.value_dims) == ((64, 24, 8), (64, 8, 16, 24))
    assert (limits.equal_dims, limits.needed) == ((64, 8, 24), ())
    assert (limits.query_dim(16), limits.query_dim(64), limits.value_dim(24), limits.value_dim(8)) == (24, 64, 24, 8)
    assert Limits(head_dims=((24, 16),), always=("latent",)).needed == ("latent", "dv")
    assert (Limits().widths, Limits().needed, Limits().query_dim(7)) == (None, (), 7)


@pytest.mark.parametrize(
    ("limits", "drawn", "given"),
    [
        (Limits(), (28, 4), (28, 4)),
        (Limits(kv_heads=(2,)), (8, 1), (16, 2)),
        (Limits(query_heads=(32,), kv_heads=(8,)), (1, 1), (32, 8)),
        (Limits(query_heads=(4, 32), kv_heads=(4, 8)), (2, 2), (4, 4)),
        (Limits(query_heads=(4, 32), kv_heads=(4, 8)), (28, 4), (32, 4)),
        (Limits(query_heads=(6,)), (4, 2), (6, 2)),
        (Limits(query_heads=(6,)), (4, 4), (6, 6)),
        (Limits(query_heads=(1,)), (4, 2), (1, 1)),
        (Limits(group_sizes=(1, 2, 8)), (28, 4), (32, 4)),
        (Limits(group_sizes=(1, 2, 8)), (3, 3), (3, 3)),
        (Limits(group_sizes=(2, 8)), (3, 3), (6, 3)),
        (Limits(query_heads=(4, 32), group_sizes=(1, 8)), (28, 7), (32, 4)),
    ],
)
def test_heads_are_the_nearest_numbers_that_a_kernel_takes(limits, drawn, given):
    assert limits.heads(drawn) == given


def test_every_problem_has_groups_if_no_number_of_heads_is_one_of_kv_heads():
    assert Limits(query_heads=(32,), kv_heads=(8,)).needed == ("gqa",)
    assert Limits(group_sizes=(2, 4)).needed == Limits(query_heads=(8,), group_sizes=(2,)).needed == ("gqa",)
    assert (
        Limits(query_heads=(8, 32), kv_heads=(8,)).needed
        == Limits(group_sizes=(1, 4)).needed
        == Limits(query_heads=(8,)).needed
        == ()
    )


def test_a_kernel_is_never_called_with_what_it_does_not_take():
    subject = Subject(emulate("k", PRECISE, query_lengths=(1,)), "float32")
    problem = Recipe(query_length=2).problem()

    for call in (subject, lambda p: subject.gradients(p, np.ones((1, 1, 2, 1)))):
        with pytest.raises(NotTaken, match=r"k does not take the problem: the number of queries must be among \(1,\)"):
            call(problem)


def test_an_option_that_is_always_used_is_one_that_is_known():
    with pytest.raises(KernelError, match="declares unknown options causual"):
        kernel(framework="numpy", dtypes=("float32",), always=("causual",))(lambda q, k, v: v)


def test_the_largest_length_is_that_of_all_limits_together():
    limits = Limits(largest={"B": 6, "BH": 8, "K": 3}, keys_reach_queries=True)

    assert [limits.most(axis) for axis in ("B", "H", "BH", "Q", "K")] == [6, 8, 8, 3, 3]
    assert Limits(largest={"B": 2, "H": 3}).most("BH") == 6
    assert Limits().most("BH") == np.inf


def refuses_without(name):
    """Return a sound kernel that fails when an option is left out."""

    def attention(q, k, v, **options):
        assert name in options
        return sound(q, k, v, **options)

    sound = emulate("k", PRECISE, supports=("causal", "scale", "cross"))
    declared = {"supports": ("causal", "scale", "cross"), "contract": PRECISE, "name": "k"}
    return kernel(framework="torch", dtypes=("float32",), always=(name,), **declared)(attention)


@pytest.mark.parametrize(
    ("property_id", "verdict", "message"),
    [
        ("accuracy.output_is_within_its_bound", Verdict.HELD, ""),
        ("causality.the_diagonal_is_where_the_convention_says", Verdict.HELD, ""),
        ("permutation.keys_may_come_in_any_order", Verdict.NOT_DECLARED, "the kernel always uses causal, which no"),
        ("causality.decoding_one_query_gives_its_row_of_the_whole", Verdict.NOT_DECLARED, "it always uses causal"),
    ],
)
def test_a_kernel_that_cannot_do_without_an_option_is_not_accused_for_it(property_id, verdict, message):
    few = replace(PROFILES["smoke"], examples=5)
    row, case = search(load_all()[property_id], Subject(refuses_without("causal"), "float32"), few, seed=0)

    assert case is None
    assert row.verdict is verdict, row
    assert message in row.message
    assert row.discarded <= REFUSED * few.examples + 2  # a turn of a size, and what is drawn in its place


@pytest.mark.parametrize(("first", "limit"), [(0, 4), (0, 5000), (2**24 - 1, None)])
def test_positions_move_on_no_further_than_the_limit(first, limit):
    """Two rows stand at ``first`` and 1 further; without room the problem is not taken."""
    given = ("rotary_query_positions", "rotary_key_positions")
    made = emulate("k", PRECISE, supports=("rotary", "rotary_base", *given), largest_position=limit)
    problem = Recipe(
        rotary="half", head_dim=4, query_length=2, key_length=2, **dict.fromkeys(given, "counted")
    ).problem()
    moved = problem.replace(**{name: getattr(problem, name) + first for name in given})
    check = load_all()["positions.one_offset_of_all_positions_changes_nothing"].check

    if limit is None:
        with pytest.raises(NotTaken, match="no position lies further on"):
            check(Subject(made, "float32"), moved)
    else:
        check(Subject(made, "float32"), moved)
