"""Shapes that a user asks for: their properties, the report on them, and the stored form of a case of one."""

import signal
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from attn_spec import kernel as declare
from attn_spec.evidence import script
from attn_spec.evidence.failure import block
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.shape_spec import AskedShape, ShapeError
from attn_spec.search import cases, long_answers
from attn_spec.search.drawing import asked_shapes
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import NotExamined, load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from attn_spec.sessions import examination
from attn_spec.sessions.progress import Progress, Request

ROWS, GRADIENTS = (load_all()[f"asked_shapes.sampled_{what}_are_within_their_bounds"] for what in ("rows", "gradients"))
SHAPE = AskedShape.parse("B=2,Hq=4,Hkv=2,Sq=300,Sk=200,D=8,Dv=4")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written; few rows and keys of each head are judged."""
    monkeypatch.chdir(tmp_path)
    for name, most in (("ROWS", 256), ("KEYS", 128), ("LEAST_ROWS", 16)):
        monkeypatch.setattr(long_answers, name, most)


def asked(kernel, *shapes, dtype="float32"):
    return Subject(resolve(kernel) if isinstance(kernel, str) else kernel, dtype, shapes=shapes or (SHAPE,))


def examine(property_, subject, **effort):
    return search(property_, subject, replace(PROFILES["smoke"], **effort), seed=3)


def of(function, *supports, **declared):
    kernel = declare(framework="numpy", dtypes=("float32",), contract="eager", supports=supports, **declared)(function)
    return replace(kernel, module=__name__, spec="kernel.py:wrong")


def softmax(q, k, v):
    s = q @ np.repeat(k, q.shape[1] // k.shape[1], axis=1).swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return (p / p.sum(axis=-1, keepdims=True)) @ np.repeat(v, q.shape[1] // v.shape[1], axis=1)


def far_rows_are_first(q, k, v):
    """Attend wrongly where there are both more than 256 queries and more than 128 keys."""
    far = (np.arange(q.shape[2]) >= 256) & (k.shape[2] > 128)
    return softmax(q[:, :, np.where(far, 0, np.arange(q.shape[2]))], k, v)


def reads_one_key_more(q, k, v, seqused_k=None):
    """Attend to the key behind each sequence too, where it has more than 40 keys."""
    seen = np.arange(k.shape[2]) < (seqused_k if seqused_k is not None else k.shape[2]) + (k.shape[2] > 40)
    s = np.where(seen, q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5), -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return (p / p.sum(axis=-1, keepdims=True)) @ v


def causal_only(q, k, v, *, diagonal=0):
    """Attend causally in every call."""
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    s = np.where(np.tri(q.shape[2], k.shape[2], diagonal, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return (p / p.sum(axis=-1, keepdims=True)) @ v


@pytest.mark.parametrize(("diagonal", "verdict"), [(0, Verdict.HELD), (1, Verdict.REFUTED)])
def test_an_option_that_every_call_uses_needs_no_other_declaration(diagonal, verdict):
    kernel = of(partial(causal_only, diagonal=diagonal), always=("causal",), name="causal")
    kernel = replace(kernel, supports=kernel.supports - {"causal"})  # as the signatures of operators have it
    (found, *_) = examine(ROWS, asked(kernel, AskedShape.parse("H=2,S=40,D=4")))

    assert found.verdict == verdict


def test_a_shape_may_give_the_numbers_of_keys_of_each_sequence():
    subject = asked("torch_paged", AskedShape.parse("H=2,Sq=1,D=4,seqused_k=1:60:17"))
    found = asked_shapes.recipes(subject, 7)
    wrong = of(reads_one_key_more, "seqused_k", "cross")

    assert {tuple(recipe.problem().end_keys) for recipe in found} == {(1, 60, 17)}
    assert {"causal", "softcap"} <= {name for recipe in found for name in recipe.problem().options()}
    (found, *_) = examine(ROWS, asked(wrong, AskedShape.parse("H=2,Sq=1,D=4,seqused_k=1:60:17")))
    assert found.verdict == Verdict.REFUTED


def test_a_shape_is_examined_without_options_and_with_each_in_usual_use():
    subject = asked("torch_tiled", SHAPE, AskedShape.parse("H=1,S=8,D=2"))
    found = asked_shapes.recipes(subject, 7)

    told = [asked_shapes.described(recipe) for recipe in found]
    assert told[:3] == [f"{SHAPE} normal+v_waves", f"{SHAPE} large", f"{SHAPE} causal=True large"]
    options = {name for recipe in found for name in recipe.problem().options()}
    assert {"causal", "window", "mask", "bias", "softcap", "rotary", "gqa", "dv", "cross"} <= options
    assert len(found) == 2 * len(told) / 2 == 2 * sum(text.startswith(str(SHAPE)) for text in told)
    assert {recipe.seed for recipe in found} == {7}
    for recipe in found[: len(found) // 2]:
        assert (recipe.problem().score_shape, recipe.problem().value_dim) == ((2, 4, 300, 200), 4)
    of_gradients = {asked_shapes.described(recipe) for recipe in asked_shapes.recipes(subject, 7, gradients=True)}
    assert f"{SHAPE} causal=True normal" in of_gradients
    assert not any(word in text for text in of_gradients for word in ("softcap", "rotary", "large"))


def test_what_a_kernel_cannot_do_without_is_in_all_problems_and_what_it_refuses_beside_that_in_none():
    kernel = resolve("torch_tiled")
    limits = replace(kernel.limits, always=("causal",), exclusive=(("causal", "mask"),))
    found = asked_shapes.recipes(asked(replace(kernel, limits=limits)), 0)

    assert all(recipe.causal and recipe.mask is None for recipe in found)
    assert any(recipe.bias for recipe in found)


def test_what_a_kernel_takes_only_beside_another_option_comes_with_it():
    kernel = resolve("torch_tiled")
    limits = replace(kernel.limits, beside={"softcap": ("causal",), "bias": ("dropout_keep",)})
    found = asked_shapes.recipes(asked(replace(kernel, limits=limits)), 0)

    assert {recipe.causal for recipe in found if recipe.softcap} == {True}
    assert any(recipe.causal and not recipe.softcap for recipe in found)
    assert not any(recipe.bias for recipe in found)


@pytest.mark.parametrize("kernel", ["torch_eager", "numpy_tiled"])
def test_a_sound_kernel_holds_and_the_verdict_says_what_was_looked_at(kernel):
    row, case = examine(ROWS, asked(kernel))

    assert (row.verdict, case) == (Verdict.HELD, None), row.message
    assert row.examples == len(row.looked_at) == len(asked_shapes.recipes(asked(kernel), 0))
    chance = "a defect in 1 % of them is missed with a probability of 0.3 at most"
    assert row.looked_at[0] == f"{SHAPE} normal+v_waves: 256 of 2400 rows, 128 of them at random: {chance}"
    assert 0 < row.ratio < 1


def test_sound_gradients_hold_in_sampled_keys():
    row, _ = examine(GRADIENTS, asked("torch_eager"))

    assert row.verdict is Verdict.HELD, row.message
    assert row.looked_at[0].startswith(f"{SHAPE} normal: 256 of 2400 rows, 128 of them at random: ")
    assert "; 128 of 800 keys, 64 of them at random: a defect in 1 % of them is missed with a pr" in row.looked_at[0]


def test_without_a_shape_nothing_is_declared():
    row, _ = search(ROWS, Subject(resolve("numpy_naive"), "float32"), PROFILES["smoke"], seed=0)

    assert (row.verdict, row.examples) == (Verdict.NOT_DECLARED, 0)
    assert row.message == "no shape was asked for, as --shape B=2,Hq=32,Hkv=8,Sq=4096,Sk=4096,D=128 asks for one"


def test_a_refuted_case_is_its_recipe_and_says_so(monkeypatch):
    monkeypatch.setattr(cases, "LARGE", 2**10)
    subject = asked(of(far_rows_are_first, "gqa", "dv", "cross"))
    row, case = examine(ROWS, subject)

    assert row.verdict is Verdict.REFUTED
    assert row.message.endswith("; looked at 256 of 2400 rows")
    path = cases.save(case)
    assert path.stat().st_size < 4096
    again = cases.load(path)
    assert again.id == case.id == path.stem
    with pytest.raises(AssertionError, match=r"^output\["):
        ROWS.check(replace(subject, shapes=()), again.problem)
    assert script.write(case, ROWS, subject, path.with_suffix(".py")) is None
    shown = block(case, ROWS, subject, None)
    b, h, i, _ = case.worst.index
    assert i >= 256
    assert f"  place     batch entry {b}, head {h}, row {i}, column" in shown
    assert "  script    none: it would hold 0 MiB of tensors, which replay makes again from the recipe" in shown


def test_a_recipe_that_makes_other_bits_is_no_case_any_more(monkeypatch):
    monkeypatch.setattr(cases, "LARGE", 2**10)
    _, case = examine(ROWS, asked(of(far_rows_are_first, "gqa", "dv", "cross")))
    path = cases.save(case)
    path.write_text(path.read_text().replace('"seed": 3', '"seed": 4'))

    with pytest.raises(cases.CaseError, match="its recipe makes other tensors here than in the version"):
        cases.load(path)


def test_a_shape_that_the_kernel_does_not_declare_is_told_and_not_declared():
    square = AskedShape.parse("H=2,S=40,D=8")
    row, _ = examine(ROWS, asked(of(softmax), SHAPE))
    both, _ = examine(ROWS, asked(of(softmax), SHAPE, square))

    assert (row.verdict, row.message) == (Verdict.NOT_DECLARED, "the kernel does not declare cross, dv, gqa")
    assert both.verdict is Verdict.HELD
    assert both.looked_at[0] == f"{SHAPE} normal+v_waves: nothing, the kernel does not declare cross, dv, gqa"
    assert both.looked_at[2] == f"{square} normal+v_waves: all 80 rows"


def test_a_call_without_memory_refutes_nothing():
    def hungry(q, k, v):
        raise MemoryError("Unable to allocate 9 TiB")

    row, case = examine(ROWS, asked(of(hungry, "gqa", "dv", "cross")))

    assert (row.verdict, case) == (Verdict.NOT_EXERCISED, None)
    assert "MemoryError: Unable to allocate 9 TiB" in row.message


def test_a_search_out_of_time_is_not_exercised():
    row, _ = examine(ROWS, asked("numpy_naive"), seconds=0)

    assert row.verdict is Verdict.NOT_EXERCISED
    assert row.message.endswith(" problems were tried: 0 s for each were up; choose a --profile with more time")


def test_gradients_without_keys_are_examined_only_where_they_are_zero():
    kernel = resolve("torch_eager")
    means = replace(kernel, conventions=replace(kernel.conventions, empty_row="mean_of_v"))
    plain = {"query_length": 40, "key_length": 30, "head_dim": 4, "value_dim": 4, "causal_alignment": "bottom_right"}
    seen, unseen = (Recipe(**plain, causal=causal).problem() for causal in (False, True))

    GRADIENTS.check(asked(means), seen)
    with pytest.raises(NotExamined, match="some query sees no key, and the convention gives it an output that is no c"):
        GRADIENTS.check(asked(means), unseen)
    assert not long_answers.sees_no_key(replace(unseen.recipe, key_length=40).problem())


def test_a_shape_that_memory_has_no_room_for_is_refused_with_a_smaller_one(monkeypatch):
    monkeypatch.setattr(asked_shapes, "available_memory", lambda: 2**33)
    asked_shapes.check_memory([SHAPE])
    with pytest.raises(
        ShapeError, match=r"^B=8,Hq=64,Hkv=8,Sq=16384,Sk=16384,D=128 takes about .* GiB to examine, and "
    ):
        asked_shapes.check_memory([AskedShape.parse("B=8,Hq=64,Hkv=8,S=16384,D=128")])
    with pytest.raises(ShapeError, match=r"one kv head has all lengths too: B=1,Hq=8,Hkv=1,Sq=16384,Sk=16384,D=128$"):
        asked_shapes.check_memory([AskedShape.parse("B=8,Hq=64,Hkv=8,S=16384,D=128")])
    with pytest.raises(ShapeError, match=r"8\.0 GiB are available here; ask for shorter lengths$"):
        asked_shapes.check_memory([AskedShape.parse("H=1,S=33554432,D=128")])


@pytest.mark.parametrize(("killed", "verdict"), [(signal.SIGKILL, "not exercised"), (signal.SIGSEGV, "refuted")])
def test_a_process_that_the_system_kills_at_a_large_problem_refutes_nothing(killed, verdict, monkeypatch, tmp_path):
    monkeypatch.setattr(cases, "LARGE", 2**10)
    key, progress = (ROWS.id, "kernel", "float32"), Progress()
    progress.begun[0], progress.shares[0] = key, [key]
    child = examination._Child(Request(kernel="kernel"), tmp_path, 0)
    child.process = SimpleNamespace(pid=77, returncode=-killed)
    child.log.write_text("")
    problem = asked_shapes.recipes(asked("numpy_naive"), 0)[0].problem()
    cases.InFlight(process=77).hold(cases.Case(property_id=ROWS.id, kernel="kernel", problem=problem))

    child.blame(progress)
    assert progress.rows[key].verdict == verdict
    assert ("memory runs out: ask for fewer heads" in progress.rows[key].message) == (verdict == "not exercised")
