"""Kernels of other scores hold; the same kernels with a usual mistake in the score are refuted."""

from dataclasses import replace

import pytest
import torch
from attn_spec.implementations import torch_scores
from attn_spec.implementations.torch_scores import eager, from_scores
from torch.nn.functional import normalize

from attn_spec.kernels.subject import Subject
from attn_spec.search import property as properties
from attn_spec.search.profiles import Profile
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTIES = properties.load_all()
OUTPUT, GRADIENTS = "accuracy.output_is_within_its_bound", "gradients.query_and_key_gradients_are_within_their_bounds"


def verdict(name, kernel, examples=80):
    profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=0)
    return search(PROPERTIES[name], Subject(kernel, "float32"), profile, seed=0)[0]


def grouped(q, *tensors):
    return (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in tensors)


def transposed(q, k, v, *, score_weight, scale=None, **options):
    k, v = grouped(q, k, v)
    return eager(q, k @ score_weight, v, scale=scale, **options)


def weight_of_the_first_head(q, k, v, *, score_weight, scale=None, **options):
    k, v = grouped(q, k, v)
    return eager(q, k @ score_weight[:, :1].mT, v, scale=scale, **options)


def operand_in_half(q, k, v, *, score_weight, scale=None, **options):
    k, v = grouped(q, k, v)
    return eager(q, (k @ score_weight.mT).bfloat16().to(q.dtype), v, scale=scale, **options)


def queries_of_any_length(q, k, v, *, score_gamma, scale=None, **options):
    k, v = grouped(q, k, v)
    return eager(q, score_gamma * normalize(k, dim=-1), v, scale=scale or 1.0, **options)


def divided_by_the_root_of_d(q, k, v, *, score_gamma, scale=None, **options):
    k, v = grouped(q, k, v)
    return eager(normalize(q, dim=-1), score_gamma * normalize(k, dim=-1), v, scale=scale, **options)


def norm_without_a_gradient(q, k, v, *, score_gamma, scale=None, **options):
    k, v = grouped(q, k, v)
    units = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-12).detach(), normalize(k, dim=-1)
    return eager(units[0], score_gamma * units[1], v, scale=1.0 if scale is None else scale, **options)


def additive_with(change):
    """Return additive attention whose parameters were changed."""

    def attention(q, k, v, **given):
        return torch_scores.additive(q, k, v, **{**given, **change(given)})

    attention.__name__ = change.__name__
    return attention


def without_the_bias(given):
    return {"score_bias": None}


def layers_swapped(given):
    return {"score_key_weight": given["score_query_weight"], "score_query_weight": given["score_key_weight"]}


def vector_of_the_first_head(given):
    return {"score_vector": given["score_vector"][:, :1]}


def tanh_of_each(q, k, v, *, score_vector, score_key_weight, score_query_weight, score_bias=None, **options):
    """Sum two tanh, which is no tanh of the sum."""
    k, v = grouped(q, k, v)
    x, y = q @ score_query_weight.mT, k @ score_key_weight.mT
    x = x if score_bias is None else x + score_bias
    return eager(x.tanh() * score_vector, torch.ones_like(y), v, **{"scale": 1.0, **options})


def tanh_without_a_gradient(
    q, k, v, *, score_vector, score_key_weight, score_query_weight, score_bias=None, scale=None, **options
):
    k, v = grouped(q, k, v)
    x, y = q @ score_query_weight.mT, k @ score_key_weight.mT
    u = (x if score_bias is None else x + score_bias)[..., :, None, :] + y[..., None, :, :]
    s = ((u + (u.tanh() - u).detach()) @ score_vector[:, :, None].mT).squeeze(-1)
    return from_scores(s if scale is None else s * scale, v, **options)


WRONG = {
    additive_with(without_the_bias): ("additive", OUTPUT),
    additive_with(layers_swapped): ("additive", OUTPUT),
    additive_with(vector_of_the_first_head): ("additive", OUTPUT),
    tanh_of_each: ("additive", OUTPUT),
    tanh_without_a_gradient: ("additive", GRADIENTS),
    transposed: ("bilinear", OUTPUT),
    weight_of_the_first_head: ("bilinear", OUTPUT),
    operand_in_half: ("bilinear", OUTPUT),
    queries_of_any_length: ("cosine", OUTPUT),
    divided_by_the_root_of_d: ("cosine", OUTPUT),
    norm_without_a_gradient: ("cosine", GRADIENTS),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_a_usual_mistake_is_refuted(function):
    name, property_id = WRONG[function]
    row = verdict(property_id, replace(getattr(torch_scores, name), function=function), examples=400)
    assert row.verdict is Verdict.REFUTED


def test_the_gradient_alone_shows_that_a_norm_has_none():
    cosine = replace(torch_scores.cosine, function=norm_without_a_gradient)
    assert verdict(OUTPUT, cosine, examples=25).verdict is Verdict.HELD


def test_a_kernel_that_always_uses_a_score_declares_nothing_of_the_plain_one():
    row = verdict("scaling.scaled_scores_of_unit_variance_inputs_have_variance_one", torch_scores.bilinear)
    assert row.verdict is Verdict.NOT_DECLARED
    assert row.message == "the kernel always uses score_weight, which no problem of this property does"
