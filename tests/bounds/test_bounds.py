"""Bounds that a reader can verify by hand, laws that any bound must obey, and what emulated kernels really do."""

import math
from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.forward.output_terms import LINEAR_UP_TO
from attn_spec.bounds.forward.score_bounds import score_error
from attn_spec.bounds.forward.weight_bounds import rescalings
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import FUSED
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE, SOUND
from attn_spec.judgement.measure import judge
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head
from tests.sound_subjects import SOUND_SUBJECTS

#: Everything in float64 with perfect elementary functions: a field that is changed is the only error left to see.
PERFECT = replace(PRECISE, exp_error=0.0, log_error=0.0, tanh_error=0.0).at("float64")
#: Tolerance of such a bound: float64's roundoff, and INFLATION.
TINY = 1e-8


def bound(problem, contract):
    return forward_bound(intermediates(problem), contract)


#: Equal scores, so that P = (1/2, 1/2), o = 2, |v - o| = 1 and sum P |v| = 2; L = 1.1 + log 2.
TWO_KEYS = one_head([[1.1]], [[1.0], [1.0]], [[1.0], [3.0]])
U = 2.0**-8  # the unit roundoff of bfloat16


def by_hand():
    """Return contract fields, and the bounds on |O_hat - o| = 2 and on |LSE_hat - L| that they give for TWO_KEYS."""
    L = 1.1 + math.log(2)
    return {
        # One rounding of o = 2.
        "output": ({"output": "bfloat16"}, 2 * U, 0),
        # One rounding of each weight, of the numerator alone: u sum P |v|.
        "probabilities": ({"probabilities": "bfloat16"}, 2 * U, 0),
        # Each product passes its own rounding and one addition: sum P |v| ((1 + u)^2 - 1).
        "output_accumulation": ({"output_accumulation": "bfloat16"}, 2 * ((1 + U) ** 2 - 1), 0),
        # Entry and one addition change the denominator by 1 + c, |c| <= (1 + u)^2 - 1: |o| c over at least (1 - u)^2.
        "row_sum": ({"row_sum": "bfloat16"}, 2 * ((1 + U) ** 2 - 1) / (1 - U) ** 2, -2 * math.log1p(-U)),
        # The LSE itself is rounded once.
        "lse": ({"lse": "bfloat16"}, 0, U * L),
        # q.k = 1.1 is rounded once, so alpha = 1.1 u; sum P (e^alpha - 1) |v - o| over sum P e^-alpha.
        "score_accumulation": (
            {"score_accumulation": "bfloat16"},
            math.expm1(1.1 * U) * math.exp(1.1 * U),
            1.1 * U,
        ),
        # The weights themselves may be wrong by 3 units of 2^-53, and the same for the logarithm of the row sum.
        "exp_error": ({"exp_error": 2.0**45}, math.expm1(-math.log1p(-U)) / (1 - U), -math.log1p(-U)),
        "log_error": ({"log_error": 2.0**45}, 0, U * (1 + math.log(2))),
    }


@pytest.mark.parametrize("stage", by_hand())
def test_one_narrow_stage_costs_what_the_theorem_says(stage):
    changed, output, lse = by_hand()[stage]

    found = bound(TWO_KEYS, replace(PERFECT, **changed))

    assert found.allowed["output"].item() == pytest.approx(output, rel=1e-6, abs=TINY)
    assert found.allowed["lse"].item() == pytest.approx(lse, rel=1e-6, abs=TINY)


def test_a_tie_needs_no_rescaling_only_when_scores_are_exact():
    ranks = [[0.0], [1.0], [2.0]]
    rising, falling = one_head([[1.0]], ranks, ranks), one_head([[1.0]], ranks[::-1], ranks)

    def count(problem, contract):
        x = intermediates(problem)
        return rescalings(x, contract, score_error(x, contract)).ravel().tolist()

    assert count(rising, PERFECT) == [2, 1, 0]
    assert count(falling, PERFECT) == [0, 1, 2]  # the order of visit is not promised
    assert count(rising, replace(PERFECT, kv_tile=2)) == [1, 1, 0]
    assert count(rising, replace(PERFECT, kv_tile=3)) == [0, 0, 0]
    assert count(rising, replace(PERFECT, exp_of_zero_is_one=False)) == [2, 2, 2]
    assert count(one_head([[1.0]], [[1.0]] * 3, ranks), PERFECT) == [0, 0, 0]

    ties = one_head([[1.1]], [[1.0]] * 3, ranks)
    assert count(ties, PERFECT) == [0, 0, 0]
    assert count(ties, replace(PERFECT, score_accumulation="bfloat16")) == [2, 2, 2]  # computed scores may differ


