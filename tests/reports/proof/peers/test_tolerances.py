"""Tolerances of other suites for 8-bit inputs: rules as described, problems quantized right, a page that shows both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attn_spec.reports.proof.peers import tolerances
from attn_spec.reports.proof.peers.eight_bits import STORED, SUITES, close, mean_square
from attn_spec.reports.proof.peers.tolerances import measured, page, shown_mutants

from attn_spec.bounds.intermediates import intermediates
from attn_spec.numbers import bits

SMALL = {suite.name: replace(suite, shapes=((5, 9, 16, 2, 2),)) for suite in SUITES}
GALLERY = Path(__file__).parents[4] / "reports" / "gallery" / "tolerances.md"


def test_rules_accept_up_to_their_tolerance():
    reference = np.array([1.0, -2.0, 0.0])
    near = close(0.1, 0.5)

    assert near.tolerance(reference).tolist() == [0.6, 1.1, 0.1]
    assert near.accepts(reference, np.array([1.59, -3.09, 0.09]))
    assert not near.accepts(reference, np.array([1.0, -2.0, 0.11]))
    assert not near.accepts(reference, np.array([1.0, -2.0, np.nan]))
    mean = mean_square(lambda x: 0.1 * float(np.ptp(x)))
    assert mean.tolerance(reference).tolist() == pytest.approx([0.3] * 3)
    assert mean.accepts(reference, np.array([1.5, -2.0, 0.0]))
    assert not mean.accepts(reference, reference + 0.31)


@pytest.mark.parametrize("name", SMALL)
def test_problems_have_stored_numbers_whose_products_are_near_the_numbers_before(name):
    ((before, stored),) = SMALL[name].drawn(3)

    for tensor in "qkv":
        d = getattr(stored, f"{tensor}_descale")
        x, kept = getattr(before, tensor), getattr(stored, tensor)
        if d is None:
            assert (x == kept).all()
            continue
        assert bits.is_representable(kept, STORED)
        inside = np.abs(kept) < 448
        near = np.maximum(2.0**-4 * np.abs(x), 2.0**-10 * d) * 1.001
        assert (np.abs(kept * d - x) <= near)[inside].all()
    assert np.abs(intermediates(stored).O - intermediates(before).O).max() < 0.5


def test_a_suite_with_a_wide_rule_accepts_a_descale_that_is_applied_twice():
    mutants = [one for one in shown_mutants() if one.id in ("descale_twice", "scale_in_the_lse")]

    hopper = measured(SMALL["FlashInfer, Hopper"], mutants)
    torchao = measured(SMALL["torchao"], mutants)
    ragged = measured(SMALL["FlashInfer, ragged"], mutants)

    for one in (hopper, torchao, ragged):
        assert one.accepted
        assert one.held
    assert hopper.let_through == ["scale_in_the_lse", "descale_twice"]
    assert torchao.let_through == ["scale_in_the_lse"]
    assert [one.mutant for one in ragged.mutants] == ["descale_twice"]
    assert hopper.wider[0] > 10 > torchao.wider[0]
    text = "\n".join(page([hopper, torchao]))
    assert "| FlashInfer, Hopper | " in text
    assert "- Let through: scale_in_the_lse, descale_twice." in text


def test_the_command_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(tolerances, "SUITES", [SMALL["vLLM, 16-bit queries"]])
    monkeypatch.setattr(tolerances, "shown_mutants", list)

    assert tolerances.main(["--output", str(tmp_path / "page.md")]) == 0
    assert "- Let through: none." in (tmp_path / "page.md").read_text()


def test_the_page_of_the_gallery_has_every_suite_as_it_is_described():
    text = GALLERY.read_text()

    for suite in SUITES:
        for fact in (f"## {suite.name}", suite.source, suite.rule, suite.recipe):
            assert fact in text, "make the page again: python -m attn_spec.reports.proof.peers.tolerances --output ..."
