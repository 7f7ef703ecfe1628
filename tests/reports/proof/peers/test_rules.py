"""The references, recipes and accept rules of other suites are the ones described, holes included."""

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from attn_spec.reports.proof.peers.recipes import LARGEST, PeerError, PeerRecipe, cut
from attn_spec.reports.proof.peers.references import FLOAT64, HIGHER_MATH, MATH, Reference, gradients, tensors
from attn_spec.reports.proof.peers.trial import PEERS
from attn_spec.reports.proof.peers.work import work_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from attn_spec.attention import definition
from attn_spec.attention import gradients as derivation
from attn_spec.emulation.kernels import SUPPORTS
from attn_spec.numbers import bits
from tests.reports.proof.peers.peer_kernels import CELLS, REFUSES_SOUND, honest, subject

SMALL = PeerRecipe(seed=1, batch=2, query_heads=4, kv_heads=2, query_length=7, key_length=9, head_dim=4, value_dim=6)


def judged(name, problem, output, lse=None):
    return PEERS[name].accepts(problem, np.asarray(output, float), lse)


# References


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": "corner"},
        {"causal": True, "softcap": 2.0},
        {"window": (2, 1), "scale": -0.3},
        {"mask": "even_keys"},
    ],
)
@pytest.mark.parametrize("scale_on", ["query", "key", "both", "scores"])
def test_a_reference_in_float64_is_attention(options, scale_on):
    problem = replace(SMALL, **options).problem()
    reference = replace(FLOAT64, scale_on=scale_on)
    cotangent = np.ones((2, 4, 7, 6))
    truth = derivation.gradients(problem, cotangent, 100)

    out, lse = reference(problem, tensors(problem))
    found = gradients(reference, problem, cotangent)

    assert np.allclose(out, definition.attention(problem, 100).astype(float), rtol=0, atol=1e-14)
    assert np.allclose(lse, definition.log_sum_exp(problem, 100).astype(float), rtol=0, atol=1e-14)
    for name, values in found.items():
        assert np.allclose(values, truth[name].astype(float), rtol=0, atol=1e-13)


