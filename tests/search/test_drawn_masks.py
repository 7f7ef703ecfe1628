"""Masks that kernels draw: read from answers by hand, problems that show them, and what is said of wrong ones."""

import contextlib
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from attn_spec.implementations.numpy_dropout import attention_gradients
from attn_spec.reports.proof.zoo import mutants
from hypothesis import HealthCheck, Phase
from hypothesis.errors import UnsatisfiedAssumption

from attn_spec import kernel
from attn_spec.chance.mask_statistics import shares
from attn_spec.emulation.sound import SOUND
from attn_spec.evidence import failure, script
from attn_spec.kernels.limits import Limits, NotTaken
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.cases import Case
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawn_masks import (
    KEYS,
    LONG,
    SEEDS_APART,
    SQUARE,
    assert_likely,
    assert_solved,
    calls,
    columns_of_keys,
    is_shown,
    long_rows,
    masks_of_calls,
    not_counted,
    not_shown,
    showing,
    shown_by,
    together,
)
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Refutation, load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from attn_spec.sessions.replay import run
from tests.one_head import one_head

BOTH = ("dropout_by_chance", "dropout_seed")
PROPERTIES = load_all()
mutants.load_all()
FAMILY = [property_ for name, property_ in PROPERTIES.items() if name.startswith("dropout_by_chance.")]


def subject(function, *, supports=("dropout_by_chance",), **declared):
    made = kernel(framework="numpy", dtypes=("float64",), contract="fp64", supports=supports, **declared)(function)
    return Subject(made, "float64")


def weights(q, k):
    s = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return s / s.sum(-1, keepdims=True)


def keeps_the_first(q, k, v, *, dropout_p=0.0):
    """Keep the first of two keys in every call."""
    return weights(q, k) * [1 / (1 - dropout_p), 0] @ v


def not_raised(q, k, v, *, dropout_p=0.0):
    return weights(q, k) * [1, 0] @ v


def test_a_mask_is_read_by_hand():
    """q = 0: two keys weigh 1/2 each. The one that is kept with p = 1/4 shows as 1/2 / (3/4) = 2/3."""
    problem = columns_of_keys(one_head([[0.0]], [[1.0], [2.0]], [[3.0, 5.0], [7.0, 8.0]]))
    (asked,) = calls(own := subject(keeps_the_first), problem, 0.25, 1)
    answer = asked(problem)
    shown = shown_by(problem, 0.25, answer)

    assert problem.v.tolist() == [[[[1, 0], [0, 1]]]]
    assert answer["output"].ravel().tolist() == pytest.approx([2 / 3, 0])
    assert shown.dropout_keep.ravel().tolist() == [True, False]
    assert shown.dropout_p == 0.25
    assert assert_solved(own, shown, answer).exercised


def test_an_answer_that_no_mask_explains_is_refuted_with_p():
    problem = columns_of_keys(one_head([[0.0]], [[1.0], [2.0]], [[3.0, 5.0], [7.0, 8.0]]))
    answer = calls(own := subject(not_raised), problem, 0.25, 1)[0](problem)

    with pytest.raises(
        Refutation, match=r"^for dropout_p=0.25, output\[0, 0, 0, 0\] is 0.5; the truth is 0.666"
    ) as found:
        assert_solved(own, shown_by(problem, 0.25, answer), answer)
    assert found.value.hints == ("the truth is that of dropout_p=0.25 with the keep mask that the output shows",)
    assert found.value.measurement.worst == (0, 0, 0, 0)


def test_more_keys_than_columns_share_them():
    problem = columns_of_keys(one_head([[0.0]], [[1.0]] * 5, [[1.0, 1.0]] * 5))
    assert problem.v[0, 0].tolist() == [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1]]


def test_a_weight_that_underflows_does_not_show():
    near, far = (one_head([[1.0]], [[0.0], [-x]], [[1.0, 0.0], [0.0, 1.0]], dtypes="float16") for x in (4.0, 20.0))
    half = Subject(SOUND["sequential"], "float16")

    assert is_shown(half, near, 0.1)
    assert not is_shown(half, far, 0.1)
    assert not not_shown(half)


