"""Each option of the table means the same in every arithmetic that a verdict rests on as in the definition.

A new row of the table is examined without a change here.
"""

from dataclasses import fields
from functools import cache

import numpy as np
import pytest

from attn_spec.attention import definition, error_free, error_free_gradients
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.presets import PRESETS
from attn_spec.emulation import PRECISE, emulate, emulate_both
from attn_spec.emulation.kernels import SUPPORTS
from attn_spec.emulation.linear import LinearAttention, LinearGradients
from attn_spec.judgement.long.blocks import judge_parts, parts_of
from attn_spec.judgement.long.glance import glance, is_plain
from attn_spec.judgement.long.gradient_blocks import judge_gradient_parts
from attn_spec.judgement.long.gradient_parts import gradient_parts_of
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.judgement.oracle import float64_gradients, float64_truth
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.handled import CODED
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.options.option import CHOICE, OUTPUT, SCORE
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"query_heads": 2, "kv_heads": 1, "query_length": 4, "key_length": 6, "head_dim": 4, "value_dim": 2}
#: Shape of a layer, whose heads are made of one q, k and v.
LAYER = {**SHAPE, "kv_heads": 1, "score_width": 3, "head_value_dim": 2, "output_width": 3}
#: Values of each option that are tried, at most, and bits of the definition.
VALUES, BITS = 3, 120
#: Options of the stored output, beside which there are no gradients.
STORED = tuple(name for name, row in OPTIONS.items() if row.kind == OUTPUT)
EVERY = emulate_both(
    "every",
    PRECISE,
    supports=tuple(dict.fromkeys((*SUPPORTS, *(name for name in OPTIONS if name not in STORED)))),
    dtypes=("float32", "float64"),
)
OF_OUTPUTS = emulate("of_outputs", PRECISE, supports=(*SUPPORTS, *STORED))
LINEAR = emulate_both(
    "linear", PRECISE, steps=LinearAttention, gradients=LinearGradients, supports=EVERY.supports, dtypes=EVERY.dtypes
)
C = PRESETS["fp32"].at("float32")


def used(name, value):
    """Return the options of a problem that uses one: with its owner, and the parameters that this needs."""
    owner = OPTIONS.get(OPTIONS[name].of, OPTIONS[name])
    needed = {one.name: one.draws[-1] for one in parameters(owner.name) if not one.optional}
    return {owner.name: owner.draws[-1], **needed, name: value}


