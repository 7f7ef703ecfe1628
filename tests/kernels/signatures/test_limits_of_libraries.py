"""Functions are asked for nothing beyond the limits of their signatures, which are those of the libraries."""

import numpy as np
import pytest

from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from tests.kernels.signatures.examined import ACCURATE, FUNCTIONS, declared, verdict, with_other

LAYOUT = "independence.the_layout_in_memory_has_no_influence"


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("vllm_merge", LAYOUT),
        ("flashinfer_decode", LAYOUT),
        ("flashinfer_decode", ACCURATE),
        ("flashinfer_prefill", ACCURATE),
    ],
)
def test_a_function_is_given_what_its_library_takes(name, asked):
    """These functions raise for other tensors, or read them wrong, as the libraries do."""
    assert verdict(declared(name, FUNCTIONS[name]), asked) == ("held", "")


@pytest.mark.parametrize("name", ["cudnn", "cudnn_varlen"])
def test_a_window_without_sides_moves_no_corner(name):
    """cuDNN refuses causal_bottom_right in calls that have no diagonal, and so does this function."""
    made = declared(name, FUNCTIONS[name])
    problem = Recipe(window=(None, None), causal_alignment="bottom_right", head_dim=8, value_dim=8).problem()

    assert np.isfinite(Subject(made, "float32")(problem)["output"]).all()


def positive(scale):
    assert scale is None or scale > 0
    return scale


def of_columns(least):
    def wide(x):
        assert x.shape[-1] >= least
        return x

    return wide


def of_pages(x):
    assert not x.shape[1] % 16
    return x


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        *(
            (name, {"softmax_scale": positive})
            for name in ("flash_attn", "flash_attn_3_varlen", "fa4", "flash_attn_kvcache", "fa3_kvcache")
        ),
        ("torch_varlen", {"scale": positive}),
        ("vllm_unified", {"q": of_columns(32), "k": of_pages}),
        ("sglang_decode", {"q": of_columns(16)}),
        ("sglang_extend", {"q_extend": of_columns(16)}),
    ],
)
def test_a_function_is_asked_for_nothing_that_its_library_has_no_kernel_for(name, checks):
    made = declared(name, with_other(FUNCTIONS[name], **checks))

    assert verdict(made, ACCURATE, 40 if positive in checks.values() else 8, seed=1) == ("held", "")