@pytest.mark.parametrize("stage", ["score_accumulation", "stored_scores", "softmax", "row_sum", "probabilities"])
def test_hidden_keys_on_the_grid_of_the_visible_ones_have_no_influence_on_a_bound(stage):
    """Differences of the visible scores fit eight bits, since they are below 1; those of the hidden one do not."""
    contract = replace(PERFECT, **{stage: "bfloat16"}, kv_tile=None)
    seen = [[0.5], [0.25], [0.5 + 2.0**-8]]
    values = [[1.0], [3.0], [2.0]]
    alone = one_head([[1.0]], seen, values, scale=1.0)
    mask = np.array([True] * 3 + [False]).reshape(1, 1, 1, 4)
    hiding = one_head([[1.0]], [*seen, [-7.5]], [*values, [9.0]], scale=1.0, mask=mask)

    for name in ("output", "lse"):
        np.testing.assert_allclose(
            bound(hiding, contract).allowed[name], bound(alone, contract).allowed[name], rtol=TINY
        )


LOOSER = {
    **{
        f"{stage}={narrow}": ({stage: wide}, {stage: narrow})
        for stage in (
            *("multiplicands", "score_accumulation", "stored_scores", "softmax", "row_sum"),
            *("probabilities", "output_accumulation", "lse"),
        )
        for wide, narrow in (("float32", "tf32"), ("tf32", "bfloat16"))
    },
    "output=bfloat16": ({"output": "float32"}, {"output": "bfloat16"}),
    "toward_zero": ({"rounding": "nearest"}, {"rounding": "toward_zero"}),
    "flushed": ({"subnormals": "kept"}, {"subnormals": "flushed"}),
    "base2": ({"exponent": "natural"}, {"exponent": "base2"}),
    "operands": ({"scale_on": "scores"}, {"scale_on": "operands"}),
    "either_for_cast": ({"row_sum_of": "cast"}, {"row_sum_of": "either"}),
    "either_for_uncast": ({"row_sum_of": "uncast"}, {"row_sum_of": "either"}),
    "exp_error": ({"exp_error": 1.0}, {"exp_error": 2.0}),
    "log_error": ({"log_error": 1.0}, {"log_error": 2.0}),
    "tanh_error": ({"tanh_error": 1.0}, {"tanh_error": 2.0}),
    "exp_of_zero": ({"exp_of_zero_is_one": True}, {"exp_of_zero_is_one": False}),
    "any_tiling": ({"kv_tile": 64}, {"kv_tile": 16}),
    "any_order": ({"summation_depth": 8}, {"summation_depth": None}),
    "lazy": ({"reference_slack": 0.0}, {"reference_slack": 4.0}),
}
PLAIN = {"query_length": 5, "key_length": 33, "head_dim": 24, "value_dim": 3}
LAW_PROBLEMS = [
    Recipe(**PLAIN),
    Recipe(**PLAIN, regime="large+v_alternating", causal=True, causal_alignment="bottom_right"),
    Recipe(**PLAIN, regime="rising+v_wide", softcap=5.0),
    Recipe(**PLAIN, regime="integers", scale=0.25, mask="random"),
    Recipe(**PLAIN, regime="tiny+v_tiny", bias="normal"),
    Recipe(**PLAIN, shift=1e3, window=(5, None)),
]


@pytest.mark.parametrize("loosening", LOOSER)
def test_a_looser_contract_never_has_a_smaller_bound(loosening):
    base = replace(PRECISE.at("float32"), row_sum_of="uncast", probabilities="bfloat16")
    tight, loose = (replace(base, **changed) for changed in LOOSER[loosening])
    grew = False

    for recipe in LAW_PROBLEMS:
        problem = recipe.problem()
        smaller, larger = bound(problem, tight), bound(problem, loose)
        in_both = smaller.in_domain & larger.in_domain
        assert in_both.any()
        for name in ("output", "lse"):
            before, after = smaller.allowed[name][in_both], larger.allowed[name][in_both]
            # What the first order says more than the largest mean is gone where errors of weights are larger.
            least = before * (1 - (2.5 * LINEAR_UP_TO if name == "output" else TINY))
            assert (after >= least).all(), (recipe, name)
            grew |= bool((after > before).any())

    assert grew


