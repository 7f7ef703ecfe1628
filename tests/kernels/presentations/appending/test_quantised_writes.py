"""Calls that append with scales of their own: what they are given, what must stand in caches, and what is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from attn_spec.implementations.torch_append_quantised import per_token_head
from attn_spec.reports.proof.zoo import mutants, quantised_writes

from attn_spec.bounds.replay import replayed
from attn_spec.contract.presets import FUSED
from attn_spec.contract.quantisers import Quantiser, QuantiserError
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.evidence import script
from attn_spec.isolation import foreign
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.appending.quantised_writes import open_scales, written
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem import appended
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from tests.kernels.presentations.appending.scripts_of_writes import assert_fails_until_mended

QUANTISED, LATER = quantised_writes.QUANTISED, quantised_writes.LATER
SMOKE = replace(PROFILES["smoke"], shrink_seconds=0)
MUTANTS = {name: row for name, row in mutants.load_all()[0].items() if row.family == "quantised_writes"}
CACHES = {"int8": 127.0, "float8_e4m3fn": 448.0}
APPENDS = [name for name, row in PRESENTATIONS.items() if row.appends]
RECIPE = Recipe(
    batch=3, query_heads=4, kv_heads=2, query_length=2, key_length=7, head_dim=6, value_dim=5, seed=1,
    k_descale="spread@BGK1", v_descale="near_one@BGK1", seqused_k="ragged@B111", keys_reach_queries=True,
)  # fmt: skip
SCALES = {"k_descale": "float32", "v_descale": "float32"}

#: A kernel of PyTorch, in a file of its own; if WRONG, it keeps the reciprocals of scales.
KERNEL = """
import torch
from attn_spec import Contract, Quantiser, kernel

WRONG = False
STEPS = {"format": "int8", "block": 1, "over": "appended", "division_error": 0.0, "least_scale": 1e-6}

@kernel(framework="torch", dtypes=[{"q": "bfloat16", "kv": "int8"}], contract=Contract(quantisers=tuple(
        Quantiser(of=name, **STEPS) for name in "kv")), supports=["gqa", "cross", "k_descale", "v_descale",
        "descale_by_head", "descale_by_key"], always=("k_descale", "v_descale"),
        option_dtypes={"k_descale": "float32", "v_descale": "float32"}, presentation="append")
def attention(q, k_cache, v_cache, k, v, *, cache_seqlens, k_scale, v_scale):
    out, group = torch.empty_like(q), q.shape[2] // k.shape[2]
    for b, before in enumerate(cache_seqlens.tolist()):
        after, read = before + k.shape[1], []
        for cache, scales, x in ((k_cache, k_scale, k[b].float()), (v_cache, v_scale, v[b].float())):
            d = (x.abs().amax(-1) / 127).clamp(min=1e-6)
            cache[b, before:after] = (x / d[..., None]).round().to(torch.int8)
            scales[b, before:after] = 1 / d if WRONG else d
            read.append((cache[b, :after].float() * scales[b, :after, :, None]).repeat_interleave(group, 1))
        s = torch.einsum("ihd,jhd->hij", q[b].float(), read[0]) / q.shape[-1] ** 0.5
        out[b] = torch.einsum("hij,jhd->ihd", s.softmax(-1), read[1])
    return out
"""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def problem_of(cache, **changes):
    dtypes = (("q", "bfloat16"), ("kv", cache), *SCALES.items())
    return replace(RECIPE, **{"dtypes": dtypes, **changes}).problem()


def subject_of(kernel):
    return Subject(kernel, kernel.dtypes[0])


def verdict(property_id, kernel):
    return str(search(load_all()[property_id], subject_of(kernel), SMOKE, seed=0)[0].verdict)


@pytest.mark.parametrize("presentation", APPENDS)
@pytest.mark.parametrize("cache", CACHES)
def test_a_call_is_given_codes_times_scales_and_caches_without_them(presentation, cache):
    problem, shown = problem_of(cache), PRESENTATIONS[presentation].handing(descales_by_key=True)
    handed = shown.handed(problem, unread=True)
    ends = problem.end_keys

    for name in "kv":
        new = handed.tensors[f"{name}_new"].swapaxes(1, 2)
        x, d = (getattr(problem, each) for each in (name, f"{name}_descale"))
        for b in range(3):
            last = slice(ends[b] - 2, ends[b])
            assert np.array_equal(new[b], bits.nearest((x * d)[b, :, last], "bfloat16"))
        scales = shown.read(f"{name}_descale", handed.tensors[f"{name}_descale"], **handed.further)
        for b in range(3):
            assert np.array_equal(scales[b, :, : ends[b] - 2], d[b, :, : ends[b] - 2])
        assert handed.tensors[f"{name}_descale"].shape == handed.tensors[f"{name}_cache"].shape[:-1]


@pytest.mark.parametrize("cache", CACHES)
def test_the_replay_is_what_float32_computes(cache):
    """NumPy's own float32, and the conversions of PyTorch, make the same codes and scales of new tokens."""
    kernel = quantised_writes.made("made", cache, "append")
    problem = problem_of(cache, key_length=40, query_length=20)
    found = replayed(problem, subject_of(kernel).contract)
    new = appended.are_appended(problem)[:, 0]

    for name in "kv":
        x = appended.numbers(problem, name).astype(np.float32)
        scale = np.abs(x).max(-1, keepdims=True) / np.float32(CACHES[cache])
        quotient = torch.from_numpy(x / scale)
        codes = quotient.round() if cache == "int8" else quotient.to(torch.float8_e4m3fn).float()
        theirs, d = (getattr(found, each)[:, ::2] for each in (name, f"{name}_descale"))
        for b in range(3):
            assert np.array_equal(theirs[b, :, new[b]], codes.numpy()[b][:, new[b]].swapaxes(0, 1))
            assert np.array_equal(d[b, :, new[b]], scale[b][:, new[b]].swapaxes(0, 1))
            assert np.array_equal(theirs[b, :, ~new[b]], getattr(problem, name)[b][:, ~new[b]].swapaxes(0, 1))
        assert found.radius(name) is None


