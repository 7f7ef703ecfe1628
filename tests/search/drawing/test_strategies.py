"""Strategies draw what a kernel declares and nothing else, cover it, and shrink to the smallest problem."""

from collections import Counter
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from attn_spec.kernels.limits import Limits, NotTaken
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import DTYPES
from attn_spec.problem import patterns
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.options import parameters
from attn_spec.problem.traits import positional
from attn_spec.search.drawing import shapes, sizes, strategies, turns
from attn_spec.search.drawing.draws import of_the_seed_alone
from attn_spec.search.drawing.regimes import SCORE_REGIMES, VALUE_REGIMES, Recipe
from attn_spec.search.property import load_all

SUBJECT = Subject(resolve("numpy_naive"), "float32")


def subject(*supports, dtype="float32", **declared):
    """Make a subject that declares these options and facts; it is never called."""
    return Subject(replace(SUBJECT.kernel, supports=frozenset(supports), **declared), dtype)


def drawn(strategy, examples=300):
    """Return the values that a strategy draws in a number of examples."""
    found = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def collect(example):
        found.append(example)

    with of_the_seed_alone():  # as a search draws
        collect()
    return found


def smallest(strategy, condition=lambda problem: True, seed=0):
    """Return the problem a failure shrinks to."""
    settings = hypothesis.settings(max_examples=2000, database=None, deadline=None)
    return hypothesis.find(strategy, condition, settings=settings, random=__import__("random").Random(seed))


@pytest.mark.parametrize(("dtype", "keys"), [("float64", 1820), ("float32", 17476)])
def test_projections_count_where_balls_multiply_them(dtype, keys):
    widths = dict.fromkeys(("head_dim", "value_dim", "score_width", "head_value_dim", "output_width"), 192)
    recipe = Recipe(query_length=1, key_length=17476, query_projection="normal@1HAD", **widths)

    assert shapes.within_limits(recipe, subject("cross", dtype=dtype), 2**25).key_length == keys


def test_a_kernel_without_options_gets_none():
    for problem in drawn(strategies.problems(subject()), 100):
        assert not problem.options()
        assert problem.dtype == "float32"
        assert problem.query_length > 0


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "option", [*(name for name in strategies._WEIGHTS if name not in ("causal_alignment", "head_widths")), "empty"]
)
def test_an_option_appears_only_when_declared_and_always_when_needed(option):
    further = {row.name for row in parameters(option)}
    alone = subject(option, *further)
    assert {frozenset(problem.options()) - {option, *further} for problem in drawn(strategies.problems(alone), 60)} == {
        frozenset()
    }
    needed = drawn(strategies.problems(alone, needs=(option,)), 60)
    assert sum(option in problem.options() for problem in needed) >= 0.9 * len(needed)
    without = drawn(strategies.problems(SUBJECT, without=(option,)), 60)
    assert not any(option in problem.options() for problem in without)


@pytest.mark.parametrize("supports", [("empty",), ("empty", "cross")])
def test_empty_lengths_are_drawn_when_needed(supports):
    problems = drawn(strategies.problems(subject(*supports), needs=("empty",)), 60)
    lengths = {(problem.query_length > 0, problem.key_length > 0) for problem in problems}
    assert lengths == ({(False, False)} if supports == ("empty",) else {(False, False), (False, True), (True, False)})


@pytest.mark.parametrize("supports", [(), ("cross",), ("cross", "dv", "gqa")])
def test_declared_limits_are_respected(supports):
    limited = subject(*supports, limits=Limits(head_dims=(64, 128), multiples={"Q": 16, "K": 16}))
    problems = drawn(strategies.problems(limited), 150)
    assert {problem.head_dim for problem in problems} == {64, 128}
    assert {problem.value_dim for problem in problems} <= {64, 128}
    assert all(n % 16 == 0 for problem in problems for n in (problem.query_length, problem.key_length))
    if "cross" not in supports:
        assert all(problem.query_length == problem.key_length for problem in problems)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("dims", [((24, 16),), ((8, 8), (24, 16), (16, 24)), (8, (24, 16))])
