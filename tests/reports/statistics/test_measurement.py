"""Training statistics through kernels: sound ones agree with exact values, wrong ones do not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from attn_spec.reports.statistics import measurement
from attn_spec.reports.statistics.measurement import Place, StatisticsError
from attn_spec.reports.statistics.rows import STATISTICS, point

from attn_spec import kernel
from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.intermediates import intermediates
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

TILED = Subject(resolve("numpy_tiled"), "float32")
#: Statistics of products, which need no other score.
DOT = [name for name, row in STATISTICS.items() if "score_vector" not in row.needs]


def plain(**changes):
    """Return textbook attention with its gradients, and one thing changed."""
    power = changes.get("power", -0.5)

    @kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("cross", "dv", "scale", "lse"))
    def attention(q, k, v, *, scale=None):
        s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** power if scale is None else scale)
        e = np.exp(s - s.max(-1, keepdims=True))
        lse = (s.max(-1, keepdims=True) + np.log(e.sum(-1, keepdims=True)))[..., 0]
        return (e / e.sum(-1, keepdims=True)) @ v, lse

    @attention.backward
    def gradients(dout, q, k, v, out, lse, *, scale=None):  # noqa: PLR0917 -- those of every backward pass
        del out
        scale = np.float32(q.shape[-1] ** power if scale is None else scale)
        p = np.exp(scale * (q @ k.swapaxes(-1, -2)) - lse[..., None])
        dp = dout @ v.swapaxes(-1, -2)
        ds = p * (dp - changes.get("less", 1) * (p * dp).sum(-1, keepdims=True))
        return scale * ds @ k, scale * ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout

    return Subject(attention, "float32")


def found(subject, *, draws=512, place=Place(d=16, n=8, scaled=True)):  # noqa: B008 -- it is frozen
    """Return a point for every statistic of products at one place."""
    where = {"kernel": "mine", "dtype": subject.dtype, "scaled": place.scaled, "d": place.d}
    measured = measurement.readings(subject, place, draws, 0, DOT)
    return {name: point(name, x, n=place.n, sigma=place.sigma, **where) for name, x in measured.items()}


def test_two_keys_by_hand():
    """Scores log 3 and 0: weights 3/4 and 1/4, entropy, gradients and distance of those."""
    q, k = np.full((1, 4, 1, 1), 1.0), np.array([math.log(3), 0.0]).astype(np.float32)[:, None] * np.ones((1, 4, 1, 1))
    k = k.astype(np.float64)
    P = measurement._weights(TILED, q, k, 1.0)
    dS, dV = measurement._gradients(TILED, q, k, np.array([1.0, -1.0])[:, None] * np.ones((1, 4, 1, 1)), 1.0)

    assert np.allclose(P, [0.75, 0.25])
    assert np.allclose(dV, P)
    assert np.allclose(dS, [0.75 * 0.5, -0.25 * 1.5])  # P (g - g.P) for g = (1, -1), g.P = 1/2
    assert np.allclose(measurement._lse(TILED, q, k, scale=1.0), math.log(3))
    assert np.allclose(measurement._padding(TILED, q, k, 1.0), 2 / 6)  # two keys of zeros: 1 + 1 beside 3 + 1


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("subject", [TILED, plain()], ids=["numpy_tiled", "textbook"])
def test_a_sound_kernel_agrees_with_every_exact_value(subject, scaled):
    points = found(subject, place=Place(d=16, n=8, scaled=scaled))

    assert set(points) == set(DOT)
    assert all(each.agrees for each in points.values())


@pytest.mark.parametrize(
    ("changes", "contradicted"),
    [
        ({"power": 0.0}, {"score_variance", "entropy", "value_gradient", "head_distance"}),
        ({"power": 0.5}, {"score_variance", "entropy", "value_gradient", "head_distance"}),
        ({"power": -1.0}, {"score_variance", "entropy"}),
        ({"less": 0}, {"score_gradient"}),
    ],
    ids=["scale missing", "scale multiplied", "divided by d", "Jacobian without its off-diagonal"],
)
def test_a_wrong_kernel_contradicts_exact_values(changes, contradicted):
    points = found(plain(**changes))

    assert {name for name, each in points.items() if not each.agrees} >= contradicted


def test_a_scale_missing_in_the_backward_pass_alone_is_seen():
    subject = plain()
    backward = subject.kernel.backward_function

    def unscaled(dout, *saved, **options):
        dq, dk, dv = backward(dout, *saved, **options)
        return dq, dk * np.float32(saved[0].shape[-1] ** 0.5), dv

    wrong = replace(subject, kernel=replace(subject.kernel, backward_function=unscaled))
    points = found(wrong, place=Place(d=64, n=8, scaled=True))

    assert [name for name, each in points.items() if not each.agrees] == ["score_gradient"]


def test_draws_are_the_same_whatever_is_wanted_and_however_many(monkeypatch):
    """A kernel that shows one statistic, of two calls, and one that shows all; a slow one sees the first draws."""
    place = Place(d=16, n=8, scaled=True)
    whole = measurement.readings(TILED, place, 64, 0, DOT)
    one = measurement.readings(TILED, place, 64, 0, ["score_gradient"])
    few = measurement.readings(TILED, place, 16, 0, DOT)
    monkeypatch.setattr(measurement, "AT_ONCE", 16 * 8 * 4 * 5)
    parts = measurement.readings(TILED, place, 64, 0, DOT)
    square = TILED.kernel.supports - {"dv"}
    same = measurement.readings(replace(TILED, kernel=replace(TILED.kernel, supports=square)), place, 64, 0, DOT)

    for name in DOT:
        assert (parts[name] == whole[name]).all()
        assert (few[name] == whole[name][: few[name].size]).all()
        assert np.allclose(same[name], whole[name], rtol=1e-4)
    assert (one["score_gradient"] == whole["score_gradient"]).all()


@pytest.mark.parametrize(("draws", "tells"), [(8, False), (4096, True)])
def test_too_few_draws_tell_nothing(draws, tells):
    """The interval of 8 draws is the whole range; of as many as the command draws it is not."""
    rng = np.random.default_rng(0)
    for name, row in STATISTICS.items():
        high = min(row.range(8)[1], 1.0)
        readings = rng.random(draws // 4 if name == "head_distance" else draws) * high
        each = point(name, readings, n=8, sigma=1.0, kernel="a", dtype="float32", scaled=True, d=4)
        assert each.tells is tells, name
        assert each.agrees or tells, name


def test_values_that_are_not_numbers_agree_with_nothing():
    readings = np.full(8, math.nan)

    assert not point("entropy", readings, n=2, sigma=1.0, kernel="a", dtype="float32", scaled=True, d=4).agrees


@pytest.mark.parametrize(("dtype", "share"), [("float64", 1e-6), ("float32", 1 / 8)])
@pytest.mark.parametrize(("d", "scale"), [(64, None), (256, 1.0)])
def test_rounding_moves_no_mean_by_much_of_its_interval(dtype, share, d, scale):
    """-x log x of numbers that are e <= 1/2 apart differs by at most -e log e; e is the bound of the kernel."""
    rng, subject = np.random.default_rng(0), Subject(TILED.kernel, dtype)
    q, k = (bits.nearest(rng.standard_normal((1, 64, n, d)), dtype) for n in (1, 32))
    problem = Problem(q=q, k=k, v=np.broadcast_to(np.eye(32), (1, 64, 32, 32)), scale=scale, dtypes=dtype)
    e = forward_bound(intermediates(problem), subject.contract).allowed["output"]
    entropy = STATISTICS["entropy"]
    low, high = entropy.interval(np.full(4096, 1.0), entropy.range(32))  # the narrowest there is

    assert 0 < (-e * np.log(e)).sum(axis=-1).mean() < (high - low) * share


def test_additive_units_are_read_off_a_kernel_that_has_them():
    subject = Subject(resolve("torch_scores:additive"), "float32")
    place = Place(d=16, n=1, scaled=False)
    readings = measurement.readings(subject, place, 256, 0, ["saturation"])["saturation"]
    each = point("saturation", readings, n=1, sigma=4.0, kernel="a", dtype="float32", scaled=False, d=16)

    assert set(readings) == {0.0, 1.0}
    assert each.agrees
    assert set(measurement.left_out(subject)) == set(DOT)
    assert "it always uses score_vector" in measurement.left_out(subject)["entropy"]


def test_a_kernel_without_a_scale_is_measured_with_its_own_alone(monkeypatch):
    monkeypatch.setattr(measurement, "DIMS", (16,))
    monkeypatch.setattr(measurement, "KEYS", (2,))
    sound = plain()
    subject = replace(sound, kernel=replace(sound.kernel, supports=sound.kernel.supports - {"scale"}))
    points = list(measurement.points(subject, 256, 0))

    assert {each.statistic for each in points} == set(DOT)
    assert all(each.scaled and each.agrees for each in points)


def test_a_kernel_for_equal_lengths_shows_the_variance_of_its_scores():
    sound = plain()
    subject = replace(sound, kernel=replace(sound.kernel, supports=frozenset({"lse"})))

    assert measurement.left_out(subject)["entropy"] == "it does not declare cross"
    assert {each.statistic for each in measurement.points(subject, 64, 0)} == {"score_variance"}


def test_a_kernel_for_whole_tiles_of_keys_is_given_such(monkeypatch):
    monkeypatch.setattr(measurement, "DIMS", (16,))
    limits = Limits(multiples={"K": 12})
    subject = replace(TILED, kernel=replace(TILED.kernel, limits=limits))
    points = list(measurement.points(subject, 256, 0))

    assert {each.n for each in points} == {12, 36, 132}
    assert {each.statistic for each in points} == set(DOT)
    assert all(each.agrees for each in points)


def test_a_kernel_that_takes_no_value_dimension_of_its_own_gives_its_weights_in_parts():
    """Eight columns of an identity at a time: weights are those of a kernel that takes all at once."""
    rng = np.random.default_rng(0)
    q, k = (bits.nearest(rng.standard_normal((2, 4, n, 8)), "float32") for n in (1, 20))
    narrow = replace(TILED, kernel=replace(TILED.kernel, supports=TILED.kernel.supports - {"dv"}))

    assert np.array_equal(measurement._weights(narrow, q, k, None), measurement._weights(TILED, q, k, None))


def test_places_vary_one_of_d_and_n():
    places = measurement.places(TILED, DOT)

    assert len(places) == len(set(places)) == 2 * (len(measurement.DIMS) + len(measurement.KEYS) - 1)
    assert all(place.d == measurement.FIXED_DIM or place.n == measurement.FIXED_KEYS for place in places)


def test_a_kernel_that_raises_is_an_error_that_names_it():
    def broken(q, k, v, **options):
        raise RuntimeError("out of luck")

    subject = replace(TILED, kernel=replace(TILED.kernel, function=broken))

    with pytest.raises(StatisticsError, match=r"numpy_tiled gives no answer: .*out of luck.*Certify it first"):
        list(measurement.points(subject, 8, 0))
