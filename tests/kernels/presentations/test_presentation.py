"""Every presentation hands over the same numbers and takes them back, whatever the order and number of its axes.

Those that pack sequences into buffers have tests of their own, in ``test_packed.py``.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.kernels import LONG_CONTEXT, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.layout import Layout
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe

#: [B, H, S, D] = [1, 1, 3, 2] counts to 6, and with two heads to 12.
ONE, TWO = (np.arange(6.0 * heads).reshape(1, heads, 3, 2) for heads in (1, 2))
RECIPE = Recipe(batch=2, query_heads=3, kv_heads=3, query_length=4, key_length=5, head_dim=6, value_dim=2, seed=1)


@pytest.fixture(params=[name for name, row in PRESENTATIONS.items() if not row.carries])
def name(request):
    return request.param


HANDED = {
    "BHSD": TWO,
    "BSHD": TWO.transpose(0, 2, 1, 3),
    "BS(HD)": np.array([[[0.0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]]),
    "HSD": TWO[0],
    "SD": ONE[0, 0],
}


def test_what_a_kernel_is_handed(name):
    x = ONE if name == "SD" else TWO

    assert PRESENTATIONS[name].presented("q", x).tolist() == HANDED[name].tolist()
    assert PRESENTATIONS[name].layout.shape(x.shape) == HANDED[name].shape


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_it_is_taken_back(name, kind):
    x = ONE if name == "SD" else TWO
    shown = PRESENTATIONS[name]
    handed = shown.presented("q", kind(x.copy()))

    assert np.asarray(shown.read("q", handed, query_heads=x.shape[1])).tolist() == x.tolist()


@pytest.mark.parametrize("name", ["BHSD", "BSHD"])
def test_an_element_of_what_is_handed_over_is_found_again(name):
    x, shown = np.random.default_rng(0).random((2, 3, 4, 5)), PRESENTATIONS[name]
    place = shown.place("output", (1, 2, 3, 0))

    assert shown.presented("output", x)[place] == x[1, 2, 3, 0]
    assert shown.index("output", place) == (1, 2, 3, 0)
    assert shown.place("lse", (1, 2, 3)) == shown.index("lse", (1, 2, 3)) == (1, 2, 3)


def test_the_number_of_heads_that_are_joined_is_an_argument_of_the_call():
    x, heads = np.arange(12.0).reshape(1, 1, 12), {"query_heads": 3, "kv_heads": 2}

    def shape(quantity, **further):
        return PRESENTATIONS["BS(HD)"].read(quantity, x, **heads, **further).shape

    assert shape("output") == shape("dq") == (1, 3, 1, 4)
    assert shape("k") == shape("dv") == (1, 2, 1, 6)
    assert shape("output", query_projection=x) == (1, 1, 1, 12)
    assert shape("lse") == x.shape


def test_every_part_of_a_problem_is_solved_and_the_whole_is_put_together(name):
    problem = RECIPE.problem().replace(
        bias=bits.nearest(np.random.default_rng(0).standard_normal((2, 3, 4, 5)), "float32"),
        mask=np.random.default_rng(1).random((1, 3, 4, 5)) < 0.8,
    )
    dO, dL = np.ones((2, 3, 4, 2)), np.full((2, 3, 4), 0.5)
    supports = ("cross", "dv", "bias", "mask", "lse", "backward", "lse_backward")
    plain, shown = (
        Subject(emulate_both("k", PRECISE, supports=supports[:5], presentation=each), "float32")
        for each in ("BHSD", name)
    )

    assert bits.identical(shown(problem)["output"], plain(problem)["output"]).all()
    assert bits.identical(shown(problem)["lse"], plain(problem)["lse"]).all()
    expected, found = (subject.gradients(problem, dO, lse_cotangent=dL) for subject in (plain, shown))
    assert found.keys() == expected.keys() == {"dq", "dk", "dv", "dbias"}
    assert all((found[each] == expected[each]).all() for each in found)


@pytest.mark.parametrize(("shape", "summed"), [((1, 1, 4, 5), ("HSD", "SD")), ((2, 1, 4, 5), ("SD",))])
def test_a_gradient_that_is_a_sum_over_calls_is_the_callers(name, shape, summed):
    problem = RECIPE.problem().replace(bias=np.zeros(shape))
    kernel = emulate_both("k", PRECISE, supports=("cross", "dv", "bias", "lse"), presentation=name)

    found = Subject(kernel, "float32").gradients(problem, np.ones((2, 3, 4, 2)))

    assert ("dbias" in found) == (name not in summed)


def test_a_wrong_shape_is_told_in_the_terms_of_the_kernel():
    @kernel(framework="numpy", dtypes=("float32",), presentation="BS(HD)")
    def attention(q, k, v, *, query_heads, kv_heads):
        assert (query_heads, kv_heads) == (3, 3)
        return q

    with pytest.raises(Misbehaviour, match=r"out has shape \(2, 4, 18\); it must be \(2, 4, 6\)"):
        Subject(attention, "float32")(RECIPE.problem())


@pytest.mark.parametrize("merge", ["mask", "bias"])
def test_what_hides_keys_is_merged_into_one_tensor(merge):
    rng = np.random.default_rng(0)
    problem = RECIPE.problem().replace(
        causal=True,
        causal_alignment="bottom_right",
        window=(2, None),
        window_sinks=1,
        attention_chunk=4,
        mask=rng.random((2, 1, 4, 5)) < 0.7,
        bias=bits.nearest(rng.standard_normal((2, 1, 4, 5)), "float32"),
    )
    supports = ("causal", "causal_alignment", "window", "mask", "bias", "cross", "dv", "lse", *LONG_CONTEXT)
    given = []

    class Noting(TiledGradients):
        def __init__(self, *arguments, **options):
            given.append(set(options) & {"bias", "mask"})
            super().__init__(*arguments, **options)

    plain = Subject(emulate_both("k", PRECISE, supports=supports), "float32")
    merged = Subject(emulate_both("k", PRECISE, supports=supports, merge=merge, gradients=Noting), "float32")

    assert bits.identical(merged(problem)["output"], plain(problem)["output"]).all()
    dO = np.ones((2, 3, 4, 2))
    expected, found = (subject.gradients(problem, dO) for subject in (plain, merged))
    assert given == [{"bias"} if merge == "bias" else {"mask", "bias"}]
    assert all((found[name] == expected[name]).all() for name in ("dq", "dk", "dv", "dbias"))


def test_nothing_is_merged_where_nothing_is_hidden_otherwise():
    problem = RECIPE.problem()
    hidden = problem.replace(mask=np.ones((1, 1, 1, 5), dtype=bool))

    assert problem.merged("mask") is problem.merged("bias") is problem
    assert hidden.merged("mask") is hidden
    assert (hidden.merged("bias").bias == np.zeros((1, 1, 1, 5))).all()


def test_a_bias_that_is_merged_with_a_larger_mask_has_no_gradient_of_its_own():
    problem = RECIPE.problem().replace(bias=np.zeros((1, 1, 1, 5)), mask=np.ones((1, 1, 4, 5), dtype=bool))
    kernel = emulate_both("k", PRECISE, supports=("bias", "mask", "cross", "dv", "lse"), merge="bias")

    assert "dbias" not in Subject(kernel, "float32").gradients(problem, np.ones((2, 3, 4, 2)))
    assert "dbias" in Subject(kernel, "float32").gradients(problem.replace(mask=None), np.ones((2, 3, 4, 2)))


#: The files that know in which order a kernel sees the axes of its tensors.
HOME = {
    f"attn_spec/kernels/presentations/{name}.py"
    for name in ("layout", "packing/places", "presentation", "states", "table")
}
#: Words of a layout that others may ask for: a shape names no axis.
ASKED = {"shape"}
ORDERS = ("BHSD", "BSHD", "BHS")


def asks_for_a_place(node):
    """Return whether a node asks for the place of an axis: from a layout, or from the letters of an order of axes."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "layout":
        return hasattr(Layout, node.attr) and node.attr not in ASKED
    if isinstance(node, ast.ImportFrom):
        return node.module == Layout.__module__
    if isinstance(node, ast.Call):
        name, of = getattr(node.func, "id", None), getattr(node.func, "value", None)
        read = node.args if name in ("zip", "enumerate") else [of]
    else:
        read = [node.value] if isinstance(node, ast.Subscript) else []
    return any(isinstance(text, ast.Constant) and text.value in ORDERS for text in read)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("own.presentation.layout.places('H')", True),
        ("shown.layout.lacks", True),
        ("from attn_spec.kernels.presentations.layout import AXES", True),
        ("dict(zip('BHSD', at))", True),
        ("'BSHD'.index('H')", True),
        ("shown.layout.shape(x.shape)", False),
        ("PRESENTATIONS['BHSD']", False),
        ("turn.layout.name", False),
    ],
)
def test_what_asks_for_the_place_of_an_axis(text, expected):
    assert any(map(asks_for_a_place, ast.walk(ast.parse(text)))) == expected


def test_nothing_but_presentations_asks_for_the_place_of_an_axis():
    root = Path(__file__).parents[3]
    files = [path for folder in ("attn_spec", "properties", "reports") for path in (root / folder).rglob("*.py")]
    asking = {
        path.relative_to(root).as_posix()
        for path in files
        if any(map(asks_for_a_place, ast.walk(ast.parse(path.read_text()))))
    }

    assert len(files) > 300
    assert asking <= HOME, sorted(asking - HOME)
