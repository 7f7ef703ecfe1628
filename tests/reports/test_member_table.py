"""The README's table of members: each cell links or says why not."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from attn_spec.reports import member_table
from attn_spec.reports.member_table import MemberError
from attn_spec.reports.members import COLUMNS, MEMBERS, Member

ROOT = Path(__file__).parents[2]


def named(name):
    (member,) = (member for member in MEMBERS if member.name == name)
    return member


def test_every_cell_links_to_files_that_exist_or_says_why_it_is_empty():
    for line in member_table.markdown().splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        assert len(cells) == len(COLUMNS)
        for cell in cells:
            links = re.findall(r"\[[^]]+\]\(([^)]+)\)", cell)
            assert links or re.fullmatch(r"\*[^*]+\*", cell), f"{name}: {cell}"
            assert all((ROOT / link).exists() for link in links), f"{name}: {links}"


def test_cells_are_found_by_what_is_declared():
    cells = member_table.cells(named("rotary positions"))

    assert cells["NumPy"] == "[numpy_tiled](implementations/numpy_tiled.py)"
    assert "[torch_tiled](implementations/torch_tiled.py)" in cells["PyTorch"]
    assert "torch_eager" not in cells["PyTorch"]
    assert re.fullmatch(r"\[\d+ in positions\]\(properties/test_positions\.py\)", cells["properties"])


def test_mutants_of_an_option_are_not_those_of_its_parameters():
    """Every mutant of rotary takes positions; those of given positions are in their own file."""
    given = named("given positions")
    found = member_table.mutants_of(given, member_table.properties_of(given))

    assert found
    assert {mutant.family for mutant in found} == {"given_positions"}


def test_a_kernel_that_cannot_do_without_another_option_is_none_of_the_member():
    assert "torch_scores" not in member_table.cells(named("dot product"))["PyTorch"]
    assert "torch_scores" in member_table.cells(named("cosine score"))["PyTorch"]


def test_what_has_a_row_of_its_own_is_no_property_of_the_dot_product():
    needs = {need for property_ in member_table.properties_of(named("dot product")) for need in property_.needs}

    assert needs.isdisjoint({"gqa", "dropout_by_chance", "causal"})


def test_a_split_softmax_is_that_of_kernels_that_count_its_merges():
    found = member_table.kernels_of(named("split and merged softmax"))["PyTorch"]

    assert "implementations/torch_ring.py" in found
    assert "implementations/torch_eager.py" not in found


def test_a_new_member_is_one_row():
    made = Member(name="made up", options=("softcap",))
    table = member_table.markdown([made])

    assert table.splitlines()[0] == f"| member | {' | '.join(COLUMNS)} |"
    assert table.splitlines()[2].startswith("| made up | [definition](attn_spec/attention/definition.py) | [enclosure]")


def test_an_empty_cell_needs_a_reason_and_a_reason_an_empty_cell():
    bilinear = named("bilinear score")

    with pytest.raises(
        MemberError, match=r"the cell 'NumPy' of the member 'bilinear score' is empty; say why in lacks"
    ):
        member_table.cells(replace(bilinear, lacks={}))
    with pytest.raises(MemberError, match=r"the cell 'bound' .* is not empty, but lacks says why: no reason"):
        member_table.cells(replace(bilinear, lacks={**bilinear.lacks, "bound": "no reason"}))