@pytest.mark.parametrize("order", [Order(kv_tile=n, tiles=t) for n in (1, 3, 16) for t in ("forward", "random")])
def test_no_weight_is_rescaled_more_often_than_counted(order):
    problem = Recipe(regime="normal", query_length=6, key_length=33, head_dim=8, value_dim=33, seed=4).problem()
    found = []

    class Counting(TiledAttention):
        def rescale_factor(self, m, m_new):
            alpha = super().rescale_factor(m, m_new)
            found.append((self.tile.cols[self.tile.cols < self.Sk], alpha[..., 0] != 1))
            return alpha

    kernel = emulate("counting", PRECISE, order, steps=Counting)
    Subject(kernel, "float32")(problem)
    counts = np.zeros(problem.score_shape)
    for visit, (cols, _) in enumerate(found):
        later = sum((changed.astype(int) for _, changed in found[visit + 1 :]), np.zeros(problem.score_shape[:3], int))
        counts[..., cols] = later[..., None]

    x, c = intermediates(problem), PRECISE.at("float32")
    allowed = rescalings(x, replace(c, kv_tile=order.kv_tile), score_error(x, c))

    assert (counts <= allowed).all()
    assert counts.max() > 0 or order.kv_tile > 16


@pytest.mark.parametrize("tiles", ["forward", "reverse", "random"])
@pytest.mark.parametrize("kv_tile", [1, 2, 5, 16, 64])
def test_argument_roundings_telescope_whatever_the_tiling(kv_tile, tiles):
    """However often a weight is rescaled, its arguments rounded to u cost at most u (M - s) together.

    V is the identity, so that the ratio of two outputs of a query is that of two weights; the top weight is 1.
    """
    rng = np.random.default_rng(2)
    s = np.round(rng.normal(0, 8, 64), 3) + np.linspace(0, 60, 64)
    problem = one_head([[1.0]], s[:, None], np.eye(64))

    class OnlyArgumentsRound(TiledAttention):
        def exponential(self, x):
            return np.exp(x)

        def finish(self, acc, l):
            return acc / l

    contract = replace(PERFECT, softmax="bfloat16")
    kernel = emulate(
        "rounded arguments",
        contract,
        Order(kv_tile=kv_tile, tiles=tiles),
        dtypes=("float64",),
        steps=OnlyArgumentsRound,
    )
    out = Subject(kernel, "float64")(problem)["output"].ravel()

    top = s.argmax()
    error = np.abs(np.log(out / out[top]) - (s - s[top]))
    assert (error <= U * (s[top] - s) * (1 + 1e-9)).all()
    assert error.max() > 0.1 * U * (s[top] - s).max()


BATTERY = [
    {"regime": regime, "query_length": 9, "key_length": keys, "head_dim": D, "value_dim": 8, "seed": keys}
    for regime in ("normal", "integers", "cancellation", "rising+v_alternating", "ties+v_one", "one_hot+v_wide")
    for keys, D in ((2, 1), (7, 16), (40, 64))
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "dtype"), SOUND_SUBJECTS)
def test_sound_kernels_stay_within_their_bounds_and_come_near_them(name, dtype):
    subject = Subject(SOUND[name], dtype)
    nearest = dict.fromkeys(("output", "lse"), 0.0)

    for recipe in BATTERY:
        without_softmax = {"feature_map": "elu_plus_one"} if subject.kernel.limits.always else {}
        problem = Recipe(**recipe, **without_softmax, dtypes=dtype).problem()
        answer = subject(problem)
        judgement = judge(problem, subject.contract, **answer)
        assert not judgement.refuted, recipe
        nearest = {m.name: max(nearest[m.name], m.ratio) for m in judgement.measurements}

    assert min(nearest.values()) > 0.03


def test_a_declared_summation_depth_sharpens_the_bound_and_holds():
    # Tiles of 64 keys: 6 levels of a tree and the product; 2 tiles. Scores: 6 levels and the product.
    order = Order(kv_tile=64, sums="pairwise")
    declared = replace(PRECISE, summation_depth=10, kv_tile=64)
    problem = Recipe(regime="normal", query_length=16, key_length=128, head_dim=64, value_dim=8).problem()

    answer = Subject(emulate("tree", PRECISE, order), "float32")(problem)
    sharp = judge(problem, declared.at("float32"), **answer)
    loose = judge(problem, PRECISE.at("float32"), **answer)

    assert not sharp.refuted
    assert sharp.ratio > 3 * loose.ratio


def test_the_bound_of_fused_kernels_is_a_few_roundings_of_the_output():
    problem = Recipe(dtypes="bfloat16", query_length=8, key_length=64, head_dim=64, value_dim=16).problem()
    found = bound(problem, FUSED.at("bfloat16"))

    assert found.allowed["output"].max() < 4 * U * np.abs(problem.v).max()