def cases():
    for name, row in OPTIONS.items():
        values = [value for value in row.draws if value is not None and row.is_used(value)]
        if row.kind != CHOICE:
            yield from ((name, value) for value in values[:: -(-len(values) // VALUES)])


CASES = list(cases())


@cache
def problem_of(name, value):
    """Return a problem that uses an option; None where its lengths do not go with the value."""
    options = used(name, value)
    shape = LAYER if "query_projection" in options else SHAPE
    try:
        return Recipe(**shape, **options, regime="normal", seed=7).problem()
    except ProblemError:
        return None


@cache
def exact(problem):
    """Return output and log-sum-exp by the definition, [..] of float64."""
    o, L = definition.attention(problem, BITS), definition.log_sum_exp(problem, BITS)
    return {"output": o.astype(float), "lse": L.astype(float)}


@cache
def exact_gradients(problem):
    found = gradients(problem, cotangent(problem), BITS)
    return {name: x.astype(float) for name, x in found.items()}


def cotangent(problem):
    return bits.nearest(np.random.default_rng(1).standard_normal(problem.output_shape), "float32")


def rounded(answer):
    return {name: bits.nearest(x, "float32") for name, x in answer.items()}


@np.errstate(invalid="ignore")
def assert_encloses(truth, answer, arithmetic, problem, rows=None):
    """Raise unless what an arithmetic knows holds the definition's answer, whose float64 is off by a rounding.

    Of some rows [B, Hq, Sq], or of all.
    """
    for name, value in answer.items():
        off = np.abs((value - truth[name].value) - truth[name].low)
        inside = (off <= truth[name].radius + 2.0**-52 * np.abs(value)) | ~np.isfinite(value)
        if rows is not None:
            inside |= ~rows.reshape(*rows.shape, *[1] * (value.ndim - 3))
        assert inside.all(), (
            f"{name} by {arithmetic} is off by {np.nanmax(off):.3g} in {problem}: "
            "evaluate the option there, or take it out of HANDLES there"
        )


def assert_held(judgement, what, problem):
    """Raise unless a judgement takes the right answer."""
    assert not judgement.refuted, f"the right answer is refuted by {what}, which may not know the option: {problem}"


@pytest.mark.parametrize(("name", "value"), CASES, ids=lambda x: str(x).replace("/", ""))
def test_every_arithmetic_gives_what_the_definition_does(name, value):
    if (problem := problem_of(name, value)) is None:
        pytest.skip("these lengths do not go with the value")
    x, right = intermediates(problem), exact(problem)

    assert_encloses(enclose(problem, BITS), right, "balls", problem)
    assert_encloses(float64_truth(x), right, "float64", problem)
    if error_free.applies(problem):
        assert_encloses(error_free.enclose(problem), right, "error-free products", problem)
    if is_plain(problem):
        for cut in (False, True):
            seen = glance(problem, cut_operands=cut)
            known = {"output": seen.output, "lse": seen.lse}
            assert_encloses(known, right, "a glance", problem, rows=seen.keys > 0)
    answer = rounded(right)
    assert_held(judge(problem, C, **answer), "the theorems", problem)
    assert_held(judge_parts(parts_of(problem, **answer), C), "blocks of rows", problem)
    stored = OF_OUTPUTS if name in STORED else EVERY
    emulated = Subject(LINEAR if problem.feature_map else stored, "float32")(problem)
    of_emulated = judge(problem, PRECISE.at("float32"), **emulated)
    assert_held(of_emulated, "the theorems, of emulated attention", problem)
    assert of_emulated.exercised


@pytest.mark.parametrize(
    ("name", "value"), [case for case in CASES if case[0] not in STORED], ids=lambda x: str(x).replace("/", "")
)
def test_gradients_are_those_of_the_definition(name, value):
    problem = problem_of(name, value)
    if problem is None or problem.empty_rows.any():
        pytest.skip("these lengths do not go with the value, or some query sees no key")
    dO, right = cotangent(problem), exact_gradients(problem)
    x = intermediates(problem)

    assert_encloses(enclose_gradients(problem, dO, BITS), right, "balls", problem)
    assert_encloses(float64_gradients(x, gradient_intermediates(x, dO)), right, "float64", problem)
    if error_free.applies(problem):
        sharp = error_free_gradients.enclose_gradients(problem, dO)
        assert_encloses(sharp, right, "error-free products", problem)
    found = rounded(right)
    assert_held(judge_gradients(problem, C, dO, found), "the theorems", problem)
    parts = gradient_parts_of(problem, dO, found)
    assert_held(judge_gradient_parts(parts, C), "blocks of rows and keys", problem)
    emulated = Subject(LINEAR if problem.feature_map else EVERY, "float32").gradients(problem, dO)
    of_emulated = judge_gradients(problem, PRECISE.at("float32"), dO, emulated)
    assert_held(of_emulated, "the theorems, of emulated attention", problem)


def with_and_without(name):
    """Yield problems that use an option, each with its twin without it."""
    row = OPTIONS[name]
    owner = OPTIONS.get(row.of, row)
    for given in owner.draws[:: max(len(owner.draws) // 8, 1)]:
        for value in [given] if owner is row else row.draws:
            options = used(name, value) | ({} if owner is row else {owner.name: given})
            problem = Recipe(**SHAPE, **options, seed=7).problem()
            own = {name: row.off} | {one.name: one.off for one in parameters(name)}
            if row.is_used(value) and not problem.empty_rows.any():
                yield problem, problem.replace(**own)


def differ(problem, other):
    """Return whether outputs and gradients of pairs are far apart, by the definition."""
    pairs = [(exact(problem)["output"], exact(other)["output"])]
    pairs += [(exact_gradients(problem)[name], exact_gradients(other)[name]) for name in ("dq", "dk")]
    return all(np.abs(one - another).max() > 2.0**-12 for one, another in pairs)


@pytest.mark.parametrize("name", [name for name in CODED if name not in STORED])
def test_an_answer_without_an_option_that_needs_code_is_refuted(name):
    """By each judgement: that of a small problem, and that in blocks, whose rows and keys are cleared at a glance."""
    problem, other = next(pair for pair in with_and_without(name) if differ(*pair))
    answer, found, dO = rounded(exact(other)), rounded(exact_gradients(other)), cotangent(problem)
    found = {key: x for key, x in found.items() if key in exact_gradients(problem)}

    assert judge(problem, C, output=answer["output"]).refuted
    assert judge_parts(parts_of(problem, output=answer["output"]), C).refuted
    assert judge_gradients(problem, C, dO, found).refuted
    for one in ("dq", "dk"):
        assert judge_gradient_parts(gradient_parts_of(problem, dO, {one: found[one]}), C).refuted


def test_recipes_know_every_option():
    assert {row.name for row in OPTIONS.values() if row.kind != SCORE} <= {field.name for field in fields(Recipe)}
