"""A limit on the time of a block."""

import time

import pytest

from attn_spec.kernels.time_limit import OutOfTime, time_limit


def test_a_time_limit_ends_with_its_block():
    with pytest.raises(OutOfTime), time_limit(0.01):
        time.sleep(1)
    with time_limit(0.01):
        pass
    time.sleep(0.02)
