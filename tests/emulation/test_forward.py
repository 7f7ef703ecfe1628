"""The emulated arithmetic is the arithmetic it is said to be, and every option of the kernel works."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.products import on_matrix_unit
from attn_spec.emulation.arithmetic import Arithmetic, Order, rounded
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.matrix_products import MatrixProducts
from attn_spec.emulation.sound import PRECISE, SOUND
from attn_spec.judgement.measure import judge
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import judged
from attn_spec.search.drawing.regimes import Recipe

NUMBERS = np.random.default_rng(0).standard_normal(4000) * np.exp2(np.random.default_rng(1).uniform(-160, 130, 4000))
SHAPE = {"batch": 2, "query_length": 5, "key_length": 37, "head_dim": 8, "value_dim": 6}


def arithmetic(order=None, **fields):
    return Arithmetic(replace(PRECISE, **fields).at("float32"), order or Order())


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_to_nearest_is_that_of_bits(dtype):
    assert bits.identical(rounded(NUMBERS, dtype), bits.nearest(NUMBERS, dtype)).all()


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "float16"])
def test_truncation_takes_the_nearest_number_not_larger(dtype):
    y = rounded(NUMBERS, dtype, "toward_zero")
    inside = np.abs(NUMBERS) <= FORMATS[dtype].largest

    assert bits.is_representable(y, dtype)
    assert (np.abs(y) <= np.abs(NUMBERS)).all()
    assert (np.abs(NUMBERS - y) < bits.spacing(NUMBERS, dtype))[inside].all()
    assert (np.abs(y[~inside]) == FORMATS[dtype].largest).all()


def test_flushing_removes_subnormals_and_nothing_else():
    kept, flushed = rounded(NUMBERS, "float32"), rounded(NUMBERS, "float32", flushed=True)
    tiny = np.abs(kept) < 2.0**-126

    assert (kept[tiny] != 0).any()
    assert (flushed[tiny] == 0).all()
    assert (flushed[~tiny] == kept[~tiny]).all()


@pytest.mark.parametrize(("sums", "total"), [("sequential", 2048.0), ("pairwise", 2050.0)])
def test_the_order_of_a_sum_matters_as_it_should(sums, total):
    # float16 holds 2048 and 2050, not 2049: a tie goes to 2048. 1 + 1 first gives 2050.
    terms = np.array([2048.0, 1.0, 1.0])

    a = arithmetic(Order(sums=sums), row_sum="float16")

    assert a.accumulate(lambda j: terms[j], 3, "row_sum") == total


@pytest.mark.parametrize("matrix_rounding", [None, "toward_zero"])
def test_an_inner_accumulator_sums_no_more_products_than_it_may(matrix_rounding):
    """Three pieces of each factor are six products, of which four are summed in an accumulator that is added then."""
    fields = {"inner_accumulation": "float32", "inner_terms": 4, "multiplicands": "bfloat16", "multiplicand_pieces": 3}
    made = MatrixProducts(replace(PRECISE, matrix_rounding=matrix_rounding, **fields).at("float32"), Order())
    counts = []
    add_all = made._add_all
    made._add_all = lambda total, products, stage: counts.append(len(products)) or add_all(total, products, stage)

    total = made.add_products(lambda t: (np.float64(1 + t), np.float64(3.0)), 3, "score_accumulation")

    assert counts == [4, 4, 4, 4, 2]
    assert total == 18


@pytest.mark.parametrize("order", [Order(), Order(fused=True), Order(sums="pairwise")])
def test_each_product_is_rounded_to_its_own_format_before_the_sum(order):
    """129 x 129 = 16641 is 16640 in bfloat16, so that a product of -16640 leaves nothing; no matrix unit adds these."""
    fields = {"products": "bfloat16", "multiplicands": "bfloat16", "matrix_rounding": "toward_zero"}
    made = MatrixProducts(replace(PRECISE, **fields).at("float32"), order)

    total = made.add_products(lambda t: [(129.0, 129.0), (-16640.0, 1.0)][t], 2, "score_accumulation")

    assert total == 0
    assert not on_matrix_unit(made.c)


def test_random_orders_are_orders_and_repeat():
    terms = np.random.default_rng(3).standard_normal(64)
    orders = [arithmetic(Order(sums="random", seed=seed), row_sum="bfloat16") for seed in (0, 1, 2, 3, 0)]

    totals = [float(a.accumulate(lambda j: terms[j], 64, "row_sum")) for a in orders]

    assert totals[0] == totals[-1]
    assert len(set(totals)) > 1
    assert all(abs(total - terms.sum()) < 64 * 2.0**-8 * np.abs(terms).sum() for total in totals)


def test_sums_start_where_they_are_told_to():
    for sums in ("sequential", "pairwise", "random"):
        assert arithmetic(Order(sums=sums)).accumulate(np.float64, 4, "row_sum", 10.0) == 16.0


@pytest.mark.parametrize("share", [0.5, 1.0, 512.0])
def test_the_exponential_commits_the_error_it_is_told_to(share):
    a = arithmetic(Order(inaccuracy=share), exp_error=8.0, softmax="float64")
    x = -np.linspace(0.1, 20, 500)

    error = a.exponential(x) / np.exp(x) - 1

    assert np.abs(error) == pytest.approx(share * 8 * 2.0**-24, rel=1e-6)
    assert 100 < (error > 0).sum() < 400
    assert a.exponential(np.zeros(1)).item() == 1.0


def test_base_2_exponentials_and_logarithms_are_inverse():
    a = arithmetic(exponent="base2", softmax="float64")

    assert a.exponential(np.array([-3.0])).item() == 0.125
    assert a.logarithm(np.array([0.125])).item() == -3.0


def test_two_keys_by_hand_in_bfloat16():
    # Scores 0 and 1: p = (0.3671875, 1) in bfloat16, l = 1.3671875, o = 3 p_0 + 5 = 6.1015625 / l = 4.4628...
    problem = Problem(
        q=np.ones((1, 1, 1, 1)), k=np.array([0.0, 1.0]).reshape(1, 1, 2, 1), v=np.array([3.0, 5.0]).reshape(1, 1, 2, 1)
    )
    kernel = emulate("by hand", replace(PRECISE, softmax="float32", probabilities="bfloat16", row_sum_of="cast"))

    answer = Subject(kernel, "float32")(problem)

    assert float(bits.nearest(np.exp(np.array(-1.0)), "bfloat16")) == 0.3671875
    assert answer["output"].item() == pytest.approx(6.1015625 / 1.3671875, rel=2.0**-22)
    assert answer["lse"].item() == pytest.approx(1 + np.log(1.3671875), rel=2.0**-22)


OPTIONS = {
    "scale": {"scale": -0.3},
    "zero scale": {"scale": 0.0},
    "causal": {"causal": True},
    "bottom right": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (3, None)},
    "narrow window": {"window": (0, 1), "causal_alignment": "bottom_right"},
    "mask": {"mask": "random@B1QK"},
    "padding": {"mask": "padding@B11K"},
    "empty rows": {"mask": "empty_middle_rows"},
    "bias": {"bias": "normal@1HQK"},
    "hiding bias": {"bias": "leading_minus_inf@BHQK"},
    "softcap": {"softcap": 2.0},
    "grouped heads": {"query_heads": 6, "kv_heads": 2},
    "all": {"scale": 0.3, "causal": True, "window": (20, 3), "mask": "random", "bias": "normal", "softcap": 5.0},
    "no keys": {"key_length": 0},
    "no queries": {"query_length": 0},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "name", ["sequential", "pairwise", "base2", "scaled_operands", "eager_float32", "lazy_rescale"]
)
def test_every_option_is_solved(name, option):
    problem = Recipe(**{**SHAPE, **OPTIONS[option]}).problem()
    subject = Subject(SOUND[name], "float32")

    answer = subject(problem)
    judgement = judge(problem, subject.contract, **answer)

    assert judgement.exercised or not problem.query_length
    assert not judgement.refuted


def test_tiles_and_orders_change_bits_but_little():
    problem = Recipe(**SHAPE).problem()
    orders = [Order(), Order(kv_tile=5), Order(tiles="reverse"), Order(sums="pairwise"), Order(kv_tile=None)]

    outputs = [Subject(emulate("order", PRECISE, order), "float32")(problem)["output"] for order in orders]

    assert len({output.tobytes() for output in outputs}) > 3
    assert max(np.abs(output - outputs[0]).max() for output in outputs) < 2.0**-18


def test_a_row_does_not_depend_on_its_companions():
    problem = Recipe(**SHAPE).problem()
    kernel = Subject(SOUND["random_order"], "float32")

    alone = kernel(problem.replace(q=problem.q[1:, :, 2:3], k=problem.k[1:], v=problem.v[1:]))

    assert (alone["output"] == kernel(problem)["output"][1:, :, 2:3]).all()


@pytest.mark.parametrize(("slack", "moves"), [(0.0, 64), (4.0, 13), (70.0, 1)])
def test_lazy_rescaling_waits_until_the_slack_is_used_up(slack, moves):
    # Scores 0, 1, .., 63, a key at a time: with slack 4 the reference follows every fifth.
    rising = np.arange(64.0).reshape(1, 1, 64, 1)
    found = []

    class Watched(TiledAttention):
        def update_max(self, m, tile_max):
            new = super().update_max(m, tile_max)
            found.append(bool(new > m))
            return new

    kernel = emulate("watched", replace(PRECISE, reference_slack=slack), Order(kv_tile=1), steps=Watched)
    Subject(kernel, "float32")(Problem(q=np.ones((1, 1, 1, 1)), k=rising, v=rising))

    assert sum(found) == moves


def test_hidden_infinities_and_nan_do_not_leak():
    clean = Recipe(**SHAPE, mask="padding@B11K").problem()
    hidden = ~np.broadcast_to(clean.mask, clean.score_shape)[:, :, 0, :, None]
    dirty = clean.replace(k=np.where(hidden, np.nan, clean.k), v=np.where(hidden, np.inf, clean.v))

    for name in ("sequential", "base2", "eager_float32"):
        kernel = Subject(SOUND[name], "float32")
        assert (kernel(clean)["output"] == kernel(dirty)["output"]).all()


def test_a_kernel_that_does_not_declare_the_lse_does_not_return_it():
    problem = Recipe(**SHAPE).problem()

    assert Subject(emulate("bare", PRECISE, supports=("dv", "cross")), "float32")(problem).get("lse") is None
    assert Subject(emulate("full", PRECISE), "float32")(problem).get("lse") is not None


@pytest.mark.parametrize("seed", [179, 180, 181, 183])
@pytest.mark.parametrize("name", ["tf32", "tf32_toward_zero"])
def test_values_that_underflow_on_entry_stay_within_the_bound(name, seed):
    """Found by the validation: the absolute error of v on entry to tf32 does not shrink with the row sum."""
    shape = {"query_heads": 28, "kv_heads": 4, "query_length": 63, "key_length": 4, "head_dim": 2, "value_dim": 128}
    problem = Recipe(regime="subnormal+v_tiny", seed=seed, scale=0.3, **shape).problem()
    subject = Subject(SOUND[name], "float32")
    assert not judged(subject, problem, subject(problem)).refuted


class Endless(TiledAttention):
    """Attention that does not test for the end of the keys: elements past it repeat the last key."""

    def in_bounds(self, cols):
        return np.ones(cols.shape, dtype=bool)


def test_the_end_of_the_keys_is_tested_in_one_step():
    """A mutant of this step is wrong; with a second test for the end it was right, and nobody noticed."""
    subject, problem = (
        Subject(emulate("endless", PRECISE, Order(kv_tile=16), steps=Endless), "float32"),
        Recipe(**SHAPE),
    )

    assert judged(subject, problem.problem(), subject(problem.problem())).refuted


@pytest.mark.parametrize("row_sum_of", ["uncast", "cast"])
def test_a_sink_that_is_added_last_is_not_cast(row_sum_of):
    """A sink whose weight exp(z - max s) is e^20, above all numbers of float16, enters the row sum and no product."""
    contract = replace(PRECISE, probabilities="float16", row_sum_of=row_sum_of, sink_reference="keys")
    made = emulate("late", contract, order=Order(kv_tile=4, sink="last"), supports=("bias", "sinks", "lse"))
    subject, one = Subject(made, "float32"), np.ones((1, 1, 2, 1))
    problem = Problem(q=one, k=one, v=one, bias=np.full((1, 1, 1, 2), -16.0), sinks=np.full((1, 1, 1, 1), 5.0))

    answer = subject(problem)

    assert np.isfinite(answer["output"]).all()
    assert not judged(subject, problem, answer).refuted