def test_calls_have_seeds_of_their_own_where_they_need_them():
    seeds = []

    def attention(q, k, v, *, dropout_p=0.0, seed):
        seeds.append(seed)
        return v

    def unseeded(q, k, v, *, dropout_p=0.0, seed=None):
        seeds.append(seed)
        return v

    problem = Recipe(dtypes="float64").problem()
    both = ("dropout_by_chance", "dropout_seed")
    for asked in calls(subject(attention, supports=both), problem, 0.5, 3):
        asked(problem)
    for seeded in (False, True):
        calls(subject(unseeded, supports=both), problem, 0.5, 1, seeded=seeded)[0](problem)

    assert np.diff(seeds[:3]).tolist() == [SEEDS_APART, SEEDS_APART]
    assert seeds[3] is None
    assert seeds[4] == seeds[0]


def examples(strategy, count):
    found = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=HealthCheck
    )
    @hypothesis.given(strategy)
    def collect(problem):
        found.append(problem)

    collect()
    return found


SUPPORTS = {"all": SOUND["sequential"].supports, "little": frozenset({"dropout_by_chance"})}
LIMITS = {"none": Limits(), "dims": Limits(head_dims=(64, 128)), "multiples": Limits(multiples={"Q": 16, "K": 16})}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("supports", SUPPORTS)
def test_problems_show_every_weight_whatever_a_kernel_takes(supports, limits):
    made = kernel(
        framework="numpy", dtypes=("float32",), supports=SUPPORTS[supports], name="mine", **vars(LIMITS[limits])
    )(keeps_the_first)
    own = Subject(made, "float32")

    for draw in (showing, together, long_rows):
        for problem in examples(draw(own), 12):
            assert not made.limits.refusal(problem)
            assert problem.options() <= made.supports
            assert draw is long_rows or problem.key_length <= problem.value_dim
            assert draw is showing or not problem.q.any()
            assert draw is not long_rows or problem.key_length >= (LONG[0] if own.supports("cross") else SQUARE)


def test_a_kernel_of_longer_tiles_than_columns_is_not_judged():
    made = kernel(framework="numpy", dtypes=("float32",), head_dims=(64,), multiples={"K": 128})(keeps_the_first)
    with pytest.raises(NotTaken, match="values of 64 columns cannot show the weights of 128 keys"):
        showing(Subject(made, "float32"), KEYS)


def test_a_mask_of_other_scores_is_no_evidence():
    problem = Recipe(query_length=2, key_length=2, value_dim=2, dtypes="float64").problem()
    with pytest.raises(UnsatisfiedAssumption, match="the scores of the problem are not equal"):
        masks_of_calls(problem, [subject(keeps_the_first)])


def test_unlikely_counts_are_refuted_with_p():
    none = np.zeros((2, 2, 4, 32, 64), dtype=bool)
    with pytest.raises(
        Refutation, match=r"^for dropout_p=0.3, weights kept of all: 0 of 32768, where a share of 0.7 is"
    ):
        assert_likely(subject(keeps_the_first), shares(none, ~none, 0.7), 0.3)


def test_a_seed_that_is_not_declared_is_named():
    def attention(q, k, v, *, dropout_p=0.0, seed=0):
        return v

    none = np.zeros((2, 2, 4, 32, 64), dtype=bool)
    for supports, hint in ((("dropout_by_chance",), 'does not declare "dropout_seed"'), (BOTH, "")):
        with pytest.raises(Refutation) as refuted:
            assert_likely(subject(attention, supports=supports), shares(none, ~none, 0.7), 0.3)
        assert len(refuted.value.hints) == bool(hint)
        assert hint in "".join(refuted.value.hints)


def test_seeds_that_are_compared_are_not_shared_by_parts():
    """A call for each head and entry alone takes the seeds from one on."""
    seeds = []

    def attention(q, k, v, *, dropout_p=0.0, seed=None):
        seeds.append(seed)
        kept = np.random.default_rng(seed).random((q.shape[0], k.shape[0])) >= dropout_p
        s = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
        return s / s.sum(-1, keepdims=True) * kept / (1 - dropout_p) @ v

    own = subject(attention, supports=(*BOTH, "dv", "cross"), presentation="SD")
    for number in range(20):
        shape = {"batch": 2, "query_heads": 4, "kv_heads": 4, "query_length": 16, "key_length": 64, "value_dim": 64}
        problem = Recipe(regime="uniform", dtypes="float64", seed=number, **shape).problem()
        seeds.clear()
        PROPERTIES["dropout_by_chance.seeds_choose_the_mask"].check(own, problem)
        assert seeds[:8] == seeds[8:16]
        assert len(set(seeds)) == 24