def test_widths_are_drawn_in_pairs(dims, latent):
    limits = Limits(head_dims=dims, always=("latent",) * latent)
    limited = subject("cross", "dv", "gqa", "latent", "scale", limits=limits)

    problems = drawn(strategies.problems(limited), 150)

    taken = {pair for pair in limits.widths if pair[1] <= pair[0] or not latent}
    assert {(problem.head_dim, problem.value_dim) for problem in problems if problem.latent or latent} == {
        pair for pair in taken if pair[1] <= pair[0]
    }
    assert {(problem.head_dim, problem.value_dim) for problem in problems} == taken
    assert {limits.refusal(problem) for problem in problems} == {""}
    if (24, 24) not in limits.widths and len(dims) == 1:
        with pytest.raises(NotTaken, match="the kernel always uses dv"):
            strategies.problems(limited, without=("dv",))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "limits",
    [
        Limits(query_lengths=(1, 4)),
        Limits(kv_heads=(1,)),
        Limits(query_heads=(4, 6), kv_heads=(2, 6)),
        Limits(keys_reach_queries=True, multiples={"K": 64}),
        Limits(always=("causal", "scale"), exclusive=(("causal", "mask"),)),
        Limits(beside={"window": ("causal",), "mask": ("causal", "scale")}, exclusive=(("causal", "mask"),)),
        Limits(positive_scale=True),
        Limits(largest={"B": 2, "H": 3, "BH": 4, "Q": 5, "K": 7}),
        Limits(largest={"Q": 20, "K": 40}, multiples={"Q": 8, "K": 4}),
        Limits(largest={"K": 6}, keys_reach_queries=True),
    ],
)
def test_no_problem_is_drawn_that_the_kernel_does_not_take(limits):
    limited = subject("cross", "dv", "gqa", "causal", "scale", "mask", limits=limits)

    problems = drawn(strategies.problems(limited), 120)

    assert {limits.refusal(problem) for problem in problems} == {""}
    assert len({problem.key_length for problem in problems}) > 3  # of so few draws in steps of 64
    assert any("cross" in problem.options() for problem in problems)


@pytest.mark.parametrize("supports", [("gqa", "dv"), ("gqa", "dv", "cross")])
@pytest.mark.parametrize(
    "limits",
    [
        Limits(keys_reach_queries=True),
        Limits(multiples={"Q": 512, "K": 512}),
        Limits(multiples={"Q": 1024, "K": 2048}, keys_reach_queries=True),
    ],
)
def test_no_problem_of_a_size_has_more_scores_than_there_is_memory_for(supports, limits):
    limited = subject(*supports, limits=limits)

    for size in (size for size in sizes.SIZES if not (size.long or size.rare)):
        with turns.drawn_in(turns.Turn(size, 0)):
            for recipe in drawn(strategies.recipes(limited), 12):
                assert recipe.batch * recipe.query_heads * recipe.query_length * recipe.key_length <= shapes.MOST_SCORES


def test_heads_give_way_to_lengths_that_a_property_asks_for():
    """81,920 entries of 75 queries and 110 keys have 676 million scores."""
    (size,) = (size for size in sizes.SIZES if size.name == "most entries")

    with turns.drawn_in(turns.Turn(size, 0)):
        found = drawn(strategies.recipes(subject("cross", "gqa"), query_length=75, key_length=110), 12)

    heads = [recipe.batch * recipe.query_heads for recipe in found]
    assert 100 < max(heads) <= shapes.MOST_SCORES / (75 * 110)


def test_a_kernel_of_one_kv_head_is_given_one_for_groups_of_any_size():
    limited = subject("gqa", "cross", limits=Limits(kv_heads=(1,)))

    problems = drawn(strategies.problems(limited), 100)
    assert {problem.kv_heads for problem in problems} == {1}
    assert {problem.query_heads for problem in problems} >= {1, 2, 3, 7}
    with pytest.raises(NotTaken, match=r"the number of kv heads must be among \(1,\), and problems of this property"):
        strategies.problems(limited, kv_heads=3)


def test_a_kernel_of_many_query_heads_gets_several_batch_entries_all_the_same():
    limited = subject("gqa", "cross", limits=Limits(query_heads=(32,), kv_heads=(8,)))

    problems = drawn(strategies.problems(limited, query_heads=st.sampled_from((1, 3))), 100)

    assert {(problem.query_heads, problem.kv_heads) for problem in problems} == {(32, 8)}
    assert {problem.batch for problem in problems} == {1, 2, 3, 9}
    for fixed in ({"query_heads": 3}, {"without": ("gqa",)}):
        with pytest.raises(
            NotTaken, match=r"query heads must be among \(32,\), and problems|the kernel always uses gqa"
        ):
            strategies.problems(limited, **fixed)


