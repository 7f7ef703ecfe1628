"""Calls that append: what they are given, what they must leave in the caches, and what a failure says."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import kernel
from attn_spec.contract.presets import PRESETS
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.evidence import script
from attn_spec.isolation import foreign
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.appending.append import Append
from attn_spec.kernels.presentations.placement import Placement
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES, Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from tests.kernels.presentations.appending.scripts_of_writes import assert_fails_until_mended

APPENDING = {name: row for name, row in PRESENTATIONS.items() if isinstance(row, Append)}
RECIPE = Recipe(
    batch=3, query_heads=4, kv_heads=2, query_length=2, key_length=7, head_dim=6, value_dim=2, causal=True,
    causal_alignment="bottom_right", seqused_k="ragged@B111", keys_reach_queries=True, seed=1,
)  # fmt: skip
PROPERTIES = load_all()
FRAME = "appending.new_keys_are_in_the_cache_and_nothing_else_changes"
ROTATED = "appending.new_keys_are_rotated_once_on_their_way_to_the_cache"
ASKED = (FRAME, ROTATED, "appending.chunks_of_any_sizes_give_what_one_chunk_does")

#: A kernel of NumPy for each presentation, in a file of its own; if WRONG, it writes each value over its key.
KERNEL = """
import numpy as np
from attn_spec import kernel
from attn_spec.contract.presets import PRESETS

WRONG = False

def declared(name):
    return kernel(framework="numpy", dtypes=("float32",), contract="eager",
                  supports=("causal", "gqa", "cross", "rotary", "rotary_dim"),
                  conventions={"causal_alignment": "bottom_right", "unused": "unread"}, presentation=name, name=name)

def attend(q, k, v, causal):
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) / np.float32(q.shape[-1] ** 0.5)
    unseen = np.arange(len(k)) > np.arange(len(q))[:, None] + len(k) - len(q)
    s[:, unseen & causal] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)

def turned(x, before, rotary_cos=None, rotary_sin=None, rotary_interleaved=False):
    if rotary_cos is None:
        return x
    y, half = x.copy(), rotary_cos.shape[1]
    one, other = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if rotary_interleaved else (
        slice(0, half), slice(half, 2 * half))
    for b, first in enumerate(before):
        cos, sin = (table[first : first + x.shape[1], None] for table in (rotary_cos, rotary_sin))
        y[b, ..., one] = x[b, ..., one] * cos - x[b, ..., other] * sin
        y[b, ..., other] = x[b, ..., other] * cos + x[b, ..., one] * sin
    return y

def appended(q, caches, new, at, read, causal, before, tables):
    out, q, new = np.empty_like(q), turned(q, before, **tables), (turned(new[0], before, **tables), new[1])
    for b in range(len(q)):
        for cache, x in zip(caches, new):
            cache[at(b)] = new[1][b] if WRONG else x[b]
    for b in range(len(q)):
        out[b] = attend(q[b], *(cache[read(b)] for cache in caches), causal)
    return out

@declared("append")
def append(q, k_cache, v_cache, k, v, *, cache_seqlens, causal=False, **tables):
    new, n = cache_seqlens, q.shape[1]
    return appended(q, (k_cache, v_cache), (k, v), lambda b: (b, slice(new[b], new[b] + n)),
                    lambda b: (b, slice(0, new[b] + n)), causal, new, tables)

@declared("append_indexed")
def append_indexed(q, k_cache, v_cache, k, v, *, cache_seqlens, cache_batch_idx, causal=False, **tables):
    new, n, row = cache_seqlens, q.shape[1], cache_batch_idx
    return appended(q, (k_cache, v_cache), (k, v), lambda b: (row[b], slice(new[b], new[b] + n)),
                    lambda b: (row[b], slice(0, new[b] + n)), causal, new, tables)