@pytest.mark.parametrize("steps", [{}, {"division_error": 4.0, "rounding": "toward_zero"}, {"least_scale": 0.5}])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("presentation", APPENDS)
def test_a_sound_kernel_is_within_its_bounds(presentation, cache, steps):
    kernel = quantised_writes.made("made", cache, presentation, fields_of=steps)
    for seed in range(3):
        problem = problem_of(cache, seed=seed, key_length=6 + seed)
        zeros = {name: np.where(np.arange(problem.key_length)[:, None] % 3, getattr(problem, name), 0) for name in "kv"}
        for each in (problem, problem.replace(**zeros)):
            assert_within_bound(subject_of(kernel), each, subject_of(kernel)(each))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_smoke_examination_refutes_the_mutant(name):
    assert verdict(MUTANTS[name].named_by, MUTANTS[name].kernel) == "refuted"


@pytest.mark.parametrize("property_id", [QUANTISED, LATER])
@pytest.mark.parametrize("dtype", per_token_head.dtypes)
def test_the_kernel_in_the_tree_holds(property_id, dtype):
    row, _ = search(load_all()[property_id], Subject(per_token_head, dtype), SMOKE, seed=0)

    assert str(row.verdict) == "held", row.message


def test_later_calls_are_judged_by_what_earlier_ones_have_left():
    subject = replace(subject_of(quantised_writes.made("made", "int8", "append_paged")), choices={"shapes": (1,)})
    problem = problem_of("int8", seqused_k=None)
    steps = [problem.take("Q", [i]).replace(seqused_k=np.full((3, 1, 1, 1), 6 + i)) for i in range(2)]

    (first, _), (second, answer) = subject.in_turn(steps)

    left = replayed(steps[0], subject.contract)
    assert np.array_equal(first.k, left.k[:, ::2])
    assert np.array_equal(second.k[:, :, 5], left.k[:, ::2, 5])
    assert np.array_equal(second.v_descale[:, :, 5], left.v_descale[:, ::2, 5])
    assert not np.array_equal(second.k[:, :, 5], steps[1].k[:, :, 5])
    assert np.array_equal(second.k[:, :, :5], steps[1].k[:, :, :5])
    assert_within_bound(subject.of_caches, second, answer)
    assert subject.of_caches.contract.quantisers == ()


def test_messages_name_the_token_and_what_is_wrong():
    def wrong(name, changed):
        right = quantised_writes.made("made", "int8", "append")

        def attention(*tensors, **options):
            found = right.function(*tensors, **options)
            changed(options[name] if name in options else tensors[1])
            return found

        return subject_of(replace(right, function=attention))

    problem = problem_of("int8", seqused_k=None)
    new, old = "position 6 of sequence 1 (row 1, place 6), head 0", "position 2 of sequence 1 (row 1, place 2), head 0"
    for name, change, text in (
        (
            "k_descale",
            lambda x: x[1, 6].mul_(2),
            f"{new}, where the scale of the new token, as its quantiser makes it, ",
        ),
        (
            "k_descale",
            lambda x: x[1, 2].mul_(2),
            f"in k_descale at {old}, where the number that was there must be after",
        ),
        ("k_cache", lambda x: x[1, 6].sub_(1), f"in k_cache at {new}, column 0, where the code of the new number "),
    ):
        with pytest.raises(Misbehaviour, match=re.escape(text)):
            wrong(name, change)(problem)


