"""Attention over ranks: two keys by hand, any number of ranks in any layout, and merges that the bound counts."""

import math
from dataclasses import replace

import pytest
import torch
from attn_spec.implementations import torch_tiled
from attn_spec.reports.proof.zoo.ranks import GradientsTravelNarrow, RingOutputsNarrow

from attn_spec.emulation.ranks import contiguous, striped, zigzag
from attn_spec.emulation.ring import RingRank, TreeRank, merging, over_ranks
from attn_spec.kernels.subject import Subject
from attn_spec.search import property as properties
from attn_spec.search.profiles import Profile
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTIES = properties.load_all()
PROGRAMS = pytest.mark.parametrize("program", [RingRank, TreeRank])


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(1, 1, -1, 1)


@PROGRAMS
def test_two_keys_on_two_ranks_by_hand(program):
    """Scores 0 and log 3 weigh 1/4 and 3/4. Values 0 and 4 give 3, and dS = p (dP - delta) is -3/4 and 3/4."""
    kernel = over_ranks("by_hand", program, 2)
    q, k, v, dout = tensor(1.0), tensor(0.0, math.log(3)), tensor(0.0, 4.0), tensor(1.0)

    out, lse = kernel(q, k, v, scale=1.0)
    dq, dk, dv = kernel.backward_function(dout, q, k, v, out, lse, scale=1.0)

    def close(got, *expected):
        torch.testing.assert_close(got.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)

    close(out, 3.0)
    close(lse, math.log(4))
    close(dq, 0.75 * math.log(3))
    close(dk, -0.75, 0.75)
    close(dv, 0.25, 0.75)


OPTIONS = ({}, {"causal": True, "scale": 0.3}, {"causal": True, "causal_alignment": "bottom_right"})
#: Shards of several lengths; some without a query, some without a key; no key at all, no query at all.
LENGTHS = ((7, 7), (16, 16), (2, 9), (9, 2), (1, 1), (3, 0), (0, 3))


@PROGRAMS
@pytest.mark.parametrize("layout", [contiguous, zigzag, striped])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_ranks_in_any_layout_agree_with_one_process(program, layout, ranks):
    kernel = over_ranks("any", program, ranks, layout=layout)
    generator = torch.Generator().manual_seed(ranks)
    for (Sq, Sk), options in ((lengths, options) for lengths in LENGTHS for options in OPTIONS):
        shapes = ((4, Sq, 5), (2, Sk, 5), (2, Sk, 3), (4, Sq, 3), (4, Sq))
        q, k, v, dO, dL = (torch.randn(2, *s, generator=generator, dtype=torch.float64) for s in shapes)
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        expected = torch_tiled.attention(*inputs, **options)
        seen = expected[1].isfinite()
        total = (expected[0] * dO).sum() + (expected[1].masked_fill(~seen, 0.0) * dL).sum()

        out, lse = kernel(q, k, v, **options)
        gradients = kernel.backward_function(dO, q, k, v, out, lse, dlse=dL, **options)

        torch.testing.assert_close((out, lse), tuple(x.detach() for x in expected), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(gradients, torch.autograd.grad(total, inputs), rtol=1e-12, atol=1e-12)


def test_a_key_passes_a_merge_for_each_other_rank_of_a_ring_and_for_each_level_of_a_tree():
    assert [RingRank.merges(ranks) for ranks in range(1, 6)] == [0, 1, 2, 3, 4]
    assert [TreeRank.merges(ranks) for ranks in range(1, 6)] == [0, 1, 2, 2, 3]
    assert over_ranks("four", RingRank, 4).contract_for("float32").lse_merges == 3
    assert over_ranks("four", TreeRank, 4).contract_for("float64").lse_merges == 2


def verdict(name, program, examples, **contract):
    """Return the verdict of a property on a ring of eight in bfloat16, whose contract has some fields changed."""
    declared = replace(merging(7)["bfloat16"], **contract)
    kernel = over_ranks("narrow", program, 8, dtypes=("bfloat16",), contract=declared)
    profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=0)
    return search(PROPERTIES[name], Subject(kernel, "bfloat16"), profile, seed=0)[0].verdict


COUNTED = pytest.mark.parametrize(
    ("counted", "examples", "expected"),
    [
        (7, 10, Verdict.HELD),
        pytest.param(7, 60, Verdict.HELD, marks=pytest.mark.exhaustive),
        (1, 60, Verdict.REFUTED),
    ],
)


@COUNTED
def test_the_bound_counts_the_merges(counted, examples, expected, monkeypatch, tmp_path):
    """Outputs of a ring of eight that wait in bfloat16 are rounded seven times before the last: one is not enough."""
    monkeypatch.chdir(tmp_path)
    property_id = "online_rescaling.the_maximum_may_move_anywhere"

    assert verdict(property_id, RingOutputsNarrow, examples, lse_merges=counted, partial_outputs="input") is expected


@COUNTED
def test_the_bound_counts_the_hops_of_gradients(counted, examples, expected, monkeypatch, tmp_path):
    """dK and dV may travel in bfloat16, with a rounding in each hop."""
    monkeypatch.chdir(tmp_path)
    property_id = "gradients.value_gradients_are_within_their_bounds"

    assert (
        verdict(property_id, GradientsTravelNarrow, examples, gradient_stores=counted, partial_gradients="input")
        is expected
    )
