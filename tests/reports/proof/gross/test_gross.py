"""A sample of the table of gross errors, and what the command says of an error that nothing explains."""

import numpy as np
import pytest
import torch
from attn_spec.reports.proof.gross import report
from attn_spec.reports.proof.gross.cells import MEMBERS, cells
from attn_spec.reports.proof.gross.explanation import ENOUGH, explained
from attn_spec.reports.proof.gross.report import main, tabulated

from attn_spec.problem.options import OPTIONS
from attn_spec.testing import NotAttention, NotJudged, assert_attention, assert_attention_gradients

NARROW = ("float16", "bfloat16")
#: Members of which every gross gradient is refuted at N(0, 1).
PLAIN = ("dot", "causal", "window", "grouped", "linear, relu")
#: Members of which an assertion is asked: without an option, by one, as a layer, and for gradients.
CALLED = ("dot", "dropout", "layer", "linear, elu")
EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.one_in(2)
@pytest.mark.parametrize("member", MEMBERS)
def test_gross_answers_are_refuted_or_explained(member):
    table = tabulated(cells((member,), NARROW, (1, 16), (1.0, 2.0), backward=False))

    assert not table.accused
    assert sum(table.errors.values()) > 100
    assert [cell for cell in table.accepted if explained(cell) < ENOUGH] == []


def said_of_a_call(cell):
    """Return the message of the assertion on the answer of a cell."""
    problem = cell.one.problem

    def tensor(x, name=""):
        found = torch.tensor(x)
        return found.to(getattr(torch, problem.dtype_of(name))) if found.is_floating_point() else found

    used = {name: x for name, row in OPTIONS.items() if row.is_used(x := getattr(problem, name))}
    options = {name: tensor(x, name) if isinstance(x, np.ndarray) else x for name, x in used.items()}
    tensors, answer = map(tensor, (problem.q, problem.k, problem.v)), {n: tensor(x) for n, x in cell.answer.items()}
    try:
        if cell.one.cotangent is None:
            assert_attention(answer["output"], *tensors, contract=cell.contract, **options)
        else:
            dO, convention = tensor(cell.one.cotangent), {"empty_row": "zero"}
            assert_attention_gradients(answer, dO, *tensors, contract=cell.contract, **options, **convention)
    except (NotAttention, NotJudged) as said:
        return type(said)
    return None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("member", [pytest.param(m, marks=() if m in CALLED else EXHAUSTIVE) for m in MEMBERS])
def test_an_assertion_says_of_an_answer_what_the_table_says(member):
    backward = member == "linear, elu"
    for cell in cells((member,), ("float16",), (16,), (1.0,), (None,), backward=backward):
        if backward or "output" in cell.answer:
            expected = NotAttention if cell.refuted else NotJudged if cell.silent else None
            assert said_of_a_call(cell) is expected, str(cell)


@pytest.mark.parametrize("member", PLAIN)
def test_gross_gradients_are_refuted(member):
    table = tabulated(cells((member,), NARROW, (16,), (1.0,), backward=True))

    assert not table.accused
    assert sum(table.errors.values()) > 100
    assert not table.accepted


@pytest.mark.parametrize("member", MEMBERS)
def test_right_gradients_hold_and_zeros_are_refuted_in_float32(member):
    table = tabulated(cells((member,), ("float32",), (16,), (1.0,), backward=True))

    assert not table.accused
    assert not table.accepted


ASKED = ("--dtype", "bfloat16", "--keys", "16", "--size", "1", "--member", "additive", "--pass", "forward")


def test_the_command_names_what_is_accepted_and_what_explains_it(capsys):
    assert main(list(ASKED)) == 0

    said = capsys.readouterr().out
    assert "additive     eager              8        7     0         1" in said
    assert "2 of 32 errors were accepted, 0 right answers were refuted" in said
    assert "additive, bfloat16, 16 keys, size 1, eager: a key lost at the start: 0.81 of the bound, an" in said


def test_an_accepted_error_that_nothing_explains_fails_the_command(monkeypatch, capsys):
    monkeypatch.setattr(report, "explained", lambda _: ENOUGH - 0.01)

    assert main([*ASKED, "--contract", "eager"]) == 1
    assert "an arithmetic reaches 0.49 of it" in capsys.readouterr().out


def test_a_right_answer_that_is_refuted_fails_the_command(monkeypatch, capsys):
    wrong = next(cell for cell in cells(("dot",), ("float32",), (16,), (1.0,), backward=False) if cell.refuted)
    object.__setattr__(wrong, "error", "right")
    monkeypatch.setattr(report, "cells", lambda *_, **__: [wrong])

    assert main([*ASKED]) == 1
    assert "REFUTED: dot, float32, 16 keys, size 1, undeclared: right" in capsys.readouterr().out
