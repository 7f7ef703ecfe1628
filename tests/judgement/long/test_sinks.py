"""Long answers beside attention sinks, judged in blocks of rows as in one piece."""

from typing import Any

import numpy as np
import pytest

from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.contract.presets import FP32
from attn_spec.judgement.long.blocks import judge_parts, parts_of
from attn_spec.judgement.long.gradient_blocks import judge_gradient_parts
from attn_spec.judgement.long.gradient_parts import gradient_parts_of
from attn_spec.judgement.measure import judge_gradients
from attn_spec.judgement.oracle import oracle
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe

C = FP32.at("float32")
SHAPE: dict[str, Any] = {
    "batch": 2,
    "query_heads": 4,
    "kv_heads": 2,
    "query_length": 40,
    "key_length": 24,
    "head_dim": 4,
    "value_dim": 3,
}
#: Bytes that hold a few rows.
MEMORY = 2**17


@pytest.fixture(name="problem", params=["normal@1H11", "some_absent@1H11", "high@1111"])
def _problem(request):
    return Recipe(**SHAPE, sinks=request.param, bias="normal@111K", seed=5).problem()


def test_rows_are_cleared_at_a_glance_and_a_wrong_sink_is_not(problem):
    answer = {name: bits.nearest(truth.value, "float32") for name, truth in oracle(problem).items()}

    found = judge_parts(parts_of(problem, **answer), C, memory=MEMORY)
    assert (found.refuted, found.rows) == (False, found.of)
    assert found.decided < found.rows // 2
    for other in (problem.without_sinks(), problem.replace(sinks=bits.nearest(problem.sinks * 0.5, "float32"))):
        assert judge_parts(parts_of(other, **answer), C, memory=MEMORY).refuted


def test_gradients_in_blocks_are_judged_as_in_one_piece(problem):
    dO = bits.nearest(np.random.default_rng(2).standard_normal(problem.output_shape), "float32")
    found = {name: bits.nearest(x.value, "float32") for name, x in enclose_gradients(problem, dO).items()}
    whole = judge_gradients(problem, C, dO, found)

    blocks = judge_gradient_parts(gradient_parts_of(problem, dO, found), C, memory=MEMORY)
    assert (blocks.refuted, whole.refuted) == (False, False)
    for measured in whole.measurements:
        tally = blocks.tallies[measured.name]
        assert tally.measured == measured.got.size
        assert tally.ratio == pytest.approx(measured.ratio, rel=0.25)
    for name in ("dsinks", "dbias", "dq"):
        wrong = found | {name: -found[name]}
        assert judge_gradient_parts(gradient_parts_of(problem, dO, wrong), C, memory=MEMORY).refuted
