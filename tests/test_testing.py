"""assert_attention: sound answers of any framework pass, wrong ones fail with the element, bad arguments are named."""

import re
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import attn_spec
from attn_spec.kernels.calls.call import CallError
from attn_spec.testing import NotAttention, NotJudged, assert_attention, assert_attention_gradients

SHAPE = (2, 4, 40, 16)
_drawn = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(SHAPE, generator=_drawn) for _ in range(3))
sdpa = torch.nn.functional.scaled_dot_product_attention


def halves(dtype=torch.bfloat16):
    return (x.to(dtype) for x in (q, k, v))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_sound_answer_passes_and_says_how_near_it_came(dtype):
    tensors = tuple(halves(dtype))
    judgement = assert_attention(sdpa(*tensors, is_causal=True), *tensors, is_causal=True)

    assert 0 < judgement.ratio < 1
    assert (judgement.rows, judgement.of) == (320, 320)


def test_grouped_heads_in_another_presentation_with_their_log_sum_exp():
    grouped = q, k[:, :2], v[:, :2, :, :5]
    out, lse = torch_answer(*grouped)
    swapped = [x.transpose(1, 2) for x in (out, *grouped)]

    judgement = assert_attention(*swapped, lse=lse, presentation="BSHD", contract="fp32")
    assert set(judgement.tallies) == {"output", "lse"}
    assert_attention(*swapped, lse=lse / np.log(2), lse_base="2", presentation="BSHD", contract="fp32")


def torch_answer(q, k, v):
    s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5
    lse = s.logsumexp(-1)
    return (s - lse[..., None]).exp() @ v.repeat_interleave(q.shape[1] // v.shape[1], 1), lse


def test_an_answer_of_jax():
    tensors = [jax.numpy.asarray(x.numpy()) for x in (q, k, v)]
    out = jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in tensors), is_causal=True).swapaxes(1, 2)

    assert_attention(out, *tensors, causal=True, contract="fp32")


def test_a_wrong_answer_fails_with_the_element_in_the_order_of_the_test():
    out = sdpa(q, k, v)
    out[1, 2, 17, 3] += 0.01
    with pytest.raises(NotAttention) as failure:
        assert_attention(*(x.transpose(1, 2) for x in (out, q, k, v)), presentation="BSHD", contract="fp32")

    lines = str(failure.value).splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("  again     pytest --attn-keep")
    assert re.fullmatch(r"  of that   \d+ % [a-z' ]+, \d+ % [a-z' ]+, \d+ % [a-z' ]+", lines[9])
    assert lines[1] == f"  tensors   q {(shape := (2, 40, 4, 16))}, k {shape}, v {shape}, float32"
    assert lines[2:4] == ["  contract  fp32", "  looked at all 320 rows"]
    assert lines[4] == "  element   output[1, 17, 2, 3]; 1 of 5120 are outside, in 1 row"
    assert failure.value.judgement.worst.index == (1, 2, 17, 3)


def test_a_failure_names_the_contract_that_explains_it():
    tensors = tuple(halves())
    s = (tensors[0] @ tensors[1].mT) * 16**-0.5
    out = s.softmax(-1) @ tensors[2]  # scores and weights in bfloat16: eager
    narrow = [x[:, :, :, :1] * 4 for x in tensors[:2]]
    wide = ((narrow[0] @ narrow[1].mT) * 1.0).softmax(-1) @ tensors[2]

    assert_attention(out, *tensors, contract="eager")
    with pytest.raises(NotAttention, match=r"hint +this row is within the bound of contract 'eager'"):
        assert_attention(wide, *narrow, tensors[2], contract="fp32")


def test_a_failure_names_the_other_problem_that_has_the_answer():
    unscaled = sdpa(q, k, v, scale=1.0)

    with pytest.raises(NotAttention, match=r"hint +this row is right for the same problem with 1 for its scale"):
        assert_attention(unscaled, q, k, v, contract="fp32")


