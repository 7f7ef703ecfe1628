"""Calls that append to caches of 8 bits: which new numbers they are given, and what they must store of these."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import assert_attention
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.evidence import script
from attn_spec.isolation import foreign
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.appending import rounded_writes
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EIGHT_BITS, FORMATS
from attn_spec.problem.conventions import ConventionError
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES, Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from tests.kernels.presentations.appending.scripts_of_writes import assert_fails_until_mended

CACHE = "q:bfloat16,kv:float8_e4m3fn"
ROUNDED = "appending.new_numbers_are_rounded_once_over_their_descales"
DESCALED = ("k_descale", "v_descale", "descale_by_head")
RECIPE = Recipe(
    batch=3, query_heads=4, kv_heads=2, query_length=2, key_length=7, head_dim=6, value_dim=6, dtypes=CACHE,
    k_descale="spread@BG11", v_descale="near_one@BG11", keys_reach_queries=True, seed=1,
)  # fmt: skip

#: A kernel of PyTorch, in a file of its own; if WRONG, it drops the descales of what it writes.
KERNEL = """
import torch
from attn_spec import kernel

WRONG = False

@kernel(framework="torch", dtypes=[{"q": "bfloat16", "kv": "float8_e4m3fn"}], supports=["gqa", "cross", "k_descale",
        "v_descale", "descale_by_head"], option_dtypes={"k_descale": "float32", "v_descale": "float32"},
        conventions={"cache_overflow": "saturates"}, presentation="append")
def attention(q, k_cache, v_cache, k, v, *, cache_seqlens, k_descale=None, v_descale=None):
    out, group = torch.empty_like(q), q.shape[2] // k.shape[2]
    ones = torch.ones(len(q), k.shape[2])
    scales = [ones if x is None else x for x in (k_descale, v_descale)]
    for b, before in enumerate(cache_seqlens.tolist()):
        after, read = before + k.shape[1], []
        for cache, x, d in zip((k_cache, v_cache), (k, v), scales):
            over = x[b].float() / (1 if WRONG else d[b][:, None])
            cache[b, before:after] = over.clamp(-448, 448).to(cache.dtype)
            read.append((cache[b, :after].float() * d[b][:, None]).repeat_interleave(group, 1))
        s = torch.einsum("ihd,jhd->hij", q[b].float(), read[0]) / q.shape[-1] ** 0.5
        out[b] = torch.einsum("hij,jhd->ihd", s.softmax(-1), read[1])
    return out
