"""Caches of int8: which codes are drawn, what lies where none may be NaN, verdicts, assertions, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import assert_attention, kernel
from attn_spec.contract.contract import Contract, ContractError
from attn_spec.contract.presets import FUSED
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.isolation import foreign
from attn_spec.kernels.frameworks.numpy import NUMPY
from attn_spec.kernels.frameworks.torch import TORCH
from attn_spec.kernels.presentations import placement
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES, FLOATS, FORMATS
from attn_spec.problem.dtypes import dtype_of
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search import hidden_keys
from attn_spec.search.drawing.regimes import REGIMES, Recipe
from attn_spec.search.verdict import Verdict
from attn_spec.testing import NotAttention

from .test_mixed_dtypes import OUTPUT, verdict

CACHE = "q:bfloat16,kv:int8"
SHAPE = {"query_length": 3, "key_length": 5, "head_dim": 4, "value_dim": 4}
MOVED = "descales.a_power_of_two_moves_into_its_tensor"
SAFE = {"framework": "torch", "dtypes": (CACHE,), "contract": "fused"}

#: A kernel of a framework, in a file of its own.
KERNEL = """
import {module}
from attn_spec import kernel

@kernel(framework="{framework}", dtypes=["q:float32,kv:int8"], contract="eager", supports=["cross"])
def attention(q, k, v):
    assert "int8" in str(k.dtype), k.dtype
    k, v = ({widened} for x in (k, v))
    s = {module}.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    p = {module}.exp(s - {largest})
    return {module}.einsum("bhij,bhjd->bhid", p, v) / p.sum(-1)[..., None]
