"""The sweep that a report rests on, and the command that writes the report."""

import json
import math
import sys

import numpy as np
import pytest
from attn_spec.reports.errors import command, page, svg, sweep
from attn_spec.reports.errors.rows import cells, worst_cases

from attn_spec import kernel
from attn_spec.evidence.certificate import build, save
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import REGIMES, Recipe
from attn_spec.search.preflight import Preflight
from attn_spec.search.verdict import Row as VerdictRow
from attn_spec.search.verdict import Verdict

TINY = sweep.Grid(lengths=(1, 5), magnitudes=(-1, 6), fixed_length=4, queries=3, seeds=2)
VERDICTS = [
    VerdictRow(
        property="accuracy.output", kernel="first", dtype="float32", verdict=Verdict.HELD, examples=12, ratio=0.25
    ),
    VerdictRow(property="masking.empty", kernel="first", dtype="float32", verdict=Verdict.NOT_DECLARED),
    VerdictRow(property="accuracy.output", kernel="first", dtype="float16", verdict=Verdict.REFUTED, case="7f3c"),
]


def test_a_sweep_over_a_sound_kernel_stays_inside_the_bound():
    subject = Subject(resolve("numpy_naive"), "float32")
    points = sweep.points_of(subject, TINY)
    rows = [r for point in points for r in sweep.measured(point)]

    assert len(points) == len(TINY.lengths) + len(TINY.magnitudes) + len(REGIMES)
    assert len(rows) == 2 * len(points)
    assert not any(r.failure or r.outside_bound for r in rows)
    assert all(0 <= r.ratio.median <= r.ratio.p99 <= r.ratio.max <= 1 for r in rows if r.elements)
    assert max(r.ratio.max for r in rows) > 1e-3


def limited(*, framework="numpy", **limits):
    """Return a kernel that returns V's first rows, with limits."""

    def copied(q, k, v, **options):
        return v[:, :, :1] + 0 * q[..., :1]

    supports = ("cross", "causal", "causal_alignment")
    return kernel(framework=framework, dtypes=("float32",), supports=supports, name="limited", **limits)(copied)


@pytest.mark.parametrize(
    "made",
    [
        limited(always=("causal",)),
        limited(query_lengths=(1,)),
        limited(query_lengths=(4,), multiples={"K": 16}, largest={"K": 32}, kv_heads=(3,)),
        *("torch_layer", "torch_latent", "torch_scores:additive", "torch_paged"),
    ],
    ids=["causal", "decoding", "few keys", "layer", "latent", "additive", "paged"],
)
def test_problems_of_a_sweep_are_within_the_limits_of_a_kernel(made):
    found = resolve(made) if isinstance(made, str) else made
    points = sweep.points_of(Subject(found, "float32"), TINY)
    rows = sweep.measured(points[-1])

    assert not {found.limits.refusal(recipe.problem()) for point in points for recipe in point.recipes} - {""}
    assert len({(point.sweep, point.recipes[0]) for point in points}) == len(points)
    assert rows[0].elements


def test_a_kernel_without_a_problem_of_the_sweeps_is_told(tmp_path, monkeypatch):
    none = limited(largest_position=1)
    monkeypatch.setattr(command, "found", lambda name, isolate: none if name == "limited" else resolve(name))
    monkeypatch.setattr(Limits, "refusal", lambda own, problem: "few" if own.largest_position else "")
    monkeypatch.setattr(command, "preflight", lambda made, dtypes, device: Preflight((Subject(made, "float32"),)))
    monkeypatch.setitem(sweep.GRIDS, "smoke", TINY)
    common = {"dtypes": ["float32"], "device": "cpu", "profile": "smoke"}

    with pytest.raises(
        sweep.SweepError, match=r"no problem of the report is taken: limited does not take the problem: few\. Give"
    ):
        command.write_report(tmp_path / "a.html", kernels=["limited"], **common)
    command.write_report(tmp_path / "a.html", kernels=["limited", "numpy_naive"], **common)
    told = json.loads((tmp_path / "a.json").read_text())["environment"]["left out: limited, float32"]
    assert told == "limited does not take the problem: few"


def test_a_row_pools_its_seeds_and_names_the_worst_of_them():
    subject = Subject(resolve("numpy_naive"), "float32")
    point = next(p for p in sweep.points_of(subject, TINY) if p.recipes[0].key_length == 5)
    output, lse = sweep.measured(point)
    each = [max(sweep.judge(subject, recipe.problem())[0].ratios.ravel()) for recipe in point.recipes]

    assert (output.elements, lse.elements) == (2 * 3 * sweep.HEAD_DIM, 2 * 3)
    assert output.ratio.max == output.worst.ratio == max(each)
    assert output.worst.recipe == f"{point.recipes[int(np.argmax(each))]!r}.problem()"


def test_ulps_are_counted_at_the_largest_value_of_the_row():
    def rounded(q, k, v):
        """Return the mean of V, one float16 ulp of 1 too large in the first column."""
        out = np.broadcast_to(v.mean(axis=2, keepdims=True), (*q.shape[:3], v.shape[3])).astype(np.float64)
        return (out + 2.0**-10 * (np.arange(v.shape[3]) == 0)).astype(q.dtype)

    choices = {"contract": "eager", "conventions": {"empty_row": "nan"}}
    declared = kernel(framework="numpy", dtypes=["float16"], supports=["cross"], **choices)(rounded)
    point = sweep.Point(
        subject=Subject(declared, "float16"),
        sweep="regime",
        magnitude=math.nan,
        recipes=(
            Recipe(regime="uniform+v_one", dtypes="float16", query_length=2, key_length=8, head_dim=4, value_dim=4),
        ),
    )
    (found,) = sweep.measured(point)

    assert found.conventions == "empty_row nan"
    assert found.row_ulps.max == pytest.approx(1.0)
    assert found.row_ulps.median == pytest.approx(0.0, abs=1e-6)
    assert found.relative.max == pytest.approx(2.0**-10)
    assert found.outside_bound == 0
    assert found.worst.index[-1] == 0


