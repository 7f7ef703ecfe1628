"""The failure block says of every quantity what it is, and what it was held to."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import Recipe
from attn_spec.evidence.failure import block
from attn_spec.judgement.measure import judge_gradients
from attn_spec.judgement.worst import worst_element
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.quantities import QUANTITIES
from attn_spec.search.cases import Case
from attn_spec.search.property import load_all

PROPERTY = load_all()["gradients.query_and_key_gradients_are_within_their_bounds"]
SUBJECT = Subject(resolve("torch_tiled"), "float32")
PROBLEM = Recipe(query_length=3, key_length=4, head_dim=2, value_dim=5, bias="normal").problem()


def measured(name):
    """Return the measurement of a gradient that is wrong everywhere."""
    dO = np.ones((1, 1, 3, 5))
    found = {name: SUBJECT.gradients(PROBLEM, dO)[name] + 1.0}
    return judge_gradients(PROBLEM, SUBJECT.contract, dO, found).measurements[0]


@pytest.mark.parametrize(("name", "rows"), [("dq", 3), ("dk", 4), ("dv", 4)])
def test_rows_of_a_gradient_are_counted_as_those_of_the_output(name, rows):
    worst = worst_element(measured(name))

    assert worst.rows == rows
    assert worst.outside == worst.elements == rows * measured(name).got.shape[-1]


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_bound_is_that_of_the_pass_that_made_the_quantity(name):
    worst = replace(worst_element(measured("dq")), quantity=name)

    shown = block(
        Case(property_id=PROPERTY.id, kernel="k", problem=PROBLEM, message="", worst=worst), PROPERTY, SUBJECT, None
    )

    assert f"by the {QUANTITIES[name].made_by} bound of the contract" in shown
    assert (", in 3 rows" in shown) == QUANTITIES[name].has_rows


def shown(problem=PROBLEM, message="", worst=None):
    return block(
        Case(property_id=PROPERTY.id, kernel="k.py:f", problem=problem, message=message, worst=worst),
        PROPERTY,
        SUBJECT,
        None,
    )


def test_what_was_found_is_told_beside_the_worst_element_and_once():
    worst = worst_element(measured("dq"))
    place = f"dq[{', '.join(map(str, worst.index))}] is 1; the truth is 0"
    said = shown(message=f"the kernel applied a scale of 1 where 0.5 was asked; {place}", worst=worst).splitlines()

    assert said.index("  why       the kernel applied a scale of 1 where 0.5 was asked") < said.index(worst.lines()[0])
    assert "  why" not in shown(message=place, worst=worst)
    assert "  why       the call raised" in shown(message="the call raised")


def test_few_numbers_are_shown_and_many_are_not():
    few = Recipe(query_length=2, key_length=1).problem()
    q = " ".join(f"{x:.6g}" for x in few.q.ravel())

    assert f"  q         {q}, of shape (1, 1, 2, 1)\n" in shown(few)
    assert "  q   " not in shown(Recipe(query_length=9).problem())
    assert "  q   " not in shown(Recipe(key_length=0).problem())
    assert "  q   " not in shown(few.replace(scale=2.0)), "the problem's repr shows them"


def test_lines_to_paste_name_the_kernel_and_the_framework():
    assert "  python    attn_spec.run(problem, 'k.py:f'), attn_spec.tensors(problem, 'torch')\n" in shown() + "\n"
