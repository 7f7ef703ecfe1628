"""Calls of latent attention hand over keys alone, in one cache or two; kernels of plain NumPy that read them are right.

Twins that misread one argument are not.
"""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.emulation.kernels import emulate, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.presentations.packing.latent_calls import LatentCalls
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe
from tests.kernels.presentations.packing.test_plain_packed_kernels import ALONE, attend, keys_of, rows_behind, verdict

LATENT = {name: row for name, row in PRESENTATIONS.items() if isinstance(row, LatentCalls)}
ABSORBED = "latent.absorbing_the_projections_changes_nothing"
RECIPE = Recipe(
    batch=3, query_heads=4, query_length=5, key_length=7, head_dim=6, value_dim=4, latent=True, scale=0.3,
    causal=True, seqused_q="ragged@B111", seqused_k="ragged@B111", seed=1,
)  # fmt: skip


def fitting(name):
    """Return the recipe with the changes without which the presentation cannot say it."""
    return replace(RECIPE, query_length=1, seqused_q=None) if LATENT[name].limits.query_lengths == (1,) else RECIPE


def parts_of(name, tensors, head_dim_v):
    """Return q, k and v of a call, with a head axis each."""
    if len(tensors) == 2:
        q, kv = tensors
        return q, kv, kv[..., :head_dim_v]
    *q, ckv, kpe = tensors
    ckv, kpe = ckv[..., None, :], kpe[..., None, :]
    return np.concatenate(q, axis=-1), np.concatenate([ckv, kpe], axis=-1), ckv


def made(name, misread=lambda *tensors, **arguments: (tensors, arguments)):
    """Return a kernel of a presentation that attends sequence by sequence; ``misread`` may change what it is given."""

    @kernel(
        name=f"plain_{name}",
        framework="numpy",
        dtypes=("float32",),
        contract="eager",
        supports=("causal", "gqa", "cross", "lse"),
        conventions={"causal_alignment": "bottom_right", "unused": "unread"},
        presentation=name,
    )
    def attention(*tensors, scale, causal=False, **arguments):
        tensors, arguments = misread(*tensors, **arguments)
        q, k, v = parts_of(name, tensors, arguments.pop("head_dim_v", None))
        if "kv_len_arr" in arguments:
            lengths, pages = arguments.pop("kv_len_arr"), np.diff(arguments["kv_indptr"])
            arguments["kv_last_page_len"] = lengths - (pages - 1) * k.shape[1]
        if "sparse_indices" in arguments:
            slots = [row[row >= 0] for row in arguments.pop("sparse_indices")]
            arguments["block_table"], arguments["seqused_k"] = slots, [len(row) for row in slots]
            k, v = (x.reshape(-1, 1, *x.shape[2:]) for x in (k, v))
        out = np.full((*q.shape[:-1], v.shape[-1]), np.nan, dtype=np.float32)
        lse = np.full(out.shape[:-1], np.nan, dtype=np.float32)
        for there, seen in zip(rows_behind(q, **arguments), keys_of(k, **arguments), strict=True):
            out[there], lse[there] = attend(q[there], k[seen], v[seen], scale, causal)
        return out, lse if PRESENTATIONS[name].limits.query_lengths == (1,) else lse.swapaxes(-1, -2)

    return attention


@pytest.mark.parametrize("name", LATENT)
def test_the_answer_is_that_of_the_rectangle(name):
    problem = fitting(name).problem()
    supports = ("causal", "causal_alignment", "gqa", "cross", "lse")
    rectangle = emulate("k", PRECISE, supports=(*supports, "scale", "dv", "latent", "seqused_q", "seqused_k"))

    for unused in ("unread", "finite"):
        own = emulate_both("k", PRECISE, presentation=name, supports=supports, conventions={"unused": unused})
        found, expected = (Subject(each, "float32")(problem) for each in (own, rectangle))
        for quantity in ("output", "lse"):
            assert bits.identical(found[quantity], expected[quantity]).all(), (quantity, unused)


