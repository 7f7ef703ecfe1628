"""Arguments of an undecorated callable for options that a problem does not use, and the options it always uses."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import elu

from attn_spec.kernels.declarations.declaration import from_callable, kernel
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import OPTIONS
from attn_spec.search.preflight import preflight
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

FEATURES = {"elu_plus_one": lambda x: elu(x) + 1, "relu": torch.relu, "exp": torch.exp}


def softmax(q, k, v, *, scale=None, softcap=None, causal=False):
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = s + torch.full(s.shape[-2:], -torch.inf, dtype=s.dtype).triu(1) if causal else s
    return s.softmax(-1) @ v


def linear(q, k, v, feature_map, epsilon=0.0):
    w = FEATURES[feature_map](q) @ FEATURES[feature_map](k).mT
    return w @ v / (w.sum(-1, keepdim=True) + epsilon)


def map_by_default(q, k, v, feature_map="elu_plus_one"):
    return linear(q, k, v, feature_map)


def map_for_none(q, k, v, feature_map="relu"):
    return linear(q, k, v, feature_map or "relu")


def epsilon_by_default(q, k, v, *, feature_map, eps=1e-6):
    return linear(q, k, v, feature_map, eps)


def causal_by_default(q, k, v, is_causal=True):
    return softmax(q, k, v, causal=is_causal)


def causal_required(q, k, v, causal):
    return softmax(q, k, v, causal=causal)


def scale_by_default(q, k, v, scale=1.0):
    return softmax(q, k, v, scale=scale * 1.0)


def always_capped(q, k, v, softcap=30.0):
    s = q @ k.mT * q.shape[-1] ** -0.5
    return (softcap * torch.tanh(s / softcap)).softmax(-1) @ v


def capped_above_0(q, k, v, softcap=30.0):
    return softmax(q, k, v, softcap=softcap if softcap > 0 else None)


def not_capped(q, k, v, softcap=0.0):
    return softmax(q, k, v, softcap=softcap)


def by_the_option(q, k, v, *, feature_map=None):
    """Attend by softmax, or linearly with a feature map."""
    return softmax(q, k, v) if feature_map is None else linear(q, k, v, feature_map)


def several(q, k, v, *, causal, scale, softcap=50.0):
    return softmax(q, k, v, scale=scale * 1.0, softcap=softcap * 1.0, causal=causal)


#: A callable, what it is passed for options that are off, and what it always uses.
CALLED = [
    (linear, {}, ("feature_map",)),
    (map_by_default, {}, ("feature_map",)),
    (map_for_none, {}, ("feature_map",)),
    (epsilon_by_default, {"feature_epsilon": 0.0}, ("feature_map",)),
    (causal_by_default, {"causal": False}, ()),
    (causal_required, {"causal": False}, ()),
    (scale_by_default, {}, ("scale",)),
    (always_capped, {}, ("softcap",)),
    (capped_above_0, {"softcap": 0.0}, ()),
    (not_capped, {}, ()),
    (softmax, {}, ()),
    (by_the_option, {}, ()),
    (several, {"causal": False, "softcap": 0.0}, ("scale",)),
]


@pytest.mark.parametrize(("function", "off", "always"), CALLED, ids=lambda x: getattr(x, "__name__", ""))
def test_what_a_default_turns_on_is_turned_off_or_always_used(function, off, always):
    found = preflight(from_callable(function), ("float32",))
    made = found.subjects[0].kernel

    assert (dict(made.when_off), made.limits.always) == (off, always)
    assert {name for name in found.declined if name.startswith("calls without")} == {
        f"calls without {name}" for name in always
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [row[0] for row in CALLED], ids=lambda f: f.__name__)
def test_a_sound_callable_is_not_accused_for_its_defaults(function):
    (subject,) = preflight(from_callable(function), ("float32",)).subjects
    row, _ = search(load_all()["accuracy.output_is_within_its_bound"], subject, PROFILES["smoke"], seed=0)

    assert row.verdict is Verdict.HELD, row


def test_a_wrong_callable_is_called_in_the_first_way_that_gives_numbers():
    (subject,) = preflight(from_callable(lambda q, k, v, is_causal=True: v + is_causal), ("float32",)).subjects

    assert subject.kernel.when_off == {"causal": False}


def test_a_parameter_that_is_no_option_is_named():
    with pytest.raises(KernelError, match="missing 1 required positional argument: 'heads'"):
        preflight(from_callable(lambda q, k, v, heads: v), ("float32",))


def test_what_belongs_to_an_option_is_passed_with_it():
    made = replace(from_callable(epsilon_by_default), when_off={"feature_epsilon": 0.0, "causal": False})

    assert made.passed_off({"feature_map"}) == {"eps": 0.0, "causal": False}
    assert made.passed_off(set()) == {"causal": False}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("declared", [True, False])
def test_a_kernel_that_is_softmax_or_linear_by_an_option_is_both(declared):
    made = kernel(framework="torch", dtypes=("float32",), contract="eager", supports=("feature_map", "cross", "dv"))
    function = made(by_the_option) if declared else from_callable(by_the_option)
    (subject,) = preflight(function, ("float32",)).subjects

    maps, few = set(), replace(PROFILES["smoke"], examples=30)
    watched = Subject(
        subject.kernel.wrapped(lambda *x, **y: maps.add(y.get("feature_map")) or by_the_option(*x, **y)), "float32"
    )
    for property_id in ("accuracy.output_is_within_its_bound", "linear_attention.weights_are_products_of_features"):
        row, _ = search(load_all()[property_id], watched, few, seed=0)
        assert row.verdict is Verdict.HELD, row
    assert maps == {None, *OPTIONS["feature_map"].draws}
