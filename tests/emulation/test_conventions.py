"""Emulated kernels under any conventions: what they answer for queries that see no key, beside a sink too."""

import numpy as np
import pytest

from attn_spec.contract.presets import SPLIT_KV
from attn_spec.emulation.conventions import varied
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sinks import SinkFactor
from attn_spec.kernels.subject import Subject
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.problem import Problem


@pytest.mark.parametrize("steps", [TiledAttention, SinkFactor])
def test_a_query_without_key_and_sink_is_answered_as_agreed_however_the_sink_is_added(steps):
    """Two heads, the first without a sink; the second query of each sees no key. The log-sum-exp is of keys alone."""
    agreed = Conventions(empty_row="nan", empty_lse="+inf", sink_in_lse=False)
    made = emulate("agreed", SPLIT_KV, steps=varied(steps, agreed), supports=("mask", "sinks", "lse"))
    sinks, mask = np.array([-np.inf, 0.0]).reshape(1, 2, 1, 1), np.array([True, False]).reshape(1, 1, 2, 1)
    one = np.ones((1, 2, 2, 1))

    answer = Subject(made, "float32")(Problem(q=one, k=one[:, :, :1], v=one[:, :, :1], mask=mask, sinks=sinks))

    share = np.e / (1 + np.e)  # of one key with a score of 1 beside a sink of 0
    assert np.allclose(answer["output"][0, :, :, 0], [[1, np.nan], [share, 0]], atol=1e-5, equal_nan=True)
    assert np.allclose(answer["lse"][0], [[1, np.inf], [1, np.inf]], atol=1e-5)
