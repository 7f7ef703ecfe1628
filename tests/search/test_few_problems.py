"""What is searched over few shapes, for want of time, is searched over those that tell."""

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

CLAIM = load_all()["accuracy.output_is_within_its_bound"]


def attended(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def of_heads(choose):
    """Attention in which query head h reads kv head ``choose(h, Hq, Hkv)``."""

    def attention(q, k, v):
        heads = [choose(h, q.shape[1], k.shape[1]) for h in range(q.shape[1])]
        return attended(q, k[:, heads], v[:, heads])

    return attention


def verdict_on(function, **declared):
    made = kernel(framework="numpy", dtypes=("float32",), contract="fused", name="k", **declared)(function)
    return search(CLAIM, Subject(made, "float32"), PROFILES["ci"], 0)[0].verdict


sound = of_heads(lambda h, query, kv: h // (query // kv))
wrongly_grouped = of_heads(lambda h, query, kv: h % kv)


def of_first_entry(q, k, v):
    return sound(q, np.repeat(k[:1], len(k), axis=0), v)


@pytest.mark.parametrize("slowness", [32.0, 64.0])
@pytest.mark.parametrize(
    ("function", "expected"),
    [(sound, Verdict.HELD), (wrongly_grouped, Verdict.REFUTED), (of_first_entry, Verdict.REFUTED)],
    ids=["sound", "h % Hkv", "keys of the first entry"],
)
def test_a_slow_kernel_that_mistakes_a_head_or_a_batch_entry_is_refuted(function, expected, slowness):
    assert verdict_on(function, supports=("gqa", "dv", "cross"), slowness=slowness) is expected
