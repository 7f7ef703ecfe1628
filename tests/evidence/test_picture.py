"""The page of a refuted problem, by hand: two keys, one dimension."""

import re

import numpy as np

from attn_spec.contract.presets import FP32
from attn_spec.evidence.picture import HEADS, LEAST, MOST, page
from attn_spec.judgement.measure import judge
from attn_spec.problem.conventions import of_call
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import float32_head

FLOAT32 = FP32.at("float32")
#: Both queries see the first key, the second query sees both; scores are equal.
CAUSAL = float32_head([[0.0], [0.0]], [[1.0], [1.0]], [[1.0], [3.0]], causal=True)


def shown(problem, output, block="REFUTED <property>"):
    measured = judge(problem, FLOAT32, output=np.asarray(output, dtype=np.float64)).measurements[0]
    return page("k: a.b", block, problem, measured)


def panels(text):
    """Return the title and words of each panel, and the classes of its cells in order."""
    every = re.findall(r'<svg role="img" aria-label="(.*?)".*?>(.*?)</svg>', text)
    return [(said, re.findall(r'<rect class="(\w+)"', drawn)) for said, drawn in every]


def test_the_panels_of_a_leak():
    """The first row answers 2, the mean of both values, where 1 is right."""
    mask, weights, errors = panels(shown(CAUSAL, [[[[2.0], [2.0]]]]))

    assert mask == ("who sees whom: 3 of 4 pairs of a query and a key are visible", ["seen", "none", "seen", "seen"])
    assert weights == ("weights: true weights, the largest 1", ["seen", "none", "seen", "seen"])
    said, cells = errors
    assert said.startswith("output, error / bound: the largest ")
    assert said.endswith(", at row 0, column 0; 1 of 2 are above 1")
    assert cells == ["c4", "c0", "worst"]


def test_weights_are_darker_where_they_are_larger():
    opacities = re.findall(
        r'class="seen" x="\d+" y="\d+" width="31" height="31"(.*?)/>', shown(CAUSAL, [[[[2.0], [2.0]]]])
    )

    assert opacities[3:] == ["", ' fill-opacity="0.57"', ' fill-opacity="0.57"']


def test_what_is_not_judged_is_grey():
    """A query that sees no key, under a convention that says nothing of it."""
    blind = CAUSAL.replace(causal=False, mask=np.array([[[[True, True], [False, False]]]]))
    output = np.array([[[[9.0], [9.0]]]])
    measured = judge(blind, FLOAT32, output=output, conventions=of_call({})).measurements[0]

    assert panels(page("t", "", blind, measured))[2][1] == ["c4", "none", "worst"]


def test_a_large_problem_is_cut_around_its_worst_element_and_says_so():
    problem = Recipe(query_length=70, key_length=90, head_dim=1).problem()
    output = np.full(problem.output_shape, 0.1)
    output[0, 0, 66] = 1e3
    page_of = shown(problem, output)
    mask, _, errors = panels(page_of)

    assert len(mask[1]) == MOST**2
    assert f'width="{LEAST - 1}"' in page_of
    assert mask[0].endswith("; shown are rows 22 to 69 and columns 0 to 47 of 70 x 90")
    assert "at row 66, column 0" in errors[0]


def test_the_worst_heads_are_shown_and_those_within_their_bounds_are_not():
    problem = Recipe(query_heads=6, kv_heads=6, query_length=1, key_length=1).problem()
    right = problem.v.copy()
    wrong = right + 100.0

    assert shown(problem, wrong).count("<h2>Batch entry") == HEADS
    right[0, 3] += 100.0
    assert re.findall("<h2>(Batch entry .*?)</h2>", shown(problem, right)) == ["Batch entry 0, head 3"]


def test_without_a_measurement_the_mask_and_the_weights_are_shown_and_text_is_escaped():
    text = page("a<b", "x < y & z", CAUSAL, None)

    assert len(panels(text)) == 2
    assert "<title>a&lt;b</title>" in text
    assert "x &lt; y &amp; z" in text
    assert "No bound was exceeded" in text
