"""Detection limits: defects are as large as they say, thresholds are found, and power rises with size."""

import re

import numpy as np
import pytest
from attn_spec.reports.proof.peers.trial import PEERS
from attn_spec.reports.proof.teeth import limits
from attn_spec.reports.proof.teeth.defects import DEFECTS
from attn_spec.reports.proof.teeth.limits import (
    BOTH,
    OUTPUT,
    STATISTICS,
    LimitsError,
    Power,
    limit,
    line,
    main,
    measure,
    threshold,
)

from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import judged
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"query_heads": 2, "kv_heads": 2, "query_length": 5, "key_length": 80, "head_dim": 16, "value_dim": 8}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def answer(defect, size, **changed):
    problem = Recipe(**{**SHAPE, **changed}).problem()
    return problem, Subject(DEFECTS[defect].kernel(size, problem.dtype), problem.dtype)(problem)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"query_heads": 6, "bias": "normal"}, {"softcap": 5.0}])
@pytest.mark.parametrize("dtype", limits.DTYPES)
def test_without_a_defect_the_kernel_is_sound(dtype, options):
    for name, defect in DEFECTS.items():
        size = 2.0**-24 if name == "accumulator" else 0.0
        problem = Recipe(**{**SHAPE, "dtypes": dtype, **options}).problem()
        subject = Subject(defect.kernel(size, dtype), dtype)
        judgement = judged(subject, problem, subject(problem))
        assert judgement.exercised
        assert not judgement.refuted, name


@pytest.mark.parametrize("name", DEFECTS)
def test_sizes_rise_and_the_largest_changes_something(name):
    sizes = DEFECTS[name].sizes
    _, sound = answer("scale", 0.0, regime="rising")
    _, wrong = answer(name, sizes[-1], regime="rising")

    assert list(sizes) == sorted(sizes)
    assert DEFECTS[name].story.endswith(".")
    if name.startswith("LSE"):
        assert (sound["output"] == wrong["output"]).all()
        assert (sound["lse"] != wrong["lse"]).any()
    else:
        assert (sound["output"] != wrong["output"]).any()


def test_defects_of_the_log_sum_exp_are_as_large_as_they_say():
    _, sound = answer("scale", 0.0)
    _, relative = answer("LSE, relative", 2.0**-6)
    _, absolute = answer("LSE, absolute", 2.0**-6)

    assert relative["lse"] == pytest.approx(sound["lse"] * (1 + 2.0**-6), rel=2.0**-22)
    assert absolute["lse"] == pytest.approx(sound["lse"] + 2.0**-6, rel=2.0**-22)


def test_the_wrong_scale_multiplies_every_score():
    problem, wrong = answer("scale", 2.0**-2, key_length=1)

    dot = (problem.q * problem.k).sum(-1)

    assert wrong["lse"] == pytest.approx(1.25 * dot / 4, rel=2.0**-20)


def test_narrow_accumulators_hold_as_many_bits_as_they_say():
    # 64 equal keys with V = 1: the sum stops at 32 in 5 bits, where 32 + 1 is a tie and goes to even.
    _, wrong = answer("accumulator", 2.0**-5, regime="uniform+v_one", key_length=64)

    assert (wrong["output"] == 0.5).all()


def test_dropped_keys_are_those_below_the_size():
    one_row = {"query_heads": 1, "kv_heads": 1, "query_length": 1, "key_length": 16, "regime": "rising"}
    _, kept = answer("dropped keys", 2.0**-3, **one_row)
    problem, every = answer("scale", 0.0, **one_row)

    s = (problem.q @ problem.k.swapaxes(2, 3)).ravel() / 4
    weights = np.exp(s - s.max())
    assert every["lse"].item() == pytest.approx(s.max() + np.log(weights.sum()), rel=2.0**-18)
    assert kept["lse"].item() == pytest.approx(s.max() + np.log(weights[weights >= 2.0**-3].sum()), rel=2.0**-18)


@pytest.mark.parametrize("first", range(9))
@pytest.mark.parametrize("guess", range(10))
def test_the_threshold_is_found_from_any_guess(first, guess):
    tried = []

    def caught(n):
        tried.append(n)
        return n >= first

    assert threshold(caught, 8, guess) == first
    assert len(set(tried)) <= 7
    if guess == first:
        assert len(set(tried)) <= 2


def power(size, caught, **changed):
    shown = {"defect": "scale", "dtype": "float32", "contestant": OUTPUT, "trials": 4}
    return Power(**{**shown, "size": size, "caught": caught, **changed})


def test_the_limit_is_the_smallest_size_caught_every_other_time():
    curve = [power(1 / 8, 0), power(1 / 4, 1), power(1 / 2, 2), power(1.0, 4)]

    assert limit(curve) == 1 / 2
    assert limit(curve[:2]) is None
    assert limit([power(1 / 2, 4, false_alarms=2)]) is None
    assert "limit 0.5       1/4 from 0.25, 2/4 from 0.5, 4/4 from 1" in line(curve)


@pytest.mark.exhaustive
def test_a_sample_of_the_curves():
    seen = []

    powers = measure(["scale"], ["float32"], trials=2, work=2**20, watch=seen.append)

    by_name = {own[0].contestant: own for own in seen}
    assert [one for own in seen for one in own] == powers
    assert set(by_name) == {OUTPUT, BOTH, STATISTICS} | {n for n, peer in PEERS.items() if "float32" in peer.dtypes}
    for own in seen:
        assert [one.size for one in own] == list(DEFECTS["scale"].sizes)
        assert np.all(np.diff([one.caught for one in own]) >= 0)
    assert limit(by_name[BOTH]) < limit(by_name[OUTPUT]) < 2.0**-8
    assert not by_name[OUTPUT][0].false_alarms


def test_what_is_not_known_is_named():
    with pytest.raises(LimitsError, match="unknown colour; known are scale, exponential"):
        measure(["colour"])
    with pytest.raises(LimitsError, match="unknown int8; known are float32, bfloat16, float16"):
        measure(["scale"], ["int8"])


def test_the_command_prints_a_line_for_every_contestant(monkeypatch, capsys):
    def sees_a_quarter(subject, _work, _seed):
        return "0.25" in subject.kernel.name

    monkeypatch.setattr(limits, "contestants", lambda _dtype: {"somebody": sees_a_quarter})

    assert main(["--trials", "2", "--defect", "scale", "--dtype", "float16"]) == 0

    (printed,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"scale +float16 +somebody +limit 0\.25 +2/2 from 0\.25", printed)
