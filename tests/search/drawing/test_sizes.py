"""Large and thin problems have their turn in every search, and shrink to the edge at which a kernel goes wrong."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from attn_spec import kernel
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import OPTIONS
from attn_spec.search.drawing import sizes, strategies, turns
from attn_spec.search.profiles import PROFILES, Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTIES = load_all()
PROPERTY = PROPERTIES["accuracy.output_is_within_its_bound"]
SUBJECT = Subject(resolve("torch_eager"), "float32")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def sizes_seen(property_, subject, profile):
    """Return the problems that a search without a kernel tries at each size, by its name."""
    seen = {}

    def check(subject, problem):
        if size := turns.size():
            seen.setdefault(size.name, []).append(problem.lengths)

    row, _ = search(replace(property_, check=check), subject, profile, 0)
    assert row.examples == profile.examples
    return seen


def drawn(problems, most=5):
    """Return up to ``most`` problems that a strategy draws."""
    found = []

    @settings(max_examples=most, database=None, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
    @given(problems)
    def collect(problem):
        found.append(problem)

    collect()
    return found


@pytest.mark.parametrize(
    "name",
    [
        "accuracy.output_is_within_its_bound",
        "causality.future_keys_change_nothing",
        "gradients.value_gradients_are_within_their_bounds",
        "permutation.keys_may_come_in_any_order",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("softmax.weights_sum_to_one",)),
    ],
)
def test_the_profile_ci_sees_every_size(name):
    seen = sizes_seen(PROPERTIES[name], SUBJECT, PROFILES["ci"])
    most = {axis: max(one[axis] for every in seen.values() for one in every) for axis in "BHQKDV"}

    assert {size.name for size in sizes.SIZES if not size.rare} <= set(seen)
    assert all(1 <= len(every) <= 2 for every in seen.values())
    assert most["K"] > 2**13
    assert most["Q"] > 2**13
    assert most["H"] > 28
    assert most["B"] > 28
    assert most["D"] > 128
    assert max(one["B"] * one["H"] for every in seen.values() for one in every) > 2**8


def test_a_search_without_a_problem_of_a_size_soon_tries_a_small_one_in_its_place():
    """Problems with one key have no size, so each turn ends in vain, after FRUITLESS recipes."""
    asked = []

    def one_key(subject):
        def counted(recipe):
            asked.append(turns.size())
            return True

        return strategies.problems(subject, where=counted, key_length=1)

    lonely = replace(PROPERTY, problems=one_key, check=lambda subject, problem: None)
    row, _ = search(lonely, SUBJECT, PROFILES["smoke"], 0)

    assert row.examples == PROFILES["smoke"].examples
    assert not any(asked)  # `where` is asked after the size


def test_a_turn_ends_after_so_many_recipes_in_a_row_without_its_size():
    size = next(size for size in sizes.SIZES if size.name == "entries")
    small, large = ({"B": batch, "H": 1, "Q": 1, "K": 2, "D": 1} for batch in (1, 64))
    with turns.drawn_in(turns.Turn(size, 0)):
        assert not any(turns.takes(small, 1.0) for _ in range(turns.FRUITLESS - 1))
        assert turns.takes(large, 1.0)
        assert not any(turns.takes(small, 1.0) for _ in range(turns.FRUITLESS - 1))
        with pytest.raises(turns.NoProblemOfSizeError):
            turns.takes(small, 1.0)


@pytest.mark.parametrize(
    ("largest", "left_out"),
    [
        ({"BH": 2**16 - 1}, {"most entries"}),
        ({"B": 2**16 - 1, "H": 2**16 - 1}, set()),
        ({"K": 2**13}, {"keys", "wide keys", "most keys"}),
        ({"Q": 2**10, "H": 3}, {"heads", "groups", "queries", "drafts", "most queries"}),
        ({"Q": 2**6}, {"queries", "tiles", "most queries"}),
        ({"B": 1, "H": 2**8}, {"entries", "pages", "grid", "most entries"}),
    ],
)
def test_a_size_beyond_the_limits_of_a_kernel_has_no_turn(largest, left_out):
    limits = Limits(largest=largest)

    assert {one.name for one in sizes.SIZES if not sizes.is_reached(one, limits, 1.0, cross=True)} == left_out
    for size in sizes.SIZES:
        if size.name not in left_out and not size.long and not size.rare:
            limited = replace(SUBJECT, kernel=replace(SUBJECT.kernel, limits=limits))
            with turns.drawn_in(turns.Turn(size, 0)):
                problem, *_ = drawn(strategies.problems(limited), most=3)
            assert limits.refusal(problem) == ""


def test_layers_have_no_turn_of_many_wide_keys_which_they_would_project():
    reached = {one.name for one in sizes.SIZES if sizes.is_reached(one, Limits(), 1.0, cross=True, layers=True)}

    assert {one.name for one in sizes.SIZES} - reached == {"wide keys"}


def test_a_kernel_of_as_many_queries_as_keys_has_turns_of_long_ones():
    few, more = (Limits(largest={"Q": most}) for most in (sizes.PAST_SQUARE, sizes.PAST_SQUARE + 1))
    size = next(size for size in sizes.SIZES if size.name == "keys")

    assert not sizes.is_reached(size, few, 1.0, cross=False)
    assert sizes.is_reached(size, more, 1.0, cross=False)


def test_most_problems_of_a_size_use_no_option_that_could_hide_it():
    size = next(size for size in sizes.SIZES if size.name == "heads")
    with turns.drawn_in(turns.Turn(size, 0)):
        problems = drawn(strategies.problems(SUBJECT), most=40)
    plain = [not any(row.is_used(getattr(problem, name)) for name, row in OPTIONS.items()) for problem in problems]

    assert all(problem.key_length > 1 for problem in problems)
    assert 0.4 < np.mean(plain) < 0.9


@pytest.mark.parametrize("examples", [PROFILES["ci"].examples, PROFILES["certify"].examples])
def test_one_property_in_four_has_a_turn_of_a_rare_size(examples):
    rare = {size.name for size in sizes.SIZES if size.rare}
    seen = {name: rare & {turn.size.name for turn in turns.turns(examples, name)} for name in PROPERTIES}

    for name in rare:
        assert len(seen) / 6 < sum(name in every for every in seen.values()) < len(seen) / 2.5


def test_rare_sizes_are_as_large_as_they_say():
    for name, is_meant in (
        ("wide keys", lambda one: one["K"] > 2**14 and one["D"] > 128),
        ("most entries", lambda one: one["B"] * one["H"] > 2**16 - 1),
    ):
        size = next(size for size in sizes.SIZES if size.name == name)
        with turns.drawn_in(turns.Turn(size, 0)):
            problems = drawn(strategies.problems(SUBJECT), most=2)
        assert problems
        assert all(is_meant(problem.lengths) for problem in problems)


def test_each_option_has_its_turn_past_a_split():
    """The options are those of torch_eager, in the searches of all properties together."""
    used = set()
    for key in PROPERTIES:
        for turn in turns.turns(PROFILES["ci"].examples, key):
            with turns.drawn_in(turn):
                used |= turns.option(("causal", "window", "mask", "bias", "alibi_slopes", "softcap", "rotary"))
    assert used == {"causal", "window", "mask", "bias", "alibi_slopes", "softcap", "rotary"}


def test_problems_past_a_split_use_the_option_whose_turn_it_is():
    size = next(size for size in sizes.SIZES if size.name == "split")
    made = kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("causal", "bias", "cross"))
    subject = Subject(made(attended), "float32")
    assert set(strategies._addable(subject, (), ())) == {"causal", "bias"}

    for number, option in enumerate(strategies._addable(subject, (), ())):
        with turns.drawn_in(turns.Turn(size, number)):
            values = [getattr(problem, option) for problem in drawn(strategies.problems(subject))]
        assert values
        assert all(map(OPTIONS[option].is_used, values)), option


def test_many_kv_heads_serve_several_query_heads_each():
    size = next(size for size in sizes.SIZES if size.name == "groups")
    with turns.drawn_in(turns.Turn(size, 0)):
        problems = drawn(strategies.problems(SUBJECT), most=20)

    assert all(problem.k.shape[1] >= 5 for problem in problems)
    assert all(2 <= problem.group <= 4 for problem in problems)
    assert max(problem.k.shape[1] for problem in problems) > 8


@pytest.mark.parametrize("supports", [("window",), ("window", "cross")])
def test_an_option_beside_several_tiles_of_queries_and_of_keys_has_its_turn(supports):
    size = next(size for size in sizes.SIZES if size.name == "tiles")
    made = kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=supports)
    with turns.drawn_in(turns.Turn(size, 0)):
        problems = drawn(strategies.problems(Subject(made(attended), "float32")), most=20)

    assert all(problem.window is not None for problem in problems)
    assert min(min(problem.query_length, problem.key_length) for problem in problems) > 64
    assert max(problem.query_length for problem in problems) > 2 * 128


def test_no_option_has_its_turn_beside_one_that_excludes_it():
    made = kernel(
        framework="numpy", dtypes=("float32",), contract="fused", supports=("mask", "bias", "causal"),
        exclusive=(("mask", "bias"),),
    )  # fmt: skip
    subject = Subject(made(attended), "float32")

    assert set(strategies._addable(subject, {"mask"}, ())) == {"causal"}
    assert set(strategies._addable(subject, (), {"causal"})) == {"mask", "bias"}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_it_does_so_for_other_dtypes(dtype):
    seen = sizes_seen(PROPERTY, Subject(SUBJECT.kernel, dtype), PROFILES["ci"])
    assert {size.name for size in sizes.SIZES if not size.rare} <= set(seen)
    assert max(one["K"] for every in seen.values() for one in every) > 2**13


def test_a_slow_kernel_gets_what_it_can_take_in_the_time():
    slow = replace(SUBJECT.kernel, slowness=32.0)
    seen = sizes_seen(PROPERTY, Subject(slow, "float32"), PROFILES["ci"])
    lengths = [one for every in seen.values() for one in every]

    assert {"keys", "widths", "most keys", "most queries"} <= set(seen)
    most = max(size.times for size in sizes.SIZES) * sizes.BUDGET / 32
    assert all(one["B"] * one["H"] * one["Q"] * one["K"] * (one["D"] + 48) <= most for one in lengths)
    assert max(one["K"] for one in lengths) > 2**14 / 32


def test_a_kernel_of_few_signatures_gets_one_more():
    few = replace(SUBJECT.kernel, signatures=2)
    assert len(sizes_seen(PROPERTY, Subject(few, "float32"), PROFILES["ci"])) == 1
    assert not sizes_seen(PROPERTY, Subject(few, "float32"), PROFILES["smoke"])


def test_a_property_about_chance_is_tried_on_small_problems_alone():
    property_ = PROPERTIES["statistics.errors_have_no_common_sign"]
    few = replace(property_, check=lambda subject, problem: None)
    assert not sizes_seen(few, SUBJECT, Profile(name="t", examples=16, floor=1, seconds=60, shrink_seconds=0, seed=0))


def attended(q, k, v):
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def wrong_past(axis, edge):
    """Return attention that is wrong past an edge along an axis of q (of k for the keys)."""

    def attention(q, k, v):
        out = attended(q, k, v)
        lengths = dict(zip("BHQD", q.shape, strict=True)) | {"K": k.shape[2], "G": q.shape[1] // k.shape[1]}
        return out if lengths[axis] <= edge else out + np.float32(1)

    return attention


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("axis", "edge", "least"),
    [
        ("K", 4096, {"key_length": 4097, "query_length": 1}),
        ("K", 8192, {"key_length": 8193, "query_length": 1}),
        ("Q", 1024, {"query_length": 1025, "key_length": 1}),
        ("G", 16, {"query_heads": 17, "kv_heads": 1}),
        ("B", 9, {"batch": 10}),
        ("D", 256, {"head_dim": 257}),
    ],
)
def test_a_defect_past_an_edge_shrinks_to_the_edge(axis, edge, least, monkeypatch):
    monkeypatch.setattr(turns, "SHARE", 1)  # small problems take nine tenths of the time of a search that finds it too
    profile = replace(PROFILES["ci"], examples=len(sizes.SIZES))
    declared = kernel(framework="numpy", dtypes=("float32",), contract="eager", supports=("gqa", "dv", "cross"))
    subject = Subject(declared(wrong_past(axis, edge)), "float32")

    row, case = search(PROPERTY, subject, profile, 0)

    assert row.verdict is Verdict.REFUTED
    found = {name: getattr(case.problem, name) for name in least}
    assert found == least, case.problem
    others = {name: getattr(case.problem, name) for name in ("batch", "kv_heads", "value_dim") if name not in least}
    assert max(others.values()) <= 2, case.problem
