"""Multi-head latent attention: its unabsorbed form is a layer, its absorbed form a problem with one kv head."""

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.gradients import gradients
from attn_spec.bounds.intermediates import intermediates
from attn_spec.bounds.theorems import forward_bound
from attn_spec.contract.presets import PRESETS
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe

BITS = 113
#: Heads, tokens, widths C and R of the parts of a key, widths N and U of the queries and values of a head.
H, S, C, R, N, U = 3, 5, 12, 4, 6, 7


def integers(rng, *shape):
    return rng.integers(-3, 4, size=shape).astype(float)


def layer_of(rng, scale):
    """Return the unabsorbed form, a layer over compressed keys, and its matrices W_UK and W_UV."""
    keys, hidden = integers(rng, 1, 1, S, C + R), integers(rng, 1, 1, S, C + R)
    W_UK, W_UV, W_Q = integers(rng, H, N, C), integers(rng, H, U, C), integers(rng, 1, H, N + R, C + R)
    W_K, W_V, W_O = np.zeros((1, H, N + R, C + R)), np.zeros((1, H, U, C + R)), np.zeros((1, H, H * U, U))
    W_K[0, :, :N, :C], W_K[0, :, N:, C:], W_V[0, :, :, :C] = W_UK, np.eye(R), W_UV
    for h in range(H):
        W_O[0, h, h * U : (h + 1) * U] = np.eye(U)
    weights = {"query_projection": W_Q, "key_projection": W_K, "value_projection": W_V, "output_projection": W_O}
    layer = Problem(q=hidden, k=keys, v=keys, scale=scale, dtypes="float64", causal=True, **weights)
    return layer, W_UK, W_UV


def test_the_layer_and_its_absorbed_form_are_one_attention():
    """Both forms of integers agree to 113 bits, since absorbed queries are exact; 1/sqrt(C + R) is another scale."""
    layer, W_UK, W_UV = layer_of(np.random.default_rng(0), (N + R) ** -0.5 / 16)
    q = np.einsum("hac,bxsc->bhsa", layer.query_projection[0], layer.q)
    q = np.concatenate([np.einsum("bhsn,hnc->bhsc", q[..., :N], W_UK), q[..., N:]], axis=-1)
    absorbed = Problem(
        q=q, k=layer.k, v=layer.k[..., :C], latent=True, scale=layer.scale, dtypes="float64", causal=True
    )
    assert (absorbed.kv_heads, absorbed.head_dim, absorbed.value_dim) == (1, C + R, C)

    def of_heads(problem):
        o = definition.attention(problem, BITS)
        return np.concatenate([o[0, h] @ W_UV[h].T.astype(object) for h in range(H)], axis=-1)

    other = absorbed.replace(scale=(C + R) ** -0.5 / 16)
    with mp.workprec(2 * BITS):
        expected = definition.attention(layer, BITS)[0, 0]
        gaps = [np.abs((of_heads(each) - expected).astype(float)).max() for each in (absorbed, other)]
    assert gaps[0] < 1e-30
    assert gaps[1] > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bound_knows_the_width_of_keys_alone(dtype):
    """The bound of a latent problem is that of the same tensors: products of two parts, added, sum D terms too."""
    shape = {"query_heads": 4, "kv_heads": 1, "query_length": 3, "key_length": 33, "head_dim": 24, "value_dim": 16}
    problem = Recipe(**shape, dtypes=dtype, latent=True, scale=0.25, seed=3).problem()
    bounds = [
        forward_bound(intermediates(each), PRESETS["fused"].at(dtype)).allowed
        for each in (problem, problem.replace(latent=False))
    ]

    for name, allowed in bounds[0].items():
        np.testing.assert_array_equal(allowed, bounds[1][name])


def test_the_gradient_of_keys_that_are_values_is_the_derivative():
    """Central differences in both directions of a change: of the key, and with it of the value."""
    recipe = {"query_length": 3, "key_length": 4, "head_dim": 3, "value_dim": 2, "latent": True, "seed": 2}
    problem = Recipe(**recipe, query_heads=2, scale=0.7, dtypes="float64").problem()
    dO, step = np.random.default_rng(0).standard_normal(problem.output_shape), 2.0**-20
    found = gradients(problem, dO, BITS)["dkv"].astype(float)

    def loss(k):
        return (dO * definition.attention(problem.with_inputs(k=k), BITS)).sum()

    for at in np.ndindex(problem.k.shape):
        ahead, behind = problem.k.copy(), problem.k.copy()
        ahead[at] += step
        behind[at] -= step
        slope = float((loss(ahead) - loss(behind)) / (ahead[at] - behind[at]))
        assert abs(found[at] - slope) < 2.0**-28  # sums of float64 over a step of 2^-19
