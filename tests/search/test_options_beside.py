"""Properties that make another problem of a problem keep, or leave out, the options that this one has."""

import numpy as np

from attn_spec.emulation.kernels import emulate, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import assert_gradients_within_bound
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.property import load_all

PROPERTIES = load_all()
LAYER = ("query_projection", "key_projection", "value_projection", "output_projection")


def test_projections_that_are_absorbed_leave_each_head_its_descale():
    problem = Recipe(
        regime="integers", query_heads=4, kv_heads=2, query_length=3, key_length=5, head_dim=6, value_dim=4,
        latent=True, scale=0.3, seed=1,
    ).problem()  # fmt: skip
    by_head = np.array([0.5, 2.0]).reshape(1, 2, 1, 1)
    problem = problem.replace(k_descale=by_head, v_descale=by_head)
    supports = ("latent", "scale", "gqa", "cross", "dv", "k_descale", "v_descale", "descale_by_head")
    kernel = emulate("latent", PRECISE, supports=supports)

    PROPERTIES["latent.absorbing_the_projections_changes_nothing"].check(Subject(kernel, "float32"), problem)


def test_short_sequences_beside_those_of_a_layer_have_its_length_of_queries():
    problem = Recipe(
        batch=2, query_length=4, key_length=4, seqused_k="one_less@B111", seed=1, query_projection="normal@1HAD",
        key_projection="normal@1HAD", value_projection="normal@1HUV", output_projection="normal@1HOU",
    )  # fmt: skip
    supports = ("seqused_k", "seqused_q", "cross", "empty", *LAYER)
    kernel = emulate("layer", PRECISE, supports=supports)
    check = PROPERTIES["lengths.sequences_carry_their_lengths_along_beside_short_ones"].check

    check(Subject(kernel, "float32"), problem.problem())


def test_the_keys_of_a_latent_layer_get_the_gradient_of_their_values_too():
    problem = Recipe(
        query_length=2, key_length=3, head_dim=4, value_dim=2, score_width=2, head_value_dim=2, output_width=2, seed=1,
        latent=True, scale=1.0, dtypes="float64", query_projection="slices@1HAD", key_projection="slices@11AD",
        value_projection="slices@11UV", output_projection="slices@1HOU",
    ).problem()  # fmt: skip
    supports = ("latent", "scale", "dv", "cross", "head_widths", "backward", "seqused_k", "seqused_q", "lse", *LAYER)
    kernel = emulate_both("latent", PRECISE, supports=supports, presentation="mla_paged", dtypes=("float64",))
    subject = Subject(kernel, "float64")

    found = subject.gradients(problem, np.ones(problem.output_shape))

    assert_gradients_within_bound(subject, problem, np.ones(problem.output_shape), found)
    assert found["dkv"].shape == problem.k.shape