@pytest.mark.parametrize("name", LATENT)
def test_a_call_has_keys_alone_and_says_how_wide_values_are(name):
    problem = fitting(name).problem()
    handed = LATENT[name].handed(problem, unread=True)

    assert tuple(handed.tensors) == LATENT[name].tensors
    assert handed.further.get("head_dim_v", 4) == 4
    assert ("head_dim_v" in handed.further) == ("kv" in handed.tensors)
    widths = {each: x.shape[-1] for each, x in handed.tensors.items()}
    assert {"kv": 6, "ckv": 4, "kpe": 2, "q": 6, "q_nope": 4, "q_pe": 2}.items() >= widths.items()
    used = Recipe.problem(replace(fitting(name), seqused_q=None)).k if name == "mla_joined" else problem.k
    keys = handed.tensors["kv"] if "kv" in handed.tensors else handed.tensors["ckv"]
    own = keys[~np.isnan(keys)]
    assert own.size
    assert np.isin(own, used).all()


@pytest.mark.parametrize("name", LATENT)
def test_a_kernel_that_reads_the_call_by_hand_is_right(name):
    for asked in (ALONE, ABSORBED):
        assert verdict(made(name), asked, 3) == ("held", "")


def another_page(*tensors, **arguments):
    return (*tensors[:-1], np.roll(tensors[-1], 1, axis=0)), arguments


def swapped(q_nope, q_pe, ckv, kpe, **arguments):
    return (q_pe, q_nope, ckv, kpe), arguments


def nothing_in_a_full_page(*tensors, **arguments):
    """Return a call whose last pages count as empty where they are full."""
    size = tensors[2].shape[1]
    return tensors, {**arguments, "kv_last_page_len": arguments["kv_last_page_len"] % size}


def in_order(*tensors, **arguments):
    """Return a call whose keys are taken from the first slots on."""
    listed = arguments["sparse_indices"]
    return tensors, {"sparse_indices": np.where(listed < 0, -1, np.arange(listed.shape[1]))}


def reversed_columns(q, kv, **arguments):
    """Return a call whose keys are read from their last column to the first."""
    return (q, kv[..., ::-1].copy()), arguments


@pytest.mark.parametrize(
    ("name", "misread"),
    [
        ("mla_paged_apart", another_page),
        ("mla_csr", swapped),
        ("mla_csr_last_page", nothing_in_a_full_page),
        ("mla_decode", reversed_columns),
        ("mla_decode_csr", swapped),
        ("mla_sparse", in_order),
    ],
)
def test_a_twin_that_misreads_the_call_is_refuted(name, misread):
    assert verdict(made(name, misread), ABSORBED, 10)[0] == "refuted"


def test_what_every_call_has_need_not_be_declared():
    own = made("mla_paged")

    assert {"latent", "scale", "dv", "seqused_k"} <= own.supports
    assert own.limits.always == ("latent", "scale", "dv")
    assert own.limits.kv_heads == (1,)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"kv_heads": (2,)}, r"kv_heads=\(2,\) has none of the numbers \(1,\), which calls in the presentation mla_pa"),
        ({"head_dims": (64,)}, r"head_dims \(64,\) leave values as wide as keys; declare pairs, such as"),
    ],
)
def test_what_a_call_cannot_say_is_an_error(declared, message):
    with pytest.raises(KernelError, match=message):
        kernel(framework="numpy", dtypes=("float32",), presentation="mla_paged", **declared)(attend)


def test_gradients_of_keys_in_two_caches_are_an_error():
    with pytest.raises(KernelError, match="cannot pass backward, since no released kernel has gradients of a key in"):
        kernel(framework="numpy", dtypes=("float32",), presentation="mla_csr", supports=("backward",))(attend)
    with pytest.raises(KernelError, match="a call in the presentation mla_paged_apart has no gradients, since no rel"):
        made("mla_paged_apart").backward(attend)