def declared(**changes):
    """Declare a kernel that quantises what it appends, with some other facts."""
    right = quantised_writes.made("made", "int8", "append")
    told = {"dtypes": right.dtypes, "supports": right.supports, "option_dtypes": SCALES, "always": tuple(SCALES)}
    told |= {"presentation": "append", "contract": right.contract}
    return emulate("made", PRECISE, **{**told, **changes})


def quantising(tensors="kv", **fields):
    """Return a contract with quantisers of these tensors for tokens that are appended."""
    made = tuple(Quantiser(of=name, block=1, over="appended", **fields) for name in tensors)
    return replace(FUSED, quantisers=made, output="bfloat16")


HOW = 'would have to append k_descale of new tokens, and the contract does not say how; add Quantiser(of="k", block=1, '
ELSEWHERE = 'the contract has a quantiser with over="appended", and calls append nothing; declare another over'


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"contract": "fused"}, HOW),
        ({"contract": quantising("k")}, "would have to append v_descale of new tokens"),
        ({"presentation": "decode"}, ELSEWHERE),
        ({"supports": ("k_descale", "v_descale", "descale_by_head")}, "appended k needs descale_by_key in supports"),
        ({"always": ("v_descale",)}, "every call that quantises appended k has a cache of scales; add k_descale to"),
        ({"contract": quantising(format="float8_e4m3fn")}, "codes in float8_e4m3fn, and the cache is of int8"),
        ({"contract": quantising(scale_dtype="float16")}, "declare option_dtypes={'k_descale': 'float16'}"),
        ({"contract": quantising(), "dtypes": ("int8",)}, "new k has the dtype of q, int8, and is not quantised"),
    ],
    ids=["no_quantiser", "keys_alone", "appends_nothing", "not_by_key", "not_always", "format", "scale", "narrow_q"],
)
def test_declarations_that_contradict_one_another_are_refused_by_name(changes, text):
    with pytest.raises(KernelError, match=re.escape(text)):
        declared(**changes)


def test_a_callable_without_a_declaration_appends_no_scales():
    assert PRESENTATIONS["append"].refusal("descale_by_key") == "since it would have to append the descales of new keys"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ({"of": "q", "block": 1}, 'over="appended" is one of k and v, which a call appends, not of q'),
        ({}, "needs block=1, not 'head': a cache has the scale of each token and head, of its numbers as they are"),
        ({"block": 1, "subtracts": "mean_of_keys"}, "needs subtracts=None, not 'mean_of_keys'"),
        (
            {"over": "buffer", "columns": 4, "least_scale": 1e-6},
            "least_scale is one of tokens, not of blocks of columns",
        ),
        ({"block": 1, "least_scale": -1.0}, "least_scale must be finite, 0 or more, not -1.0"),
    ],
)
def test_a_quantiser_of_appended_tokens_has_a_scale_for_each(steps, text):
    with pytest.raises(QuantiserError, match=re.escape(text)):
        Quantiser(**{"of": "k", "over": "appended", **steps})


def test_a_file_is_judged_here_and_in_a_process_of_its_own(folder):
    folder.joinpath("mine.py").write_text(KERNEL)
    here, there = (subject_of(of("mine.py:attention")) for of in (resolve, foreign.isolated))
    problem = problem_of("int8", value_dim=6)

    assert verdict(QUANTISED, here.kernel) == "held"
    assert bits.identical(there(problem)["output"], here(problem)["output"]).all()
    folder.joinpath("mine.py").write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    with pytest.raises(Misbehaviour, match="the scale of the new token, as its quantiser makes it"):
        subject_of(foreign.isolated("mine.py:attention"))(problem)


def test_a_script_fails_until_scales_are_right(folder, capsys):
    file = folder / "mine.py"
    file.write_text(KERNEL.replace("WRONG = False", "WRONG = True"))
    subject = subject_of(resolve("mine.py:attention"))
    _, case = search(load_all()[QUANTISED], subject, PROFILES["smoke"], 0)
    written = script.write(case, load_all()[QUANTISED], subject, file.with_name("script.py"))
    assert_fails_until_mended(written, file, KERNEL, "mine.py:attention", capsys)


@pytest.mark.parametrize(("division_error", "ulps"), [(0.0, 0), (2.0, 1)])
def test_a_scale_may_be_as_far_from_its_replay_as_its_division_may_be_off(division_error, ulps):
    quantiser = Quantiser(of="k", format="int8", block=1, over="appended", division_error=division_error)
    found = written(quantiser, np.random.default_rng(0).standard_normal((2, 3, 2, 4)))
    scales = np.float32(found.scales)
    off = np.abs(scales + ulps * np.spacing(scales) - scales.astype(np.float64))

    allowed = open_scales(found)
    assert (off <= allowed).all()
    assert (allowed <= 4 * off).all()
