"""Results that are kept with intermediates go when those go."""

import gc
from weakref import ref

import numpy as np
import pytest

from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.bounds.theorems import evaluation_error, forward_bound, gradient_bound, gradient_evaluation_error
from attn_spec.contract.presets import EAGER, FUSED
from attn_spec.search.drawing.regimes import Recipe

RECIPE = Recipe(query_length=3, key_length=5, head_dim=4, value_dim=4)
#: A problem of each theorem, and one whose keys are hidden for being far.
PROBLEMS = {
    "softmax": RECIPE.problem(),
    "far keys": RECIPE.problem().replace(bias=np.array([0.0, 0.0, -1e9, 0.0, 0.0]).reshape(1, 1, 1, 5)),
    "another score": RECIPE.problem().replace(score_gamma=np.ones((1, 1, 1, 1))),
    "linear": RECIPE.problem().replace(feature_map="elu_plus_one"),
    "layer": RECIPE.problem().replace(
        **dict.fromkeys(
            ("query_projection", "key_projection", "value_projection", "output_projection"), np.eye(4)[None, None] / 2
        )
    ),
}


@pytest.fixture
def no_collector():
    """Use reference counts alone: garbage that waits for the collector would fill the memory of a long run."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.usefixtures("no_collector")
def test_intermediates_go_with_their_last_holder(name):
    x = intermediates(PROBLEMS[name])
    g = gradient_intermediates(x, np.ones(x.output.shape))
    evaluation_error(x)
    slack = gradient_evaluation_error(x, g)
    for contract in (FUSED.at("float32"), EAGER.at("float32")):
        forward_bound(x, contract)
        gradient_bound(x, g, contract, slack)
    gone = ref(x), ref(g)
    del x, g, slack

    assert [of() for of in gone] == [None, None]