"""


@pytest.fixture
def file(folder):
    """Return the file of a kernel, in the working directory."""
    path = folder / "mine.py"
    path.write_text(KERNEL)
    return path


def made(presentation="append", **declared):
    """Return a sound kernel of calls that append to a cache of 8 bits."""
    supports, saturating = ("gqa", "cross", *DESCALED), {"cache_overflow": "saturates"}
    told = {"presentation": presentation, "supports": supports, "conventions": saturating, **declared}
    return emulate("k", PRECISE, dtypes=(CACHE,), **told)


def verdict(tested, **changes):
    profile = Profile(name="test", examples=12, floor=1, seconds=60, shrink_seconds=0, seed=0)
    return search(replace(load_all()[ROUNDED], **changes), Subject(tested, CACHE), profile, seed=0)[0]


def codes(form, rng, shape=(40, 7, 2, 3)):
    """Return every finite number of a format with both signs, and more of them, in this shape."""
    known = bits.finite(form)
    every = bits.as_stored(np.concatenate([known, -known]), form)
    return np.concatenate([every, rng.choice(every, np.prod(shape) - len(every))]).reshape(shape)


def ways(x, d, own, cache):
    """Yield sound quotients of x and d: divisions and products with the reciprocal, in float32 and in ``own``."""
    narrow = FORMATS[own].unit_roundoff > FORMATS["float32"].unit_roundoff and not FORMATS[cache].is_integer
    for dtype in ("float32", own) if narrow else ("float32",):
        yield bits.nearest(x / d, dtype)
        yield bits.nearest(x * bits.nearest(1 / d, dtype), dtype)


@pytest.mark.parametrize("own", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("cache", EIGHT_BITS)
def test_every_number_of_a_cache_is_what_any_sound_division_stores(cache, own):
    rng = np.random.default_rng(19)
    c = codes(cache, rng)
    d = bits.nearest(np.exp2(rng.uniform(-3, 0, size=(1, 7, 2, 1))), "float32")
    largest = FORMATS[cache].largest

    x = rounded_writes.new_numbers(c, d, (own, cache), rng, saturates=True)

    assert bits.is_representable(x, own)
    for quotient in ways(x, d, own, cache):
        assert bits.identical(bits.nearest(np.clip(quotient, -largest, largest), cache), c).all()
    assert bits.identical(rounded_writes.stored(x, d, cache), c).all()
    assert len(np.unique(np.round(x / d / np.where(c == 0, 1, c), 3))) > 30  # anywhere between two ties
    plain = rounded_writes.new_numbers(c, None, (own, cache), rng, saturates=False)
    assert bits.identical(rounded_writes.stored(plain, None, cache), c).all()
    assert not FORMATS[cache].is_integer or (np.abs(plain - c) < 0.5).all()


@pytest.mark.parametrize(("own", "cache"), [("bfloat16", "float8_e4m3fn"), ("float16", "float8_e5m2")])
def test_a_division_in_the_dtype_of_q_needs_the_distance_from_ties(own, cache, monkeypatch):
    """Without it there is a number of which divisions in float32 and in the dtype of q store two numbers."""
    rng = np.random.default_rng(19)
    c = codes(cache, rng)
    d = bits.nearest(np.exp2(rng.uniform(-3, 0, size=c.shape)), "float32")
    with_distance = rounded_writes._inside
    monkeypatch.setattr(rounded_writes, "_inside", lambda size, form, divides: with_distance(size, form, None))

    x = rounded_writes.new_numbers(c, d, (own, cache), rng, saturates=False)

    assert not all(bits.identical(bits.nearest(quotient, cache), c).all() for quotient in ways(x, d, own, cache))


def test_quotients_that_underflow_in_the_dtype_of_q_are_as_far_from_ties():
    """The least numbers of float8_e5m2 are subnormal in float16, which then rounds quotients by more than u of them."""
    rng = np.random.default_rng(3)
    c = rng.choice([2.0**-16, -(2.0**-16), 2.0**-15], size=(200, 7, 2, 3))
    d = bits.nearest(np.exp2(rng.uniform(4, 10, size=c.shape)), "float32")

    x = rounded_writes.new_numbers(c, d, ("float16", "float8_e5m2"), rng, saturates=False)

    for quotient in ways(x, d, "float16", "float8_e5m2"):
        assert bits.identical(bits.nearest(quotient, "float8_e5m2"), c).all()


def test_ties_are_handed_over_where_nothing_is_divided():
    c, rng = codes("float8_e4m3fn", np.random.default_rng(0)), np.random.default_rng(1)
    spacing = bits.spacing(c, "float8_e4m3fn")

    plain, divided = (
        np.abs(rounded_writes.new_numbers(c, d, ("bfloat16", "float8_e4m3fn"), rng, saturates=False) - c)
        for d in (None, np.ones((1, 1, 2, 1)))
    )

    inner = np.abs(c) < 448
    assert ((plain == spacing / 2) & inner).mean() > 0.1
    assert not ((divided == spacing / 2) & inner).any()


def test_numbers_beyond_the_largest_are_handed_over_to_kernels_that_saturate():
    rng = np.random.default_rng(0)
    c = np.full((4, 5, 2, 6), 448.0) * rng.choice([-1.0, 1.0], (4, 5, 2, 6))
    dtypes = ("bfloat16", "float8_e4m3fn")

    within, beyond = (
        np.abs(rounded_writes.new_numbers(c, None, dtypes, rng, saturates=each)) for each in (False, True)
    )

    assert within.max() < FORMATS["float8_e4m3fn"].rounds_to_largest
    assert 0.3 < (beyond > 464).mean() < 0.7


def test_a_number_that_the_dtype_of_q_cannot_say_is_not_taken():
    with pytest.raises(NotTaken, match="float16 has no new number that a cache of float8_e5m2 stores as 57344 by its"):
        rounded_writes.new_numbers(
            np.full((1, 1, 1, 1), 57344.0), np.full((1, 1, 1, 1), 4.0), ("float16", "float8_e5m2"),
            np.random.default_rng(0), saturates=True,
        )  # fmt: skip
    nan = rounded_writes.new_numbers(
        np.full((1, 1, 1, 1), np.nan), None, ("float16", "float8_e5m2"), np.random.default_rng(0), saturates=True
    )
    assert np.isnan(nan).all()


@pytest.mark.parametrize("presentation", ["append", "append_indexed", "append_paged"])
def test_a_call_is_given_new_keys_in_the_dtype_of_q(presentation):
    seen, right = [], made(presentation)

    def attention(*tensors, **options):
        seen.extend(tensors)
        return right.function(*tensors, **options)

    problem = RECIPE.problem()
    Subject(replace(right, function=attention), CACHE)(problem)

    assert [str(x.dtype) for x in seen] == ["torch.bfloat16", *["torch.float8_e4m3fn"] * 2, *["torch.bfloat16"] * 2]
    shown = PRESENTATIONS[presentation]
    assert [shown.dtype(name, "q:float8_e4m3fn,kv:float8_e4m3fn") for name in shown.tensors] == ["float8_e4m3fn"] * 5
    assert [shown.dtype(name, "q:float32,kv:bfloat16") for name in shown.tensors] == ["float32", *["bfloat16"] * 4]


def writing(write):
    """Return the kernel whose new numbers are what ``write(x, d)`` makes of them, and of their descales."""
    right = made()

    def attention(q, k_cache, v_cache, k, v, **options):
        d = {name: options.get(f"{name}_descale") for name in "kv"}
        ones = torch.ones(len(k), k.shape[2])
        stored = [write(x, (ones if d[n] is None else d[n])[:, None, :, None]) for n, x in (("k", k), ("v", v))]
        assert all(x.dtype == k_cache.dtype for x in stored)
        return right.function(q, k_cache, v_cache, *stored, **options)

    return replace(right, function=attention)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, d: (x.float() / d.float()).clamp(-448, 448).to(torch.float8_e4m3fn),
        lambda x, d: (x.float() * (1 / d.float())).clamp(-448, 448).to(torch.float8_e4m3fn),
        lambda x, d: (x / d.bfloat16()).clamp(-448, 448).to(torch.float8_e4m3fn),
        lambda x, d: (x * (1 / d.bfloat16())).clamp(-448, 448).to(torch.float8_e4m3fn),
    ],
    ids=["divides", "reciprocal", "divides_in_q", "reciprocal_in_q"],
)
def test_every_sound_way_of_dividing_holds(write):
    assert str(verdict(writing(write)).verdict) == "held"


def test_a_failure_says_what_was_rounded_to_what():
    wrong = writing(lambda x, d: x.to(torch.float8_e4m3fn))

    with pytest.raises(Misbehaviour, match=r"in k_cache at .*, where the new number \S+ over its descale \S+, rounded "
                       r"to float8_e4m3fn, must be after the call, "):  # fmt: skip
        Subject(wrong, CACHE)(RECIPE.problem())
    with pytest.raises(Misbehaviour, match=r"where the new number \S+, rounded to float8_e4m3fn, must be"):
        Subject(writing(lambda x, d: (2 * x.float()).to(torch.float8_e4m3fn)), CACHE)(
            replace(RECIPE, k_descale=None, v_descale=None).problem()
        )


def test_the_convention_decides_whether_large_numbers_are_asked():
    def nan_beyond(x, d):
        quotient = x.float() / d.float()
        return torch.where(quotient.abs() >= 464, torch.nan, quotient).to(torch.float8_e4m3fn)

    wrong = writing(nan_beyond)
    none = replace(wrong, conventions=replace(wrong.conventions, cache_overflow="none"))

    assert str(verdict(wrong).verdict) == "refuted"
    assert str(verdict(none).verdict) == "held"


def test_rotary_positions_of_such_a_call_are_refused():
    with pytest.raises(KernelError, match="rotary of a call that appends needs one dtype for q and k"):
        made(supports=("cross", "rotary"))


def test_a_kernel_whose_caches_have_the_dtype_of_new_keys_is_not_asked():
    written = replace(PRECISE, output="bfloat16")
    same = emulate("k", written, dtypes=("float8_e4m3fn",), presentation="append", supports=("cross",))

    assert "have the dtype of the new keys" in load_all()[ROUNDED].not_applicable(Subject(same, "float8_e4m3fn"))


def test_a_file_is_judged_here_and_in_a_process_of_its_own(file):
    here, there = (Subject(of("mine.py:attention"), CACHE) for of in (resolve, foreign.isolated))
    problem = RECIPE.problem()

    assert str(verdict(here.kernel).verdict) == "held"
    assert bits.identical(there(problem)["output"], here(problem)["output"]).all()
    file.write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    with pytest.raises(Misbehaviour, match="over its descale"):
        Subject(foreign.isolated("mine.py:attention"), CACHE)(problem)


def test_a_script_fails_until_new_keys_are_rounded_over_their_descales(file, capsys):
    file.write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    subject = Subject(resolve("mine.py:attention"), CACHE)
    _, case = search(load_all()[ROUNDED], subject, PROFILES["smoke"], 0)
    written = script.write(case, load_all()[ROUNDED], subject, file.with_name("script.py"))
    assert_fails_until_mended(written, file, KERNEL, "mine.py:attention", capsys)


@pytest.mark.parametrize("wrong", [False, True])
def test_an_assertion_judges_the_answer_by_the_cache_after_the_call(wrong, file):
    file.write_text(KERNEL)
    attention, rng = resolve("mine.py:attention").function, torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 2, heads, 64, generator=rng).bfloat16() for heads in (8, 2, 2))
    caches = [torch.randn(3, 40, 2, 64, generator=rng).to(torch.float8_e4m3fn) for _ in "kv"]
    before = torch.tensor([20, 0, 38], dtype=torch.int32)
    d = {"k_descale": torch.rand(3, 2, generator=rng) + 0.5, "v_descale": torch.rand(3, 2, generator=rng) + 0.5}
    out = attention(q, *caches, k, v, cache_seqlens=before, **d)
    judged = {**d, "v_descale": d["v_descale"].flip(1)} if wrong else d

    def judge():
        assert_attention(out, q, *caches, cache_seqlens=before + 2, presentation="append", contract="fused", **judged)

    if not wrong:
        judge()
        return
    with pytest.raises(AssertionError):
        judge()


def test_a_declaration_needs_one_of_the_choices():
    with pytest.raises(
        ConventionError, match="convention cache_overflow must be one of 'none', 'saturates', not 'nan'"
    ):
        made(conventions={"cache_overflow": "nan"})
