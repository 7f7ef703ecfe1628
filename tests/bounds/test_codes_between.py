"""Numbers between two others have codes and scales between theirs, and what is too small or large has no known ones."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import Quantiser
from attn_spec.bounds.block_scales import codes_times_scales
from attn_spec.bounds.codes import quantised
from attn_spec.numbers import bits

INT8 = Quantiser(of="k", block=4, division_error=2.0)
MX = Quantiser(
    of="k", format="float8_e4m3fn", block=1, columns=8, scale_dtype="float8_e8m0fnu", scale_rounding="up"
)  # fmt: skip
NV = Quantiser(
    of="k", format="float4_e2m1fn", block=1, columns=8, scale_dtype="float8_e4m3fn", second_level="head"
)  # fmt: skip
QUANTISERS = {
    "int8": INT8,
    "ties": replace(INT8, rounding="nearest"),
    "truncated": replace(INT8, rounding="toward_zero"),
    "float8": replace(INT8, format="float8_e4m3fn", block="head"),
    "mx": MX,
    "nearest power": replace(MX, scale_rounding="nearest_even"),
    "two levels": NV,
}


def replay_of(low, high, quantiser):
    there = np.ones((low.shape[0], 1, low.shape[2], 1), dtype=bool)
    steps = quantised if quantiser.columns is None else codes_times_scales
    return steps(quantiser, low, high, there, np.zeros(len(low), dtype=int))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", QUANTISERS)
def test_a_product_of_code_and_scale_lies_within_what_is_open(name, seed):
    """Some intervals have 0 in them, and some blocks are of such intervals alone, so that their scale may be 0."""
    rng = np.random.default_rng(seed)
    x = bits.nearest(rng.standard_normal((2, 2, 12, 16)), "float32")
    share = rng.choice([2.0**-12, 2.0**-4, 3.0], size=(2, 2, 12, 1))
    share[:, 1], share[:, :, 0] = 3.0, 2.0**-12
    low, high = (bits.nearest(x + sign * share * np.abs(x), "float32") for sign in (-1, 1))
    quantiser = QUANTISERS[name]

    found, one = replay_of(low, high, quantiser), replay_of(x, x, replace(quantiser, division_error=0.0))

    known = np.isfinite(found.radius)
    radius = np.where(known, found.radius, 0.0)
    room = found.scales * (radius + (np.abs(found.codes) + radius) * found.scale_error)
    off = np.abs(one.codes * one.scales - found.codes * found.scales)
    assert (off <= room * (1 + 2.0**-40))[known].all()
    # Of two levels nothing is said of a block whose scale may be 0.
    assert known.all() or (quantiser.second_level and known.mean() > 0.3)


@pytest.mark.parametrize("least", [-1.0, 0.0])
@pytest.mark.parametrize("name", ["int8", "mx"])
def test_a_block_that_may_be_zero_has_any_number_up_to_its_largest_and_none_beyond(name, least):
    low, high = np.full((1, 1, 4, 16), least), np.ones((1, 1, 4, 16))

    found = replay_of(low, high, QUANTISERS[name])

    room = found.scales * (found.radius + (np.abs(found.codes) + found.radius) * found.scale_error)
    assert (room >= 1).all()
    assert (room <= 1.8).all()


@pytest.mark.parametrize(
    ("quantiser", "size", "known"),
    [
        (MX, 1.0, True),
        (MX, 2.0**-80, True),
        (MX, 2.0**-112, False),  # scales below 2^-100
        (MX, 2.0**58, True),
        (MX, 2.0**75, False),  # scales above 2^60
        (NV, 1.0, True),
        (NV, 2.0**-100, True),
        (NV, 2.0**-116, False),  # a scale of the head that is no normal number of float32
    ],
)
def test_nothing_is_said_of_scales_that_are_too_small_or_too_large(quantiser, size, known):
    x = bits.nearest(np.random.default_rng(0).uniform(0.5, 1, (1, 1, 4, 16)) * size, "float32")

    found = replay_of(x, x, quantiser)

    assert np.isfinite(found.radius).all() == known
    assert np.isinf(found.radius).all() != known