@declared("append_paged")
def append_paged(q, key_cache, value_cache, k, v, *, page_table, kv_lens, causal=False, **tables):
    size, n = key_cache.shape[1], q.shape[1]
    def places(b, first):
        j = np.arange(first, kv_lens[b] + n)
        return page_table[b, j // size], j % size
    return appended(q, (key_cache, value_cache), (k, v), lambda b: places(b, kv_lens[b]), lambda b: places(b, 0),
                    causal, kv_lens, tables)
"""


@pytest.fixture(params=APPENDING)
def name(request):
    return request.param


@pytest.fixture
def file(folder):
    """Return the file of kernels, in the working directory."""
    path = folder / "mine.py"
    path.write_text(KERNEL)
    return path


def emulated(name, **declared):
    able = ("causal", "causal_alignment", "gqa", "cross", "dv", "lse", "leftpad_k", "rotary", "rotary_dim")
    supports = [each for each in able if PRESENTATIONS[name].can_say(each)]
    declared = {"presentation": name, "supports": supports, "conventions": {"unused": "unread"}, **declared}
    return emulate("k", PRECISE, **declared)


def leaving(name, change):
    """Return a subject whose kernel is right, and then changes the caches with ``change(k_cache, v_cache)``."""
    right = emulated(name)

    def attention(*tensors, **options):
        found = right.function(*tensors, **options)
        change(*tensors[1:3])
        return found

    return Subject(replace(right, function=attention), "float32")


def test_a_call_is_given_the_keys_before_the_new_ones_and_must_append_these(name):
    problem = RECIPE.problem()
    shown = PRESENTATIONS[name]
    handed = shown.handed(problem, unread=True)
    before, after = handed.tensors, shown.promised(handed.tensors, handed.further, PRECISE.at("float32"), "float32")
    ends = problem.end_keys

    assert handed.further["seqused_k"].tolist() == (ends - 2).tolist()
    for held, x in (("k", problem.k), ("v", problem.v)):
        new = np.stack([x[b, :, e - 2 : e].swapaxes(0, 1) for b, e in enumerate(ends)])
        assert (before[f"{held}_new"] == new).all()
        changed = ~bits.identical(before[f"{held}_cache"], after[f"{held}_cache"])
        assert changed.sum() == new.size
        assert sorted(after[f"{held}_cache"][changed]) == sorted(new.ravel())
        read = shown.read(held, after[f"{held}_cache"], **shown.after(handed.further, 2), k=after["k_cache"])
        for b, e in enumerate(ends):
            assert (read[b, :, :e] == x[b, :, :e]).all()


def test_one_new_key_of_many_sequences_is_appended_in_its_place(name):
    """NumPy 2.3 and 2.4 unravel the places of more than 8,192 keys wrong, unless these have one axis."""
    problem = Recipe(batch=8300, key_length=2, causal_alignment="bottom_right").problem()
    handed = (shown := PRESENTATIONS[name]).handed(problem)
    after = shown.promised(handed.tensors, handed.further, PRECISE.at("float32"), "float32")

    for held, x in (("k", problem.k), ("v", problem.v)):
        read = shown.read(held, after[f"{held}_cache"], **shown.after(handed.further, 1), k=after["k_cache"])
        assert (read[:, :, :2] == x).all()


@pytest.mark.parametrize("name", ["append", "append_indexed"])
def test_some_caches_are_full_after_the_call(name):
    tried = Subject(emulated(name), "float32")
    recipes = [Recipe(batch=2, query_length=n, key_length=n + 2, equal_lengths=False, seed=n) for n in range(1, 25)]

    free = [tried.presentation.handed(one.problem()).tensors["k_cache"].shape[1] - one.key_length for one in recipes]

    assert set(free) == {0, 3}
    assert 4 <= free.count(0) <= 12


def test_a_cache_of_rotated_keys_is_handed_over_and_the_new_keys_are_not_rotated(name):
    problem, shown = replace(RECIPE, rotary="interleaved", rotary_dim=4).problem(), PRESENTATIONS[name]
    handed = shown.handed(problem)
    before, where = handed.tensors, handed.further
    must = shown.promised(before, where, PRECISE.at("float32"), "float32")
    after = shown.after(where, 2)
    read = shown.read("k", must["k_cache"], **after, k=must["k_cache"])

    assert where["rotary_cos"].shape == where["rotary_sin"].shape == (7 + 3, 2)
    for b, end in enumerate(problem.end_keys):
        new = problem.k[b, :, end - 2 : end].swapaxes(0, 1)
        assert (before["k_new"][b] == new).all()
        angle = np.arange(end)[:, None] * 10000.0 ** (-np.arange(0, 4, 2) / 4)
        pair = problem.k[b, :, :end, 0:4:2] + 1j * problem.k[b, :, :end, 1:4:2]
        turned = pair * np.exp(1j * angle)
        assert read[b, :, :end, 0:4:2] == pytest.approx(turned.real, abs=1e-6)
        assert read[b, :, :end, 1:4:2] == pytest.approx(turned.imag, abs=1e-6)
        assert (read[b, :, :end, 4:] == problem.k[b, :, :end, 4:]).all()
    plain = shown.promised(before, shown.handed(RECIPE.problem()).further, PRECISE.at("float32"), "float32")
    assert (must["v_cache"] == plain["v_cache"]).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_new_keys_are_as_near_to_the_rotated_ones_as_roundings_leave_them(dtype):
    """Products and sums that are each rounded to the dtype of the cache are within, and other positions are not."""
    problem = replace(RECIPE, batch=16, head_dim=64, rotary="half", seqused_k=None, dtypes=dtype).problem()
    shown = APPENDING["append"]
    handed = shown.handed(problem)
    contract = shown.contract(PRESETS["eager" if dtype != "float64" else "fp64"].at(dtype), dtype)
    must = shown.promised(handed.tensors, handed.further, PRECISE.at(dtype), dtype)["k_cache"][:, 5:7]
    allowed = shown.allowed(handed.tensors, handed.further, contract, dtype)["k_cache"]
    x, cos, sin = handed.tensors["k_new"], *(handed.further[name][5:7, None] for name in ("rotary_cos", "rotary_sin"))

    def rounded(y):
        return bits.nearest(y, dtype)

    a, b = x[..., :32], x[..., 32:]
    one, other = (rounded(rounded(a * cos) - rounded(b * sin)), rounded(rounded(b * cos) + rounded(a * sin)))
    ratio = np.abs(np.concatenate([one, other], axis=-1) - must) / allowed[:, 5:7]
    late = np.concatenate([a * cos[::-1] - b * sin[::-1], b * cos[::-1] + a * sin[::-1]], axis=-1)
    assert ratio.max() <= 1
    assert ratio.max() > 0.3 or dtype == "float64"  # of which the promise itself has these roundings
    assert (np.abs(late - must) > allowed[:, 5:7])[..., :4].mean() > 0.9
    assert not allowed[:, :5].any()
    assert not allowed[:, 7:].any()


def test_new_keys_of_which_no_bound_is_known_may_be_anything():
    problem = replace(RECIPE, rotary="half", dtypes="float16").problem()
    k = problem.k.copy()
    k[0, 0, problem.end_keys[0] - 1] = [6e4, 1, np.inf, 6e4, 1, 1]
    handed = (shown := APPENDING["append"]).handed(problem.replace(k=k))
    contract = shown.contract(PRESETS["eager"].at("float16"), "float16")
    allowed = shown.allowed(handed.tensors, handed.further, contract, "float16")["k_cache"]

    found = allowed[0, problem.end_keys[0] - 1, 0]
    assert (found == np.inf).tolist() == [True, False, True, True, False, True]


def test_tables_and_keys_of_a_cache_are_rounded_whatever_a_kernel_declares(name):
    made = emulated(name, dtypes=("float16", "bfloat16"), contract="fused")

    for dtype in made.dtypes:
        contract = made.contract_for(dtype)
        assert (contract.rotary_tables, contract.operands) == (dtype, dtype)
    assert made.contract_for("float32").softmax == PRESETS["fused"].at("float32").softmax
    plain = emulated(name, dtypes=("float16",), contract="fused", supports=("cross",))
    assert plain.contract_for("float16") == PRESETS["fused"].at("float16")
    with pytest.raises(
        KernelError, match=r"operands='bfloat16' cannot be kept .* in float16; declare operands='input'"
    ):
        emulated(name, dtypes=("float16",), contract=replace(PRESETS["fused"], operands="bfloat16"))


def test_a_kernel_of_rotary_positions_takes_their_tables(name):
    with pytest.raises(KernelError, match="passes rotary in rotary_cos, rotary_sin, rotary_interleaved, and the func"):

        @kernel(framework="torch", dtypes=("float32",), supports=("cross", "rotary"), presentation=name)
        def attention(q, k_cache, v_cache, k, v, *, cache_seqlens, rotary="half"):
            """A function without tables."""


def test_an_answer_is_that_of_a_rectangle_with_lengths(name):
    able = ("causal", "gqa", "cross", "dv", "lse", "seqused_k")
    for pads in ({}, {"leftpad_k": "ragged@B111"}) if PRESENTATIONS[name].can_say("leftpad_k") else ({},):
        problem = replace(RECIPE, **pads).problem()
        plain = emulate("k", PRECISE, supports=(*able, "causal_alignment", *pads))

        expected, found = (Subject(each, "float32")(problem) for each in (plain, emulated(name)))
        assert all(bits.identical(found[each], expected[each]).all() for each in expected)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda k, v: k[0, 0].add_(1), r"in k_cache at .*, head 0, column 0, where the number that was there must be"),
        (lambda k, v: v[2, 6, 1, 1].mul_(2), r"in v_cache at .*, head 1, column 1, where the new number must be after"),
        (lambda k, v: k[2, -1].fill_(7), r"left 7 in k_cache at row 2, place 9 of nobody, head 0, column 0"),
        (lambda k, v: k[1, 0].fill_(7), r"left 7 in k_cache at position 0 of sequence 1 \(row 1, place 0\), head 0"),
    ],
)
def test_a_failure_names_the_slot(change, says):
    problem = replace(RECIPE, seqused_k="full@B111").problem()

    with pytest.raises(Misbehaviour, match=says):
        leaving("append", change)(problem)


def test_a_failure_says_that_a_new_key_must_be_rotated():
    with pytest.raises(Misbehaviour, match="where the new number, rotated, must be after"):
        leaving("append", lambda k, v: k[2, 6].mul_(1.00001))(
            replace(RECIPE, seqused_k="full@B111", rotary="half").problem()
        )


def test_a_failure_names_the_page():
    with pytest.raises(Misbehaviour, match=r"sequence \d \(page \d+, offset \d+\)"):
        leaving("append_paged", lambda k, v: k.add_(1))(RECIPE.problem())


def test_a_cache_that_is_not_written_or_has_new_keys_alone_is_named(name):
    untouched = kernel(framework="torch", dtypes=("float32",), supports=("cross",), presentation=name)
    subject = Subject(untouched(lambda q, *others, **options: torch.zeros_like(q)), "float32")

    with pytest.raises(Misbehaviour, match=r"in k_cache at position .* where the new number must be"):
        subject(replace(RECIPE, causal=False, kv_heads=4, value_dim=6).problem())


def test_new_keys_lie_in_pages_that_no_two_sequences_share():
    problem = Recipe(batch=3, query_length=2, key_length=9, seqused_k="full@B111").problem()
    problem = problem.replace(**{x: np.repeat(getattr(problem, x)[:1], 3, axis=0) for x in "kv"})
    shown = APPENDING["append_paged"].placed(Placement(page_sizes=(2,), shares_pages=True))
    handed = shown.handed(problem)
    after = shown.after(handed.further, 2)
    new = shown.new_slots(handed.tensors["k_cache"].shape[:2], after, 2)

    assert len(np.unique(new)) == new.size
    table = after["block_table"]
    assert (table[1:, :3] == table[0, :3]).all()


def test_a_call_takes_no_more_queries_than_keys_and_differentiates_nothing(name):
    with pytest.raises(NotTaken, match="a key for every query"):
        Subject(emulated(name), "float32")(Recipe(query_length=3, key_length=2).problem())
    with pytest.raises(KernelError, match="since a call that writes to its caches has no gradients"):
        emulated(name, supports=("cross", "backward"))


def test_calls_in_turn_find_what_the_call_before_has_left(name):
    seen, right = [], emulated(name)

    def attention(q, k_cache, *others, **options):
        seen.append((k_cache, k_cache.clone()))
        return right.function(q, k_cache, *others, **options)

    ends = np.array([5, 4, 7]).reshape(-1, 1, 1, 1)
    problem = replace(RECIPE, query_length=1, seqused_k=None).problem()
    steps = [problem.replace(seqused_k=ends - late) for late in (2, 1, 0)]
    subject = Subject(replace(right, function=attention), "float32", choices={"shapes": (1,)})

    answers = subject.in_turn(steps)
    assert [solved.digest_of_bits() for solved, _ in answers] == [each.digest_of_bits() for each in steps]
    assert len({id(cache) for cache, _ in seen}) == 1
    assert [(one != other).any().item() for (_, one), (_, other) in itertools.pairwise(seen)] == [True] * 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.usefixtures("file")
def test_plain_kernels_hold(name, asked):
    subject = Subject(resolve(f"mine.py:{name}"), "float32")
    profile = Profile(name="test", examples=5, floor=1, seconds=60, shrink_seconds=0, seed=0)

    assert str(search(PROPERTIES[asked], subject, profile, seed=0)[0].verdict) == "held"


def test_a_kernel_in_a_process_of_its_own_appends_to_its_own_caches(name, file):
    problem = replace(RECIPE, value_dim=6, rotary="half").problem()
    here, there = (Subject(made(f"mine.py:{name}"), "float32") for made in (resolve, foreign.isolated))

    assert bits.identical(there(problem)["output"], here(problem)["output"]).all()
    ends = problem.end_keys.reshape(-1, 1, 1, 1)
    steps = [problem.take("Q", [row]).replace(seqused_k=ends - 1 + row) for row in (0, 1)]
    of_steps = [replace(each, choices={"shapes": (1,)}).in_turn(steps) for each in (there, here)]
    answers = [[answer["output"] for _, answer in every] for every in of_steps]
    assert all(bits.identical(one, other).all() for one, other in zip(*answers, strict=True))
    file.write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    with pytest.raises(Misbehaviour, match="where the new number, rotated, must be"):
        Subject(foreign.isolated(f"mine.py:{name}"), "float32")(problem)


@pytest.mark.parametrize("asked", [FRAME, ROTATED])
def test_a_script_fails_until_new_keys_are_written(asked, file, capsys):
    file.write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    subject = Subject(resolve("mine.py:append_paged"), "float32")
    _, case = search(PROPERTIES[asked], subject, PROFILES["smoke"], 0)
    written = script.write(case, PROPERTIES[asked], subject, file.with_name("script.py"))
    assert_fails_until_mended(written, file, KERNEL, "mine.py:append_paged", capsys)
