"""Laws of gradients, each derived in its docstring, held against the errors that the contract allows.

Notation of ``attn_spec.attention.gradients``: dA and dS are the gradients of the final score and of the score before
the softcap.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.bounds.operand_bounds import operands_are_bounded
from attn_spec.contract.readings import gradient_readings
from attn_spec.judgement.analysis import analysis_of
from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.patterns import BIASES, BROADCASTS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import DIFFERENTIABLE
from attn_spec.problem.traits import (
    adds_to_row_sum,
    bends_scores,
    changes_scores,
    changes_weights,
    positional,
    projects,
)
from attn_spec.search.assertions import (
    assert_gradients_within_bound,
    compares_bits,
    differentiable,
    gradient_errors_allowed,
    without_values,
)
from attn_spec.search.drawing.cotangents import cotangent, randomness
from attn_spec.search.drawing.strategies import TAME
from attn_spec.search.property import Refutation, attention_property, observe

JACOBIAN = "the Jacobian of softmax, dP_j/da_l = P_j (1[j = l] - P_l); its rows and columns sum to 0"
#: Weights, gradient, errors allowed to it: arrays of one shape.
Weighted = tuple[np.ndarray | float, np.ndarray, np.ndarray]


def with_dense_bias(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with a bias that varies along the keys, without what adds to the row sum beside the keys."""
    names = [f"{name}@{axes}" for name in BIASES for axes in BROADCASTS if axes.endswith("K")]
    without = ("empty", adds_to_row_sum)
    return differentiable(subject, needs=("bias",), without=without, bias=st.sampled_from(names))