def test_a_wrong_scale_leaves_its_bound():
    def off(q, k, v):
        s = q @ np.swapaxes(k, -1, -2) * np.float32(1.05 * q.shape[-1] ** -0.5)
        w = np.exp(s - s.max(axis=-1, keepdims=True))
        return (w / w.sum(axis=-1, keepdims=True)) @ v

    declared = kernel(framework="numpy", dtypes=["float32"], contract="fp32", supports=["cross"])(off)
    rows = [r for p in sweep.points_of(Subject(declared, "float32"), TINY) for r in sweep.measured(p)]

    assert next(r for r in rows if r.key_length == 5).outside_bound > 0
    assert not cells(rows)[declared.name, "float32", "output"].is_sound
    assert "magnitude" not in {r.sweep for r in rows}, "a kernel without the option scale is not asked for one"


def test_a_kernel_that_raises_makes_a_row_that_says_so():
    def refuses(q, k, v):
        raise NotImplementedError("only on Tuesdays")

    declared = kernel(framework="numpy", dtypes=["float32"], supports=["cross"])(refuses)
    (found,) = sweep.measured(sweep.points_of(Subject(declared, "float32"), TINY)[0])

    assert "only on Tuesdays" in found.failure
    assert found.failure.endswith(".problem()")
    assert found.elements == 0


def test_a_report_is_three_files_and_the_same_every_time(tmp_path):
    wanted = {"kernels": ["numpy_naive"], "dtypes": ["float32"], "device": "cpu", "profile": "smoke"}
    first = command.write_report(**wanted, path=tmp_path / "a.v1")
    second = command.write_report(**wanted, path=tmp_path / "b.html")

    assert [path.name for path in first] == ["a.v1.html", "a.v1.md", "a.v1.json"]
    assert [path.name for path in second] == ["b.html", "b.md", "b.json"]
    assert [path.read_text() for path in first] == [path.read_text() for path in second]
    assert len(list(tmp_path.iterdir())) == 6


def test_a_certificate_adds_its_verdicts_of_schema_1_too(tmp_path):
    path = save(certificate_of(VERDICTS), tmp_path / "certificate.json")

    def key(row):
        return row.property, row.dtype

    assert sorted(command.verdicts_of(path), key=key) == sorted(VERDICTS, key=key)
    document = json.loads(path.read_text().replace('"not declared"', '"not claimed"'))
    document |= {"schema": 1, "claims": document.pop("declarations")}
    path.write_text(json.dumps(document))
    assert sorted(command.verdicts_of(path), key=key) == sorted(VERDICTS, key=key)


def certificate_of(verdicts):
    entry = {"statement": "It holds.", "source": "the formula", "hunts": "a bug", "needs": []}
    return build(
        {
            "catalogue": [{"id": name, **entry} for name in ("accuracy.output", "masking.empty")],
            "subject": dict.fromkeys(("spec", "name", "source_sha256", "distribution", "git_commit"), "first"),
            "environment": {"python": "3"},
            "suite": {"version": "0", "properties_sha256": "0"},
            "configuration": {
                "dtypes": ["float32", "float16"],
                "only": [],
                "device": "cpu",
                "profile": "smoke",
                "examples": 12,
                "floor": 6,
                "seed": 0,
            },
            "declarations": {"declared": True, "supports": [], "conventions": {}, "contracts": {}, "declined": {}},
        },
        verdicts,
    )


def test_without_matplotlib_the_report_says_what_to_install_before_it_measures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(sweep, "measured", lambda point: pytest.fail("measured in vain"))

    with pytest.raises(svg.FigureError, match=r"need matplotlib.*run: pip install 'attn-spec\[report\]'"):
        command.write_report(tmp_path / "a.html", kernels=["numpy_naive"], dtypes=None, device="cpu", profile="smoke")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"profile": "heroic"}, "unknown profile 'heroic'; known are smoke, ci, certify"),
        ({"kernels": ["no_such"]}, "no kernel is called 'no_such'"),
        ({"dtypes": ["bfloat16"]}, "numpy_naive declares .*, not bfloat16"),
        ({"kernels": [], "dtypes": ["float7"]}, "no kernel built in takes float7 on cpu"),
    ],
)
def test_a_report_that_cannot_start_says_which_choice_to_change(tmp_path, changes, message):
    wanted = {"kernels": ["numpy_naive"], "dtypes": None, "device": "cpu", "profile": "smoke"}

    with pytest.raises(KernelError, match=message):
        command.write_report(**(wanted | changes), path=tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_the_replay_lines_run_and_find_the_same_element(capsys):
    subject = Subject(resolve("numpy_naive"), "float32")
    rows = [r for point in sweep.points_of(subject, TINY)[:2] for r in sweep.measured(point)]
    worst = worst_cases(rows)[0]
    exec(page._replay([worst]), {})  # noqa: S102 -- it is what the page tells the reader to do

    assert f"{worst.quantity} {worst.worst.ratio} {worst.worst.index}" in capsys.readouterr().out
