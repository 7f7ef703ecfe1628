"""A search over few shapes, for want of time, takes the shapes that distinguish most."""

import numpy as np
import pytest
from hypothesis import given, settings

from attn_spec import Recipe, kernel
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing import signatures, sizes, strategies, turns
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTY = load_all()["accuracy.output_is_within_its_bound"]


def attended(q, k, v, hidden=False):
    s = np.where(hidden, -np.inf, q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)).astype(np.float32)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def of_heads(choose):
    """Return attention in which query head h reads kv head ``choose(h, Hq, Hkv)``."""

    def attention(q, k, v, *, causal=False):
        heads = [choose(h, q.shape[1], k.shape[1]) for h in range(q.shape[1])]
        hidden = causal & np.triu(np.ones((q.shape[2], k.shape[2]), dtype=bool), 1)
        return attended(q, k[:, heads], v[:, heads], hidden)

    return attention


def verdict_on(function, **declared):
    made = kernel(framework="numpy", dtypes=("float32",), contract="fused", name="k", **declared)(function)
    return search(PROPERTY, Subject(made, "float32"), PROFILES["ci"], 0)[0].verdict


sound = of_heads(lambda h, query, kv: h // (query // kv))
wrongly_grouped = of_heads(lambda h, query, kv: h % kv)


def of_first_entry(q, k, v, *, causal=False):
    return sound(q, np.repeat(k[:1], len(k), axis=0), v, causal=causal)


def of_32_keys(q, k, v, *, causal=False):
    return sound(q, k[:, :, :32], v[:, :, :32], causal=causal)


def never_causal(q, k, v, *, causal=False):
    return sound(q, k, v)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("slowness", [32.0, 64.0])
@pytest.mark.parametrize(
    ("function", "expected"),
    [(sound, Verdict.HELD), (wrongly_grouped, Verdict.REFUTED), (of_first_entry, Verdict.REFUTED)],
    ids=["sound", "h % Hkv", "keys of the first entry"],
)
def test_a_slow_kernel_that_mistakes_a_head_or_a_batch_entry_is_refuted(function, expected, slowness):
    assert verdict_on(function, supports=("gqa", "dv", "cross"), slowness=slowness) is expected


@pytest.mark.one_in(2)
@pytest.mark.parametrize("supports", [("causal", "gqa"), ("causal", "gqa", "dv", "cross")])
@pytest.mark.parametrize("function", [wrongly_grouped, of_first_entry, of_32_keys, never_causal])
def test_a_kernel_of_two_signatures_that_is_right_for_plain_ones_alone_is_refuted(function, supports):
    assert verdict_on(function, supports=supports, signatures=2) is Verdict.REFUTED


def test_a_sound_kernel_of_two_signatures_is_called_with_those_and_a_large_one(monkeypatch):
    seen = set()
    (keys,) = (size for size in sizes.SIZES if size.name == "keys")
    monkeypatch.setattr(turns, "turns", lambda examples, property_id: turns.ORDINARY * [turns.Turn(keys, 0)])

    def attention(q, k, v, **options):
        seen.add((q.shape, k.shape, v.shape, *options))
        return sound(q, k, v, **options)

    assert verdict_on(attention, supports=("causal", "gqa", "dv", "cross"), signatures=2) is Verdict.HELD
    assert len(seen) == 3
    assert sum(max(q[2], k[2]) > 1000 for q, k, *_ in seen) == 1
    assert [options for *_, options in sorted(seen, key=len)[2:]] == ["causal"]


def signature(**recipe):
    return signatures._signature(Recipe(**recipe), own=("scale",))


def test_what_a_signature_tells():
    plain = signature()
    grouped = signature(batch=2, query_heads=4, kv_heads=2, query_length=3, key_length=40, value_dim=2)
    hiding = signature(query_length=3, key_length=40, causal=True, scale=2.0, window=(None, None))

    assert plain.traits == {"a cut tile"}
    keys = {"keys past 1", "keys past 16", "keys past 32", "queries past 1"}
    shapes = {"entries", "heads", "groups", "a cut tile", "gqa", "dv", "cross", "more keys than queries"}
    assert grouped.traits == shapes | keys
    assert "more queries than keys" in signature(query_length=4, key_length=3).traits
    assert signature(head_dim=64, value_dim=64).traits == {"a cut tile"}
    assert "heads wider than 64" in signature(head_dim=65, value_dim=16).traits
    assert {"heads wider than 64", "heads wider than 128"} <= signature(value_dim=129).traits
    assert hiding.traits == {"causal"}  # of 40 keys three are seen
    assert hiding.shape == {"keys past 1", "queries past 1", "cross", "a cut tile", "more keys than queries"}


def test_a_signature_of_options_that_small_heads_have_no_room_for_is_told():
    turned = signature(head_dim=8, key_length=3, causal=True, rotary="half", rotary_dim=8)
    assert turned.traits == {"causal", "rotary", "rotary_dim"}


def test_the_first_signature_tells_of_shapes_and_the_next_of_options():
    recipes = [
        Recipe(),
        Recipe(key_length=20),
        Recipe(key_length=40),
        Recipe(key_length=40, softcap=2.0),
        Recipe(key_length=20, softcap=2.0, scale=2.0),
    ]

    kept = signatures._chosen(recipes, 3, own=())

    assert [recipes.index(one.recipe) for one in kept] == [2, 4, 3]
    assert len(signatures._chosen(recipes, 9, own=())) == len(recipes)


@pytest.mark.parametrize("name", ["queries", "most keys", "heads"])
def test_the_one_signature_of_a_size_is_past_its_edge(name):
    (size,) = (one for one in sizes.SIZES if one.name == name)
    options = ("causal", "gqa", "dv", "cross")
    made = kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=options, signatures=2)(sound)
    seen = []

    with turns.drawn_in(turns.Turn(size, 0)):

        @settings(max_examples=5, database=None)
        @given(strategies.problems(Subject(made, "float32")))
        def collect(problem):
            seen.append(sizes.is_of(size, problem.lengths, 1.0))

        collect()

    assert seen
    assert all(seen)
