"""Descales of packed calls lie by sequence or where the keys lie, with poison in slots that nobody may read."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels import by_hand
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.presentations import placement
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.slots import Slots
from attn_spec.kernels.presentations.placement import LARGE, LARGEST_PRODUCT, Placement
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.problem.abilities import DESCALE_AXES
from attn_spec.problem.options import FACTORS
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.regimes import Recipe

PACKED = {name: row for name, row in PRESENTATIONS.items() if isinstance(row, Packed) and row.can_say("k_descale")}
BY_KEY = {name: row for name, row in PACKED.items() if row.can_say("descale_by_key")}
RECIPE = Recipe(
    batch=3, query_heads=4, kv_heads=2, query_length=3, key_length=7, head_dim=4, value_dim=4, scale=0.5, seed=1,
    seqused_q="ragged@B111", seqused_k="ragged@B111",
    q_descale="spread@BG11", k_descale="spread@BG11", v_descale="near_one@BG11",
)  # fmt: skip


def fitting(name, recipe):
    """Return the problem of a recipe, changed to one that calls of the presentation can say."""
    row = PACKED[name]
    if "latent" in row.carries:
        recipe = replace(recipe, latent=True, kv_heads=1, value_dim=2)
    if row.limits.query_lengths == (1,):
        recipe = replace(recipe, query_length=1)
    if row.joined == "qkv":
        recipe = replace(recipe, query_length=recipe.key_length, kv_heads=4, equal_lengths=True)
    if row.limits.keys_reach_queries:
        recipe = replace(recipe, keys_reach_queries=True)
    unsaid = {} if "seqused_q" in row.carries else {"seqused_q": None}
    return replace(recipe, **unsaid).problem()


@pytest.mark.parametrize("name", PACKED)
def test_one_number_of_a_head_is_handed_over_by_sequence(name):
    problem = fitting(name, RECIPE)
    handed = PACKED[name].handed(problem)
    for each in FACTORS:
        assert np.array_equal(handed.tensors[each], getattr(problem, each)[:, :, 0, 0])


@pytest.mark.parametrize("name", BY_KEY)
def test_one_number_of_a_tensor_is_handed_over_for_each_sequence(name):
    problem = fitting(name, replace(RECIPE, **dict.fromkeys(FACTORS, "half@1111")))
    handed = PACKED[name].handed(problem)
    assert all(np.array_equal(handed.tensors[each], np.full((3, problem.kv_heads), 0.5)) for each in FACTORS)


@pytest.mark.parametrize("unread", [True, False])
@pytest.mark.parametrize("name", BY_KEY)
def test_numbers_of_keys_lie_where_the_keys_do(name, unread):
    """The first column of each key is its descale."""
    poisoned = set()
    for seed in range(6):
        problem = fitting(name, replace(RECIPE, key_length=6 + seed, seed=seed, k_descale="spread@BGK1"))
        k = problem.k.copy()
        k[..., 0] = problem.k_descale[..., 0]
        problem = problem.replace(k=k, **({"v": k[..., : problem.value_dim]} if problem.latent else {}))
        row = PACKED[name]
        handed = row.handed(problem, unread=unread)
        tensors = [handed.tensors[each] for each in row.tensors]
        _, keys, _ = row.apart(*tensors, **handed.further)
        axes = [axis for axis in row.keys.axes if axis != "D"]
        assert handed.tensors["k_descale"].shape == keys.shape[:-1], axes
        own = row.presented("k", np.ones_like(problem.k), q=keys, k=keys, **handed.further)[..., 0] == 1
        assert np.array_equal(handed.tensors["k_descale"][own], keys[..., 0][own])
        poisoned |= {float(x) for x in handed.tensors["k_descale"][~own] if x not in problem.k_descale}
    assert len(poisoned) > 0
    assert all(np.isnan(x) if unread else x > np.exp2(4) for x in poisoned)


def test_a_placement_hands_over_one_number_for_each_key():
    """A kernel that takes descales by key is handed such, though a problem has one number of a head."""
    problem = fitting("paged", RECIPE)
    handed = PACKED["paged"].handing(descales_by_key=True).handed(problem)
    assert handed.tensors["k_descale"].shape == handed.tensors["k"].shape[:-1]
    assert handed.tensors["q_descale"].shape == (3, 2)
    made = emulate("made", PRECISE, presentation="paged", supports=("k_descale", *DESCALE_AXES))
    assert Subject(made, "float32").presentation.placement.descales_by_key


@pytest.mark.parametrize("unused", ["unread", "finite"])
@pytest.mark.parametrize("abilities", [("descale_by_head",), tuple(DESCALE_AXES)])
@pytest.mark.parametrize("name", PACKED)
def test_a_sound_kernel_of_any_presentation_is_within_its_bounds(name, abilities, unused):
    row = PACKED[name]
    able = ("scale", "gqa", "cross", "dv", "lse", "latent", *FACTORS, *abilities)
    supports = [each for each in able if row.can_say(each)]
    made = emulate("made", PRECISE, presentation=name, supports=supports, conventions={"unused": unused})
    by_key = {"k_descale": "spread@BGK1", "v_descale": "near_one@1GK1"} if "descale_by_key" in supports else {}
    for seed in range(3):
        problem = fitting(name, replace(RECIPE, key_length=6 + seed, seed=seed, **by_key))
        subject = Subject(made, "float32")
        assert_within_bound(subject, problem, subject(problem))


def test_sequences_share_no_pages_whose_descales_differ():
    problem = fitting("paged", replace(RECIPE, seqused_q=None, seqused_k=None, key_length=8, v_descale="half@1111"))
    k, v = (np.broadcast_to(x[:1], x.shape) for x in (problem.k, problem.v))
    shared = Placement(shares_pages=True, page_sizes=(4,))

    def tables(**descales):
        row = PACKED["paged"].placed(shared)
        table = row.handed(problem.replace(k=k, v=v, **descales)).further["block_table"]
        return table[:, :2].T

    differing = np.array(problem.k_descale)
    assert all(len(set(column)) == 1 for column in tables(k_descale=differing))  # lie by sequence, in no page
    by_key = np.broadcast_to(differing[:1], (3, 2, 8, 1)).copy()
    assert all(len(set(column)) == 1 for column in tables(k_descale=by_key))
    by_key[1, 1, 5] *= 2
    first, second = tables(k_descale=by_key)
    assert len(set(first)) == 1
    assert second[1] != second[0] == second[2]


def test_finite_poison_and_its_descale_overflow_no_format():
    """The product of a poisoned key, its poisoned scale and a query is at most as large as without descales."""
    seen = 0
    for seed in range(40):
        problem = replace(RECIPE, key_length=3 + seed, k_descale="one_huge@BGK1", seed=seed).problem()
        of = {name: placement.poison(problem, name, False, by_key=True) for name in ("k", "v", "k_descale")}
        if None in of.values():
            continue
        seen += 1
        reach = 0.5 * np.abs(problem.q).sum(-1).max() * problem.q_descale.max()
        assert of["k_descale"] == LARGE * problem.k_descale.max()
        assert reach * of["k"] * of["k_descale"] <= 1.01 * LARGEST_PRODUCT
        assert of["v"] * LARGE * problem.v_descale.max() <= 1.01 * LARGE
    assert seen > 20


@pytest.mark.parametrize(
    ("presentation", "supports", "reason"),
    [
        ("extend", ("k_descale",), "since new keys are not stored yet, and those before them alone have a descale"),
        ("mla_csr", ("k_descale", "descale_by_key"), "since the parts of a key in two caches have no descale in com"),
    ],
)
def test_descales_that_no_call_can_pass_are_refused_by_name(presentation, supports, reason):
    with pytest.raises(KernelError, match=f"cannot pass {supports[-1]}, {reason}"):
        emulate("made", PRECISE, presentation=presentation, supports=supports)


def test_tensors_by_hand_have_a_number_for_each_key_where_a_problem_has():
    problem = fitting("paged", replace(RECIPE, k_descale="near_one@11K1"))
    given = by_hand.tensors(problem, presentation="paged")
    assert given["k_descale"].shape == given["k"].shape[:-1]
    assert given["v_descale"].shape == (3, 2)


def test_slots_of_eight_bits_are_read_back():
    slots = Slots(4, np.array([[2, -1], [0, 3]]))
    x = torch.arange(1.0, 9.0).reshape(4, 1, 2).to(torch.float8_e4m3fn)

    assert slots.back(x).float().tolist() == [[[[5, 6], [0, 0]]], [[[1, 2], [7, 8]]]]
