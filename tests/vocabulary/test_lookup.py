"""Every word of the suite is explained, by any of its names, from what stands in the code."""

import re
from dataclasses import fields

import pytest
from click.testing import CliRunner

from attn_spec.cli import command as cli
from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import PRESETS
from attn_spec.contract.quantisers import CHOICES, Quantiser
from attn_spec.kernels.kernel import DECLARABLE
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.search.drawing.regimes import REGIMES
from attn_spec.search.property import load_all
from attn_spec.search.verdict import Verdict
from attn_spec.vocabulary import lookup
from attn_spec.vocabulary.kinds import kinds

KINDS = {kind.name: kind for kind in kinds()}


def explain(*words):
    return CliRunner().invoke(cli.main, ["explain", *words])


def test_each_word_is_explained_by_a_sentence():
    of_contracts = (item.name for item in fields(Contract))
    for word in (*DECLARABLE, *PRESETS, *REGIMES, *Verdict, *load_all(), *of_contracts, *CONVENTIONS):
        lines = lookup.explained(word)

        assert lines[0].startswith(f"{word}  (")
        assert re.match(r"    \S.{8,}", lines[1]), lines[:2]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_lists_its_words_under_either_number(name):
    kind = KINDS[name]
    lines = lookup.explained(kind.plural)

    assert lines == lookup.explained(name)
    assert lines[0] == kind.says
    assert lines[-1] == f"{len(kind.words())} {kind.plural}"
    assert all(any(line.startswith(word.name) for line in lines) for word in kind.words())


def test_without_a_word_the_kinds_are_listed():
    done = explain()

    assert done.exit_code == 0
    assert all(f"\n{kind.plural}\n    {kind.says}\n" in f"\n{done.output}" for kind in kinds())


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["is_causal"], "causal  (option)"),
        (["Not", "Declared"], "not declared  (verdict)"),
        (["split-kv"], "split_kv  (contract)"),
        (["bottom_right"], "causal_alignment  (convention)"),
        (["by_lse"], "normalize  (stage)"),
        (["add_half"], "rounding  (quantiser)"),
        (["mean_of_keys"], "subtracts  (quantiser)"),
        (
            ["the_diagonal_is_where_the_convention_says"],
            "causality.the_diagonal_is_where_the_convention_says  (property)",
        ),
        (["presets"], KINDS["contract"].says),
    ],
)
def test_a_word_is_found_by_what_it_is_called_elsewhere_and_by_its_values(typed, found):
    assert explain(*typed).output.splitlines()[0] == found


def test_a_word_of_several_kinds_is_explained_as_each():
    found = re.findall(r"^lse  \((\w+)\)", explain("lse").output, flags=re.MULTILINE)
    assert found == ["ability", "parameter", "stage", "quantity"]


def test_every_field_of_a_quantiser_is_explained_with_its_choices_and_its_default():
    listed = explain("quantiser").output

    for item in fields(Quantiser):
        said = explain(item.name).output if item.name != "format" else "\n".join(
            line for word in KINDS["quantiser"].words() if word.name == "format" for line in lookup.entry(word)
        )  # fmt: skip
        assert re.search(rf"^{item.name}  \(quantiser\)$", said, flags=re.MULTILINE), item.name
        assert f"\n{item.name}\n    " in listed
        for choice in CHOICES.get(item.name, ()):
            assert repr(choice) in said
    assert "default  4.0" in explain("division_error").output
    assert "default  none: it must be given" in explain("of").output


def test_a_family_is_all_its_properties():
    named = re.findall(r"^(\S+)  \(property\)", explain("causality").output, flags=re.MULTILINE)

    assert named == [name for name in sorted(load_all()) if name.startswith("causality.")]


def test_an_unknown_word_is_an_error_with_the_nearest_ones():
    done = explain("softcup")

    assert done.exit_code == 2
    assert done.output == (
        "Error: no word is called 'softcup'; did you mean 'softcap'?\n`attn-spec explain` lists the kinds\n"
    )


def test_a_word_near_no_other_is_an_error_that_names_the_list():
    assert explain("xyzzyx").output == "Error: no word is called 'xyzzyx'\n`attn-spec explain` lists the kinds\n"


def test_contracts_are_chosen_by_what_a_kernel_does():
    said = explain("contracts").output

    assert "    fused: tiles of keys" in said
    assert "    eager: matmul, softmax and matmul, each stored in the inputs' dtype\n" in said


def test_what_is_said_of_a_property_is_what_its_docstring_says():
    property_ = load_all()["causality.future_keys_change_nothing"]
    said = explain(property_.id).output

    assert (property_.check.__doc__ or "").splitlines()[0] in said
    assert f"hunts   {property_.hunts}\n" in said


def test_an_option_says_which_axes_of_its_tensor_may_be_1():
    for name in ("k_descale", "alibi_slopes", "sinks", "mask"):
        assert "or 1 along an axis of equal numbers" in explain(name).output
    for name in ("seqused_k", "softcap"):
        assert "along an axis" not in explain(name).output
