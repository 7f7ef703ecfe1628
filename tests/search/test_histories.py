"""A kernel must not use what it made of the options of one call for another call of the same shape."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.histories import asked_otherwise
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTY = load_all()["independence.old_answers_are_not_given_again"]


def attend(q, k, v, addend, scale=None):
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5 if scale is None else scale) + addend
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    return (p / np.where(total == 0, 1, total)) @ v


def lengths_of(seqused_k, keys):
    return np.where(np.arange(keys) < seqused_k, np.float32(0), np.float32(-np.inf))


def slopes_of(alibi_slopes, queries, keys):
    return -alibi_slopes * abs(np.arange(keys) - np.arange(queries)[:, None]).astype(np.float32)


def planned(remembers):
    """Return kernels of which each plans a call by an option, and keeps the plan of a shape if it ``remembers``."""
    plans = {}

    def kept(key, made):
        if not remembers:
            return made
        return plans.setdefault(key, made)

    def by_lengths(q, k, v, *, seqused_k=None):
        plan = 0 if seqused_k is None else kept((q.shape, k.shape), lengths_of(seqused_k, k.shape[2]))
        return attend(q, k, v, plan)

    def by_slopes(q, k, v, *, alibi_slopes=None):
        shape = q.shape[2], k.shape[2]
        plan = 0 if alibi_slopes is None else kept((*shape, alibi_slopes.shape), slopes_of(alibi_slopes, *shape))
        return attend(q, k, v, plan)

    def by_scale(q, k, v, *, scale=None):
        return attend(q, k, v, 0, None if scale is None else kept((q.shape, k.shape), scale))

    return {"seqused_k": by_lengths, "alibi_slopes": by_slopes, "scale": by_scale}


@pytest.mark.parametrize("option", planned(remembers=True))
def test_what_was_made_of_an_option_in_a_call_before_is_refuted(option):
    for remembers, verdict in ((False, Verdict.HELD), (True, Verdict.REFUTED)):
        facts = {"framework": "numpy", "dtypes": ("float32",), "contract": "fp32", "supports": (option,)}
        made = kernel(name=option, **facts)(planned(remembers)[option])

        row, _ = search(PROPERTY, Subject(made, "float32"), PROFILES["smoke"], 0)

        assert row.verdict is verdict, option


def test_other_values_of_options_have_the_same_shapes():
    """There is no other problem where no option has another value, or where no recipe made the first."""
    options = {"mask": "random@1H1K", "alibi_slopes": "one@1H11", "scale": 0.5, "window": (2, 5), "causal": True}
    problem = Recipe(dtypes="float32", query_heads=2, kv_heads=2, query_length=4, key_length=6, **options).problem()
    made = kernel(framework="numpy", dtypes=("float32",), supports=tuple(options))(attend)
    subject = Subject(made, "float32")

    other = asked_otherwise(subject, problem)

    assert problem.options() == other.options()
    for name in options:
        before, after = getattr(problem, name), getattr(other, name)
        assert np.shape(before) == np.shape(after), name
        assert np.array_equal(before, after) == (name == "causal"), name
    assert all(np.array_equal(getattr(problem, name), getattr(other, name)) for name in "qkv")
    assert asked_otherwise(subject, other) is None
    plain = Recipe(dtypes="float32", query_length=4, key_length=6, causal=True).problem()
    assert asked_otherwise(subject, plain) is None


def test_no_value_is_asked_for_that_does_not_fit_the_widths():
    made = kernel(framework="numpy", dtypes=("float32",), supports=("rotary",))(attend)
    drawn = [Recipe(dtypes="float32", head_dim=4, rotary="half", rotary_dim=4, seed=n).problem() for n in range(10)]

    assert {asked_otherwise(Subject(made, "float32"), problem).rotary_dim for problem in drawn} == {2}


def test_no_value_is_asked_for_that_the_kernel_does_not_take():
    made = kernel(framework="numpy", dtypes=("float32",), supports=("scale",), positive_scale=True)(attend)
    drawn = [Recipe(dtypes="float32", scale=0.5, seed=seed).problem() for seed in range(40)]

    others = [asked_otherwise(Subject(made, "float32"), problem) for problem in drawn]

    assert 0 < others.count(None) < 20  # -0.5 and 0 are two of seven
    assert all(other.scale > 0 for other in others if other is not None)


def test_lengths_that_follow_from_others_are_asked_for_with_them():
    """A recipe says the lengths of queries alone if each sequence has as many keys."""
    options = ("seqused_q", "seqused_k")
    made = kernel(framework="numpy", dtypes=("float32",), supports=options, equal_lengths=True)(attend)
    recipe = Recipe(
        dtypes="float32", batch=4, query_length=7, key_length=7, seqused_q="ragged@B111", equal_lengths=True, seed=3
    )
    problem = recipe.problem()

    other = asked_otherwise(Subject(made, "float32"), problem)

    assert np.array_equal(other.seqused_q, other.seqused_k)
    assert not np.array_equal(other.seqused_q, problem.seqused_q)


@pytest.mark.parametrize("declared", [{}, {"tight_buffers": True}], ids=["some_tight", "tight"])
@pytest.mark.parametrize("presentation", ["THD", "paged"])
def test_a_sound_kernel_of_buffers_that_end_with_the_last_sequence_holds(presentation, declared):
    """A call for other lengths has buffers of other shapes, which have no memory in common with those of the first."""
    contract = {"contract": "fp32", "presentation": presentation, "supports": ("scale", "cross", "lse"), **declared}
    subject = Subject(emulate("packed", PRECISE, **contract), "float32")
    lengths = {"seqused_q": "ragged@B111", "seqused_k": "ragged@B111"}
    problem = Recipe(dtypes="float32", batch=3, query_length=5, key_length=7, scale=0.5, seed=1, **lengths).problem()

    row, _ = search(PROPERTY, subject, PROFILES["smoke"], 0)

    assert row.verdict is Verdict.HELD
    assert asked_otherwise(replace(subject, choices={"tight": False, "may_be_tight": False}), problem) is not None
    assert asked_otherwise(replace(subject, choices={"tight": True}), problem) is None
