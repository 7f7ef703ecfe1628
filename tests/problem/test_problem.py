"""A problem is validated with a readable text, immutable, and survives repr and JSON bit for bit."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

SHAPES = {"q": (2, 4, 3, 5), "k": (2, 2, 6, 5), "v": (2, 2, 6, 7)}


def arrays(**changes):
    return {name: np.ones(changes.get(name, shape)) for name, shape in SHAPES.items()}


def problem(**changes):
    return Problem(**{**arrays(), **changes})


def test_the_lengths_have_names():
    p = problem()

    assert (p.batch, p.query_heads, p.kv_heads, p.group) == (2, 4, 2, 2)
    assert (p.query_length, p.key_length, p.head_dim, p.value_dim) == (3, 6, 5, 7)
    assert p.score_shape == (2, 4, 3, 6)


def test_the_default_scale_is_one_over_the_square_root_of_d():
    assert problem().scale_value == 5**-0.5
    assert problem(scale=0.0).scale_value == 0.0


REFUSED = {
    "unknown dtype": (
        {"dtypes": "float8"},
        "float8_e4m3fnuz, float8_e5m2fnuz, int8, not 'float8'",
    ),
    "list": ({"q": [1.0]}, "q must be a 4-dimensional float64 array of exact values, not [1.0]"),
    "tensor": (
        {"q": torch.zeros(1, 2)},
        "q must be a 4-dimensional float64 array of exact values, not torch.Tensor (1, 2)",
    ),
    "float32 array": ({"k": np.ones(SHAPES["k"], np.float32)}, "k must be a 4-dimensional float64 array"),
    "three dimensions": (
        {"v": np.ones((2, 6, 7))},
        "v must be a 4-dimensional float64 array of exact values, not float64",
    ),
    "unrepresentable": (
        {"q": np.full(SHAPES["q"], 0.1)},
        "q has values that float32 cannot represent; round them with bits",
    ),
    "too large": (
        {"v": np.full(SHAPES["v"], 1e39)},
        "v has values that float32 cannot represent; round them with bits",
    ),
    "batch": ({"q": np.ones((1, 4, 3, 5))}, "shapes must be q [B,Hq,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv]; got q (1,"),
    "key length": ({"v": np.ones((2, 2, 5, 7))}, "shapes must be q [B,Hq,Sq,D]"),
    "head dimension": ({"k": np.ones((2, 2, 6, 4))}, "shapes must be q [B,Hq,Sq,D]"),
    "heads": ({"q": np.ones((2, 3, 3, 5))}, "Hq must be a multiple of Hkv and D positive; got Hq=3, Hkv=2, D=5"),
    "no kv heads": (arrays(k=(2, 0, 6, 5), v=(2, 0, 6, 7)), "Hq must be a multiple of Hkv and D positive"),
    "no head dimension": (arrays(q=(2, 4, 3, 0), k=(2, 2, 6, 0)), "D positive; got Hq=4, Hkv=2, D=0"),
    "scale": ({"scale": np.inf}, "scale must be a finite number or None, not inf"),
    "scale as text": ({"scale": "1/8"}, "scale must be a finite number or None, not '1/8'"),
    "softcap": ({"softcap": 0.0}, "softcap must be a positive number or None, not 0.0"),
    "softcap infinite": ({"softcap": np.inf}, "softcap must be a positive number or None, not inf"),
    "softcap as text": ({"softcap": "30"}, "softcap must be a positive number or None, not '30'"),
    "alignment": ({"causal_alignment": "left"}, "causal_alignment must be one of top_left, bottom_right, not 'left'"),
    "window sign": ({"window": (-1, 0)}, "window must be (left, right), each None or >= 0, not (-1, 0)"),
    "window length": ({"window": (1,)}, "window must be (left, right), each None or >= 0, not (1,)"),
    "window number": ({"window": 3}, "window must be (left, right), each None or >= 0, not 3"),
    "chunk of no key": ({"attention_chunk": 0}, "attention_chunk must be an integer of 1 or more or None, not 0"),
    "chunk of text": ({"attention_chunk": "4"}, "attention_chunk must be an integer of 1 or more or None, not '4'"),
    "chunk of a bool": ({"attention_chunk": True}, "attention_chunk must be an integer of 1 or more or None, not True"),
    "sinks without a window": ({"window_sinks": 1}, "window_sinks is a parameter of window; give window too"),
    "sinks below 0": (
        {"window": (1, 0), "window_sinks": -1},
        "window_sinks must be an integer of 0 or more or None, not -1",
    ),
    "values that are no keys": (
        {"v": np.zeros((2, 2, 6, 3)), "latent": True},
        "latent=True says that v is the first Dv = 3 columns of k, bit for bit; v[0, 0, 0, 0] is 0 and k[0, 0, 0, 0]",
    ),
    "values wider than keys": ({"latent": True}, "latent must be True, with Dv of at most D, or False, not True"),
    "latent of a number": ({"latent": 3}, "latent must be True, with Dv of at most D, or False, not 3"),
    "mask of floats": ({"mask": np.ones((1, 1, 3, 6))}, "mask must be a bool array broadcastable to [B, Hq, Sq, Sk]"),
    "mask too large": ({"mask": np.ones((3, 1, 3, 6), bool)}, "= (2, 4, 3, 6), not bool (3, 1, 3, 6)"),
    "mask of two dimensions": ({"mask": np.ones((3, 6), bool)}, "mask must be a bool array broadcastable"),
    "bias of bools": ({"bias": np.ones((1, 1, 3, 6), bool)}, "bias must be a float64 array broadcastable"),
    "bias nan": ({"bias": np.full((1, 1, 1, 6), np.nan)}, "bias must not contain NaN or +inf; -inf masks a key"),
    "bias inf": ({"bias": np.full((1, 1, 1, 6), np.inf)}, "bias must not contain NaN or +inf; -inf masks a key"),
    "bias unrepresentable": ({"bias": np.full((1, 1, 1, 6), 0.1)}, "bias has values that float32 cannot represent"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_argument_is_refused_by_name(case):
    changes, message = REFUSED[case]

    with pytest.raises(ProblemError, match=re.escape(message)):
        problem(**changes)


def test_every_dtype_accepts_what_it_can_hold_and_nonfinite_numbers():
    q = np.full(SHAPES["q"], 1.5)
    q[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]

    for dtype in ("float64", "float32", "float16", "bfloat16"):
        assert problem(q=q, dtypes=dtype).dtype == dtype


def test_visible_is_all_options_taken_together():
    mask, bias = np.ones((1, 1, 3, 6), bool), np.zeros((1, 4, 1, 6))
    mask[..., 1, :] = False
    bias[0, 3, 0, 0] = -np.inf
    p = problem(causal=True, causal_alignment="bottom_right", window=(3, None), mask=mask, bias=bias)

    plain = np.array([list("####.."), list("......"), list("..####")]) == "#"
    without_first = plain & (np.arange(6) > 0)
    np.testing.assert_array_equal(p.visible, np.broadcast_to([*[plain] * 3, without_first], (2, 4, 3, 6)), strict=True)
    np.testing.assert_array_equal(p.empty_rows, np.broadcast_to([False, True, False], (2, 4, 3)))


def test_every_row_is_empty_without_keys():
    assert problem(**arrays(k=(2, 2, 0, 5), v=(2, 2, 0, 7))).empty_rows.all()


OPTIONS = {
    "scale": {"scale": 1.0},
    "causal": {"causal": True},
    "window": {"window": (None, None)},
    "mask": {"mask": np.ones((1, 1, 1, 1), bool)},
    "bias": {"bias": np.zeros((1, 1, 1, 1))},
    "softcap": {"softcap": 5.0},
    "gqa": {"q": np.ones((2, 4, 6, 5))},
    "dv": {"v": np.ones((2, 2, 6, 4))},
    "cross": {"q": np.ones((2, 2, 3, 5))},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_names_what_is_used_and_nothing_else(option):
    square = arrays(q=(2, 2, 6, 5), v=(2, 2, 6, 5))

    assert Problem(**square).options() == frozenset()
    assert Problem(**{**square, **OPTIONS[option]}).options() == {option}


def test_a_zero_length_is_an_option_too():
    assert Problem(**{name: np.ones((1, 1, 0, 2)) for name in "qkv"}).options() == {"empty"}


def test_a_problem_cannot_be_changed():
    p = problem(mask=np.ones((1, 1, 3, 6), bool))

    with pytest.raises(dataclasses.FrozenInstanceError):
        p.scale = 2.0
    for array in (p.q, p.mask):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_a_problem_does_not_change_when_the_callers_array_does():
    q = np.ones(SHAPES["q"])
    p = problem(q=q)
    q[:] = 2

    assert (p.q == 1).all()
    assert q.flags.writeable


@dataclasses.dataclass(frozen=True)
class Ones:
    """A recipe."""

    length: int

    def problem(self):
        return Problem(**{name: np.ones((1, 1, self.length, 1)) for name in "qkv"}, recipe=self)


def test_a_problem_from_a_recipe_prints_the_recipe_and_a_changed_copy_does_not():
    p = Ones(2).problem()

    assert repr(p) == "Ones(length=2).problem()"
    assert p.replace(causal=True).recipe is None
    assert repr(p.replace(causal=True)).startswith("Problem(q=np.array(")
    assert p.causal is False


def test_problems_have_one_digest_if_every_bit_is_equal_or_the_recipe_is():
    p = Ones(2).problem().replace(mask=np.ones((1, 1, 2, 2), dtype=bool))
    empty = Ones(0).problem().replace(causal=True)
    others = [
        p.replace(causal=True),
        p.replace(scale=2.0),
        p.replace(dtypes="float16"),
        p.replace(v=np.zeros(p.v.shape)),
        p.replace(v=-np.zeros(p.v.shape)),
        p.replace(mask=None),
        p.replace(bias=np.ones((1, 1, 2, 2))),
        p.replace(mask=np.ones((1, 1, 1, 2), dtype=bool)),
        empty,
        Ones(2).problem(),
        Ones(3).problem(),
    ]

    assert p.digest() == p.replace(q=p.q.copy(), k=np.broadcast_to(1.0, p.k.shape)).digest()
    assert Ones(2).problem().digest() == Ones(2).problem().digest()
    assert len({q.digest() for q in [p, *others]}) == 1 + len(others)


@st.composite
def problems(draw):
    dtype = draw(st.sampled_from(["float64", "bfloat16"]))
    Sq, Sk = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    values = st.sampled_from([0.0, -0.0, 1.5, -3.0, 2.0**-130, np.inf, -np.inf, np.nan] + [0.1] * (dtype == "float64"))

    def tensor(*shape, elements=values):
        return np.array([draw(elements) for _ in range(int(np.prod(shape)))]).astype(float).reshape(shape)

    bias = st.sampled_from([0.0, -0.0, -np.inf, 2.5])
    return Problem(
        q=tensor(1, 2, Sq, 2),
        k=tensor(1, 1, Sk, 2),
        v=tensor(1, 1, Sk, 1),
        dtypes=dtype,
        scale=draw(st.none() | st.floats(-2, 2)),
        causal=draw(st.booleans()),
        causal_alignment=draw(st.sampled_from(["top_left", "bottom_right"])),
        window=draw(st.none() | st.tuples(st.none() | st.integers(0, 2), st.integers(0, 2))),
        mask=draw(st.none() | st.just(tensor(1, 1, Sq, Sk, elements=st.booleans()) > 0)),
        bias=draw(st.none() | st.just(tensor(1, 2, Sq, 1, elements=bias))),
        softcap=draw(st.none() | st.just(0.1)),
    )


def assert_same(a, b):
    for field in dataclasses.fields(Problem):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert bits.identical(x, y).all()
        else:
            assert x == y


@given(p=problems())
@settings(max_examples=100)
def test_the_repr_makes_the_problem_again(p):
    assert_same(eval(repr(p), {"Problem": Problem, "np": np}), p)  # noqa: S307 - the repr under test


@given(p=problems())
@settings(max_examples=100)
def test_json_makes_the_problem_again(p):
    assert_same(Problem.from_json(json.loads(json.dumps(p.to_json()))), p)


def test_the_recipe_is_not_part_of_the_document():
    assert Problem.from_json(Ones(1).problem().to_json()).recipe is None


DAMAGED = {
    "unknown field": (
        lambda d: {**d, "dropout": 0.1},
        "unknown fields ['dropout']; known are ['alibi_slopes', 'attention_chunk', 'bias',",
    ),
    "missing field": (lambda d: {k: v for k, v in d.items() if k != "q"}, "the problem document is incomplete"),
    "broken array": (lambda d: {**d, "q": {**d["q"], "zlib": "!"}}, "the problem document is damaged"),
    "missing shape": (lambda d: {**d, "q": {"kind": "float64", "zlib": ""}}, "the problem document is damaged"),
    "array replaced": (lambda d: {**d, "k": [1, 2]}, "k must be a 4-dimensional float64 array"),
    "window a number": (lambda d: {**d, "window": 4}, "window must be (left, right)"),
    "window of text": (lambda d: {**d, "window": ["a", 1]}, "window must be (left, right)"),
    "scale of text": (lambda d: {**d, "scale": "half"}, "scale must be a finite number"),
    "not an object": (lambda d: [d], "the problem document must be an object"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_document_is_refused(case):
    damage, message = DAMAGED[case]

    with pytest.raises(ProblemError, match=re.escape(message)):
        Problem.from_json(damage(problem().to_json()))