def test_a_failure_names_the_kv_head_or_the_batch_entry_whose_keys_were_read():
    rng = torch.Generator().manual_seed(5)
    one, k, v = (torch.randn(3, heads, 9, 8, generator=rng) for heads in (6, 3, 3))
    cyclic = sdpa(one, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))  # head h reads kv head h % 3
    rolled = sdpa(one, k.roll(1, 0).repeat_interleave(2, 1), v.roll(1, 0).repeat_interleave(2, 1))

    for out, says in ((cyclic, r"kv head [012]"), (rolled, r"batch entry [012]")):
        with pytest.raises(
            NotAttention, match=rf"row is right for the same tensors with the keys and values of {says}"
        ):
            assert_attention(out, one, k, v, contract="fused")
    with pytest.raises(NotAttention) as told:
        assert_attention(cyclic + 1, one, k, v, contract="fused")
    assert "the keys and values of" not in str(told.value)


def test_an_output_is_held_to_its_own_dtype():
    tensors = tuple(halves())
    exact = sdpa(*(x.double() for x in tensors))

    assert_attention(exact.float(), *tensors, contract="fp32")
    with pytest.raises(NotAttention):
        assert_attention(exact.bfloat16().float(), *tensors, contract="fp32")
    assert_attention(exact.bfloat16(), *(x.float() for x in tensors), contract="fp32")


def test_a_log_sum_exp_is_held_to_its_own_dtype():
    out, lse = torch_answer(q, k, v)

    assert_attention(out, q, k, v, lse=lse.half(), contract="fp32")
    assert_attention(out, q, k, v, lse=lse.double(), contract="fp32")
    with pytest.raises(NotAttention):
        assert_attention(out, q, k, v, lse=lse.half().float(), contract="fp32")


@pytest.mark.parametrize("empty", [0.0, float("nan"), "mean"])
def test_rows_without_keys_are_judged_where_the_test_says_how(empty):
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[7] = False
    out = sdpa(q, k, v, attn_mask=mask)
    out[:, :, 7] = v.mean(dim=2) if empty == "mean" else empty
    meant = {"mean": "mean_of_v", 0.0: "zero"}.get(empty, "nan")

    assert_attention(out, q, k, v, attn_mask=mask)
    assert_attention(out, q, k, v, attn_mask=mask, empty_row=meant)
    other = "zero" if meant != "zero" else "nan"
    with pytest.raises(NotAttention, match=r"element +output\[\d, \d, 7, \d+\]") as failure:
        assert_attention(out, q, k, v, attn_mask=mask, empty_row=other)
    assert f"this row is right for the same tensors with empty_row={meant!r}" in str(failure.value)


@pytest.mark.parametrize("lengths", [(0, 2, 40), (1, 2, 0)])
def test_a_call_without_a_row_is_no_pass(lengths):
    none = torch.zeros(*lengths, 16)
    with pytest.raises(NotJudged, match="nothing of this answer can be judged: there is none"):
        assert_attention(none, none, none, none, empty_row="zero")


def test_nothing_to_judge_is_no_pass():
    with pytest.raises(NotJudged, match="nothing of this answer can be judged: no query sees a key"):
        assert_attention(q, q, k, v, attn_mask=torch.zeros(40, 40, dtype=torch.bool))


