"""Gradients that are cleared at a glance are within their bounds; most sound ones are cleared, and no wrong one."""

from dataclasses import replace

import numpy as np
import pytest
from attn_spec.reports.proof.validation.random_kernels import random_kernel

from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.bounds.backward.gradient_bounds import gradient_bound
from attn_spec.bounds.backward.least_gradient_bounds import least_gradient_error
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.coverage import silence_of_gradients
from attn_spec.contract.presets import FUSED, PRESETS
from attn_spec.contract.readings import gradient_readings
from attn_spec.judgement.long.blocks import blocks_of
from attn_spec.judgement.long.gradient_blocks import judge_gradient_parts
from attn_spec.judgement.long.gradient_glance import is_glanced, look_at, share
from attn_spec.judgement.long.gradient_groups import Given
from attn_spec.judgement.long.gradient_parts import gradient_parts_of
from attn_spec.judgement.measure import judge_gradients
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"query_length": 6, "head_dim": 8, "value_dim": 5}
OPTIONS = (
    {},
    {"causal": True, "causal_alignment": "top_left", "query_length": 30},
    {"bias": "minus_inf", "scale": 1.5},
    {"mask": "random", "alibi_slopes": "geometric@1H11", "window": (9, 3)},
)
PROBLEMS = [
    Recipe(**{**SHAPE, "regime": regime, "key_length": keys, "seed": keys, **options}).problem()
    for regime in ("normal", "activations", "rising+v_alternating", "one_hot+v_wide", "cancellation")
    for keys, options in zip((1, 40, 7, 90), OPTIONS, strict=True)
]


def cotangents(problem, seed=0):
    rng = np.random.default_rng(seed)
    dO = bits.nearest(rng.standard_normal(problem.output_shape), problem.dtype)
    return dO, None if seed % 2 else rng.integers(-8, 8, problem.score_shape[:3]) / 8


def seen(problem, dO, dL, memory):
    every = np.arange(problem.query_length)
    given, rows, keys = Given(problem, dO, dL, None, every, every), [], None
    for block in blocks_of(problem, every, memory, 9):
        dq, more = look_at(given, block)
        rows.append(dq)
        keys = more if keys is None else keys + more
    fields = ("value", "radius", "size", "n")
    dq = type(rows[0])(*(np.concatenate([getattr(row, name) for row in rows]) for name in fields))
    return {"dq": dq, **keys.finished(problem.scale_value)}