def test_a_property_that_leaves_out_what_a_kernel_always_uses_is_none_of_its():
    limited = subject("causal", limits=Limits(always=("causal",)))

    with pytest.raises(NotTaken, match="the kernel always uses causal, which no problem of this property does"):
        strategies.problems(limited, without=(positional,))
    assert all(problem.causal for problem in drawn(strategies.problems(limited, without=("empty",)), 20))


def test_what_no_problem_has_beside_options_of_every_call_is_not_asked_for():
    """A layer has one length of queries, so that a kernel that is always one takes no seqused_q."""
    layer = Subject(resolve("torch_layer"), "float32")

    assert not strategies.can_use(layer, "seqused_q")
    assert strategies.can_use(layer, "seqused_k")
    assert strategies.can_use(layer, "query_projection")
    with pytest.raises(NotTaken, match="always uses options beside which no problem has seqused_q"):
        strategies.problems(layer, needs=("seqused_q", "mask"))
    property_ = load_all()["gradients.keys_that_no_query_sees_change_no_gradient"]
    assert any(problem.seqused_k is not None for problem in drawn(property_.problems(layer), 60))


def test_lengths_of_keys_are_those_of_queries_too_where_these_are_equal():
    """A layer has one length of queries, and such a kernel's keys bring theirs along."""
    projections = ("query_projection", "key_projection", "value_projection", "output_projection")
    limits = Limits(equal_lengths=True)
    able = subject(*projections, "seqused_k", "seqused_q", limits=limits)
    always = subject(*projections, "seqused_k", limits=replace(limits, always=projections))

    found = drawn(strategies.problems(able, needs=projections), 60)
    assert not any(problem.seqused_k is not None for problem in found)
    assert any(problem.seqused_k is not None for problem in drawn(strategies.problems(able), 60))
    assert not strategies.can_use(always, "seqused_k")


def test_an_option_is_not_asked_for_where_what_it_stands_beside_is_left_out():
    beside = subject("causal", "window", "mask")
    beside = replace(beside, kernel=replace(beside.kernel, limits=Limits(beside={"window": ("causal",)})))

    with pytest.raises(NotTaken, match="takes window only beside options that no problem of this property has"):
        strategies.problems(beside, needs=("window",), without=("causal",))
    assert all(problem.causal for problem in drawn(strategies.problems(beside, needs=("window",)), 20))
    assert not any(problem.window for problem in drawn(strategies.problems(beside, without=("causal",)), 40))


def test_an_option_with_parameters_is_left_out_with_these():
    able = subject("rotary", "rotary_base")

    with pytest.raises(ValueError, match=r"give without=\['rotary'\] in place of None, since their parameters"):
        strategies.problems(able, rotary=None)
    assert not any(problem.rotary_base for problem in drawn(strategies.problems(able, without=("rotary",)), 40))


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
def test_the_alignment_is_the_kernels_own_unless_it_takes_both(alignment):
    conventions = Conventions(causal_alignment=alignment)
    fixed = drawn(strategies.problems(subject("causal", "cross", conventions=conventions)), 80)
    assert {problem.causal_alignment for problem in fixed} == {alignment}
    both = drawn(strategies.problems(subject("causal", "causal_alignment", "cross", conventions=conventions)), 80)
    assert {problem.causal_alignment for problem in both} == {"top_left", "bottom_right"}


def test_every_option_is_on_in_a_good_share_and_options_combine():
    problems = drawn(strategies.problems(SUBJECT), 500)
    counts = Counter(option for problem in problems for option in problem.options())
    for option in ("scale", "causal", "window", "mask", "bias", "gqa", "dv", "cross"):
        assert counts[option] >= 50, option
    assert counts["softcap"] >= 20
    assert counts["empty"] >= 5
    assert sum(len(problem.options()) >= 4 for problem in problems) >= 100


def test_a_problem_has_one_of_the_scores_that_a_kernel_has():
    problems = drawn(strategies.problems(subject("score_weight", "score_gamma", "scale", "causal")), 120)
    counts = Counter(problem.score_option for problem in problems)  # a problem of two scores is refused when it is made
    assert min(counts[name] for name in (None, "score_weight", "score_gamma")) >= 12


