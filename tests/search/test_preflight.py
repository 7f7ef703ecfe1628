"""Conditions on a kernel before a search are reported before it is called, or after its first plain call."""

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.resolve import resolve
from attn_spec.search.preflight import preflight


def jax_values(q, k, v):
    return v


def declared(framework, **changes):
    return kernel(**{"framework": framework, "dtypes": ("float32",), "name": "mine", **changes})(jax_values)


NO_FLOAT64 = r"mine cannot be examined at float64: jax has no float64 as it is set; call jax.config.update\("


def test_a_dtype_that_the_framework_lacks_as_it_is_set_is_said_at_once():
    with pytest.raises(KernelError, match=NO_FLOAT64):
        preflight(declared("jax", dtypes=("float32", "float64")))
    with pytest.raises(KernelError, match=NO_FLOAT64):
        preflight(declared("jax", dtypes=("float32", "float64")), ("float64",))
    assert [s.dtype for s in preflight(declared("jax", dtypes=("float32", "float64")), ("float32",)).subjects] == [
        "float32"
    ]


def test_a_dtype_that_a_user_named_for_an_undecorated_callable_is_there_too():
    bare = from_callable(jax_values, framework="jax", name="mine")

    with pytest.raises(KernelError, match=NO_FLOAT64):
        preflight(bare, ("float32", "float64"))
    tried = preflight(from_callable(jax_values, framework="jax", dtypes=("float32", "float64")))
    assert [subject.dtype for subject in tried.subjects] == ["float32"]
    assert tried.declined["float64"].startswith("jax has no float64")


@pytest.mark.parametrize("ability", ["backward", "lse_backward"])
def test_gradients_are_declared_only_where_something_gives_them(ability):
    text = f"mine declares {ability}, but numpy carries no gradients; define its own with @NAME.backward, or leave"
    with pytest.raises(KernelError, match=text):
        preflight(declared("numpy", supports=(ability,)))

    made = declared("numpy", supports=(ability,))
    made.backward(lambda dout, q, k, v, *saved: (np.zeros_like(q), np.zeros_like(k), dout))
    assert preflight(made).subjects
    assert preflight(declared("torch", supports=(ability,))).subjects


@pytest.mark.parametrize(
    ("facts", "keywords"),
    [
        ({"always": ("causal", "scale")}, {"causal": True, "scale": 0.125}),
        ({"always": ("score_weight",)}, {"score_weight": (1, 1, 16, 16)}),
        ({"always": ("gqa", "dv")}, {}),
        ({"query_lengths": (1,)}, {}),
        ({"multiples": {"Q": 3, "K": 4}, "keys_reach_queries": True}, {}),
        ({"head_dims": (24,)}, {}),
    ],
    ids=str,
)
def test_a_kernel_is_tried_with_a_problem_that_it_takes(facts, keywords):
    seen = []

    def attention(q, k, v, **options):
        seen.append((q.shape, k.shape, v.shape, {n: getattr(x, "shape", x) for n, x in options.items()}))
        return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)

    supports = ("causal", "scale", "score_weight", "gqa", "dv", "cross")
    made = kernel(framework="numpy", dtypes=("float32",), supports=supports, **facts)(attention)

    assert preflight(made).subjects
    ((q, k, v, given),) = seen
    assert given == keywords
    assert (q[1] != k[1], v[3] != k[3]) == (("gqa" in facts.get("always", ())),) * 2
    assert q[2] in facts.get("query_lengths", (q[2],))


def dropping(q, k, v, *, dropout_p=0.0, seed=None):
    return v


def refusing(q, k, v, *, dropout_p=0.0, seed=None):
    if dropout_p:
        raise NotImplementedError("no dropout")
    return v


def given_a_mask(q, k, v, *, dropout_keep=None, dropout_p=None, seed=None):
    return v


@pytest.mark.parametrize(
    ("function", "drops", "seeded", "why"),
    [
        (dropping, True, True, None),
        (refusing, False, True, "the kernel's call raised NotImplementedError: no dropout"),
        (given_a_mask, False, False, "its dropout_p is a parameter of dropout_keep"),
        (jax_values, False, False, "it has no parameter dropout_p"),
    ],
)
def test_an_undecorated_callable_is_asked_for_dropout_by_chance(function, drops, seeded, why):
    """A refused option is not declared; an ignored one is declared, and the properties refute the kernel."""
    found = preflight(from_callable(function))

    supports = found.subjects[0].kernel.supports
    assert ("dropout_by_chance" in supports, "dropout_seed" in supports) == (drops, seeded)
    assert found.declined.get("dropout_by_chance", "").startswith(why or "")
    assert not [name for name in found.declined if name.startswith("parameter dropout")]


def test_an_option_without_a_default_is_named_with_what_makes_it_optional_or_always_passed():
    @kernel(framework="numpy", dtypes=("float32",), name="mine", supports=("scale", "causal"))
    def attention(q, k, v, *, scale, causal=False):
        return v

    remedy = r"\(BHSD\); give scale a default, such as None, or declare always=\('scale',\)$"
    with pytest.raises(KernelError, match=remedy):
        preflight(attention)


def test_another_parameter_without_a_default_is_left_to_a_function_around_the_kernel():
    @kernel(framework="numpy", dtypes=("float32",), name="mine", supports=("scale",))
    def attention(q, k, v, plan, *, scale=None):
        return v

    with pytest.raises(KernelError, match=r"if it needs more, wrap it in a function that passes the rest$"):
        preflight(attention)


def test_a_framework_that_was_guessed_is_told_where_no_call_succeeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    says = "Its module imports torch; if its tensors are NumPy's, say --framework numpy"
    (tmp_path / "guessed.py").write_text("import torch\n\n\ndef attention(q, k, v):\n    return q.swapaxes(1) + {}\n")

    for framework in (None, "torch"):
        given = {} if framework is None else {"framework": framework}
        with pytest.raises(KernelError) as told:
            preflight(resolve("guessed.py:attention", **given))
        assert (says in str(told.value)) == (framework is None)


@pytest.mark.parametrize("presentation", PRESENTATIONS)
def test_a_plain_call_that_fails_is_told_with_the_shapes_of_its_tensors(presentation):
    shown = PRESENTATIONS[presentation]
    supports = [each for each in ("latent", "scale", "gqa", "cross", "dv") if shown.can_say(each)]

    @kernel(framework="torch", dtypes=("float32",), presentation=presentation, supports=supports)
    def attention(*tensors, **options):
        raise RuntimeError("a kernel that refuses")

    with pytest.raises(KernelError) as told:
        preflight(attention)
    last = str(told.value).splitlines()[-1]
    assert last.startswith("It is given ")
    assert f"({presentation})" in last
    assert all(name in last for name in shown.tensors)


def test_the_caches_of_a_call_that_appends_are_told_beside_the_new_tokens():
    @kernel(framework="torch", dtypes=("float32",), presentation="append", supports=("cross",))
    def attention(*tensors, **options):
        raise RuntimeError("a kernel that refuses")

    caches = r"q, k_new, v_new of shape \(1, 8, 2, 16\); k_cache, v_cache of shape \(1, 11, 2, 16\) \(append\)"
    with pytest.raises(KernelError, match=rf"a kernel that refuses .*\nIt is given {caches}"):
        preflight(attention)
