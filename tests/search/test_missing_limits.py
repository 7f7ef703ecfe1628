"""A limit is named where a call fails, or a scale is below 0, if the kernel was asked, and is right, within it."""

import numpy as np
import pytest

from attn_spec import Recipe, kernel
from attn_spec.kernels.limits import GRID, Limits
from attn_spec.kernels.misbehaviour import CallFailed, Crashed
from attn_spec.kernels.subject import Subject
from attn_spec.search import missing_limits as hints_of_limits
from attn_spec.search.missing_limits import TRIES_OF_CRASHES, Remedies, missing_limits, needed, unasked
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTY = load_all()["accuracy.output_is_within_its_bound"]
TURNED = {"rotary": "half", "head_dim": 4, "query_length": 5, "key_length": 5}
SHAPE = {"query_heads": 2, "query_length": 5, "key_length": 5, "head_dim": 4, "value_dim": 4}
SUPPORTS = ("causal", "mask", "bias", "window", "scale", "cross", "gqa", "dv", "empty")


def sound(q, k, v, *, causal=False, mask=None, bias=None, window=None, scale=None):
    rows, keys = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    k, v = (x.repeat(q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if bias is None else s + bias
    hidden = keys > rows if causal else np.zeros((len(rows), len(keys)), dtype=bool)
    left, right = window or (None, None)
    hidden = hidden | (left is not None and keys < rows - left) | (right is not None and keys > rows + right)
    hidden = np.broadcast_to(hidden if mask is None else hidden | ~mask, s.shape)
    s = np.where(hidden, -np.inf, s).astype(np.float32)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    return (p / np.where(total == 0, 1, total)) @ v


def refusing(refuses):
    """Return sound attention that raises where ``refuses(q, k, v, options in use)`` is true."""

    def attention(q, k, v, *, causal=False, mask=None, bias=None, window=None, scale=None):
        given = {"causal": causal or None, "mask": mask, "bias": bias, "window": window, "scale": scale}
        if refuses(q, k, v, {name: x for name, x in given.items() if x is not None}):
            raise ValueError("not mine")
        return sound(q, k, v, causal=causal, mask=mask, bias=bias, window=window, scale=scale)

    return subject(attention)


def subject(function, **changes):
    declared = {"framework": "numpy", "dtypes": ("float32",), "contract": "eager", "supports": SUPPORTS}
    return Subject(kernel(**{**declared, "name": "mine", **changes})(function), "float32")


def hints(of, **recipe):
    problem = Recipe(**{**SHAPE, **recipe}).problem()
    with pytest.raises(AssertionError) as error:
        PROPERTY.check(of, problem)
    return missing_limits(PROPERTY, of, problem, error.value)


REFUSALS = {
    "a pair": (
        lambda q, k, v, used: {"causal", "mask"} <= set(used),
        {"causal": True, "mask": "random"},
        ["with causal alone and with mask alone: if they are never combined, declare exclusive=(('causal', 'mask'),)"],
    ),
    "beside": (
        lambda q, k, v, used: "window" in used and "causal" not in used,
        {"window": (2, 0)},
        ["with window beside causal: if the kernel needs that, declare beside={'window': ('causal',)}"],
    ),
    "an option": (
        lambda q, k, v, used: "bias" in used,
        {"bias": "normal"},
        ["without bias: if the kernel does not take it so, take 'bias' out of supports"],
    ),
    "a broadcast mask": (
        lambda q, k, v, used: "mask" in used and used["mask"].shape[2] == 1,
        {"mask": "random@B11K"},
        ["with mask of its full size: if the kernel needs that, expand it in a function around the kernel"],
    ),
    "lengths": (
        lambda q, k, v, used: q.shape[2] != k.shape[2],
        {"key_length": 7},
        ["with as many keys as queries: if the kernel needs that, take 'cross' out of supports"],
    ),
    "tiles": (
        lambda q, k, v, used: k.shape[2] % 16,
        {},
        ["with a length of K that 16 divides: if the kernel needs that, declare multiples={'K': 16}"],
    ),
    "groups": (
        lambda q, k, v, used: q.shape[1] != k.shape[1],
        {"query_heads": 4, "kv_heads": 2},
        ["with as many kv heads as query heads: if the kernel needs that, take 'gqa' out of supports"],
    ),
    "sizes of groups": (
        lambda q, k, v, used: q.shape[1] // k.shape[1] not in {1, 2, 4, 8},
        {"query_heads": 10, "kv_heads": 2},
        [
            (
                "with a power of 2 of query heads for each kv head: if the kernel needs that, "
                "declare group_sizes=(1, 2, 4, 8, 16)"
            ),
            "with as many kv heads as query heads: if the kernel needs that, take 'gqa' out of supports",
        ],
    ),
    "no keys": (
        lambda q, k, v, used: not k.shape[2],
        {"key_length": 0},
        ["with a key: if the kernel needs that, take 'empty' out of supports"],
    ),
    "no queries": (
        lambda q, k, v, used: not q.shape[2],
        {"query_length": 0},
        ["with a query: if the kernel needs that, take 'empty' out of supports"],
    ),
    "longer tiles": (
        lambda q, k, v, used: k.shape[2] % 16,
        {"key_length": 10},
        ["with a length of K that 16 divides: if the kernel needs that, declare multiples={'K': 16}"],
    ),
    "even widths": (
        lambda q, k, v, used: q.shape[3] % 2 or v.shape[3] % 2,
        {"head_dim": 7, "value_dim": 7},
        ["with head dimensions that 2 divides: if the kernel needs that, declare head_dims=tuple(range(2, 257, 2))"],
    ),
    "widths": (
        lambda q, k, v, used: q.shape[3] % 8 or v.shape[3] % 8,
        {},
        ["with head dimensions that 8 divides: if the kernel needs that, declare head_dims=tuple(range(8, 257, 8))"],
    ),
    "wider widths": (
        lambda q, k, v, used: q.shape[3] % 16 or v.shape[3] % 16,
        {"head_dim": 9, "value_dim": 9},
        ["with head dimensions that 16 divides: if the kernel needs that, declare head_dims=tuple(range(16, 257, 16))"],
    ),
    "values": (
        lambda q, k, v, used: q.shape[3] != v.shape[3],
        {"value_dim": 6},
        ["with values as wide as keys: if the kernel needs that, take 'dv' out of supports"],
    ),
    "wide heads": (
        lambda q, k, v, used: q.shape[3] > 128,
        {"head_dim": 136, "value_dim": 136},
        ["with head dimensions up to 128: if the kernel takes no larger ones, declare head_dims="],
    ),
    "everything": (lambda q, k, v, used: True, {"causal": True}, []),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_problem_names_the_limit_within_which_the_kernel_is_right(refusal):
    refuses, recipe, says = REFUSALS[refusal]

    assert hints(refusing(refuses), **recipe) == [f"right {one}" for one in says]


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_a_scale_that_is_not_above_0_is_named_only_if_the_kernel_is_right_above_0(scale):
    def of_unscaled_maxima(q, k, v, scale=None):
        s = q @ k.swapaxes(-1, -2)
        p = np.exp((s - s.max(-1, keepdims=True)) * np.float32(scale)) if scale > 0 else np.full(s.shape, np.nan)
        return ((p / p.sum(-1, keepdims=True)) @ v).astype(np.float32)

    def last_key_lost(q, k, v, scale=None):
        return sound(q, k[:, :, :-1], v[:, :, :-1], scale=scale)

    of = {"supports": ("scale",), "always": ("scale",)}
    says = "right with a scale above 0: if the kernel needs one, declare positive_scale=True"
    assert hints(subject(of_unscaled_maxima, **of), scale=scale) == [says]
    assert hints(subject(last_key_lost, **of), scale=scale) == []
    assert hints(subject(last_key_lost, **of), scale=0.5) == []


def test_a_kernel_that_refuses_other_layouts_needs_contiguous_tensors():
    """A kernel that is wrong in another layout has no such hint; nor has one that refuses the shape in any layout."""
    layouts = load_all()["independence.the_layout_in_memory_has_no_influence"]

    def of_contiguous(q, k, v):
        if not all(x.flags.c_contiguous for x in (q, k, v)):
            raise ValueError("tensors must be contiguous")
        return sound(q, k, v)

    def misreading(q, k, v):
        return sound(*(np.ndarray(x.shape, x.dtype, x.copy(order="K").data) for x in (q, k, v)))

    def refusing_all(q, k, v):
        raise ValueError("not mine")

    found = {
        function: search(layouts, subject(function), PROFILES["smoke"], 0)[0]
        for function in (of_contiguous, misreading, refusing_all)
    }
    says = "right with contiguous tensors: if the kernel needs them, declare contiguous=True"

    assert {row.verdict for row in found.values()} == {Verdict.REFUTED}
    assert found.pop(of_contiguous).hints == (says,)
    assert not any(says in row.hints for row in found.values())
    declared = search(layouts, subject(of_contiguous, contiguous=True), PROFILES["smoke"], 0)[0]
    assert declared.verdict is Verdict.NOT_DECLARED
    assert declared.message == "the kernel takes contiguous tensors alone"
    problem = Recipe(**SHAPE).problem()
    assert says not in missing_limits(layouts, subject(sound), problem, Crashed(""))  # a crash is no refusal


def test_a_kernel_that_crashes_is_asked_few_times_and_one_that_hangs_is_not_asked():
    asked = []

    def failing(q, k, v):
        asked.append(q.shape)
        raise ValueError("not mine")

    of, problem = subject(failing, supports=("cross", "gqa", "dv")), Recipe(**SHAPE, kv_heads=1).problem()
    assert missing_limits(PROPERTY, of, problem, Crashed("")) == []
    assert len(asked) == TRIES_OF_CRASHES
    assert missing_limits(PROPERTY, of, problem, CallFailed("did not return within 60 s")) == []
    assert len(asked) == TRIES_OF_CRASHES


def test_what_a_refutation_needs_are_the_options_without_which_the_property_holds():
    both = refusing(lambda q, k, v, used: {"causal", "mask"} <= set(used))
    one = refusing(lambda q, k, v, used: "mask" in used)
    problem = Recipe(**SHAPE, causal=True, mask="random", scale=0.5).problem()

    assert needed(PROPERTY, both, problem) == ("causal", "mask")
    assert needed(PROPERTY, one, problem) == ("mask",)
    assert needed(PROPERTY, refusing(lambda q, k, v, used: True), problem) == ()


def test_positions_past_a_table_are_named_if_the_kernel_is_right_before_its_end():
    made = kernel(framework="numpy", dtypes=("float32",), name="mine", supports=("rotary",))(lambda q, k, v: q)
    far = Recipe(**TURNED, rotary_query_positions="far").problem()
    near = list(hints_of_limits._near(Subject(made, "float32"), far, Remedies(of_gradients=False), failed=True))

    assert near[0].says.endswith("declare largest_position=")
    assert near[0].problems[0]().rotary_query_positions is None


def test_a_grid_is_named_if_the_kernel_is_right_within_it():
    made = refusing(lambda q, k, v, used: q.shape[0] * q.shape[1] > GRID)
    small = {"query_length": 1, "key_length": 1, "head_dim": 1, "value_dim": 1}

    assert hints(made, batch=32_768, query_heads=2, **small)[0] == (
        "right with 65,535 batch entries times query heads: if these are blocks in an axis of a grid, declare "
        "largest={'BH': 65535}"
    )


def test_a_search_tells_the_limit_of_a_kernel_that_refuses_problems():
    made = refusing(lambda q, k, v, used: q.shape[3] % 8 or v.shape[3] % 8)
    row, _ = search(PROPERTY, made, PROFILES["smoke"], 0)

    assert row.verdict is Verdict.REFUTED
    (hint,) = row.hints
    assert hint.startswith("right with head dimensions that 8 divides: ")
    assert hint.endswith("declare head_dims=tuple(range(8, 257, 8))")


@pytest.mark.parametrize(
    ("options", "limit", "says"),
    [
        ({**TURNED, "rotary_query_positions": "far"}, None, "declare largest_position="),
        ({**TURNED, "rotary_query_positions": "far"}, 2**20, ""),
        ({**TURNED, "rotary_query_positions": "shuffled"}, None, ""),
        (TURNED, None, ""),
        ({}, None, ""),
        ({"query_length": 0, "key_length": 0}, None, ""),
    ],
)
def test_where_a_call_fails_the_limit_of_positions_is_named(options, limit, says):
    hints = unasked(Limits(largest_position=limit), Recipe(**options).problem())

    assert [hint[-len(says) :] for hint in hints] == [says] * bool(says)


@pytest.mark.parametrize(
    ("shape", "largest", "axes"),
    [
        ({"batch": 65_536}, {}, ["B", "BH"]),
        ({"batch": 65_536}, {"B": 2**17}, ["B", "BH"]),
        ({"batch": 65_536}, {"BH": 65_535}, []),
        ({"batch": 32_768, "query_heads": 2}, {}, ["BH"]),
        ({"batch": 32_768, "query_heads": 2}, {"H": 65_535}, ["BH"]),
        ({"query_length": 65_536}, {}, ["Q"]),
        ({"key_length": 65_536}, {}, ["K"]),
        ({"batch": 65_535}, {}, []),
    ],
)
def test_where_a_call_past_a_grid_fails_the_limit_of_its_axis_is_named(shape, largest, axes):
    hints = unasked(Limits(largest=largest), Recipe(**shape).problem())

    assert [hint.rpartition("declare ")[2] for hint in hints] == [f"largest={{{axis!r}: 65535}}" for axis in axes]
