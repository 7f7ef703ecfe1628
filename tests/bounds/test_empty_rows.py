"""Rows that see no key: outside the domain of others, and judged where nothing that is hidden could overflow."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.intermediates import intermediates
from attn_spec.emulation.sound import PRECISE
from tests.bounds.edge import Edge
from tests.one_head import float32_head as head


def test_rows_that_see_no_key_are_outside_the_domain():
    problem = head([1.0, 1.0], [1.0], [1.0], mask=np.array([[[[True], [False]]]]))

    assert forward_bound(intermediates(problem), PRECISE.at("float32")).in_domain.ravel().tolist() == [True, False]


BLIND = np.array([[[[True, True], [False, False]]]])
#: Masked numbers that overflow, for a query that sees no key: entries as in CASES.
HIDDEN = {
    "scores": Edge(
        lambda k: head([1.0, 1.0], [k, 0.0], [1.0, 1.0], mask=BLIND), {"softmax": "float16"}, 2.0**16, 6.5e4
    ),
    "operands": Edge(
        lambda k: head([[1.0, 1.0]] * 2, [[k, k]] * 2, [1.0, 1.0], mask=BLIND, score_gamma=np.ones((1, 1, 1, 1))),
        {
            "multiplicands": "float16",
            "operands": "float16",
            "stored_scores": "float16",
            "score_accumulation": "float16",
        },
        outside=2.0**8,
        inside=2.0**6,
    ),
    "values as they enter": Edge(
        lambda v: head([1.0, 1.0], [0.0, 0.0], [v, v], mask=BLIND),
        {"multiplicands": "float16", "probabilities": "work"},
        outside=7e4,
        inside=6e4,
    ),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_rows_that_see_no_key_are_judged_where_nothing_hidden_could_overflow(what):
    edge = HIDDEN[what]

    def found(size):
        problem = edge.make(size)
        contract = replace(PRECISE, **edge.contract).at(problem.dtype)
        return forward_bound(intermediates(problem), contract).empty_in_domain[..., 1]

    edge.check(what, found)