def test_every_call_of_long_rows_is_judged():
    """Outputs a third of a key too large, from the second call on, would be rounded to whole keys."""

    def attention(q, k, v, *, dropout_p=0.0):
        kept = rng.random((*q.shape[:3], k.shape[2])) >= dropout_p
        calls_made.append(1)
        return weights(q, k) * kept / (1 - dropout_p) @ v + (len(calls_made) > good) / 3 / k.shape[2]

    own = subject(attention, supports=("dropout_by_chance", "dv", "cross"))
    problem = next(iter(examples(long_rows(own), 1)))
    property_ = PROPERTIES["dropout_by_chance.outputs_of_long_rows_are_on_average_those_without_dropout"]
    rng, calls_made, good = np.random.default_rng(0), [], 4
    property_.check(own, problem)
    calls_made, good = [], 3
    with pytest.raises(Refutation, match="output"):
        property_.check(own, problem)


def test_a_replay_of_masks_that_are_drawn_again_is_not_called_fixed():
    problem = Recipe(query_length=3, key_length=5, value_dim=8, dtypes="float64", seed=3).problem()
    case = Case(property_id="dropout_by_chance.p_of_zero_drops_nothing", kernel="numpy_dropout", problem=problem)
    shown = replace(case, property_id="dropout_by_chance.the_output_is_that_of_the_mask_it_shows")
    for one in (case, shown):
        assert str(run(one, 60.0)).startswith("not seen this time: each call draws another mask")
    plain = replace(case, property_id="accuracy.output_is_within_its_bound")
    assert str(run(plain, 60.0)) == "fixed"


def test_gradients_of_the_example_need_the_seed_of_the_call():
    q = np.ones((1, 1, 2, 2))
    dq, *_ = attention_gradients(q, q, q, q)
    assert np.isfinite(dq).all()
    with pytest.raises(ValueError, match="gradients need the dropout_seed of the forward call"):
        attention_gradients(q, q, q, q, dropout_p=0.5)


def test_a_contract_that_leaves_numbers_open_is_not_judged_by_them():
    eager = resolve("torch_eager")

    assert not not_counted(Subject(eager, "float32"))
    assert not_counted(Subject(eager, "bfloat16")) == (
        "its contract leaves open how many of 1100 keys 128 columns stand for"
    )


def test_a_refutation_by_chance_says_how_often_and_comes_without_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mutant = mutants.MUTANTS["one_mask_for_all_heads"]
    profile = Profile(name="test", examples=4, floor=1, seconds=60, shrink_seconds=0, seed=0)
    own, property_ = Subject(mutant.kernel, mutant.dtype), PROPERTIES[mutant.named_by]
    row, case = search(property_, own, profile, 0)

    assert row.verdict is Verdict.REFUTED
    assert "  chance    at most 1e-12 for one problem, if the property is true\n" in failure.block(
        case, property_, own, None
    )
    for other in FAMILY:
        assert script.write(case, other, own, tmp_path / "script.py") is None


def test_an_equal_seed_that_drops_other_weights_is_refuted():
    mutant = mutants.MUTANTS["seed_of_the_address"]
    problem = next(iter(examples(together(own := Subject(mutant.kernel, mutant.dtype)), 1)))

    with pytest.raises(Refutation, match=r"two calls with the seed \d+ drop different weights: \d+ of \d+ weights$"):
        PROPERTIES[mutant.named_by].check(own, problem)


@pytest.mark.parametrize("property_", FAMILY, ids=lambda property_: property_.id)
def test_problems_that_nobody_drew_are_judged_or_told_to_be_no_evidence(property_):
    """A replay may give any property any problem."""
    problem = Recipe(query_length=3, key_length=5, value_dim=8, dtypes="float64", seed=3).problem()
    own = Subject(SOUND["sequential"], "float64")
    with contextlib.suppress(UnsatisfiedAssumption):
        property_.check(own, problem)
