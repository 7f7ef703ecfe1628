"""Packed calls hand over each query and key once, poison elsewhere, and bring answers and gradients back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import kernel
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.appending.extend import Extend
from attn_spec.kernels.presentations.packing.latent_calls import LatentCalls
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.slots import Slots
from attn_spec.kernels.presentations.placement import TAILS, Placement
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe

#: Packed calls with values that append nothing and have no new keys apart; the others have tests of their own, in
#: ``test_latent_calls.py``, ``test_append.py`` and ``test_extend.py``.
PACKED = {
    name: row
    for name, row in PRESENTATIONS.items()
    if isinstance(row, Packed) and not isinstance(row, LatentCalls | Extend) and not row.appends
}
WHERE = ("block_table", "seqused_k")
SUPPORTS = ("causal", "causal_alignment", "alibi_slopes", "gqa", "cross", "dv", "lse", "seqused_k")
RECIPE = Recipe(
    batch=3, query_heads=4, kv_heads=2, query_length=5, key_length=7, head_dim=6, value_dim=2, causal=True,
    seqused_q="ragged@B111", seqused_k="ragged@B111", alibi_slopes="geometric@BH11", seed=1,
)  # fmt: skip
#: Recipes of several shapes, so that every kind of poison is drawn.
SHAPES = [Recipe(batch=2, query_length=n, key_length=n + 1, seqused_k="one_less@B111", seed=n) for n in range(1, 25)]


@pytest.fixture(params=PACKED)
def name(request):
    return request.param


def subject(name, *further, **conventions):
    supports = [each for each in (*SUPPORTS, *further) if PRESENTATIONS[name].can_say(each)]
    declared = {"supports": supports, "presentation": name, "conventions": conventions}
    return Subject(emulate_both("k", PRECISE, **declared), "float32")


def fitting(name, recipe):
    """Return the recipe with the changes without which the presentation cannot say it."""
    shown = PACKED[name]
    if shown.limits.query_lengths == (1,):
        return replace(recipe, query_length=1, seqused_q=None)
    recipe = replace(recipe, value_dim=recipe.head_dim) if shown.joined else recipe
    recipe = recipe if shown.can_say("alibi_slopes") else replace(recipe, alibi_slopes=None)
    equal = {"query_length": recipe.key_length, "kv_heads": recipe.query_heads, "equal_lengths": True}
    return replace(recipe, **equal) if shown.joined == "qkv" else recipe


def apart(name, handed):
    """Return q, k and v of a call by name."""
    return dict(zip("qkv", PACKED[name].apart(*(handed.tensors[each] for each in PACKED[name].tensors)), strict=True))


def handed_with_places(name, recipe, *, unread):
    """Return what is handed over for a problem, and k as the problem has it, with 0 in place of poison."""
    problem = fitting(name, recipe).problem()
    handed = PACKED[name].handed(problem, unread=unread)
    arguments = {**apart(name, handed), **handed.further}
    marked = np.where(problem.keys_there[..., None], problem.k, 0.0)
    return problem, arguments["k"], PACKED[name].presented("k", marked, **arguments), arguments


def test_slots_are_filled_and_read_back():
    slots = Slots(4, np.array([[2, -1], [0, 3]]))
    x = np.arange(1.0, 9.0).reshape(2, 2, 2, 1)

    filled = slots.fill(x, -5.0)

    assert filled[:, :, 0].tolist() == [[5.0, 7.0], [-5.0, -5.0], [1.0, 3.0], [6.0, 8.0]]
    assert slots.free.tolist() == [False, True, False, False]
    assert slots.fill(x, None)[1, :, 0].tolist() == [1.0, 3.0]
    assert slots.back(filled)[:, :, :, 0].tolist() == [[[1.0, 0.0], [3.0, 0.0]], [[5.0, 6.0], [7.0, 8.0]]]


def test_a_packed_answer_and_its_gradients_are_those_of_the_rectangle(name):
    problem = fitting(name, RECIPE).problem()
    dO = np.random.default_rng(0).standard_normal(problem.output_shape).round(2)
    dL = np.full(dO.shape[:3], 0.5)

    for conventions in ({"unused": "unread"}, {"unused": "finite"}):
        rectangle, packed = subject("BHSD", "seqused_q", **conventions), subject(name, **conventions)
        for quantity in ("output", "lse"):
            assert bits.identical(packed(problem)[quantity], rectangle(problem)[quantity]).all(), quantity
        expected = rectangle.gradients(problem, dO, lse_cotangent=dL)
        found = packed.gradients(problem, dO, lse_cotangent=dL)
        assert found.keys() == expected.keys() == {"dq", "dk", "dv"}
        assert all((found[each] == expected[each]).all() for each in found)


@pytest.mark.parametrize("name", ["BSHD_lengths", "decode"])
def test_padding_on_the_left_is_a_list_beside_a_rectangle_of_keys(name):
    problem = fitting(name, replace(RECIPE, leftpad_k="ragged@B111")).problem()
    handed = PACKED[name].handed(problem).tensors["leftpad_k"]
    rectangle = subject("BHSD", "seqused_q", "leftpad_k")(problem)["output"]

    assert handed.dtype == np.int32
    assert handed.tolist() == problem.first_keys.tolist()
    assert handed.max() > 0
    assert bits.identical(subject(name, "leftpad_k")(problem)["output"], rectangle).all()


def test_without_lengths_every_sequence_is_whole(name):
    problem = fitting(name, Recipe(batch=2, query_length=3, key_length=4)).problem()

    assert bits.identical(subject(name)(problem)["output"], subject("BHSD")(problem)["output"]).all()


@pytest.mark.parametrize("unread", [True, False])
def test_free_slots_hold_poison_of_both_kinds(name, unread):
    kinds = set()
    for recipe in SHAPES:
        problem, k, marked, _ = handed_with_places(name, recipe, unread=unread)
        free = k[marked != k]
        assert free.size
        own = np.isin(free, problem.k).all()
        kinds.add("others" if own else "nan" if np.isnan(free).all() else "large")
        assert own or unread == bool(np.isnan(free).all())

    assert kinds == {"others", "nan" if unread else "large"}


def test_a_finite_poison_times_a_query_overflows_no_format(name):
    for recipe in SHAPES:
        problem, k, *_ = handed_with_places(name, recipe, unread=False)
        scores = np.abs(problem.q).sum(-1).max() * np.abs(k).max() * abs(problem.scale_value)
        assert 0 < scores <= 2.0**9 * (1 + 2.0**-20) or np.isin(k, problem.k).all()


def test_equal_shapes_are_handed_over_alike_whatever_the_values(name):
    shapes = {}
    for seed in range(4):
        _, k, _, arguments = handed_with_places(name, Recipe(batch=3, key_length=9, seed=seed), unread=True)
        shapes.setdefault(k.shape, []).append(
            {n: np.asarray(x).tolist() for n, x in arguments.items() if n not in "qkv"}
        )

    assert len(shapes) == 1
    (alike,) = shapes.values()
    assert all(one == alike[0] for one in alike)


def test_stated_longest_lengths_are_exact_or_larger():
    larger = []
    for recipe in SHAPES:
        problem = recipe.problem()
        further = PACKED["THD"].handed(problem).further
        larger.append(further["max_seqlen_k"] - int(problem.end_keys.max()))

    assert min(larger) == 0
    assert max(larger) > 1


def test_a_stated_longest_length_is_at_least_1():
    """A kernel launches a grid for it, and CUDA launches no empty one."""
    problem = replace(RECIPE, seqused_q="none@B111", seqused_k="none@B111").problem()

    of_shapes = [problem.take("H", range(heads)) for heads in (1, 2)]
    further = [PACKED["THD"].handed(one).further for one in (problem, *of_shapes)]
    assert min(found[f"max_seqlen_{side}"] for found in further for side in "qk") >= 1


def test_a_kernel_takes_the_lengths_that_its_calls_carry(name):
    made = kernel(framework="numpy", dtypes=("float32",), presentation=name)(lambda q, k, v, **_: q)

    assert PACKED[name].carries <= made.supports
    assert "seqused_k" in made.supports


def test_integers_have_the_dtype_that_a_kernel_declares():
    seen = {}

    @kernel(framework="torch", dtypes=("float32",), presentation="token_pool", index_dtypes={"kv_indices": "int64"})
    def attention(q, k, v, *, kv_indptr, kv_indices, **_):
        seen.update(kv_indptr=kv_indptr.dtype, kv_indices=kv_indices.dtype)
        return q

    Subject(attention, "float32")(Recipe(query_length=2).problem())

    assert seen == {"kv_indptr": torch.int32, "kv_indices": torch.int64}


def test_bounds_that_the_kernel_changes_are_told():
    @kernel(framework="numpy", dtypes=("float32",), presentation="THD")
    def attention(q, k, v, *, cu_seqlens_q, **_):
        cu_seqlens_q[0] = 1
        return q

    with pytest.raises(Misbehaviour, match="the kernel changed its input cu_seqlens_q in place"):
        Subject(attention, "float32")(Recipe(query_length=2).problem())


def test_a_wrong_shape_is_told_in_the_terms_of_the_buffer():
    problem = Recipe(batch=2, query_length=3, key_length=3, head_dim=4, value_dim=4).problem()
    made = kernel(framework="numpy", dtypes=("float32",), presentation="THD")(lambda q, k, v, **_: q[:-1])

    with pytest.raises(Misbehaviour, match=r"out has shape \(8, 1, 4\); it must be \(9, 1, 4\)"):
        Subject(made, "float32")(problem)


def test_pages_of_a_table_hold_the_keys_of_its_sequences_in_order():
    """Pages of several sizes are drawn, in an order of chance; the table goes on with a page of nobody."""
    sizes, consecutive = set(), []
    for recipe in SHAPES:
        problem = recipe.problem()
        handed = PACKED["paged"].handed(problem, unread=True)
        cache, table, used = handed.tensors["k"], *map(np.asarray, (handed.further[n] for n in WHERE))
        sizes.add(cache.shape[1])
        for entry, (pages, length) in enumerate(zip(table, used, strict=True)):
            needed = -(-length // cache.shape[1])
            keys = cache[pages[:needed]].reshape(-1, *cache.shape[2:])[:length]
            assert (keys == problem.k[entry, :, :length].swapaxes(0, 1)).all()
            assert (cache[pages[needed:]] != cache[pages[needed:]]).all() or np.isin(
                cache[pages[needed:]], problem.k
            ).all()
            consecutive += (np.diff(pages[:needed]) == 1).tolist()

    assert sizes == {1, 3, 4, 16}
    assert not all(consecutive)


def test_a_kernel_is_given_pages_of_the_sizes_that_it_takes():
    declared = {"supports": ("cross",), "presentation": "paged", "page_sizes": (8, 32)}
    shown = Subject(emulate_both("k", PRECISE, **declared), "float32").presentation

    assert {shown.handed(recipe.problem()).tensors["k"].shape[1] for recipe in SHAPES} == {8, 32}


@pytest.mark.parametrize("name", ["THD", "THD_gaps", "paged_csr", "token_pool"])
def test_a_tight_call_has_nothing_behind_the_last_sequence(name):
    """Buffers end where the bounds do, lists of pages with the last page; the answer stays the same."""
    problem = RECIPE.problem()
    loose, tight = subject(name), replace(subject(name), choices={"tight": True})
    handed = tight.presentation.handed(problem)
    bounds = {x: y for x, y in handed.further.items() if "indptr" in x or "cu_seqlens" in x}
    last = {n: int(bounds.get(f"{n}_padded", x)[-1]) for n, x in bounds.items() if not n.endswith("padded")}

    ends = {"q": next(iter(last.values()))} | ({} if "kv_indices" in handed.further else {"k": [*last.values()][-1]})
    assert {each: len(handed.tensors[each]) for each in ends} == ends
    assert len(handed.further.get("kv_indices", ())) == last.get("kv_indptr", 0)
    for quantity, x in tight(problem).items():
        assert bits.identical(x, loose(problem)[quantity]).all()


@pytest.mark.parametrize("name", ["THD", "segments", "paged", "paged_csr"])
def test_some_calls_end_with_their_last_sequence_unless_few_signatures_are_to_recur(name):
    tried = subject(name)
    few = replace(tried, kernel=replace(tried.kernel, signatures=2))
    problems = [recipe.problem() for recipe in SHAPES]

    ends = [tried.presentation.handed(problem) for problem in problems]
    for problem, handed in zip(problems, ends, strict=True):
        rows = int(problem.used_queries.sum())
        if tried.presentation.placement.is_tight(problem):
            assert len(handed.tensors["q"]) == rows
            if "block_table" in handed.further:
                size = handed.tensors["k"].shape[1]
                assert handed.further["block_table"].shape[1] == -(-problem.end_keys.max() // size)
        else:
            assert len(handed.tensors["q"]) > rows
    tight = sum(tried.presentation.placement.is_tight(problem) for problem in problems)
    assert 4 <= tight <= 12
    assert not any(few.presentation.placement.is_tight(problem) for problem in problems)


def test_a_call_without_a_query_or_a_key_has_free_slots():
    tried = subject("THD")

    for n in range(1, 13):
        problem = Recipe(batch=2, query_length=n, key_length=n, seqused_k="none@B111", seed=n).problem()
        assert len(tried.presentation.handed(problem).tensors["k"]) > 0
        assert not tried.presentation.placement.is_tight(problem)


def test_a_tail_of_a_table_has_pages_of_the_cache_unless_anything_may_be_there():
    numbers = {}
    for convention, tails in TAILS.items():
        shown = PACKED["paged"].placed(Placement(tails=tails))
        numbers[convention] = set()
        for recipe in SHAPES:
            handed = shown.handed(recipe.problem())
            table, used = (np.asarray(handed.further[each]) for each in WHERE)
            pages, size = handed.tensors["k"].shape[:2]
            tail = table[np.arange(table.shape[1]) >= -(-used // size)[:, None]]
            numbers[convention] |= {*tail[tail < 0].tolist(), *(["larger"] if (tail >= pages).any() else [])}

    assert numbers == {"page": set(), "any": {-1, "larger"}}


@pytest.mark.parametrize("name", ["paged", "paged_csr", "token_pool"])
def test_sequences_share_the_full_pages_at_their_beginning_that_are_equal(name):
    problem = Recipe(batch=3, key_length=9, head_dim=2, value_dim=2, seqused_k="last_shorter@B111").problem()
    k, v = (np.repeat(x[:1], 3, axis=0) for x in (problem.k, problem.v))
    v[1, :, 5:] *= -1
    problem = problem.replace(k=k, v=v)
    shown = PACKED[name].placed(Placement(page_sizes=(4,), shares_pages=True))
    handed = shown.handed(problem)
    of = shown.slots("k", handed.tensors["k"].shape[:-2], handed.further).of

    size = 1 if name == "token_pool" else 4
    ends = problem.end_keys
    for entry, equal in ((1, 5), (2, 9)):
        full = min(equal, ends[0], ends[entry]) // size * size
        assert (of[entry, :full] == of[0, :full]).all()
        assert not set(of[entry, full : ends[entry]].tolist()) & set(of[0].tolist())


def test_a_gap_lies_behind_most_sequences():
    further = PACKED["THD_gaps"].handed(Recipe(batch=50, query_length=2, key_length=3).problem()).further
    padded, bounds = (np.asarray(further[each]) for each in ("cu_seqlens_k_padded", "cu_seqlens_k"))
    gaps = np.diff(padded) - np.diff(bounds)

    assert set(gaps.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["BSHD_lengths", "THD_gaps"])
def test_rows_behind_a_sequence_are_looked_at_if_a_kernel_promises_zeros(name):
    problem = Recipe(batch=3, query_length=6, key_length=6, seqused_q="one_less@B111").problem()
    right = emulate_both("k", PRECISE, presentation=name, supports=("cross",), conventions={"unused_rows": "zero"})

    def attention(*tensors, **options):
        return right.function(*tensors, **options) + torch.ones(())

    output = Subject(replace(right, function=attention, backward_function=None), "float32")(problem)["output"]
    behind = ~np.broadcast_to(problem.there, output.shape[:3])
    assert behind.any()
    assert (output[behind] == 1).any()


def test_heads_are_expanded_in_buffers_of_any_number_of_axes(name):
    recipe = Recipe(batch=2, query_heads=2, kv_heads=2, query_length=3, key_length=4)
    problem = fitting(name, recipe).problem()
    problem = problem.replace(**{x: np.repeat(getattr(problem, x)[:, :1], 2, axis=1) for x in "qkv"})
    shown, given = PACKED[name], PACKED[name].handed(problem).tensors

    for each in shown.tensors:
        expanded = shown.expanding("BH")(given[each])
        axes = list(shown.places("q" if each == "q" else "k").axes)
        if each == shown.joined:
            axes.insert(shown.joined_at, each)
        assert expanded.strides[axes.index("H")] == 0
        assert np.array_equal(expanded, given[each])
