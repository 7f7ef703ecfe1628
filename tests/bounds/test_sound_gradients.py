"""Backward passes in use: each is within the bound of the contract that says what it does."""

from dataclasses import replace

import numpy as np
from attn_spec.reports.proof.plain.eager import WHOLE, softmax_and_logsumexp

from attn_spec.contract.presets import FUSED
from attn_spec.judgement import measure
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.cotangents import cotangent, lse_cotangent
from attn_spec.search.drawing.regimes import Recipe

NATURAL = replace(FUSED, exponent="natural")


def gradient_ratio(problem, contract, dO, found, dL=None):
    return measure.judge_gradients(problem, contract.at(problem.dtype), dO, found, dL).ratio


def two_keys(k, v):
    k, v = (np.array(x).reshape(1, 1, 2, 1) for x in (k, v))
    return Problem(q=np.ones((1, 1, 1, 1)), k=k, v=v, scale=1.0)


def f32(x):
    return bits.nearest(x, "float32")


def backward(p, dO, *, delta="output", cast=False):
    """Compute dQ, dK and dV of weights exp(s - LSE) in float32, with P and dS cast to the problem's dtype."""
    half = lambda x: bits.nearest(x, p.dtype)  # noqa: E731
    s = f32(f32(p.q @ p.k.mT) * f32(p.scale_value))
    m = s.max(-1, keepdims=True)
    w = f32(np.exp(f32(s - m)))
    l = f32(w.sum(-1, keepdims=True))
    O = half(f32(f32(half(w) @ p.v) / l))
    P = f32(np.exp(f32(s - f32(m + f32(np.log(l))))))
    dP = f32(dO @ p.v.mT)
    D = f32((P * dP if delta == "probabilities" else dO * O).sum(-1, keepdims=True))
    dS = half(f32((half(P) if cast else P) * f32(dP - D)))
    scaled = lambda x: half(f32(f32(x) * f32(p.scale_value)))  # noqa: E731
    return {"dq": scaled(dS @ p.k), "dk": scaled(dS.mT @ p.q), "dv": half(half(P).mT @ dO)}


def test_delta_may_be_the_row_sum_of_p_dp():
    p, dO = two_keys([1000.0, 1001.0], [64.0, 65.0]), np.ones((1, 1, 1, 1))
    found = backward(p, dO, delta="probabilities")

    assert gradient_ratio(p, replace(NATURAL, delta="probabilities"), dO, found) < 1
    assert gradient_ratio(p, NATURAL, dO, found) > 20
    assert gradient_ratio(p, NATURAL, dO, backward(p, dO)) < 1


def test_score_gradients_may_be_made_of_cast_weights():
    p = Recipe(
        dtypes="float16", regime="large+v_wide", query_length=16, key_length=33, head_dim=16, value_dim=8, seed=3
    )
    p = p.problem()
    dO = bits.nearest(np.random.default_rng(0).standard_normal((1, 1, 16, 8)), "float16")
    found = backward(p, dO, cast=True)

    assert gradient_ratio(p, replace(NATURAL, score_gradients_of="cast"), dO, found) < 1
    assert gradient_ratio(p, replace(NATURAL, weight_gradients="work"), dO, found) > 1


def of_torch(backward_weights):
    """Return softmax and logsumexp, both differentiated by torch: dS = P (dP - D) + dL exp(s - LSE)."""
    return replace(softmax_and_logsumexp, contract=replace(WHOLE, backward_weights=backward_weights))


def test_the_log_sum_exp_may_be_differentiated_by_itself():
    p = Recipe(regime="overflow_float16", query_length=2, key_length=2).problem()
    for weights in ("stored", "recomputed"):
        subject = Subject(of_torch(weights), "float32")
        dO, dL = cotangent(subject, p), lse_cotangent(p)
        found = subject.gradients(p, dO, lse_cotangent=dL)
        assert gradient_ratio(p, subject.contract, dO, found, dL) < 1


def test_its_weights_need_not_cancel_those_of_the_output():
    """dP - D = -dL for a light key: its score gradient is a difference of products with two sets of weights."""
    k = np.array([2.026014566421509, 2.3418431282043457, 2.501980781555176, 1.6910464763641357, -16.177988052368164])
    v = np.eye(5)[4].reshape(1, 1, 5, 1)
    p = Problem(q=np.ones((1, 1, 1, 1)), k=k.reshape(1, 1, 5, 1), v=v)
    dO, dL = np.ones((1, 1, 1, 1)), -np.ones((1, 1, 1))
    for weights in ("stored", "recomputed"):
        subject = Subject(of_torch(weights), "float32")
        found = subject.gradients(p, dO, lse_cotangent=dL)
        assert gradient_ratio(p, subject.contract, dO, found, dL) < 1
