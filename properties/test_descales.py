"""Descales: stored numbers of q, k and v stand for real numbers, which are these numbers times a factor."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import FACTORS, OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_within_bound, measured_within_bound
from attn_spec.search.drawing.strategies import named, problems
from attn_spec.search.property import Refutation, attention_property

STORED = (
    "the real number that a stored number x stands for is d x: FlashAttention-3, q_descale, k_descale and v_descale"
)
#: Values beside which a wrong factor of a score, or of a value, is seen.
TELLING = ("normal", "large", "integers", "normal+v_one_hot", "rising")


def descaled(
    subject: Subject, *needs: str, of: tuple[str, ...], by_sequence: bool = False, **fixed: Any
) -> SearchStrategy[Problem]:
    """Draw problems with descales by the patterns ``of``; some have groups of query heads, or values that are keys.

    Beside groups they vary along the kv heads, and ``by_sequence``, and by key where a kernel takes them so.
    """
    always = [OPTIONS[name] for name in subject.kernel.limits.always if name in OPTIONS]
    able = (name for name in FACTORS if subject.supports(name) and not any(x.excludes(OPTIONS[name]) for x in always))
    axes = {name: OPTIONS[name].axes for name in able}
    needs = tuple(dict.fromkeys((*needs, *axes)))  # so that no score is drawn beside which one of them has no meaning
    telling = partial(problems, subject, without=("empty",), regimes=TELLING, **fixed)
    ways = [telling(needs=needs, **{name: named(of, letters) for name, letters in axes.items()})]
    limits = subject.kernel.limits
    if subject.supports("gqa") and limits.query_heads is None and limits.kv_heads is None and limits.most("H") >= 4:
        by_key = ABILITIES["descale_by_key"].of_any if by_sequence and subject.supports("descale_by_key") else ()
        own = "BG11" if by_sequence else "1G11"
        heads = {name: st.sampled_from([f"{one}@{'BGK1' if name in by_key else own}" for one in of]) for name in axes}
        ways.append(telling(needs=(*needs, "gqa"), kv_heads=2, query_heads=4, **heads))
    if subject.supports("latent") and "latent" not in fixed:
        ways.append(telling(needs=(*needs, "latent"), **{name: named(of, letters) for name, letters in axes.items()}))
    return st.one_of(ways)


def assert_related(subject: Subject, problem: Problem, other: Problem, factors: Mapping[str, float]) -> None:
    """Raise :class:`Refutation` unless answers to both problems are within their bounds, and related.

    A quantity of the other answer is that of the first, times its number in ``factors`` or 1, but for both bounds.
    """
    answer, second = subject(problem), subject(other)
    first = measured_within_bound(subject, problem, answer).measurements
    others = {one.name: one for one in measured_within_bound(subject, other, second).measurements}
    for one in first:
        another, factor = others[one.name], factors.get(one.name, 1.0)
        with np.errstate(invalid="ignore"):
            apart = np.abs(factor * answer[one.name] - second[one.name])
        allowed = 1.01 * (factor * one.allowed + another.allowed)
        if (wrong := one.measured & another.measured & (apart > allowed)).any():
            at = tuple(int(n) for n in np.argwhere(wrong)[0])
            raise Refutation(
                f"{one.name}{list(at)} is {apart[at]:.3g} from {factor:g} times that of the other call", one
            )


@attention_property(
    source=STORED,
    hunts="a descale that is left out, of another head, of another key or tile, or applied twice",
    needs=("k_descale",),
    problems=lambda subject: descaled(subject, "k_descale", of=("near_one", "spread", "blocks", "one_huge")),
)
def test_each_key_has_its_own_descale(subject: Subject, problem: Problem) -> None:
    """With a descale for each key, or block of keys, of each head, output and log-sum-exp are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="vllm-project/vllm, unified_attention: k_scale_cache [pages, page size, Hkv] is read by the table of pages",
    hunts="a descale of another sequence, of another slot of the cache, or of a slot behind the last key",
    needs=("k_descale", "seqused_k"),
    problems=lambda subject: descaled(
        subject,
        *("k_descale", "seqused_k"),
        of=("near_one", "spread"),
        by_sequence=True,
        batch=st.sampled_from((2, 3, 5, 9, 17)),
        seqused_k=named(("ragged", "last_shorter", "but_one", "full"), axes="B111"),
    ),
)
def test_each_sequence_has_its_own_descales(subject: Subject, problem: Problem) -> None:
    """With descales of each sequence, output and log-sum-exp are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


def factors(problem: Problem) -> dict[str, np.ndarray]:
    """Return the descales as factors of q, k and v, by the name of the tensor; those without a descale are left out."""
    found = {}
    for name in FACTORS:
        if (d := getattr(problem, name)) is not None:
            repeated = name == "q_descale" and d.shape[1] > 1
            found[name[0]] = np.repeat(d, problem.query_group, axis=1) if repeated else d
    return found


def products(problem: Problem) -> dict[str, np.ndarray]:
    """Return the products of q, k and v with their descales, by name; those without a descale are left out."""
    return {name: getattr(problem, name) * d for name, d in factors(problem).items()}


def divisible(problem: Problem) -> Problem:
    """Return a problem whose integers, times their descales of powers of 2, are integers of their dtype.

    These are multiples of 1 / d, toward 0, whose products with d are not beyond the largest. Tensors of floating-point
    numbers stay as they are: most of their products are numbers of their dtype.
    """
    found = {}
    for name, d in factors(problem).items():
        if (form := FORMATS[problem.dtype_of(name)]).is_integer:
            product = np.clip(np.trunc(getattr(problem, name) * d), -form.largest, form.largest)
            found[name] = np.trunc(product / d) + 0.0  # an integer has no -0
    return problem.replace(**found)


def fits(problem: Problem) -> bool:
    """Return whether the products with descales are numbers of the dtypes of the problem."""
    return all(bits.is_representable(x, problem.dtype_of(name)) for name, x in products(problem).items())


@attention_property(
    source="a power of 2 scales a floating-point number exactly, as long as it stays in range",
    hunts="a descale that is left out, squared, of another head or tensor, or one number for all heads",
    needs=("k_descale",),
    problems=lambda subject: (
        descaled(subject, "k_descale", of=("power_of_two", "half"), latent=False).map(divisible).filter(fits)
    ),
)
def test_a_power_of_two_moves_into_its_tensor(subject: Subject, problem: Problem) -> None:
    """With descales of powers of 2 the answer is that of q, k and v which have been multiplied, but for both bounds."""
    assert_related(subject, problem, problem.replace(**products(problem), **dict.fromkeys(FACTORS)), {})


@attention_property(
    source="scale d_k q.k is homogeneous of degree 1 in the scale and in d_k",
    hunts="a descale that is applied twice, in the scale and in the keys, or to values as well",
    needs=("k_descale", "scale"),
    problems=lambda subject: descaled(subject, "k_descale", "scale", of=("near_one", "power_of_two", "spread")),
)
def test_doubling_the_descale_of_keys_is_doubling_the_scale(subject: Subject, problem: Problem) -> None:
    """The answer with twice the descales of the keys and half the scale is the same, but for both bounds."""
    assert problem.k_descale is not None
    other = problem.replace(k_descale=2 * problem.k_descale, scale=problem.scale_value / 2)
    assert_related(subject, problem, other, {})


@attention_property(
    source="sum_j P_ij d_v v_jc is linear in d_v",
    hunts="a descale of values that is left out, or that of the keys in its place; one that reaches the scores",
    needs=("v_descale",),
    problems=lambda subject: descaled(subject, "v_descale", of=("near_one", "power_of_two", "spread")),
)
def test_doubling_the_descale_of_values_doubles_the_output(subject: Subject, problem: Problem) -> None:
    """With twice the descales of the values the output is twice as large, and the log-sum-exp is the same."""
    assert problem.v_descale is not None
    assert_related(subject, problem, problem.replace(v_descale=2 * problem.v_descale), {"output": 2.0})
