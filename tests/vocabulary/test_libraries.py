"""The conventions of known libraries: those of the kernels that are examined, and what the libraries themselves do."""

import numpy as np
import pytest
import torch

from attn_spec.kernels.resolve import resolve
from attn_spec.vocabulary.kinds import LIBRARY_CONVENTIONS
from attn_spec.vocabulary.libraries import LIBRARIES

NAMED = {library.name: library for library in LIBRARIES}


@pytest.fixture(scope="module")
def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 1, length, 4, generator=generator, dtype=torch.float64) for length in (2, 4, 4)]


@pytest.fixture(scope="module")
def hides_the_first_row():
    return torch.tensor([[False] * 4, [True] * 4])


@pytest.mark.parametrize("name", NAMED)
def test_a_kernel_is_examined_with_the_conventions(name):
    library = NAMED[name]
    kernel = resolve(library.kernel)

    for convention in LIBRARY_CONVENTIONS:
        said = library.convention(convention)
        told = said and ("lse" not in convention or "lse" in kernel.supports)
        assert not told or said == getattr(kernel.conventions, convention), convention
    if library.returns_lse and library.calls_it is False:
        assert "lse" in kernel.supports
    if library.axes in ("BHSD", "BSHD"):
        assert library.axes == kernel.presentation


def test_torch_starts_the_diagonal_at_the_top_and_gives_zero_where_nothing_is_seen(tensors, hides_the_first_row):
    attention, (_, _, v) = torch.nn.functional.scaled_dot_product_attention, tensors
    said = NAMED["torch.nn.functional.scaled_dot_product_attention"]

    assert torch.allclose(attention(*tensors, is_causal=True)[0, 0, 0], v[0, 0, 0])
    assert torch.equal(attention(*tensors, attn_mask=hides_the_first_row)[0, 0, 0], torch.zeros(4, dtype=v.dtype))
    assert (said.convention("causal_alignment"), said.convention("empty_row")) == ("top_left", "zero")
    assert (said.mask, said.convention("lse_base")) == ("True attends", "")


@pytest.mark.parametrize(("weights", "empty"), [(False, "zero"), (True, "nan")])
def test_a_layer_of_torch_takes_a_mask_that_hides(weights, empty, hides_the_first_row):
    layer = torch.nn.MultiheadAttention(4, 1, bias=False, batch_first=True)
    x = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(1))
    mask = ~hides_the_first_row
    out, _ = layer(x[:, :2], x, x, attn_mask=mask, need_weights=weights)
    said = NAMED[f"torch.nn.MultiheadAttention {'with' if weights else 'without'} weights"]

    assert (said.mask, said.convention("empty_row")) == ("True masks", empty)
    assert bool(out[0, 0].isnan().all() if empty == "nan" else (out[0, 0] == 0).all())
    assert torch.isfinite(out[0, 1]).all()


def test_jax_gives_the_mean_where_nothing_is_seen_and_both_ends_of_a_window_are_inside(tensors, hides_the_first_row):
    jax = pytest.importorskip("jax")
    q, k, v = (x.float() for x in tensors)
    given = [jax.numpy.asarray(x.transpose(1, 2).numpy()) for x in (q, k, v)]
    said = NAMED["jax.nn.dot_product_attention"]

    scores, values = (q @ k.mT / 2)[0, 0], v[0, 0]
    mask = jax.numpy.asarray(hides_the_first_row.numpy())[None, None]
    out, lse = jax.nn.dot_product_attention(*given, mask=mask, local_window_size=(0, 1), return_residual=True)
    assert np.allclose(out[0, 0, 0], values.mean(0))
    assert np.allclose(out[0, 1, 0], scores[1, 1:3].softmax(-1) @ values[1:3], atol=1e-6)
    assert np.allclose(lse[0, 1, 0], scores[1, 1:3].logsumexp(-1))
    assert np.isfinite(lse).all()
    assert [said.convention(name) for name in LIBRARY_CONVENTIONS] == [
        "top_left",
        "mean_of_v",
        "e",
        "undeclared",
        "zero",
    ]
    assert (said.mask, said.window) == ("True attends", "(left, right), both inclusive")