SIZES = {"query_heads": 2, "query_length": 33, "key_length": 65, "head_dim": 40, "value_dim": 40}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"bias": "normal_of_rows"}, {"causal": True}])
def test_the_reference_of_sdpa_is_torch_to_the_bit(dtype, options):
    problem = replace(SMALL, dtype=dtype, **SIZES, **options).problem()
    leaves = tensors(problem)

    with sdpa_kernel(SDPBackend.MATH):
        wanted = torch.nn.functional.scaled_dot_product_attention(*leaves.values(), is_causal=problem.causal)

    assert torch.equal(MATH(problem, leaves)[0], wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_reference_of_flexattention_is_torch_to_the_bit(dtype):
    problem = replace(SMALL, dtype=dtype, **SIZES, bias="normal_of_rows").problem()
    leaves = tensors(problem)

    def score(s, _b, _h, i, j):
        return s + leaves["bias"][0, 0, i, j]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager is what the suite compares with
        wanted = flex_attention(*(leaves[name] for name in "qkv"), score_mod=score)

    assert torch.equal(Reference(scores="float32", softmax="float32")(problem, leaves)[0], wanted)


def test_gradients_stay_in_the_format_of_the_copies():
    problem = replace(SMALL, dtype="bfloat16", bias="normal").problem()

    for reference, wanted in ((MATH, torch.bfloat16), (HIGHER_MATH, torch.float32), (FLOAT64, torch.float64)):
        found = gradients(reference, problem, np.ones((2, 4, 7, 6)))
        assert set(found) == {"dq", "dk", "dv", "dbias"}
        assert {gradient.dtype for gradient in found.values()} == {wanted}


# Recipes


@pytest.mark.parametrize("name", PEERS)
def test_problems_are_of_their_dtype_small_enough_and_made_again_by_their_recipe(name):
    peer = PEERS[name]
    tried = subject(honest, peer.dtypes[-1])

    for problem in itertools.islice(peer.problems(tried, np.random.default_rng(0)), 5):
        again = eval(repr(problem), {"PeerRecipe": PeerRecipe})  # noqa: S307 - our own repr
        assert problem.dtype == tried.dtype
        assert work_of(problem) <= LARGEST
        assert work_of(problem) == problem.recipe.work
        assert problem.options() == problem.recipe.options()
        assert all(np.array_equal(getattr(again, x), getattr(problem, x)) for x in ("q", "k", "v"))


@pytest.mark.parametrize("name", sorted(set(PEERS) - {"Triton tutorial", "FlashInfer", "flashinfer-bench"}))
def test_only_options_that_the_kernel_declares_are_drawn(name):
    tried = subject(honest, PEERS[name].dtypes[0], supports=("lse", "cross"))

    for problem in itertools.islice(PEERS[name].problems(tried, np.random.default_rng(0)), 4):
        assert problem.options() <= {"cross"}


def test_a_diagonal_that_the_kernel_does_not_declare_is_drawn_for_squares_alone():
    supports = [option for option in SUPPORTS if option != "causal_alignment"]
    tried = subject(honest, "bfloat16", supports=supports)

    problems = list(itertools.islice(PEERS["FlashAttention 2"].problems(tried, np.random.default_rng(0)), 12))

    assert any(problem.causal for problem in problems)
    assert all(
        problem.query_length == problem.key_length for problem in problems if {"causal", "window"} & problem.options()
    )


@pytest.mark.parametrize(
    "limits",
    [{"keys_reach_queries": True}, {"query_lengths": (1, 128)}, {"kv_heads": (1,)}, {"multiples": {"K": 16}}],
    ids=lambda limits: next(iter(limits)),
)
def test_only_problems_within_the_limits_of_the_kernel_are_drawn(limits):
    tried = subject(honest, "bfloat16", **limits)

    problems = list(itertools.islice(PEERS["FlashAttention 2"].problems(tried, np.random.default_rng(0)), 12))

    assert not any(tried.kernel.limits.refusal(problem) for problem in problems)


@pytest.mark.parametrize("limits", [{"head_dims": (48,)}, {"always": ("softcap",)}])
def test_a_kernel_that_takes_no_problem_is_an_error(limits):
    tried = subject(honest, "float16", **limits)

    with pytest.raises(PeerError, match="honest takes no problem of this recipe: 1000 in a row were declined"):
        next(PEERS["Triton tutorial"].problems(tried, np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("name", "low", "high", "deviation"),
    [
        ("KernelBench", 0, 1, 12**-0.5),
        ("Triton tutorial", -4, 4, 0.5),
        ("TransformerEngine", -0.8, 0.8, 0.1),
        ("xformers", -24, 24, 3.0),
        ("BackendBench", -9, 9, 18 / 12**0.5),
        ("JAX nn", -8, 8, 1.0),
    ],
)
def test_values_have_the_distribution_of_the_suite(name, low, high, deviation):
    peer = PEERS[name]
    problems = list(itertools.islice(peer.problems(subject(honest, peer.dtypes[0]), np.random.default_rng(1)), 6))
    drawn = np.concatenate([problem.v.ravel() for problem in problems])

    assert low <= drawn.min() < drawn.max() <= high
    assert drawn.std() == pytest.approx(deviation, rel=0.05)


def test_queries_are_cut_first_where_they_are_independent_of_their_place():
    recipe = PeerRecipe(query_heads=2, query_length=2049, key_length=4096, head_dim=128, value_dim=128)

    free, bound = cut(recipe), cut(replace(recipe, causal=True))

    assert (free.query_length, free.key_length) == (9, 4096)
    assert (bound.query_length, bound.key_length) == (129, 256)
    assert cut(replace(recipe, query_length=9)).query_length == 9


# Rules, on arrays made by hand: one query that sees one key, so that the output is v

ONE = PeerRecipe(dtype="bfloat16", head_dim=1, value_dim=4)
V = np.array([1.0, -2.0, 0.5, 4.0])


def one(values=V, dtype="bfloat16"):
    return ONE.problem().replace(
        dtypes=dtype, q=np.ones((1, 1, 1, 1)), k=np.ones((1, 1, 1, 1)), v=values[None, None, None]
    )


def off(amount, at=0):
    return np.where(np.arange(4) == at, V + amount, V)[None, None, None]


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [
        ("xformers", "float32", 3e-4 + 2e-5),
        ("xformers", "float16", 4e-3 + 4e-4),
        ("xformers", "bfloat16", 2e-2 + 5e-3),
        ("KernelBench", "float32", 2e-4),
        ("KernelBench", "float16", 2e-2),
        ("JAX nn", "float16", 2e-2),
        ("Triton tutorial", "float16", 1e-2),
        ("FlashInfer", "float16", 2e-3),
        ("BackendBench", "float32", 2e-2),
        ("TransformerEngine", "float16", 2e-3),
        ("TransformerEngine", "bfloat16", 3e-2),
        ("assert_close", "float32", 1.13e-5),
        ("assert_close", "float16", 1.01e-3),
    ],
)
def test_tolerances_are_those_of_the_suite(name, dtype, largest):
    problem = one(dtype=dtype)
    unit = bits.spacing(np.ones(1), dtype)[0]

    assert judged(name, problem, off(np.floor(largest / unit) * unit))
    assert not judged(name, problem, off((np.floor(largest / unit) + 1) * unit))


def test_an_error_of_zero_in_the_reference_leaves_only_the_slack():
    """Dao-AILab/flash-attention#1231: a kernel off by one unit fails where eager is exact; version 3 repaired it."""
    problem = one()

    assert judged("FlashAttention 2", problem, off(0.0))
    assert not judged("FlashAttention 2", problem, off(2.0**-7))
    assert judged("FlashAttention 3", problem, off(2.0**-7))
    assert not judged("FlashAttention 3", problem, off(2.0**-3))
    assert not judged("PyTorch SDPA", problem, off(2.0**-7))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_answer_that_is_not_finite_is_refused(name, value):
    assert judged(name, one(dtype=PEERS[name].dtypes[0]), off(0.0))
    assert not judged(name, one(dtype=PEERS[name].dtypes[0]), off(value))


def test_a_nan_in_the_reference_accepts_anything_where_the_suite_does():
    anything = {name: judged(name, one(off(np.nan)[0, 0, 0], PEERS[name].dtypes[0]), off(123.0)) for name in PEERS}
    equal = {name: judged(name, one(off(np.nan)[0, 0, 0], PEERS[name].dtypes[0]), off(np.nan)) for name in PEERS}

    assert [name for name, accepted in anything.items() if accepted] == ["PyTorch SDPA", "flashinfer-bench"]
    assert [name for name, accepted in equal.items() if accepted] == ["PyTorch SDPA", "JAX nn", "BackendBench"]


def test_flashinfer_bench_refuses_only_what_is_off_both_ways():
    problem = one(np.array([1.0, 256.0, 0.0, 2.0**-10]))
    exact = problem.v[0, 0]

    assert judged("flashinfer-bench", problem, (exact + np.array([0, 2, 0.009, 0.009]))[None])
    assert not judged("flashinfer-bench", problem, (exact + np.array([0.0625, 0, 0, 0]))[None])


def test_flexattention_compares_means_and_not_maxima():
    problem = replace(SMALL, dtype="float32", query_length=256, key_length=256, head_dim=64, value_dim=64).problem()
    truth = FLOAT64(problem, tensors(problem))[0].numpy()
    answer = bits.nearest(truth, "float32")
    answer[0, 0, 0, 0] += 1e-3

    assert judged("FlexAttention", problem, answer)
    assert not judged("PyTorch SDPA", problem, answer)
    assert not judged("FlexAttention", problem, answer + 1e-3)


@pytest.mark.parametrize("name", ["xformers", "FlexAttention", "flashinfer-bench"])
def test_the_log_sum_exp_is_compared_where_the_suite_does(name):
    problem = replace(SMALL, dtype="bfloat16", query_length=40).problem()
    out, lse = (x.numpy() for x in FLOAT64(problem, tensors(problem)))
    out, lse = bits.nearest(out, "bfloat16"), bits.nearest(lse, "float32")

    assert PEERS[name].accepts(problem, out, lse)
    assert not PEERS[name].accepts(problem, out, lse + 0.05)
    assert PEERS["FlashAttention 2"].accepts(problem, out, lse + 0.05)


@pytest.mark.parametrize(("name", "dtype"), [cell for cell in CELLS if PEERS[cell[0]].accepts_gradients])
def test_gradients_are_compared(name, dtype):
    problem = replace(SMALL, dtype=dtype, query_length=40, bias="normal", causal=True).problem()
    cotangent = bits.nearest(np.random.default_rng(0).standard_normal((2, 4, 40, 6)), dtype)
    exact = {key: bits.nearest(x.numpy(), dtype) for key, x in gradients(FLOAT64, problem, cotangent).items()}

    def accepted(**wrong):
        return PEERS[name].accepts_gradients(problem, cotangent, {**exact, **wrong})

    assert accepted() or (name, dtype) in REFUSES_SOUND
    for key in ("dq", "dk", "dv"):
        assert not accepted(**{key: 40 * exact[key]}), key
    assert accepted(dbias=40 * exact["dbias"]) is (name not in {"PyTorch SDPA", "xformers", "JAX nn"}) or (
        (name, dtype) in REFUSES_SOUND
    )