@pytest.mark.parametrize("memory", [2**28, 2**12], ids=["whole", "blocks"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_the_truth_lies_within_the_radii(problem, memory):
    dO, dL = cotangents(problem, problem.key_length)
    truth = enclose_gradients(problem, dO, 120, dL)
    x = intermediates(problem)
    g = gradient_intermediates(x, dO, dL)
    sizes = {
        "dq": np.abs(g.dS) @ np.abs(x.k),
        "dk": np.abs(g.dS).swapaxes(-1, -2) @ np.abs(x.q),
        "dv": x.P.swapaxes(-1, -2) @ np.abs(dO),
    }

    entries = (np.abs(x).max() for x in (dO, problem.v, np.concatenate([problem.q, problem.k], axis=2)))
    most = np.prod([1 + entry for entry in entries]) * problem.query_length

    for name, found in seen(problem, dO, dL, memory).items():
        error = np.abs(found.value - truth[name].value[0, 0]) + truth[name].radius[0, 0]
        assert (error <= found.radius + 2.0**-1000).all()
        assert (found.radius < 2.0**-28 * (1 + sizes[name].max() + most)).all()
        assert (found.size <= sizes[name][0, 0] * (1 + 2.0**-40) + found.radius).all()
        visible = problem.visible[0, 0].sum(axis=-1 if name == "dq" else 0)
        assert (found.n[:, 0] == visible).all()


def contracts(kernels):
    for contract in PRESETS.values():
        yield from gradient_readings(contract.at("float32"))
    for seed in range(kernels):
        drawn = random_kernel(seed)
        if not silence_of_gradients(drawn.declares):
            yield from gradient_readings(replace(drawn.declares, operands="input").at(drawn.dtype))


def parts_above(problem, kernels):
    """Return names of gradients of which a part is more than the bound, and the number of contracts compared."""
    dO, dL = cotangents(problem, problem.key_length)
    x, above, compared = intermediates(problem), [], 0
    g, every = gradient_intermediates(x, dO, dL), seen(problem, dO, dL, 2**28)
    for c in dict.fromkeys(contracts(kernels)):
        bound = gradient_bound(x, g, c)
        for name, found in every.items():
            least = least_gradient_error(x, c, name, n=found.n, value=np.abs(found.value), size=found.size)
            above += [name] if (least > bound.allowed[name][0, 0])[found.n[:, 0] > 0].any() else []
        compared += 1
    return above, compared


@pytest.mark.parametrize("problem", PROBLEMS[::3], ids=repr)
def test_every_contract_allows_at_least_the_part(problem):
    above, compared = parts_above(problem, kernels=40)
    assert not above
    assert compared > 40


@pytest.mark.exhaustive
@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_every_contract_of_many_allows_at_least_the_part(problem):
    above, compared = parts_above(problem, kernels=400)
    assert not above
    assert compared > 200


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_most_of_a_sound_answer_is_cleared_and_nothing_that_the_theorems_refute(dtype):
    options = {"query_heads": 2, "kv_heads": 1, "head_dim": 32, "value_dim": 32, "causal": True}
    problem = Recipe(query_length=120, key_length=120, dtypes=dtype, **options).problem()
    dO, _ = cotangents(problem, 1)
    gradients = gradient_intermediates(intermediates(problem), dO).gradients
    right = {name: bits.nearest(values, dtype) for name, values in gradients.items()}
    (c, *_) = gradient_readings(FUSED.at(dtype))

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, right), c)
    assert not judgement.refuted
    assert judgement.decided < 0.2 * judgement.of
    assert (judgement.rows, judgement.keys) == (240, 120)
    whole = judge_gradients(problem, c, dO, right)
    for m in whole.measurements:
        moved = {name: values.copy() for name, values in right.items()}
        moved[m.name] = m.truth.value + 1.01 * m.allowed + m.truth.radius
        head = problem.head(0)
        if m.name == "dq":  # each row, whatever its neighbours
            found = seen(head, dO[:, :1], None, 2**28)["dq"]
            assert (share(intermediates(head), c, "dq", found, moved["dq"][0, 0]) > 1).all()
        again = judge_gradient_parts(gradient_parts_of(problem, dO, moved), c)
        assert again.tallies[m.name].outside == m.outside.size
        assert all(tally.outside == 0 for name, tally in again.tallies.items() if name != m.name)


@pytest.mark.parametrize("at", [0, 37, 119])
@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_one_wrong_element_is_found(name, at):
    shape = {"query_heads": 2, "kv_heads": 2, "query_length": 120, "key_length": 120, "head_dim": 8}
    problem = Recipe(**shape, value_dim=8, causal=True).problem()
    dO, _ = cotangents(problem, 1)
    answer = gradient_intermediates(intermediates(problem), dO).gradients
    (m,) = judge_gradients(problem, FUSED.at("float32"), dO, {name: answer[name]}).measurements
    answer[name] = answer[name].copy()
    answer[name][0, 1, at, 3] += 1.01 * m.allowed[0, 1, at, 3] + 1e-12

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, answer), FUSED.at("float32"))
    assert judgement.worst.quantity == name
    assert judgement.worst.index == (0, 1, at, 3)
    assert judgement.tallies[name].outside == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_not_cleared(wrong):
    problem = Recipe(query_length=4, key_length=5, head_dim=3).problem()
    dO, _ = cotangents(problem, 1)
    x, (c, *_) = intermediates(problem), gradient_readings(FUSED.at("float32"))

    for name, found in seen(problem, dO, None, 2**28).items():
        assert np.isinf(share(x, c, name, found, np.full(found.value.shape, wrong))).all()
    hidden = problem.replace(v=np.full(problem.v.shape, wrong))
    for name, found in seen(hidden, dO, None, 2**28).items():
        assert np.isinf(share(x, c, name, found, np.zeros(found.value.shape))).all()


def test_other_formulas_are_left_to_their_theorems():
    for options in ({"rotary": "half"}, {"feature_map": "relu"}, {"dropout_keep": "half"}, {"softcap": 2.0}):
        assert not is_glanced(Recipe(query_length=2, key_length=3, head_dim=4, **options).problem())
    assert all(map(is_glanced, PROBLEMS))
