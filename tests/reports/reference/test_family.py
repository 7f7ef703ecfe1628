"""The page on the family: each cell names files that exist, or says why there are none."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from attn_spec.reports.reference import family
from attn_spec.reports.reference.family import MemberError
from attn_spec.reports.reference.members import COLUMNS, MEMBERS, Member

ROOT = Path(__file__).parents[3]


def named(name):
    (member,) = (member for member in MEMBERS if member.name == name)
    return member


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_every_cell_names_files_that_exist_or_says_why_it_is_empty(member):
    cells = family.cells(member)

    assert tuple(cells) == COLUMNS
    for cell in cells.values():
        named = re.findall(r"`([^`]+)`", cell)
        assert named or re.fullmatch(r"\*[^*]+\*", cell), cell
        assert all((ROOT / name).exists() for name in named), named


def test_cells_are_found_by_what_is_declared():
    cells = family.cells(named("rotary positions"))

    assert cells["NumPy"] == "`implementations/numpy_tiled.py`"
    assert "`implementations/torch_tiled.py`" in cells["PyTorch"]
    assert "torch_eager" not in cells["PyTorch"]
    assert re.fullmatch(r"\d+ in `properties`", cells["properties"])  # in three files


def test_mutants_of_an_option_are_not_those_of_its_parameters():
    """Every mutant of rotary takes positions; those of given positions are in their own file."""
    given = named("given positions")
    found = family.mutants_of(given, family.properties_of(given))

    assert found
    assert {mutant.family for mutant in found} == {"given_positions"}


def test_a_kernel_that_cannot_do_without_another_option_is_none_of_the_member():
    assert "torch_scores" not in family.cells(named("dot product"))["PyTorch"]
    assert "torch_scores" in family.cells(named("cosine score"))["PyTorch"]


def test_what_has_a_row_of_its_own_is_no_property_of_the_dot_product():
    needs = {need for property_ in family.properties_of(named("dot product")) for need in property_.needs}

    assert needs.isdisjoint({"gqa", "dropout_by_chance", "causal"})


def test_a_split_softmax_is_that_of_kernels_that_count_its_merges():
    found = family.kernels_of(named("split and merged softmax"))["PyTorch"]

    assert "implementations/torch_ring.py" in found
    assert "implementations/torch_eager.py" not in found


def test_a_new_member_is_one_row():
    made = Member(name="made up", options=("softcap",))
    lines = family.page([made]).splitlines()

    assert lines[4:6] == ["## made up", ""]
    assert lines[6:8] == [
        "- definition: `attn_spec/attention/definition.py`",
        "- enclosure: `attn_spec/attention/enclosure.py`",
    ]
    assert len(lines) == 6 + len(COLUMNS)


def test_an_empty_cell_needs_a_reason_and_a_reason_an_empty_cell():
    bilinear = named("bilinear score")

    with pytest.raises(
        MemberError, match=r"the cell 'NumPy' of the member 'bilinear score' is empty; say why in lacks"
    ):
        family.cells(replace(bilinear, lacks={}))
    with pytest.raises(MemberError, match=r"the cell 'bound' .* is not empty, but lacks says why: no reason"):
        family.cells(replace(bilinear, lacks={**bilinear.lacks, "bound": "no reason"}))
