"""Properties of layers leave alone what no contract speaks of: a head, or a hidden value, that overflows."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.property import NotExamined, load_all

LAYER = ("query_projection", "key_projection", "value_projection", "output_projection")
KERNEL = emulate("without_maximum", replace(PRECISE, reference="zero", reference_range=16.0), supports=LAYER)
SAYS_NOTHING = "layers.a_head_without_an_output_projection_has_no_say"


@pytest.mark.parametrize("head", [0, 1])
def test_a_silent_head_that_is_no_number_is_not_held_against_a_kernel(head):
    """The property silences one of two heads, drawn from the problem: each of them is the one of no numbers once."""
    problem = Problem(
        **dict.fromkeys(("q", "k", "v"), np.ones((1, 1, 1, 1))),
        **dict.fromkeys(LAYER, np.ones((1, 2, 1, 1))),
    ).replace(query_projection=np.where(np.arange(2) == head, 1e3, 1.0)[None, :, None, None])

    load_all()[SAYS_NOTHING].check(Subject(KERNEL, "float32"), problem)


@pytest.mark.parametrize(("factor", "says_something"), [(2.0**10, True), (2.0**60, False)])
def test_a_hidden_value_whose_projection_overflows_is_not_held_against_a_kernel(factor, says_something):
    """0 times infinity is NaN, where other hidden values leave numbers; what is given is finite."""
    made = Problem(
        **dict.fromkeys(("q", "k", "v"), np.ones((1, 1, 2, 1))),
        **dict.fromkeys(LAYER, np.ones((1, 1, 1, 1))),
        mask=np.array([True, False])[None, None, None],
    )
    large = np.where(np.arange(2) == 1, 2.0**70, 1.0)[None, None, :, None]
    problem = made.replace(v=large, value_projection=made.value_projection * factor)
    subject = Subject(resolve("torch_layer:multihead"), "float32")
    property_ = load_all()["masking.masked_keys_change_nothing"]

    assert np.isfinite(subject(problem)["output"]).all() == says_something
    if says_something:
        property_.check(subject, problem)
        return
    with pytest.raises(NotExamined, match="may overflow"):
        property_.check(subject, problem)
