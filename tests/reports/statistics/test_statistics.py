"""Training statistics through kernels: sound ones agree with exact values, wrong ones do not; pages say just that."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from attn_spec.reports.errors import svg
from attn_spec.reports.statistics import command, figures, intervals, measurement, memory, page
from attn_spec.reports.statistics.measurement import Place, StatisticsError
from attn_spec.reports.statistics.rows import STATISTICS, Point, point
from click.testing import CliRunner

from attn_spec import cli, kernel
from attn_spec.error.bounds import forward_bound
from attn_spec.error.intermediates import intermediates
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

TILED = Subject(resolve("numpy_tiled"), "float32")
DOT = [name for name in STATISTICS if name != "saturation"]


def plain(**changes):
    """Textbook attention with its gradients, and one thing changed."""
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
    """A point for every statistic of products at one place."""
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


def test_values_that_are_not_numbers_agree_with_nothing():
    readings = np.full(8, math.nan)

    assert not point("entropy", readings, n=2, sigma=1.0, kernel="a", dtype="float32", scaled=True, d=4).agrees


@pytest.mark.parametrize(("dtype", "share"), [("float64", 1e-6), ("float32", 1 / 8)])
@pytest.mark.parametrize(("d", "scale"), [(64, None), (256, 1.0)])
def test_rounding_moves_no_mean_by_much_of_its_interval(dtype, share, d, scale):
    """-x log x of numbers that are e <= 1/2 apart differs by at most -e log e; e is the bound of the kernel."""
    rng, subject = np.random.default_rng(0), Subject(TILED.kernel, dtype)
    q, k = (bits.nearest(rng.standard_normal((1, 64, n, d)), dtype) for n in (1, 32))
    problem = Problem(q=q, k=k, v=np.broadcast_to(np.eye(32), (1, 64, 32, 32)), scale=scale, dtype=dtype)
    e = forward_bound(intermediates(problem), subject.contract).allowed["output"]
    low, high = STATISTICS["entropy"].interval(np.full(4096, 1.0), 32)  # the narrowest there is

    assert 0 < (-e * np.log(e)).sum(axis=-1).mean() < (high - low) * share


def test_the_interval_of_a_mean_by_hand():
    """Two draws 0 and 1: V = 1/2, N = 2, so 1/2 +- (sqrt(L / 2) + 7 L / 3), cut at 0 and 1."""
    L = math.log(4 / intervals.MISS)
    wide = intervals.of_mean(np.array([0.0, 1.0]), -1e3, 1e3)
    half = math.sqrt(L / 2) + 7 * L * 2e3 / 3

    assert wide == (max(0.5 - half, -1e3), min(0.5 + half, 1e3))
    assert intervals.of_mean(np.array([0.0, 1.0]), 0.0, 1.0) == (0.0, 1.0)
    low, high = intervals.of_mean(np.tile([0.0, 1.0], 50_000), 0.0, 1.0)
    assert high - 0.5 == pytest.approx(0.5 - low)
    assert high - 0.5 == pytest.approx(math.sqrt(2 * 0.25 * L / 1e5) + 7 * L / 3e5, rel=1e-4)


def test_the_interval_of_a_variance_by_hand():
    """100 draws of square 4: 400 / (100 + 2 sqrt(100 t) + 2 t), and 400 / (100 - 2 sqrt(100 t)) if that is above 0."""
    t = math.log(2 / intervals.MISS)
    low, high = intervals.of_variance(np.tile([2.0, -2.0], 50))

    assert (low, high) == pytest.approx((400 / (100 + 20 * math.sqrt(t) + 2 * t), 400 / (100 - 20 * math.sqrt(t))))
    assert intervals.of_variance(np.array([1.0, 2.0]))[1] == math.inf


def test_intervals_miss_no_more_often_than_they_say(monkeypatch):
    monkeypatch.setattr(intervals, "MISS", 0.2)
    rng = np.random.default_rng(0)
    means = [intervals.of_mean(rng.random(40) < 0.3, 0.0, 1.0) for _ in range(500)]
    variances = [intervals.of_variance(2 * rng.standard_normal(40)) for _ in range(500)]

    assert sum(not low <= 0.3 <= high for low, high in means) <= 100
    assert 0 < sum(not low <= 4 <= high for low, high in variances) <= 100


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


@pytest.mark.parametrize("n", [1, 7, 256])
def test_costs_by_hand(n):
    """n keys of one dimension in one tile: the tiles differ by the division, rescaling and bytes of S and P."""
    eager, tiled = memory.eager_cost(n, 1), memory.tiled_cost(n, 1)

    assert eager.flops == 2 * n * n + 6 * n * n + 2 * n * n
    assert tiled.flops == 2 * n * n + 5 * n * n + 2 * n * n + 4 * n + n
    assert eager.bytes == 4 * (3 * n + n + 4 * n * n)
    assert tiled.bytes == 4 * (n + 2 * n + n + n)


def test_memory_of_tiles_grows_with_n_and_that_of_eager_attention_with_its_square():
    """What is allocated, which is the same on any machine."""
    eager = [memory.traced("numpy_naive", n) for n in (512, 1024)]
    tiled = [memory.traced("numpy_tiled", n) for n in (512, 1024)]

    assert eager[0] > memory.least_eager(512)
    assert eager[1] > 3.5 * eager[0]
    assert tiled[1] < 2 * tiled[0]
    assert tiled[1] < memory.least_eager(1024) / 2


POINTS = [
    Point(
        statistic=name,
        kernel="first",
        dtype="float32",
        scaled=scaled,
        d=d,
        n=n,
        sigma=1.0 if scaled else d**0.5,
        draws=100,
        measured=0.25,
        low=0.125,
        high=0.5,
        exact_low=0.375,
        exact_high=0.375,
    )
    for name in ("entropy", "saturation")
    for d, n in ((4, 2), (16, 2), (16, 8))
    for scaled in (True, False)
]
PEAKS = [memory.Peak(kernel=name, n=n, bytes=n * n) for name in ("numpy_tiled", "numpy_naive") for n in (1024, 2048)]
MADE = page.Measured(environment={"attn-spec": "0", "device": "a <processor>"}, points=POINTS, peaks=PEAKS)


def test_the_page_is_self_contained_and_says_every_number():
    text = page.html(MADE)
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(text)

    assert {"script", "link", "iframe", "img"}.isdisjoint(tags)
    assert tags.count("svg") == 2 + 1 + 2
    assert "a &lt;processor&gt;" in text
    assert len(re.findall(r"<use[^>]*><title>first, d = 16, n = 8, without", text)) == 1
    assert text == page.html(replace(MADE, points=list(POINTS)))


def test_the_headline_names_the_kernel_that_contradicts_attention():
    wrong = replace(POINTS[0], kernel="wrong", exact_low=0.75, exact_high=0.75)

    assert page.headline(POINTS) == "Every measured statistic agrees with its exact value"
    assert page.headline([*POINTS, wrong]) == "1 of 13 measured statistics contradict attention: wrong"
    assert "**outside**" in page.markdown(replace(MADE, points=[wrong]))


def test_the_json_holds_every_point_and_peak():
    infinite = replace(POINTS[0], high=math.inf)
    stored = json.loads(page.document(replace(MADE, points=[*POINTS, infinite])))

    assert stored["schema"] == page.SCHEMA
    assert stored["points"][0] == POINTS[0].columns()
    assert stored["points"][-1]["high"] == "inf"
    assert stored["peaks"][0] == {"kernel": "numpy_tiled", "n": 1024, "bytes": 1024**2}


def test_figures_along_an_axis_hold_the_other_fixed():
    assert {(each.d, each.n) for each in figures.along(POINTS, "entropy", "d")} == {(4, 2), (16, 2)}
    assert {(each.d, each.n) for each in figures.along(POINTS, "entropy", "n")} == {(16, 2), (16, 8)}


def test_the_command_writes_three_files(folder, monkeypatch):
    monkeypatch.setattr(measurement, "DIMS", (4, 8))
    monkeypatch.setattr(measurement, "KEYS", (2, 4))
    arguments = ["statistics", "numpy_tiled", "--draws", "64", "--no-memory", "-o", "found.html"]
    done = CliRunner().invoke(cli.main, arguments)

    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.iterdir()} == {"found.html", "found.md", "found.json"}
    assert all(each["agrees"] for each in json.loads((folder / "found.json").read_text())["points"])
    assert "# Every measured statistic agrees with its exact value" in (folder / "found.md").read_text()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dtype": "bfloat16"}, StatisticsError, "bfloat16 rounds away what is measured; choose float64 or float32"),
        ({"kernels": ["no_such"]}, KernelError, "no kernel is called 'no_such'"),
        ({"kernels": ["torch_scores:cosine"]}, StatisticsError, "cosine shows none of the statistics: .*Give another"),
        ({"device": "tpu"}, KernelError, "tpu"),
    ],
)
def test_what_cannot_be_measured_is_an_error_that_says_why(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        command.write_statistics(tmp_path / "a.html", with_memory=False, **changes)
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_raises_is_an_error_that_names_it():
    def broken(q, k, v, **options):
        raise RuntimeError("out of luck")

    subject = replace(TILED, kernel=replace(TILED.kernel, function=broken))

    with pytest.raises(StatisticsError, match=r"numpy_tiled gives no answer: .*out of luck.*Certify it first"):
        list(measurement.points(subject, 8, 0))


def test_without_matplotlib_nothing_is_measured(tmp_path, monkeypatch):
    def missing():
        raise svg.FigureError("the figures of a report need matplotlib")

    monkeypatch.setattr(svg, "matplotlib", missing)
    monkeypatch.setattr(measurement, "points", lambda *_: pytest.fail("measured in vain"))

    with pytest.raises(svg.FigureError, match="need matplotlib"):
        command.write_statistics(tmp_path / "a.html")