def test_every_regime_pattern_and_edge_is_drawn():
    recipes = drawn(strategies.recipes(SUBJECT), 2500)
    regimes = {name for recipe in recipes for name in recipe.regime.split("+")}
    assert regimes == {*SCORE_REGIMES, *VALUE_REGIMES}
    assert {(recipe.mask or "@").split("@")[0] for recipe in recipes} - {""} == set(patterns.MASKS)
    assert {(recipe.bias or "@").split("@")[0] for recipe in recipes} - {""} == set(patterns.BIASES)
    assert set(shapes.TILE_EDGES) <= {recipe.key_length for recipe in recipes}
    assert set(shapes.HEAD_DIMS) == {recipe.head_dim for recipe in recipes}
    heads = {(recipe.query_heads, recipe.kv_heads) for recipe in recipes}
    assert heads == {*shapes.EQUAL_HEADS, *shapes.GROUPED_HEADS}
    assert len({recipe.shift for recipe in recipes}) == 13
    assert sum(recipe.query_length == 1 for recipe in recipes) > 50


@pytest.mark.one_in(2)
@pytest.mark.parametrize("slowness", [16.0, 32.0, 64.0, 1000.0])
def test_slow_kernels_have_few_heads_that_tell_how_they_are_grouped_and_batch_entries(slowness):
    recipes = drawn(strategies.recipes(subject("gqa", slowness=slowness)), 300)
    pairs = {(recipe.query_heads, recipe.kv_heads) for recipe in recipes}
    several = [recipe for recipe in recipes if recipe.batch > 1]

    assert pairs >= {(1, 1), (2, 2), (2, 1), (4, 2)}
    assert all(heads <= max(shapes.HEADS_BUDGET / slowness, 4) for heads, _ in pairs)
    assert len(several) >= 30
    assert max(recipe.batch * recipe.query_heads for recipe in several) <= shapes.FEW_HEADS
    assert {recipe.query_heads for recipe in several} >= {1, 2}


def test_problems_stay_small():
    problems = drawn(strategies.problems(SUBJECT), 300)
    sizes = [int(np.prod(problem.score_shape)) for problem in problems]
    for problem, scores in zip(problems, sizes, strict=True):
        assert scores * (max(problem.head_dim, problem.value_dim) + 48) <= shapes.BUDGET
    assert np.mean(sizes) < 5000  # the median of so few jumps by half when a list above gets an entry


def test_a_search_without_conditions_shrinks_to_the_smallest_problem():
    # One search in six ends at two queries, which Hypothesis cannot make one without deleting entries.
    found = (smallest(strategies.problems(SUBJECT), seed=seed) for seed in range(3))
    problem = next(problem for problem in found if problem.score_shape == (1, 1, 1, 1))
    assert problem.head_dim == problem.value_dim == 1
    assert not problem.options()
    assert not problem.q.any()


def test_a_recipe_shrinks_to_the_plainest_one():
    assert repr(smallest(strategies.recipes(SUBJECT))) == "Recipe()"


def test_a_recipe_keeps_only_what_the_failure_needs():
    found = smallest(strategies.recipes(SUBJECT), lambda recipe: recipe.causal and recipe.key_length > 40)
    assert repr(found) == "Recipe(query_length=48, key_length=48, causal=True)"


def test_fixed_fields_are_values_or_strategies():
    lengths = hypothesis.strategies.sampled_from((5, 7))
    recipes = drawn(strategies.recipes(SUBJECT, regimes=["uniform"], key_length=lengths, head_dim=3), 60)
    assert {recipe.key_length for recipe in recipes} == {5, 7}
    assert {(recipe.head_dim, recipe.regime) for recipe in recipes} == {(3, "uniform")}
    assert all(recipe.value_dim == 3 or recipe.problem().options() >= {"dv"} for recipe in recipes)


def test_a_problem_that_is_not_meant_is_never_made(monkeypatch):
    made = []

    def within_range(_, recipe, *args, **kwargs):
        made.append(recipe)
        return recipe.problem()

    monkeypatch.setattr(strategies, "within_range", within_range)
    problems = drawn(strategies.problems(SUBJECT, where=lambda recipe: recipe.query_heads > 1), 60)
    assert {recipe.query_heads > 1 for recipe in made} == {True} == {problem.query_heads > 1 for problem in problems}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_problems_reach_the_ends_of_the_range(dtype):
    problems = drawn(strategies.tiny_problems(subject("cross", "causal", dtype=dtype)), 200)
    assert max(max(problem.q.shape[2:] + problem.k.shape[2:]) for problem in problems) == 3
    largest = max(np.abs(problem.q).max() for problem in problems)
    assert largest > 1e4
    assert {problem.causal for problem in problems} == {True, False}
