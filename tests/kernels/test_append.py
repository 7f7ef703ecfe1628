"""Calls that append: what they are given, what they must leave in the caches, and what a failure says."""

import itertools
import runpy
from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import kernel
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.evidence import script
from attn_spec.isolation import foreign
from attn_spec.kernels.append import Append
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.placement import Placement
from attn_spec.kernels.presentations import PRESENTATIONS
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES, Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search

APPENDING = {name: row for name, row in PRESENTATIONS.items() if isinstance(row, Append)}
RECIPE = Recipe(
    batch=3, query_heads=4, kv_heads=2, query_length=2, key_length=7, head_dim=6, value_dim=2, causal=True,
    causal_alignment="bottom_right", seqused_k="ragged@B111", keys_reach_queries=True, seed=1,
)  # fmt: skip
PROPERTIES = load_all()
FRAME = "appending.new_keys_are_in_the_cache_and_nothing_else_changes"
ASKED = (FRAME, "appending.chunks_of_any_sizes_give_what_one_chunk_does")

#: A kernel of NumPy for each presentation, in a file of its own; if WRONG, it writes each value over its key.
KERNEL = """
import numpy as np
from attn_spec import kernel

WRONG = False

def declared(name):
    return kernel(framework="numpy", dtypes=("float32",), contract="eager", supports=("causal", "gqa", "cross"),
                  conventions={"causal_alignment": "bottom_right", "unused": "unread"}, presentation=name, name=name)

def attend(q, k, v, causal):
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) / np.float32(q.shape[-1] ** 0.5)
    unseen = np.arange(len(k)) > np.arange(len(q))[:, None] + len(k) - len(q)
    s[:, unseen & causal] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)

def appended(q, caches, new, at, read, causal):
    out = np.empty_like(q)
    for b in range(len(q)):
        for cache, x in zip(caches, new):
            cache[at(b)] = new[1][b] if WRONG else x[b]
    for b in range(len(q)):
        out[b] = attend(q[b], *(cache[read(b)] for cache in caches), causal)
    return out

@declared("append")
def append(q, k_cache, v_cache, k, v, *, cache_seqlens, causal=False):
    new, n = cache_seqlens, q.shape[1]
    return appended(q, (k_cache, v_cache), (k, v), lambda b: (b, slice(new[b], new[b] + n)),
                    lambda b: (b, slice(0, new[b] + n)), causal)

@declared("append_indexed")
def append_indexed(q, k_cache, v_cache, k, v, *, cache_seqlens, cache_batch_idx, causal=False):
    new, n, row = cache_seqlens, q.shape[1], cache_batch_idx
    return appended(q, (k_cache, v_cache), (k, v), lambda b: (row[b], slice(new[b], new[b] + n)),
                    lambda b: (row[b], slice(0, new[b] + n)), causal)

@declared("append_paged")
def append_paged(q, key_cache, value_cache, k, v, *, page_table, kv_lens, causal=False):
    size, n = key_cache.shape[1], q.shape[1]
    def places(b, first):
        j = np.arange(first, kv_lens[b] + n)
        return page_table[b, j // size], j % size
    return appended(q, (key_cache, value_cache), (k, v), lambda b: places(b, kv_lens[b]), lambda b: places(b, 0),
                    causal)
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
    able = ("causal", "causal_alignment", "gqa", "cross", "dv", "lse", "leftpad_k")
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
    before, after = handed.tensors, shown.promised(handed.tensors, handed.further)
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
    assert len(answers) == 3
    assert len({id(cache) for cache, _ in seen}) == 1
    assert [(one != other).any().item() for (_, one), (_, other) in itertools.pairwise(seen)] == [True] * 2


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.usefixtures("file")
def test_plain_kernels_hold(name, asked):
    subject = Subject(resolve(f"mine.py:{name}"), "float32")
    profile = Profile(name="test", examples=5, floor=1, seconds=60, shrink_seconds=0, seed=0)

    assert str(search(PROPERTIES[asked], subject, profile, seed=0)[0].verdict) == "held"


def test_a_kernel_in_a_process_of_its_own_appends_to_its_own_caches(name, file):
    problem = replace(RECIPE, value_dim=6).problem()
    here, there = (Subject(made(f"mine.py:{name}"), "float32") for made in (resolve, foreign.isolated))

    assert bits.identical(there(problem)["output"], here(problem)["output"]).all()
    ends = problem.end_keys.reshape(-1, 1, 1, 1)
    steps = [problem.take("Q", [row]).replace(seqused_k=ends - 1 + row) for row in (0, 1)]
    of_steps = [replace(each, choices={"shapes": (1,)}).in_turn(steps) for each in (there, here)]
    assert all(bits.identical(one["output"], other["output"]).all() for one, other in zip(*of_steps, strict=True))
    file.write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    with pytest.raises(Misbehaviour, match="where the new number must be"):
        Subject(foreign.isolated(f"mine.py:{name}"), "float32")(problem)


def test_a_script_fails_until_new_keys_are_written(file, capsys):
    file.write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    subject = Subject(resolve("mine.py:append_paged"), "float32")
    _, case = search(PROPERTIES[FRAME], subject, PROFILES["smoke"], 0)
    written = script.write(case, PROPERTIES[FRAME], subject, file.with_name("script.py"))

    for text, code in (("other than it must", 1), ("no longer fails here", 0)):
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(written), run_name="__main__")
        shown = capsys.readouterr().out
        assert (text in shown, left.value.code) == (True, code), shown
        file.write_text(KERNEL)
        resolve("mine.py:append_paged")
