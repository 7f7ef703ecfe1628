"""The JAX kernel over pages of int8 agrees with that of PyTorch; wrong ones are refuted, at either dtype of q."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax.numpy as jnp
from attn_spec.implementations.jax_paged import int8_pages
from attn_spec.implementations.torch_paged import quantized

from attn_spec.kernels import by_hand
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.verdict import Verdict
from tests.kernels.test_mixed_dtypes import verdict

OWN = "descales.each_sequence_has_its_own_descales"
DOUBLED = "descales.doubling_the_descale_of_values_doubles_the_output"
MOVED = "descales.a_power_of_two_moves_into_its_tensor"
EIGHTFOLD = "online_rescaling.scaling_v_by_a_power_of_two_scales_the_output"


def test_it_agrees_with_the_kernel_of_pytorch():
    problem = Recipe(
        batch=3, query_heads=4, kv_heads=2, query_length=1, key_length=37, head_dim=8, value_dim=6, seed=2,
        seqused_k="ragged@B111", k_descale="spread@BGK1", v_descale="near_one@BGK1", dtypes="q:bfloat16,kv:int8",
    ).problem()  # fmt: skip

    ours, theirs = (by_hand.run(problem, each)["output"] for each in (int8_pages, quantized))

    np.testing.assert_allclose(ours, theirs, rtol=2.0**-6, atol=2.0**-6 * np.abs(problem.v).max())


def reading(**changed):
    """Return the kernel whose arguments are changed first, each by a function of all of them."""

    def attention(q, k, v, **options):
        given = {"q": q, "k": k, "v": v, **options}
        given |= {name: change(given) for name, change in changed.items() if name in given}
        return int8_pages.function(*(given.pop(name) for name in "qkv"), **given)

    return replace(int8_pages.wrapped(attention), name="wrong")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", int8_pages.dtypes)
@pytest.mark.parametrize("property_id", [OWN, DOUBLED, MOVED, EIGHTFOLD])
def test_it_holds(property_id, dtype):
    assert verdict(property_id, int8_pages, dtype, 4) is Verdict.HELD


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("dtype", "property_id", "changed"),
    [
        (int8_pages.dtypes[0], OWN, {"k_descale": lambda given: jnp.roll(given["k_descale"], 1, 0)}),
        (int8_pages.dtypes[1], OWN, {"v_descale": lambda given: jnp.roll(given["v_descale"], 1, 2)}),
        (int8_pages.dtypes[1], DOUBLED, {"v_descale": lambda given: jnp.ones_like(given["v_descale"])}),
        (int8_pages.dtypes[0], EIGHTFOLD, {"v": lambda given: jnp.maximum(given["v"], -64)}),
    ],
    ids=["scales_of_the_next_page", "scales_of_another_head", "scales_left_out", "codes_cut_on_one_side"],
)
def test_pages_that_are_read_wrong_are_refuted(dtype, property_id, changed):
    assert verdict(property_id, reading(**changed), dtype, 20) is Verdict.REFUTED