def far_rows(size):
    """Make float16 tensors: every second row of the first head has products q.k up to ``size``, for the scale 1/8."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, dO = (torch.randn(1, 2, 32, 64, generator=generator) for _ in range(4))
    q[0, 0, ::2] *= size / q[0, 0, ::2].norm(dim=-1, keepdim=True)
    q[0, 0, ::2] = q[0, 0, :1]
    k[0, 0] /= k[0, 0].norm(dim=-1, keepdim=True)
    k[0, 0, 7] = q[0, 0, 0] / q[0, 0, 0].norm()
    return [x.half() for x in (q, k, v, dO)]


@pytest.mark.parametrize("wrong", [0.0, float("nan")])
@pytest.mark.parametrize("contract", ["eager", "fused", None])
def test_rows_that_no_order_of_products_overflows_are_judged(wrong, contract):
    q, k, v, _ = far_rows(37000.0)
    out = sdpa(q.double(), k.double(), v.double()).half()

    assert str(assert_attention(out, q, k, v, contract=contract)) == "all 64 rows"
    out[0, 0, ::2] = wrong
    with pytest.raises(NotAttention, match=r"10\d\d of 4096 are outside, in 16 rows"):
        assert_attention(out, q, k, v, contract=contract)


@pytest.mark.parametrize("garbage", [0.0, float("nan"), float("inf")])
def test_rows_that_may_overflow_are_told_and_fail(garbage):
    """The right answer is told at a glance, whatever the contract says; of another one nothing is known."""
    q, k, v, _ = far_rows(1e5)
    out = sdpa(q.double(), k.double(), v.double()).half()

    assert str(assert_attention(out, q, k, v, contract="eager")) == "all 64 rows"
    out[0, 0, ::2] = garbage
    judgement = assert_attention(out, q, k, v, contract="eager", unjudged=0.25)
    assert str(judgement) == "all 64 rows; 1,024 of 4,096 elements of output not judged"
    with pytest.raises(
        NotJudged, match=r"(?s)25 % of this answer cannot be judged.*a score, or a sum .* float16 \(65504\): .* 1e\+05"
    ):
        assert_attention(out, q, k, v, contract="eager")
    with pytest.raises(CallError, match="unjudged must be a share of the answer, from 0 to 1, not 25"):
        assert_attention(out, q, k, v, contract="eager", unjudged=25)


def test_a_row_that_may_overflow_silences_no_gradient_of_other_rows():
    """dQ of the 31 others is judged; dK and dV of its head are sums with it."""
    q, k, v, dO = (torch.randn(1, 2, 32, 64, generator=torch.Generator().manual_seed(1)) for _ in range(4))
    q[0, 0, 5] *= 2000 / q[0, 0, 5].norm()
    k[0, 0, 7] = q[0, 0, 5]
    q, k, v, dO = (x.half() for x in (q, k, v, dO))
    given = [x.double().requires_grad_() for x in (q, k, v)]
    gradients = torch.autograd.grad(sdpa(*given), given, dO.double())
    found = {name: x.half() for name, x in zip(("dq", "dk", "dv"), gradients, strict=True)}

    judgement = assert_attention_gradients(found, dO, q, k, v, contract="eager", unjudged=0.4)
    assert judgement.tallies["dq"].unmeasured == 64
    with pytest.raises(NotJudged, match=r"first +dq\[0, 0, 5, 0\]: a gradient, or what it is made of, may overflow"):
        assert_attention_gradients(found, dO, q, k, v, contract="eager")
    found["dq"][0, 0, 6] = torch.nan
    with pytest.raises(NotAttention, match=r"element +dq\[0, 0, 6, 0\]; 64 of 4096 are outside, in 1 row"):
        assert_attention_gradients(found, dO, q, k, v, contract="eager", unjudged=0.4)


@pytest.mark.parametrize("contract", ["fused", "fp32", "eager"])
def test_a_row_of_fills_is_a_mean_of_values(contract):
    """Whatever scores of -1e30 round to, an output of normalized weights is no NaN, and lies in the hull of values."""
    q, k, v = (torch.randn(1, 1, 8, 16, generator=torch.Generator().manual_seed(2)) for _ in range(3))
    bias = torch.zeros(1, 1, 8, 8)
    bias[..., 3, :] = -1e30
    out = sdpa(q, k, v, attn_mask=bias)

    assert_attention(out, q, k, v, bias=bias, contract=contract)
    for wrong in (torch.nan, 10.0):
        out[..., 3, :] = wrong
        with pytest.raises(NotAttention, match=r"element +output\[0, 0, 3, \d+\]"):
            assert_attention(out, q, k, v, bias=bias, contract=contract)


def test_a_sample_of_rows_finds_what_hits_many_of_them():
    long = [torch.randn(1, 2, 3000, 8) for _ in range(3)]
    out = sdpa(*long, is_causal=True)

    judgement = assert_attention(out, *long, causal=True, rows=128, contract="fp32")
    assert str(judgement).startswith("256 of 6000 rows")
    out[:, :, 1500:] += 1e-2
    with pytest.raises(NotAttention, match=r"looked at \d+ of 6000 rows"):
        assert_attention(out, *long, causal=True, rows=128, contract="fp32")


def test_a_layer():
    x = torch.randn(2, 1, 9, 8)
    weights = {n: torch.randn(1, 2, 4, 8) for n in ("query_projection", "key_projection", "value_projection")}
    heads = [x @ w.mT for w in weights.values()]
    output = torch.randn(1, 2, 8, 4)
    out = (sdpa(*heads) @ output.mT).sum(1, keepdim=True)

    assert_attention(out, x, x, x, **weights, output_projection=output)
    out[1, 0, 3, 2] += 0.1
    with pytest.raises(NotAttention, match=r"output\[1, 0, 3, 2\]; 1 of 144 are outside"):
        assert_attention(out, x, x, x, **weights, output_projection=output)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"contract": "flash"}, "unknown contract 'flash'; known are fused"),
        ({"empty_row": "skip"}, "empty_row must be one of 'zero', 'mean_of_v', 'nan', 'undeclared', not 'skip'"),
        ({"empty_row": "zeroes"}, r"not 'zeroes'; did you mean 'zero'\?"),
        ({"empty_lses": "-inf"}, r"unknown option 'empty_lses'; did you mean 'empty_lse' or 'empty_row'\?"),
        ({"rows": 0}, "rows must be an integer of 1 or more, not 0"),
        ({"engine": "jax"}, "no engine is called 'jax'; write numpy, torch, torch:cuda"),
        ({"memory": 0}, "memory must be a positive number of bytes, not 0"),
        ({"memory": 1e9}, "memory must be a positive number of bytes, not 1000000000.0; give an integer"),
        ({"rows": 4, "seed": "x"}, "seed must be an integer of 0 or more, not 'x'"),
        ({"unjudged": 2}, "unjudged must be a share of the answer, from 0 to 1, not 2"),
        ({"softcap": -1.0}, "softcap must be a positive number or None, not -1.0"),
        ({"scale": True}, "scale must be a finite number or None, not True"),
        ({"window": 4}, r"window must be .*\(left, right\).*, not 4"),
        ({"rotary_base": 500.0}, "rotary_base is a parameter of rotary; give rotary too, or leave rotary_base out"),
        ({"deterministic": True}, "unknown option 'deterministic'"),
        (
            {"bias": torch.zeros(1, 8, 40, 40)},
            r"bias must be broadcastable to \[B, Hq, Sq, Sk\] = \(2, 4, 40, 40\) here, not \(1, 8, 40, 40\)",
        ),
        ({"mask": torch.ones(5, 4, 40, 40, dtype=torch.bool)}, r"mask must be .*, not \(5, 4, 40, 40\)"),
        (
            {"attn_mask": torch.ones(2, 40, 40, dtype=torch.bool)},
            r"not \(2, 40, 40\), which is read as \(1, 2, 40, 40\); .* batch entries, pass attn_mask\[:, None\]",
        ),
        (
            {"mask": torch.ones(2, 40, dtype=torch.bool)},
            r"which is read as \(1, 1, 2, 40\); .*pass mask\[:, None, None\]",
        ),
        (
            {"alibi_slopes": torch.ones(8)},
            r"alibi_slopes must be broadcastable to \[B, Hq, 1, 1\] = \(2, 4, 1, 1\) here, not \(8,\)",
        ),
    ],
)
def test_bad_arguments_are_told(words, text):
    with pytest.raises(CallError, match=text):
        assert_attention(q, q, k, v, **words)


def test_what_has_no_values_is_told():
    for what, text in (
        (None, "out must be the output of attention, not None: lse= is judged beside it"),
        (q.to_sparse(), "output must be a dense tensor with values, not a tensor of the layout torch.sparse_coo"),
        (q.to("meta"), "output must be a dense tensor with values, not a tensor on the device meta"),
    ):
        with pytest.raises(CallError, match=text):
            assert_attention(what, q, k, v)
    with pytest.raises(CallError, match="q must be a dense tensor with values, not a nested tensor"):
        assert_attention(q, torch.nested.nested_tensor(list(q), layout=torch.jagged), k, v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a layout that torch calls a prototype, and whose shape is an error
        ragged = torch.nested.nested_tensor([q[0], q[1, :, :5]])
    with pytest.raises(CallError, match="k must be a dense tensor with values, not a nested tensor"):
        assert_attention(q, q, ragged, v)
    x = jnp.ones((1, 1, 2, 2))
    with pytest.raises(CallError, match="not a traced array; assert outside of jit and grad"):
        jax.jit(lambda y: assert_attention(y, y, x, x))(x)


def test_it_imports_no_framework():
    heavy = "torch", "jax", "mlx", "hypothesis", "triton", "sympy"
    code = f"import attn_spec.testing, sys; print([name for name in {heavy} if name in sys.modules])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert attn_spec.assert_attention is assert_attention


def test_the_fixture_tells_the_summary(pytester):
    pytester.makepyfile(
        """
        import torch

        def test_mine(assert_attention):
            q, k, v = (torch.randn(1, 2, 8, 4) for _ in range(3))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            assert assert_attention(out, q, k, v, contract="fp32").ratio < 1
            assert_attention(out, q, k, v)
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["2 answers judged, up to 0.* of the error allowed: *.py::test_mine"])


