"""Kernels whose backward pass takes fewer problems than their forward pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import Recipe, kernel
from attn_spec.isolation.foreign import isolated
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import Limits, NotTaken
from attn_spec.kernels.subject import Subject
from attn_spec.search.missing_limits import missing_limits
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

OUTPUT = load_all()["accuracy.output_is_within_its_bound"]
GRADIENTS = load_all()["gradients.query_and_key_gradients_are_within_their_bounds"]
BIAS = load_all()["gradients.bias_gradients_are_within_their_bounds"]
FEW = replace(PROFILES["smoke"], examples=6)
NARROW = {"backward_limits": {"equal_lengths": True}, "forward_only": ("bias",)}


def attention(q, k, v, *, causal=False, bias=None):
    if q.requires_grad:
        assert q.shape[2] == k.shape[2], "no gradients of other lengths"
        assert bias is None, "no gradients beside a bias"
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s if bias is None else s + bias
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1) if causal else torch.zeros((), dtype=torch.bool)
    s = s.masked_fill(hidden, -torch.inf)
    return s.softmax(-1).nan_to_num(0.0) @ v


def declared(**changes):
    facts = {"framework": "torch", "dtypes": ("float32",), "contract": "eager", "name": "mine"}
    facts["supports"] = ("causal", "bias", "cross", "backward")
    return kernel(**{**facts, **changes})(attention)


def subject(**changes):
    return Subject(declared(**changes), "float32")


def test_gradients_are_asked_for_within_the_limits_of_the_backward_pass_alone():
    own = subject(**NARROW)

    assert own.for_gradients.kernel.supports == {"causal", "backward"}
    assert search(GRADIENTS, own, FEW, seed=0)[0].verdict is Verdict.HELD
    asked = []
    watched = replace(own, kernel=replace(own.kernel, function=lambda *a, **b: asked.append(a) or attention(*a, **b)))
    assert search(OUTPUT, watched, FEW, seed=0)[0].verdict is Verdict.HELD
    assert any(q.shape[2] != k.shape[2] for q, k, _ in asked)
    row, _ = search(BIAS, own, FEW, seed=0)
    assert (row.verdict, row.lacks) == (Verdict.NOT_DECLARED, ("bias",))


def test_a_kernel_without_limits_of_gradients_is_as_it_was():
    own = subject()

    assert own.for_gradients is own
    assert search(GRADIENTS, own, FEW, seed=0)[0].verdict is Verdict.REFUTED


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"query_length": 3, "key_length": 2}, "there must be as many keys as queries"),
        ({"query_length": 2, "key_length": 2, "bias": "normal@BHQK"}, "it gives no gradients beside bias"),
    ],
)
def test_a_problem_past_the_limits_has_an_answer_and_no_gradients(recipe, told):
    own, problem = subject(**NARROW), Recipe(**recipe).problem()

    own(problem)
    with pytest.raises(NotTaken, match=f"mine does not take the problem: {told}"):
        own.gradients(problem, np.ones(problem.output_shape))


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        ({"query_length": 3, "key_length": 2}, "declare backward_limits={'equal_lengths': True}"),
        ({"query_length": 2, "key_length": 2, "bias": "normal@BHQK"}, "declare forward_only=('bias',)"),
    ],
)
def test_a_hint_names_the_limit_of_the_backward_pass_where_the_forward_pass_answers(recipe, hint):
    own, problem = subject(), Recipe(**recipe).problem()
    with pytest.raises(AssertionError) as error:
        GRADIENTS.check(own, problem)

    (found,) = missing_limits(GRADIENTS, own, problem, error.value)
    assert found.endswith(hint)


def test_an_isolated_kernel_has_the_same_limits(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from attn_spec import kernel\n\n"
        "@kernel(framework='torch', dtypes=('float32',), supports=('dv', 'backward'), forward_only=('dv',),\n"
        "        backward_limits={'head_dims': (8, 16)})\n"
        "def attention(q, k, v):\n    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v\n"
    )
    made = isolated(f"{tmp_path / 'mine.py'}:attention")

    assert made.backward_limits == Limits(head_dims=(8, 16))
    assert made.forward_only == ("dv",)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"backward_limits": ("equal_lengths",)},
            r"backward_limits must name limits, \{\"equal_lengths\": True\}, not",
        ),
        ({"backward_limits": {"equal_length": True}}, "unexpected keyword argument 'equal_length'"),
        ({"backward_limits": {"multiples": {"D": 2}}}, "multiples must be of the axes 'Q' and 'K'"),
        ({"forward_only": ("mask",)}, r"forward_only names mask, which supports= does not have"),
        ({"forward_only": ("biass",)}, "does not have; did you mean 'bias'"),
        ({"forward_only": "bias"}, "forward_only must be several names"),
        (
            {"forward_only": ("bias",), "always": ("bias",)},
            "every problem uses bias, so that it cannot be forward_only",
        ),
        (
            {"head_dims": (8,), "backward_limits": {"head_dims": (16,)}},
            r"head_dims=\(\(8, 8\),\) has none of the numbers \(\(16, 16\),\), which backward_limits allow",
        ),
    ],
)
def test_limits_of_gradients_that_contradict_the_kernel_are_refused(changes, told):
    with pytest.raises(KernelError, match=told):
        declared(**changes)


def test_limits_within_others_are_those_of_both():
    own = Limits(
        head_dims=(8, 16),
        kv_heads=(1, 2),
        multiples={"Q": 4},
        largest={"B": 9, "K": 100},
        least_keys=1,
        largest_position=7,
        always=("causal",),
        exclusive=(("mask", "bias"),),
        beside={"window": ("causal", "mask")},
    )
    other = Limits(
        head_dims=(16, 32),
        kv_heads=(2, 3),
        multiples={"Q": 6, "K": 2},
        largest={"B": 5, "H": 3},
        keys_reach_queries=True,
        largest_position=3,
        always=("scale", "causal"),
        exclusive=(("causal", "mask"),),
        beside={"window": ("causal",), "sinks": ("causal",)},
    )

    assert own.within(other) == Limits(
        head_dims=((16, 16),),
        kv_heads=(2,),
        multiples={"Q": 12, "K": 2},
        largest={"B": 5, "K": 100, "H": 3},
        keys_reach_queries=True,
        least_keys=1,
        largest_position=3,
        always=("causal", "scale"),
        exclusive=(("mask", "bias"), ("causal", "mask")),
        beside={"window": ("causal",), "sinks": ("causal",)},
    )
    assert own.within(Limits()) == own
    assert Limits().within(own).widths == own.widths