def far_from_zero(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of all lengths whose scores are moved by up to 120 either way: the LSE is below -88.7 in many."""
    return differentiable(
        subject,
        without=("empty", changes_scores),
        regimes=TAME,
        shift=st.sampled_from((-100.0, -120.0, -30.0, 120.0, 0.0)),
    )


def moderate(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with numbers near 1."""
    regimes = ("uniform+v_one_hot", "integers", "normal+v_one")
    return differentiable(subject, without=("empty", changes_scores), regimes=regimes)


def in_groups(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Sum over all axes but batch and kv head: [B, Hq or Hkv, ..] -> [B, Hkv]."""
    return x.reshape(problem.batch, problem.kv_heads, -1).sum(axis=-1)


@np.errstate(all="ignore")
def assert_balanced(law: str, parts: Sequence[Weighted], total: Callable[[np.ndarray], np.ndarray]) -> None:
    """Raise :class:`Refutation` unless weighted gradients, added up by ``total``, come to 0.

    They may be off by what their allowed errors add up to. Sums are rounded in float64: 2**-50 of the size of each
    term, times the number of terms, is allowed on top; where finite gradients overflow in them, nothing is said.
    """
    terms = [np.where(weights == 0, 0.0, weights * got) for weights, got, _ in parts]
    errors = [np.where(weights == 0, 0.0, np.abs(weights) * allowed) for weights, _, allowed in parts]
    sums = np.sum([total(term) for term in terms], axis=0)
    sizes = [np.where(np.isfinite(got), np.abs(term), 0.0) for term, (_, got, _) in zip(terms, parts, strict=True)]
    slack = [2.0**-50 * size.size * total(size) for size in sizes]
    allowed = np.sum([*map(total, errors), *slack], axis=0)
    gap = np.abs(sums)
    observe(float(np.max(gap / allowed, where=np.isfinite(allowed) & (gap > 0), initial=0.0)))
    wrong = np.isfinite(allowed) & ~(gap <= allowed)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(f"{law}, at {list(at)}, is {sums[at]:.9g}, not 0; allowed error {allowed[at]:.3g}")


@attention_property(
    source=JACOBIAN,
    hunts="delta = rowsum(dO * O) forgotten, taken of another row, or of an output before its last rescaling",
    needs=("backward", "bias"),
    problems=with_dense_bias,
)
def test_bias_gradients_sum_to_zero_over_the_keys(subject: Subject, problem: Problem) -> None:
    """The gradients of a bias that varies along the keys sum to 0 over them, within the sum of their allowed errors.

    sum_j dA_ij = sum_j P_ij (dP_ij - delta_i) = delta_i - delta_i, since sum_j P_ij = 1 and delta_i = sum_j P_ij dP_ij;
    and so for every sum of such rows. No true gradient enters, only errors allowed.
    """
    dO = cotangent(subject, problem)
    dbias, allowed = subject.gradients(problem, dO)["dbias"], gradient_errors_allowed(subject, problem, dO)["dbias"]
    assert_balanced("sum over keys of dbias", [(1.0, dbias, allowed)], lambda x: x.sum(axis=3))


@attention_property(
    source="sum_j P_ij = 1",
    hunts="recomputed weights that do not sum to one: phantom or lost keys in the backward pass, another LSE",
    needs=("backward",),
    problems=partial(differentiable, without=("empty", changes_weights, projects)),
    not_applicable=without_values,
)
def test_value_gradients_sum_to_the_cotangent(subject: Subject, problem: Problem) -> None:
    """The sum of dV over the keys is the sum of dO over the queries of the group that see a key.

    sum_j dV_jc = sum_i (sum_j P_ij) dO_ic = sum_i dO_ic, within the sum of the errors allowed to dV.
    """
    dO = cotangent(subject, problem)
    dv, allowed = subject.gradients(problem, dO)["dv"], gradient_errors_allowed(subject, problem, dO)["dv"]
    parts = [(1.0, dv, allowed), (-(1.0 - problem.empty_rows[..., None]), dO, np.zeros(dO.shape))]
    per_column = (problem.batch, problem.kv_heads, -1, problem.value_dim)
    assert_balanced("sum of dv - sum of do", parts, lambda x: x.reshape(per_column).sum(axis=2))


@attention_property(
    source="both are sum_ij dS_ij scale q_i.k_j",
    hunts="a scale that reaches one of dQ and dK but not the other, or one of them twice",
    needs=("backward",),
    problems=partial(differentiable, without=("empty", bends_scores)),
    not_applicable=without_values,
)
def test_q_and_k_have_one_inner_product_with_their_gradients(subject: Subject, problem: Problem) -> None:
    """sum q dQ over a group equals sum k dK of its kv head, within what the errors allowed to dQ and dK add up to.

    sum_id q_id dQ_id = scale sum_ij dS_ij q_i.k_j = sum_jd k_jd dK_jd. Multiplying q and dividing k by one number
    changes no score, and so has no gradient.
    """
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    allowed = gradient_errors_allowed(subject, problem, dO)
    parts = [(problem.q, found["dq"], allowed["dq"]), (-problem.k, found["dk"], allowed["dk"])]
    assert_balanced("sum q dq - sum k dk", parts, partial(in_groups, problem))


@attention_property(
    source="P and O do not depend on dO; dP, delta, and with them every gradient, are linear in dO",
    hunts="gradients clipped or saturated, rows of zeros skipped, what the last dO left behind",
    needs=("backward",),
    problems=partial(differentiable, without=("empty",)),
)
def test_gradients_are_linear_in_the_cotangent(subject: Subject, problem: Problem) -> None:
    """Gradients for some elements of dO and for the others add up to those for dO, within the errors allowed to all."""
    dO = cotangent(subject, problem)
    some = randomness(problem).random(dO.shape) < 0.5
    answers = [
        (sign, subject.gradients(problem, part), gradient_errors_allowed(subject, problem, part))
        for sign, part in ((1.0, np.where(some, dO, 0.0)), (1.0, np.where(some, 0.0, dO)), (-1.0, dO))
    ]
    for name in answers[0][1]:
        parts = [(sign, found[name], allowed[name]) for sign, found, allowed in answers]
        assert_balanced(f"{name} of two parts of dO less {name} of dO", parts, lambda x: x)


@attention_property(
    source="scaling by a power of two is exact in binary arithmetic away from the ends of the range",
    hunts="gradients clipped or in fixed point, an absolute epsilon in delta or dS",
    needs=("backward",),
    problems=moderate,
)
def test_scaling_the_cotangent_by_a_power_of_two_scales_the_gradients(subject: Subject, problem: Problem) -> None:
    """-8 dO gives -8 times every gradient, bit for bit where no intermediate comes near the ends of the range.

    dO, V are integers or 1, so with P >= 2^-30 no dS but 0 is below 2^-100; formats with the exponents of float32
    hold that. Elsewhere, where an operand may have any size, and for kernels that do not compare bits, the gradients
    for -8 dO are within their bounds.
    """
    dO = randomness(problem).integers(-4, 5, problem.output_shape).astype(float)
    scaled = subject.gradients(problem, -8 * dO)
    x = analysis_of(problem).intermediates
    stages = ("multiplicands", "score_accumulation", "stored_scores", "score_gradients", "inner_accumulation")
    stages = (*stages, "products", "operands", "gradient_accumulation", "partial_gradients", "output", "gradients")
    used = {getattr(c, stage) for c in gradient_readings(subject.contract) for stage in stages} - {None}
    used |= set(map(problem.dtype_of, DIFFERENTIABLE))
    wide = all(FORMATS[form].emin <= FORMATS["float32"].emin for form in used)
    reach = np.where(x.visible, x.M - x.s, 0.0).max(initial=0.0)
    bounded = all(operands_are_bounded(x, c) for c in gradient_readings(subject.contract))
    if not (compares_bits(subject) and wide and reach <= 16 and bounded):
        assert_gradients_within_bound(subject, problem, -8 * dO, scaled)
        return
    for name, gradient in subject.gradients(problem, dO).items():
        differs = ~((scaled[name] == -8 * gradient) | (np.isnan(scaled[name]) & np.isnan(gradient)))
        if differs.any():
            at = tuple(int(n) for n in np.argwhere(differs)[0])
            change = f"{gradient[at]:.9g} ({gradient[at].hex()}) became {scaled[name][at]:.9g}"
            raise Refutation(f"when dO was multiplied by -8, {name}{list(at)} {change}; {int(differs.sum())} so")


@attention_property(
    source="softmax(s + c) = softmax(s); adding c to every k adds c sum_j dS_ij = 0 to dQ",
    hunts="exp(0 - LSE) of padded columns, infinite once LSE < -88.7, and Inf * 0 in dQ; exp(s) without its maximum",
    needs=("backward",),
    problems=far_from_zero,
)
def test_a_constant_added_to_all_scores_changes_no_gradient(subject: Subject, problem: Problem) -> None:
    """Gradients of scores moved by a constant, up to 120 either way, are within their bounds, and so finite."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    assert_gradients_within_bound(subject, problem, dO, found)


@attention_property(
    source="a sum does not depend on the order of its terms",
    hunts="the wrong tile of K or V in one of the passes, a tail that is right for the last keys only",
    needs=("backward",),
    problems=partial(differentiable, without=(positional, "empty")),
)
def test_keys_carry_their_gradients_along(subject: Subject, problem: Problem) -> None:
    """Keys, values, mask and bias in another order give the same dQ, and dK, dV and dBias in that order.

    They are held against the truth of the problem in its own order.
    """
    order = randomness(problem).permutation(problem.key_length)
    back = np.argsort(order)
    found = subject.gradients(problem.take("K", order), dO := cotangent(subject, problem))
    found |= {name: found[name][:, :, back] for name in subject.presentation.key_gradients}
    if "dbias" in found and 3 not in problem.broadcast_axes("bias"):
        found["dbias"] = found["dbias"][..., back]
    assert_gradients_within_bound(subject, problem, dO, found)
