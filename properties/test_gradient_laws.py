"""Laws of gradients, each derived in its docstring, held against the errors that the contract allows.

Notation of ``attn_spec.gradients``: dA and dS are the gradients of the final score and of the score before the softcap.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.claims import (
    compares_bits,
    cotangent,
    differentiable,
    gradients_within_bound,
    judged_gradients,
    randomness,
)
from attn_spec.formats import FORMATS
from attn_spec.intermediates import intermediates
from attn_spec.measure import Judgement, Measurement
from attn_spec.patterns import BIASES, BROADCASTS
from attn_spec.problem import Problem
from attn_spec.property import Refutation, attention_property, observe
from attn_spec.strategies import TAME
from attn_spec.subject import Subject

JACOBIAN = "the Jacobian of softmax, dP_j/da_l = P_j (1[j = l] - P_l); its rows and columns sum to 0"
Gradients = dict[str, np.ndarray]


def with_dense_bias(subject: Subject) -> SearchStrategy[Problem]:
    """Problems with a bias that varies along the keys."""
    names = [f"{name}@{axes}" for name in BIASES for axes in BROADCASTS if axes.endswith("K")]
    return differentiable(subject, needs=("bias",), without=("empty",), bias=st.sampled_from(names))


def far_from_zero(subject: Subject) -> SearchStrategy[Problem]:
    """Problems whose scores were moved by up to 120 either way, of all lengths: the LSE is below -88.7 in many."""
    return differentiable(
        subject,
        without=("empty", "bias", "scale", "softcap"),
        regimes=TAME,
        shift=st.sampled_from((-100.0, -120.0, -30.0, 120.0, 0.0)),
    )


def moderate(subject: Subject) -> SearchStrategy[Problem]:
    """Problems with numbers near 1."""
    regimes = ("uniform+v_one_hot", "integers", "normal+v_one")
    return differentiable(subject, without=("empty", "bias", "scale", "softcap"), regimes=regimes)


def by_name(judgement: Judgement) -> dict[str, Measurement]:
    """The measurements of dq, dk, dv, dbias."""
    return {measured.name: measured for measured in judgement.measurements}


def taken(array: np.ndarray | None, order: np.ndarray) -> np.ndarray | None:
    """Put the keys of a mask or bias in another order; a last axis of length 1 broadcasts and has none."""
    return array if array is None or array.shape[3] == 1 else array[..., order]


def in_groups(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Sum over all axes but batch and kv head: [B, Hq or Hkv, ..] -> [B, Hkv]."""
    return x.reshape(problem.batch, problem.kv_heads, -1).sum(axis=-1)


def refute_unless_balanced(
    law: str, parts: list[tuple[np.ndarray, Measurement]], sums: Callable[[np.ndarray], np.ndarray], due: np.ndarray
) -> None:
    """Raise :class:`Refutation` unless the weighted sums of gradients equal what is due, within their allowed errors.

    ``parts`` are pairs (weights, gradient), ``sums`` adds up an array to the shape of ``due``, which is exact but
    for roundings in float64. These are allowed for by 2**-50 per term, of the size of the terms.
    """
    total, allowed = np.zeros(due.shape), 2.0**-50 * np.abs(due)
    speaks = np.ones(due.shape, dtype=bool)
    for weights, m in parts:
        terms = np.where(weights == 0, 0.0, weights * m.got)
        error = np.where(weights == 0, 0.0, np.abs(weights) * m.allowed)
        total, allowed = total + sums(terms), allowed + sums(error + 2.0**-50 * m.got.size * np.abs(terms))
        speaks &= sums((~m.measured & (weights != 0)).astype(float)) == 0
    gap, speaks = np.abs(total - due), speaks & np.isfinite(allowed)
    observe(float(np.max(gap / np.where(allowed > 0, allowed, 1.0), where=speaks & (gap > 0), initial=0.0)))
    wrong = speaks & ~(gap <= allowed)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(f"{law}: {total[at]:.9g} instead of {due[at]:.9g} at {list(at)}, allowed {allowed[at]:.3g}")


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
    dO = cotangent(problem)
    found = {"dbias": subject.gradients(problem, dO)["dbias"]}
    m = by_name(judged_gradients(subject, problem, dO, found))["dbias"]
    due = np.zeros((*m.got.shape[:3], 1))
    refute_unless_balanced(
        "sum over keys of dbias", [(np.ones(m.got.shape), m)], lambda x: x.sum(-1, keepdims=True), due
    )


@attention_property(
    source="sum_j P_ij = 1",
    hunts="recomputed weights that do not sum to one: phantom or lost keys in the backward pass, another LSE",
    needs=("backward",),
    problems=partial(differentiable, without=("empty",)),
)
def test_value_gradients_sum_to_the_cotangent(subject: Subject, problem: Problem) -> None:
    """The sum of dV over the keys is the sum of dO over the queries of the group that see a key.

    sum_j dV_jc = sum_i (sum_j P_ij) dO_ic = sum_i dO_ic, within the sum of the errors allowed to dV.
    """
    dO = cotangent(problem)
    found = {"dv": subject.gradients(problem, dO)["dv"]}
    m = by_name(judged_gradients(subject, problem, dO, found))["dv"]
    seeing = np.where(problem.empty_rows[..., None], 0.0, dO)
    due = seeing.reshape(problem.batch, problem.kv_heads, -1, problem.value_dim).sum(axis=2, keepdims=True)
    refute_unless_balanced(
        "sum over keys of dv", [(np.ones(m.got.shape), m)], lambda x: x.sum(axis=2, keepdims=True), due
    )


