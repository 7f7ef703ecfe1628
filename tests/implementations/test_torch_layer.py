"""Layers of PyTorch that bounds once accused, and what they do that others do not."""

import pytest
from attn_spec.implementations import torch_layer

from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import judged
from attn_spec.search.drawing.regimes import Recipe

SLICES = {"query_projection": "slices@1HAD", "key_projection": "slices@11AD", "value_projection": "slices@11UV"}
#: Cases: sums of a projection that begin with its bias; a row without a key whose values overflow; a row that sees no
#: key that overflows as an operand, under a mask that is added.
ONCE_ACCUSED = [
    Recipe(
        seed=178, query_heads=2, query_length=8, key_length=8, head_dim=2, value_dim=2, output_width=2, **SLICES,
        output_projection="rank_one@1HOU", output_projection_bias="one@111O",
    ),
    Recipe(
        regime="normal+v_huge", seed=435, query_length=3, head_dim=256, value_dim=256, score_width=256,
        head_value_dim=256, output_width=256, mask="strided@1HQ1", query_projection="large@1HAD",
        key_projection="equal_heads@1HAD", value_projection="large@11UV", output_projection="normal@1HOU",
        query_projection_bias="large@1H1A", value_projection_bias="alternating@111U",
        output_projection_bias="normal@111O",
    ),
    Recipe(
        regime="rising_25", seed=4832576, dtypes="float16", key_length=255, head_dim=72, value_dim=72, score_width=72,
        head_value_dim=72, output_width=72, causal=True, bias="zero@11QK", **SLICES | {"key_projection": "large@11AD"},
        output_projection="slices@1HOU",
    ),
]  # fmt: skip


@pytest.mark.parametrize("recipe", ONCE_ACCUSED)
def test_the_slow_path_is_accused_of_nothing(recipe):
    subject, problem = Subject(torch_layer.multihead, recipe.dtype), recipe.problem()

    assert not judged(subject, problem, subject(problem)).refuted


@pytest.mark.parametrize("name", ["attention", "multihead", "multihead_weights", "multihead_fast"])
def test_a_path_is_judged_on_plain_problems(name):
    kernel = getattr(torch_layer, name)
    plain = SLICES | {"output_projection": "slices@1HOU", "output_projection_bias": "normal@111O"}
    for dtype in kernel.dtypes:
        widths = {"head_dim": 8, "value_dim": 8, "score_width": 4, "head_value_dim": 4, "output_width": 8}
        recipe = Recipe(dtypes=dtype, batch=2, query_heads=2, query_length=5, key_length=5, **widths, **plain)
        subject, problem = Subject(kernel, dtype), recipe.problem()

        judgement = judged(subject, problem, subject(problem))

        assert judgement.exercised
        assert not judgement.refuted


def test_a_path_whose_weights_may_be_nan_has_no_dtype_whose_products_spread_it():
    spread = torch_layer.nan_spoils_another_row()

    for name in ("multihead_weights", "multihead_fast"):
        assert ("bfloat16" in getattr(torch_layer, name).dtypes) is not spread
    assert "bfloat16" in torch_layer.multihead.dtypes