"""
FILES = {
    "numpy": {"module": "numpy", "widened": "x.astype('float32')", "largest": "s.max(-1, keepdims=True)"},
    "jax": {"module": "jax.numpy", "widened": "x.astype('float32')", "largest": "s.max(-1, keepdims=True)"},
    "mlx": {
        "module": "mlx.core",
        "widened": "x.astype(mlx.core.float32)",
        "largest": "s.max(-1, keepdims=True)",
    },
    "torch": {"module": "torch", "widened": "x.float()", "largest": "s.amax(-1, keepdim=True)"},
}


def test_every_code_is_a_number_and_its_own_nearest():
    codes = np.arange(-128.0, 128.0)

    assert bits.is_representable(codes, "int8")
    assert (bits.spacing(codes, "int8") == 1).all()
    for off in (0.0, 0.4, -0.4):
        assert (bits.nearest(codes + off, "int8") == codes).all()
    assert not any(bits.is_representable(np.array([x + 0.4]), "int8") for x in codes)


def test_what_is_no_integer_of_8_bits_becomes_the_nearest_and_nan_is_none():
    x = np.array([1e9, -np.inf, 127.6, -129.0, 2.5, 3.5, -0.2])

    assert bits.nearest(x, "int8").tolist() == [127, -128, 127, -128, 2, 4, 0]
    assert not np.signbit(bits.nearest(x, "int8")[-1])
    assert not bits.is_representable(np.array([1.0, np.nan]), "int8")
    assert len(bits.finite("int8")) == 128
    assert "int8" not in FLOATS


def test_codes_of_all_sizes_are_drawn_and_none_is_minus_128():
    drawn = [Recipe(**{**SHAPE, "key_length": 99}, dtypes=CACHE, regime=name).problem() for name in REGIMES]
    k, v = (np.concatenate([getattr(one, name).ravel() for one in drawn]) for name in "kv")

    for x in (k, v):
        assert (x.min(), x.max()) == (-127, 127)
        assert len(np.unique(x)) > 150
    normal = Recipe(**SHAPE, dtypes=CACHE).problem()
    plain = Recipe(**SHAPE, dtypes="bfloat16").problem()
    assert np.allclose(normal.q, plain.q / 32)
    assert np.allclose(normal.k, 32 * plain.k, atol=0.6)
    both = Recipe(**SHAPE, dtypes="int8").problem()
    assert np.allclose(both.q, 8 * Recipe(**SHAPE, dtypes="float32").problem().q, atol=0.51)


def test_options_beside_queries_of_integers_have_float32():
    assert [dtype_of("int8", name) for name in ("q", "k", "v", "bias", "k_descale")] == [
        *["int8"] * 3,
        *["float32"] * 2,
    ]
    assert dtype_of(CACHE, "bias") == "bfloat16"


def test_an_integer_of_a_problem_is_no_nan():
    problem = Recipe(**SHAPE, dtypes=CACHE).problem()

    with pytest.raises(ProblemError, match="v has values that int8 cannot represent"):
        problem.replace(v=np.full(problem.v.shape, np.nan))
    assert Problem.from_json(problem.to_json()).digest_of_bits() == problem.digest_of_bits()


def test_places_that_nobody_reads_hold_numbers_of_others_or_the_largest():
    seen = set()
    for length in range(2, 12):
        problem = Recipe(**{**SHAPE, "key_length": length}, batch=2, seqused_k="ragged@B111", dtypes=CACHE).problem()
        for name in "kv":
            seen.add(placement.poison(problem, name, unread=True))
        handed = PRESENTATIONS["append_paged" if length > 3 else "paged"].handed(problem, unread=True).tensors
        assert all(bits.is_representable(x, "int8") for name, x in handed.items() if name in ("k", "v"))
    assert seen == {127.0, None}


def test_hidden_keys_are_the_largest_and_the_least_where_none_is_nan():
    problem = Recipe(**SHAPE, dtypes=CACHE).problem()
    made = emulate("k", PRECISE, dtypes=(CACHE,))
    contents = list(hidden_keys._contents(Subject(made, CACHE), problem, np.random.default_rng(0)))

    assert [what for what, _, _ in contents][-1] == "Inf and NaN"
    assert all(bits.is_representable(x, "int8") for _, *every in contents for x in every)
    assert set(np.unique(contents[-1][1])) == {-128, 127}


@pytest.mark.parametrize("own", [NUMPY, TORCH])
def test_what_lies_between_the_numbers_of_a_view_is_minus_128(own):
    assert own.take(own.of_nan(own.give(np.ones(3), "int8"), (2, 2))).tolist() == [[-128, -128]] * 2


def test_no_stage_of_a_contract_is_of_integers():
    with pytest.raises(ContractError, match="contract field probabilities must be one of"):
        Contract(probabilities="int8")
    with pytest.raises(ContractError, match="output must be one of"):
        Contract(output="int8")
    with pytest.raises(ContractError, match="output is by default the dtype of q, int8, of 8 bits"):
        FUSED.at("int8")
    at = replace(FUSED, output="bfloat16").at("int8")
    assert (at.multiplicands, at.probabilities, at.operands) == ("bfloat16", "bfloat16", "bfloat16")
    assert FUSED.at(CACHE).multiplicands == "bfloat16"
    assert FUSED.at("q:float16,kv:int8").multiplicands == "float16"


@pytest.mark.parametrize("framework", FILES)
def test_a_kernel_of_each_framework_holds_here_and_in_a_process_of_its_own(framework, folder):
    pytest.importorskip(framework)
    folder.joinpath("mine.py").write_text(KERNEL.format(framework=framework, **FILES[framework]))
    here, there = (of("mine.py:attention") for of in (resolve, foreign.isolated))
    dtype = "q:float32,kv:int8"
    problem = Recipe(**SHAPE, dtypes=dtype).problem()

    assert verdict(OUTPUT, here, dtype, 5) is Verdict.HELD
    answers = [Subject(each, dtype)(problem)["output"] for each in (here, there)]
    assert bits.identical(*answers).all()


def pages(loaded):
    """Return the paged kernel that is given what ``loaded`` makes of queries, caches and their descales."""
    own = resolve("torch_paged:quantized")

    def around(q, k, v, **options):
        return own.function(*loaded(q, k, v, options), **options)

    return replace(own.wrapped(around), dtypes=(CACHE,))


def next_head(q, k, v, options):
    for name in ("k_descale", "v_descale"):
        if name in options:
            options[name] = options[name].roll(1, -1)
    return q, k, v


def rounded_queries(q, k, v, options):
    del options
    unit = (q.abs().amax().float() / 127).clamp(min=1e-30)
    return ((q.float() / unit).round() * unit).to(q.dtype), k, v


@pytest.mark.parametrize(
    ("loaded", "property_id"),
    [
        (lambda q, k, v, options: (q, k, v.to(q.dtype) - 1), OUTPUT),
        (lambda q, k, v, options: (q, k.view(torch.uint8), v), OUTPUT),
        (lambda q, k, v, options: (q, k, v.to(q.dtype).where(v != 127, 0)), OUTPUT),
        (rounded_queries, OUTPUT),
        (next_head, MOVED),
    ],
    ids=["zero_point", "unsigned", "largest_is_empty", "rounds_queries", "next_head"],
)
def test_pages_of_integers_that_are_read_wrong_are_refuted(loaded, property_id):
    assert verdict(property_id, pages(loaded), CACHE, 40) is Verdict.REFUTED


@pytest.mark.parametrize("property_id", [OUTPUT, MOVED])
def test_pages_of_integers_hold(property_id):
    assert verdict(property_id, pages(lambda q, k, v, options: (q, k, v)), CACHE, 8) is Verdict.HELD


def test_a_kernel_of_integers_alone_with_exact_sums_holds():
    @kernel(
        framework="torch",
        dtypes=("int8",),
        contract=replace(FUSED, output="bfloat16", probabilities="float32", multiplicands="float32"),
        supports=("cross", "q_descale", "k_descale", "v_descale"),
    )
    def attention(q, k, v, *, q_descale=None, k_descale=None, v_descale=None):
        products = q.int() @ k.int().mT
        d_q, d_k, d_v = (1.0 if d is None else d for d in (q_descale, k_descale, v_descale))
        s = products.float() * (d_q * d_k * q.shape[-1] ** -0.5)
        return (s.softmax(-1) @ v.float() * d_v).bfloat16()

    assert verdict(OUTPUT, attention, "int8", 8) is Verdict.HELD


def test_calls_with_a_cache_of_integers_are_asserted():
    rng = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 5, 16, generator=rng).bfloat16()
    k, v = (torch.randint(-128, 128, (1, 4, 8, 16), generator=rng, dtype=torch.int8) for _ in "kv")
    d = {
        "k_descale": torch.full((1, 4, 1, 1), 0.03),
        "v_descale": torch.tensor([1.0, 2, 3, 4]).reshape(1, 4, 1, 1) / 99,
    }

    def attend(v_descale):
        s = q.float() @ k.float().mT * d["k_descale"] / 4
        return (s.softmax(-1) @ v.float() * v_descale).bfloat16()

    assert_attention(attend(d["v_descale"]), q, k, v, contract="fused", **d)
    with pytest.raises(NotAttention, match=CACHE):
        assert_attention(attend(d["v_descale"].roll(1, 1)), q, k, v, contract="fused", **d)


def test_dtypes_of_outputs_and_options_have_no_integers():
    assert "int8" not in DTYPES
    with pytest.raises(ProblemError, match="for bias, not 'int8'"):
        Recipe(**SHAPE, dtypes=CACHE).problem().replace(dtypes={"q": "bfloat16", "kv": "int8", "bias": "int8"})
    assert FORMATS["int8"].is_integer
