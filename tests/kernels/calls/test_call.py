"""Calls of attention as tests write them: words of any library, tensors of any framework, and what is refused."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from attn_spec.kernels.calls.call import CallError, answered, call

RNG = np.random.default_rng(0)
Q, K = RNG.standard_normal((2, 4, 6, 8)).astype(np.float32), RNG.standard_normal((2, 2, 6, 8)).astype(np.float32)
V = RNG.standard_normal((2, 2, 6, 5)).astype(np.float32)


def read(**words):
    return call(Q, K, V, **words)


def test_each_head_reads_its_own():
    mask, bias = RNG.random((2, 4, 6, 6)) < 0.5, RNG.standard_normal((1, 4, 1, 6)).astype(np.float32)
    made = read(mask=mask, bias=bias, alibi_slopes=np.arange(4, dtype=np.float32))
    whole = made.whole()

    assert whole.group == 2
    for b in range(2):
        for h in range(4):
            one, same = made.head(b, h), whole.take("B", [b]).head(h)
            for name in ("q", "k", "v", "mask", "bias", "alibi_slopes"):
                assert (getattr(one, name) == getattr(same, name)).all()


@pytest.mark.parametrize("tensor", [torch.from_numpy, jnp.asarray, np.asarray], ids=["torch", "jax", "numpy"])
def test_tensors_of_any_framework(tensor):
    made = call(*map(tensor, (Q, K, V)), attn_mask=tensor(np.eye(6, dtype=bool)))

    assert made.dtype == "float32"
    assert (made.whole().q == Q).all()
    assert made.whole().mask.shape == (1, 1, 6, 6)
    assert (answered(made, output=tensor(Q[..., :5]), lse=None)["output"] == tensor(Q[..., :5])).all()


def test_a_tensor_that_only_speaks_dlpack():
    class Foreign:
        shape = Q.shape

        def __dlpack__(self, **asked):
            return torch.from_numpy(Q).__dlpack__(**asked)

        def __dlpack_device__(self):
            return torch.from_numpy(Q).__dlpack_device__()

    assert (call(Foreign(), K, V).whole().q == Q).all()


def test_another_order_of_axes_is_looked_at_in_place():
    made = call(*(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (Q, K, V)), presentation="BSHD")
    output = answered(made, output=Q[..., :5].swapaxes(1, 2), lse=Q[..., 0])

    assert (made.whole().q == Q).all()
    assert (output["output"] == Q[..., :5]).all()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"is_causal": True, "softmax_scale": 0.5, "enable_gqa": True}, {"causal": True, "scale": 0.5}),
        ({"window_size": (-1, -1), "softcap": 0.0, "dropout_p": 0.0, "alibi_slopes": None}, {}),
        ({"window_size": (3, -1)}, {"window": (3, None)}),
        ({"window_size": [3, 0]}, {"window": (3, 0)}),
        ({"attention_chunk": 0, "window_sinks": 0}, {}),
        ({"attention_chunk_size": 4}, {"attention_chunk": 4}),
        ({"window": (3, 0), "window_sinks": 2}, {"window": (3, 0), "window_sinks": 2}),
        ({"scale": np.float32(0.25), "causal": np.True_}, {"scale": 0.25, "causal": True}),
        ({"causal_alignment": "bottom_right", "causal": True}, {"causal_alignment": "bottom_right", "causal": True}),
    ],
)
def test_words_of_other_libraries(words, expected):
    assert read(**words).options == expected


def test_an_additive_mask_of_torch_is_a_bias_of_its_own_dtype():
    problem = read(attn_mask=np.full((6, 6), -np.inf, dtype=ml_dtypes.bfloat16)).whole()

    assert problem.mask is None
    assert problem.dtype_of("bias") == "bfloat16"
    assert not problem.visible.any()


@pytest.mark.parametrize(
    ("name", "shape", "axes"),
    [
        ("mask", (6,), (1, 1, 1, 6)),
        ("mask", (4, 6, 6), (1, 4, 6, 6)),
        ("alibi_slopes", (4,), (1, 4, 1, 1)),
        ("alibi_slopes", (2, 4), (2, 4, 1, 1)),
        ("rotary_key_positions", (6,), (1, 1, 1, 6)),
        ("rotary_query_positions", (2, 6), (2, 1, 6, 1)),
    ],
)
def test_leading_axes_may_be_left_out(name, shape, axes):
    kind = {"mask": bool, "alibi_slopes": np.float32}.get(name, np.int64)
    words = {"rotary": "half"} if name.startswith("rotary") else {}

    assert read(**words, **{name: np.ones(shape, dtype=kind)}).options[name].shape == axes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"is_casual": True}, "unknown option 'is_casual'; did you mean 'is_causal'?"),
        ({"zzz": 1}, "unknown option 'zzz'; known are causal, window, window_sinks"),
        ({"scale": 1.0, "softmax_scale": 1.0}, "softmax_scale gives scale a second time; leave one out"),
        (
            {"mask": np.zeros((6, 6))},
            "mask must be a tensor of bool, not of float64; numbers that are added to scores are",
        ),
        ({"bias": np.ones((6, 6), dtype=bool)}, "bias must be a tensor of numbers, not of bool"),
        (
            {"alibi_slopes": np.ones((1, 2, 4))},
            r"alibi_slopes must have the axes \[B, Hq, 1, 1\], not the shape \(1, 2, 4\)",
        ),
        ({"mask": [[True]]}, "mask: a list is a tensor of none of jax, mlx, numpy, torch"),
        (
            {"presentation": "SBHD"},
            "presentation must be one of BHSD, BSHD, .*THD, .*paged, .*not 'SBHD'",
        ),
    ],
)
def test_what_is_no_option_is_refused(words, text):
    with pytest.raises(CallError, match=text):
        read(**words)


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ((Q[0], K, V), r"q must be a tensor with the axes BHSD, not of shape \(4, 6, 8\)"),
        ((Q, K, "v"), "v must be a tensor with the axes BHSD, not 'str'"),
        (
            (Q, K[..., :7], V),
            r"do not go together here: q \(2, 4, 6, 8\), k \(2, 2, 6, 7\), v \(2, 2, 6, 5\); if lengths",
        ),
        ((Q, K[:, [0, 1, 1]], V[:, [0, 1, 1]]), "Hq a multiple of Hkv, do not go together"),
        (
            (Q.astype(int), K.astype(int), V.astype(int)),
            "q, k and v must be of float64, float32, float16, bfloat16, float8_.*, not int64",
        ),
    ],
)
def test_tensors_that_are_no_attention_are_refused(tensors, text):
    with pytest.raises(CallError, match=text):
        call(*tensors)


@pytest.mark.parametrize(
    "words",
    [
        {"causal": True},
        {"window": (1, 0)},
        {"window": (1, 0), "window_sinks": 1},
        {"attention_chunk": 2},
        {"alibi_slopes": np.ones(4)},
        {"rotary": "half"},
    ],
)
def test_the_corner_of_the_diagonal_is_never_assumed(words):
    text = "of 3 queries and 6 keys needs causal_alignment=, the corner in which the diagonal starts: 'top_left' or"
    with pytest.raises(CallError, match=text):
        call(Q[:, :, :3], K, V, **words)
    assert call(Q[:, :, :3], K, V, **words, causal_alignment="bottom_right").whole().causal_alignment == "bottom_right"


def test_an_answer_of_another_shape_is_refused_with_what_it_may_be():
    made = read()
    with pytest.raises(CallError, match=r"output must have the shape \(2, 4, 6, 5\) here, not \(2, 4, 6, 8\)$"):
        answered(made, output=Q)
    with pytest.raises(CallError, match=r"that is its shape in the presentation BSHD$"):
        answered(made, output=Q[..., :5].swapaxes(1, 2))
    with pytest.raises(CallError, match=r"lse must have the shape \(2, 4, 6\) here, not \(2, 6, 4\)"):
        answered(made, output=Q[..., :5], lse=np.zeros((2, 6, 4)))
