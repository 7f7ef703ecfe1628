"""The speed figures: candidates take turns, the figures are ratios, and what is timed is attention."""

import itertools

import numpy as np
import pytest
from attn_spec.reports import long_speed, side_by_side, speed
from click.testing import CliRunner

from attn_spec.attention import definition
from attn_spec.contract.presets import PRESETS
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import DTYPES
from attn_spec.search.drawing.regimes import Recipe

PROBLEM = Recipe(query_length=48, key_length=48, head_dim=32, value_dim=32).problem()


def test_candidates_take_turns_after_one_unmeasured_turn():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in ("a", "b")}

    assert set(side_by_side.side_by_side(runs, rounds=3)) == {"a", "b"}
    assert order == ["a", "b"] * 4


def test_the_median_of_the_rounds_counts(monkeypatch):
    taken = itertools.chain([1.0, 9.0, 2.0])
    monkeypatch.setattr(side_by_side, "timed", lambda run: next(taken))

    assert side_by_side.side_by_side({"a": lambda: None}, rounds=3) == {"a": 2.0}


def test_ratios_name_both_sides_and_what_was_expected():
    seconds = {"definition": 4.0, "enclosure": 0.1, "tier 0": 0.01, "float64 attention": 0.002}

    assert [str(ratio) for ratio in speed.ratios(seconds)] == [
        "definition / enclosure: 40  (at least 20 expected)",
        "definition / tier 0: 400  (at least 300 expected)",
        "enclosure / float64 attention: 50",
        "tier 0 / float64 attention: 5",
    ]


def test_what_is_timed_is_attention():
    runs = speed.candidates(PROBLEM)
    truth = definition.attention(PROBLEM, speed.PRECISION).astype(float)
    plain = runs["float64 attention"]()

    assert np.allclose(plain[0] if isinstance(plain, tuple) else plain, truth, rtol=1e-12, atol=1e-12)
    assert np.allclose(runs["enclosure"]()["output"].value, truth, rtol=1e-15, atol=1e-15)
    assert np.allclose(runs["tier 0"]()["output"].value, truth, rtol=1e-12, atol=1e-12)


def test_each_tier_is_much_faster_than_the_one_above_it():
    seconds = speed.side_by_side(speed.candidates(PROBLEM), rounds=3)
    seconds["definition"] = speed.timed(lambda: definition.attention(PROBLEM, speed.PRECISION))

    # Far below the promise for 128 x 128, so that a busy machine does not make the test fail.
    assert seconds["definition"] > 4 * seconds["enclosure"] > 8 * seconds["tier 0"]


def test_tier_1_is_compared_with_what_it_encloses():
    runs = speed.long_candidates(length=24, head_dim=8)
    output = runs["tier 1"]()["output"]
    _, gradients = runs["tier 1 with gradients"]()

    assert np.isfinite(output.radius).all()
    assert set(gradients) == {"dq", "dk", "dv"}
    assert runs["float64"]() is runs["float64 with gradients"]() is None


def test_ratios_of_tier_1_name_what_was_wanted():
    seconds = {"tier 1": 9.0, "float64": 1.0, "tier 1 with gradients": 30.0, "float64 with gradients": 2.0}

    assert [str(ratio) for ratio in speed.long_ratios(seconds)] == [
        "tier 1 / float64: 9  (at most 12 wanted)",
        "tier 1 with gradients / float64 with gradients: 15  (at most 20 wanted)",
    ]


def test_every_score_function_is_run_on_the_same_values():
    runs = speed.score_functions(PROBLEM)
    outputs = {name: run()["output"] for name, run in runs.items()}

    assert set(outputs) == {"dot", "bilinear", "cosine", "rotary", "additive"}
    assert np.allclose(outputs["bilinear"], outputs["dot"], atol=1e-6)  # W is the identity
    assert not np.allclose(outputs["additive"], outputs["dot"], atol=1e-2)


def test_rates_are_examples_per_second_of_each_property():
    subject = Subject(resolve("numpy_naive"), "float32")
    rates = dict(speed.example_rates(subject, only="accuracy."))

    assert len(rates) >= 2
    assert all(name.startswith("accuracy.") and rate > 0 for name, rate in rates.items())


def test_the_command_prints_ratios_rates_and_the_time_of_a_certificate(monkeypatch):
    asked = []
    monkeypatch.setattr(speed, "example_rates", lambda subject: [("accuracy.output", 41.3)])
    monkeypatch.setattr(speed, "examine", asked.append)
    monkeypatch.setattr(long_speed, "lines", lambda: ["output, B=1 H=8"])
    result = CliRunner().invoke(speed.main, ["--length=8", "--head-dim=4", "--long=16", "--rounds=1"])

    assert result.exit_code == 0, result.output
    assert [request.profile for request in asked] == ["smoke"]
    for line in (
        "one head, 8 queries and keys, D = 4",
        "definition / tier 0: ",
        "one head, 16 queries and keys, D = 4, float64",
        "tier 1 with gradients / float64 with gradients: ",
        "attention with additive scores / with products: ",
        "accuracy.output",
        "41.3",
        "certificate of",
        "output, B=1 H=8",
    ):
        assert line in result.output


def test_long_answers_are_sound_ones_beside_float64_attention_of_the_same_tensors():
    size = long_speed.Size(heads=2, length=24, head_dim=8, rows=4)
    judgement = long_speed.judging(size)()
    gradients = long_speed.judging_gradients(size)()

    assert (judgement.rows, judgement.of) == (gradients.rows, gradients.of) == (8, 48)
    assert gradients.keys == 8
    for run, count in ((long_speed.in_float64, 1), (long_speed.differentiated_in_float64, 3)):
        found = run(size)()
        tensors = found if isinstance(found, tuple) else (found,)
        assert [tuple(x.shape) for x in tensors] == count * [(1, 2, 24, 8)]


def test_the_report_of_long_answers(monkeypatch):
    monkeypatch.setattr(long_speed, "peak", lambda judged, size: 3 * 2**20)
    small = long_speed.Size(length=16, head_dim=4)
    lines = list(long_speed.lines(lengths=(16, 32), whole=small, sampled=small))

    assert [line.split(":")[0].split(",")[0].strip() for line in lines[1:5]] == [
        "output",
        "output",
        "gradients",
        "output",
    ]
    assert all("of float64 attention, 3 MiB" in line for line in lines[1:4])
    assert [line.split()[0] for line in lines[5:9]] == list(DTYPES)
    assert all(line.split()[1::2] == ["undeclared", *PRESETS] for line in lines[5:9])
    assert lines[9].endswith("memory with 256 and 16 MiB allowed")
    assert lines[10].startswith("    S=16 ")
    assert lines[10].split()[-4:] == ["3", "MiB", "3", "MiB"]


@pytest.mark.parametrize("option", ["--kernel", "--length", "--rounds"])
def test_the_options_are_explained(option):
    assert option in CliRunner().invoke(speed.main, ["--help"]).output