@attention_property(
    source="both are sum_ij dS_ij scale q_i.k_j",
    hunts="a scale that reaches one of dQ and dK but not the other, or one of them twice",
    needs=("backward",),
    problems=partial(differentiable, without=("empty",)),
)
def test_q_and_k_have_one_inner_product_with_their_gradients(subject: Subject, problem: Problem) -> None:
    """sum q dQ over a group equals sum k dK of its kv head, within what the errors allowed to dQ and dK add up to.

    sum_id q_id dQ_id = scale sum_ij dS_ij q_i.k_j = sum_jd k_jd dK_jd. Multiplying q and dividing k by one number
    changes no score, and so has no gradient.
    """
    found = subject.gradients(problem, dO := cotangent(problem))
    m = by_name(judged_gradients(subject, problem, dO, {name: found[name] for name in ("dq", "dk")}))
    due = np.zeros((problem.batch, problem.kv_heads))
    parts = [(problem.q, m["dq"]), (-problem.k, m["dk"])]
    refute_unless_balanced("sum q dq - sum k dk", parts, partial(in_groups, problem), due)


@attention_property(
    source="P and O do not depend on dO; dP, delta, and with them every gradient, are linear in dO",
    hunts="gradients clipped, rows of zeros skipped, queries of another tile that still hold the last dO",
    needs=("backward",),
    problems=partial(differentiable, without=("empty",)),
)
def test_gradients_are_linear_in_the_cotangent(subject: Subject, problem: Problem) -> None:
    """Gradients for dO on some queries and on the others add up to those for dO, within the errors allowed to all."""
    dO = cotangent(problem)
    some = randomness(problem).random((*dO.shape[:3], 1)) < 0.5
    judged = [
        by_name(judged_gradients(subject, problem, part, subject.gradients(problem, part)))
        for part in (np.where(some, dO, 0.0), np.where(some, 0.0, dO), dO)
    ]
    for name, whole in judged[2].items():
        ones = np.ones(whole.got.shape)
        parts = [(ones, judged[0][name]), (ones, judged[1][name]), (-ones, whole)]
        refute_unless_balanced(f"{name} of two parts of dO less {name}", parts, lambda x: x, np.zeros(ones.shape))


@attention_property(
    source="scaling by a power of two is exact in binary arithmetic away from the ends of the range",
    hunts="gradients clipped or in fixed point, an absolute epsilon in delta or dS",
    needs=("backward",),
    problems=moderate,
)
def test_scaling_the_cotangent_by_a_power_of_two_scales_the_gradients(subject: Subject, problem: Problem) -> None:
    """-8 dO gives -8 times every gradient, bit for bit where no intermediate comes near the ends of the range.

    dO, V are integers or 1, so with P >= 2^-30 no dS but 0 is below 2^-100; formats with the exponents of float32
    hold that. Elsewhere, and for kernels that do not compare bits, the gradients for -8 dO are within their bounds.
    """
    dO = randomness(problem).integers(-4, 5, (*problem.score_shape[:3], problem.value_dim)).astype(float)
    scaled = subject.gradients(problem, -8 * dO)
    x, c = intermediates(problem), subject.contract
    stages = (c.multiplicands, c.stored_scores, c.score_gradients, c.gradient_accumulation, c.partial_gradients)
    wide = all(FORMATS[form].emin <= FORMATS["float32"].emin for form in (*stages, c.output))
    reach = np.where(x.visible, x.M - x.s, 0.0).max(initial=0.0)
    if not (compares_bits(subject) and wide and reach <= 16):
        gradients_within_bound(subject, problem, -8 * dO, scaled)
        return
    for name, gradient in subject.gradients(problem, dO).items():
        differs = ~(scaled[name] == -8 * gradient)
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
    """Gradients of scores moved by a constant, up to 120 either way, are within their bounds, and finite."""
    found = subject.gradients(problem, dO := cotangent(problem))
    for name, gradient in found.items():
        if not np.isfinite(gradient).all():
            count = int((~np.isfinite(gradient)).sum())
            raise Refutation(f"{name} holds {count} entries of {gradient.size} that are not finite")
    gradients_within_bound(subject, problem, dO, found)


@attention_property(
    source="a sum does not depend on the order of its terms",
    hunts="the wrong tile of K or V in one of the passes, a tail that is right for the last keys only",
    needs=("backward",),
    problems=partial(differentiable, without=("causal", "window", "empty")),
)
def test_keys_carry_their_gradients_along(subject: Subject, problem: Problem) -> None:
    """Keys, values, mask and bias in another order give the same dQ, and dK, dV and dBias in that order.

    They are held against the truth of the problem in its own order.
    """
    order = randomness(problem).permutation(problem.key_length)
    back = np.argsort(order)
    options = {"mask": taken(problem.mask, order), "bias": taken(problem.bias, order)}
    moved = problem.replace(k=problem.k[:, :, order], v=problem.v[:, :, order], **options)
    found = subject.gradients(moved, dO := cotangent(problem))
    found |= {name: found[name][:, :, back] for name in ("dk", "dv")}
    if problem.bias is not None:
        found["dbias"] = taken(found["dbias"], back)
    gradients_within_bound(subject, problem, dO, found)
