"""A sound kernel is certified whatever limits it declares: every property finds the problems that it needs."""

from dataclasses import replace

import pytest

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

#: Facts that change a kernel, and options that it does without.
LIMITED = {
    "decoding": ({"limits": Limits(query_lengths=(1,))}, ()),
    "decoding of one dimension": ({"limits": Limits(query_lengths=(1,), head_dims=(128,))}, ("dv",)),
    "few queries": ({"limits": Limits(query_lengths=(1, 2, 4))}, ()),
    "tiles of queries": ({"limits": Limits(query_lengths=(16,), head_dims=(64,), multiples={"K": 64})}, ("dv",)),
    "whole tiles": ({"limits": Limits(multiples={"Q": 128, "K": 128})}, ()),
    "whole tiles of self-attention": ({"limits": Limits(multiples={"Q": 64, "K": 64}, head_dims=(128,))}, ("cross",)),
    "a small grid": ({"limits": Limits(largest={"B": 2, "BH": 8, "Q": 40, "K": 60})}, ()),
    "two dimensions": ({"limits": Limits(head_dims=(64, 128))}, ()),
    "pairs of dimensions": ({"limits": Limits(head_dims=((24, 16), (8, 8)))}, ()),
    "one pair of dimensions": ({"limits": Limits(head_dims=((24, 16),))}, ()),
    "one kv head": ({"limits": Limits(kv_heads=(1,))}, ()),
    "always causal": ({"limits": Limits(always=("causal",), keys_reach_queries=True)}, ()),
    "options alone": ({"limits": Limits(exclusive=(("causal", "mask"), ("causal", "bias"), ("causal", "window")))}, ()),
    "options beside others": ({"limits": Limits(beside={"window": ("causal",), "bias": ("mask", "causal")})}, ()),
    "few signatures": ({"signatures": 4}, ()),
    "slow": ({"slowness": 50.0}, ()),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("limited", LIMITED)
def test_every_property_finds_the_problems_that_it_needs(limited):
    changes, without = LIMITED[limited]
    naive = resolve("numpy_naive")
    kernel = replace(naive, supports=naive.supports - set(without), **changes)
    subject, smoke = Subject(kernel, "float32"), PROFILES["smoke"]
    found = [search(property_, subject, smoke, 0)[0] for property_ in load_all().values()]

    assert {row.property: row.message for row in found if row.verdict not in (Verdict.HELD, Verdict.NOT_DECLARED)} == {}
    assert any(row.verdict is Verdict.HELD for row in found)