@pytest.mark.parametrize("shows", ["mean", "nan", "zeros of zero values"])
def test_an_output_of_a_query_without_keys_that_is_no_constant_is_told(shows):
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[7] = False
    values = torch.zeros_like(v) if "zero" in shows else v
    out = sdpa(q, k, values, attn_mask=mask)
    if "zero" not in shows:
        out[:, :, 7] = v.mean(dim=2) if shows == "mean" else torch.nan
    with pytest.raises(CallError, match="a query sees no key, and its gradients depend on its output: pass out="):
        assert_attention_gradients({"dq": q}, out, q, k, values, attn_mask=mask, out=out)


def other_readings():
    """Yield answers that are right for another call than the test's, each with its hint."""
    x = [torch.randn(2, 3, 3, 16) for _ in range(3)]
    rows_first = sdpa(*(each.transpose(1, 2) for each in x)).transpose(1, 2)
    yield rows_first, x, {}, "as presentation='BSHD'"

    short, lower = (q, k[:, :, :20], v[:, :, :20]), torch.ones(40, 20, dtype=torch.bool)
    answer = sdpa(*short, attn_mask=lower.tril())
    yield answer, short, {"causal": True, "causal_alignment": "bottom_right"}, "with causal_alignment='top_left'"

    lse = torch.logsumexp(q @ k.mT / 4, -1)
    yield sdpa(q, k, v), (q, k, v), {"lse": lse / np.log(2)}, "with lse_base='2'"

    of_entries = torch.rand(4, 40, 40) < 0.5
    four = [torch.randn(4, 4, 40, 16) for _ in range(3)]
    yield (
        sdpa(*four, attn_mask=of_entries[:, None]),
        four,
        {"attn_mask": of_entries},
        r"with attn_mask\[:, None\], whose",
    )

    keys, forty = torch.rand(40, 40) < 0.5, [torch.randn(40, 1, 40, 4) for _ in range(3)]
    yield sdpa(*forty, attn_mask=keys[:, None, None]), forty, {"mask": keys}, r"with mask\[:, None, None\], whose first"


@pytest.mark.parametrize("number", range(5))
def test_a_failure_names_the_call_that_was_meant(number):
    answer, tensors, words, text = [*other_readings()][number]
    with pytest.raises(NotAttention, match=rf"hint      this row is right for the same tensors {text}"):
        assert_attention(answer, *tensors, contract="fp32", **words)
