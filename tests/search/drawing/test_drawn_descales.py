"""Drawn descales have several numbers along such axes alone as the kernel takes them; a call shows which these are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_spec import kernel
from attn_spec.emulation.kernels import SUPPORTS, emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import FACTORS, with_parameters
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.plain_calls import plain
from attn_spec.search.preflight import preflight
from attn_spec.search.property import load_all

BY_HEAD, BY_KEY = "descale_by_head", "descale_by_key"


def shapes_drawn(*abilities):
    """Return the shapes of descales of keys, 1 or more along each axis, that are drawn for a kernel."""
    made = emulate("made", PRECISE, supports=(*SUPPORTS, *FACTORS, *abilities))
    found = set()

    @settings(max_examples=150, database=None, deadline=None, derandomize=True)
    @given(problems(Subject(made, "float32"), needs=("k_descale",), batch=2, kv_heads=2, query_heads=2))
    def collect(problem):
        found.add(tuple(length > 1 for length in problem.k_descale.shape[:3]))
        assert not problem.options() & {BY_HEAD, BY_KEY} - set(abilities)

    collect()
    return found


def test_axes_of_a_descale_have_several_numbers_if_the_kernel_takes_them():
    assert shapes_drawn() == {(False, False, False)}
    assert shapes_drawn(BY_HEAD) == {(False, False, False), (False, True, False), (True, True, False)}
    assert shapes_drawn(BY_KEY) == {(False, False, False), (False, False, True)}
    assert (True, True, True) in shapes_drawn(BY_HEAD, BY_KEY)


def test_a_fixed_pattern_of_a_property_is_narrowed_too():
    made = emulate("made", PRECISE, supports=(*SUPPORTS, *FACTORS))
    drawn = problems(Subject(made, "float32"), needs=("k_descale",), k_descale=st.just("spread@BGK1"))

    @settings(max_examples=20, database=None, deadline=None)
    @given(drawn)
    def check(problem):
        assert problem.k_descale.size == 1

    check()


@pytest.mark.parametrize(("letters", "used"), [("1111", set()), ("BG11", {BY_HEAD}), ("BGK1", {BY_HEAD, BY_KEY})])
def test_a_problem_and_its_recipe_use_the_same_abilities(letters, used):
    recipe = Recipe(batch=2, kv_heads=2, query_heads=2, key_length=3, query_length=3, k_descale=f"half@{letters}")
    for shown in (recipe, recipe.problem()):
        assert {name for name in (BY_HEAD, BY_KEY) if ABILITIES[name].is_used(shown)} == used


def attend(q, k, v, d_k, d_v):
    s = (q @ k.mT * q.shape[-1] ** -0.5) * d_k
    return torch.softmax(s, -1) @ (v * d_v)


def of_any(q, k, v, k_descale=None, v_descale=None):
    d_k, d_v = (1.0 if d is None else d for d in (k_descale, v_descale))
    return attend(q, k, v, d_k if isinstance(d_k, float) else d_k.mT, d_v)


def of_heads(q, k, v, k_descale=None, v_descale=None):
    """Read the first number of each head."""
    return of_any(q, k, v, *(None if d is None else d[:, :, :1] for d in (k_descale, v_descale)))


def of_tensors(q, k, v, k_descale=None, v_descale=None):
    """Read the first number."""
    return of_any(q, k, v, *(None if d is None else d[:1, :1, :1] for d in (k_descale, v_descale)))


def refuses(q, k, v, k_descale=None):
    """Refuse a descale of several numbers."""
    return of_any(q, k, v, None if k_descale is None else torch.tensor(k_descale.item()).reshape(1, 1, 1, 1))


WRONG = "its answer with several numbers in a descale is wrong, with one right"


@pytest.mark.parametrize(
    ("function", "able", "reason"),
    [
        (of_any, {BY_HEAD, BY_KEY}, None),
        (of_heads, {BY_HEAD}, WRONG),
        (of_tensors, set(), WRONG),
        (refuses, set(), "a Tensor with 8 elements cannot be converted to Scalar"),
    ],
)
def test_a_call_shows_which_numbers_an_undecorated_callable_takes(function, able, reason):
    found = preflight(from_callable(function, framework="torch"), ("float32",))
    assert found.subjects[0].kernel.supports & {BY_HEAD, BY_KEY} == able
    assert reason is None or reason in found.declined[BY_KEY]


def test_a_kernel_without_descales_is_not_asked_for_several_numbers():
    found = preflight(from_callable(lambda q, k, v: attend(q, k, v, 1.0, 1.0), framework="torch"), ("float32",))
    assert found.declined[BY_KEY] == "it takes none of k_descale, v_descale"


def test_an_ability_of_descales_needs_one():
    with pytest.raises(KernelError, match="declares descale_by_key, but none of k_descale, v_descale, which it is ab"):
        kernel(framework="torch", dtypes=("float32",), contract="fused", supports=(BY_KEY, "q_descale"))(of_any)


def test_a_plain_problem_of_an_ability_has_several_numbers_along_its_axis():
    made = from_callable(of_any, framework="torch")
    problem = plain(made, "float32", BY_KEY)
    assert problem.k_descale.shape == (1, 1, problem.key_length, 1)
    assert len(np.unique(problem.k_descale)) == 3


def test_no_score_is_drawn_beside_which_a_descale_has_no_meaning():
    """A property that needs a descale of values draws those of queries and keys too."""
    scores = with_parameters(("score_vector",))
    made = emulate("made", PRECISE, supports=(*SUPPORTS, *FACTORS, *scores))
    law = load_all()["descales.doubling_the_descale_of_values_doubles_the_output"]

    @settings(max_examples=60, database=None, deadline=None, derandomize=True)
    @given(law.problems(Subject(made, "float32")))
    def check(problem):
        assert problem.score_vector is None
        assert problem.q_descale is not None

    check()
