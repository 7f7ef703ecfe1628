"""Other suites judge kernels as they would themselves: what they accept, what they reject, and on what budget."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from attn_spec.reports.proof.peers.recipes import PeerRecipe
from attn_spec.reports.proof.peers.trial import MOST_PROBLEMS, PEERS, complaint, dtype_for, try_out
from attn_spec.reports.proof.peers.work import work_of
from attn_spec.reports.proof.zoo import mutants

from attn_spec.emulation.kernels import SUPPORTS, emulate
from attn_spec.emulation.sound import PRECISE, SOUND
from attn_spec.kernels.subject import Subject
from tests.reports.proof.peers.peer_kernels import CELLS, REFUSES_SOUND, changed, honest, subject

MUTANTS, _ = mutants.load_all()
NEGATED = changed(lambda out, v: -out)
ZEROS = changed(lambda out, v: out * 0)


def only(recipe):
    """Return problems of one recipe, under different seeds."""

    def problems(tried, rng):
        while True:
            yield replace(recipe, dtype=tried.dtype, seed=int(rng.integers(2**32))).problem()

    return problems


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "dtype"), [cell for cell in CELLS if cell not in REFUSES_SOUND])
def test_a_correctly_rounded_kernel_with_gradients_is_accepted(name, dtype):
    found = try_out(PEERS[name], subject(honest, dtype), work=2**19, seed=0)

    assert not found.rejected, found
    assert 0 < found.problems <= MOST_PROBLEMS


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_the_sound_emulated_kernel_is_accepted(name, dtype):
    small = itertools.islice(PEERS[name].problems(Subject(SOUND["sequential"], dtype), np.random.default_rng(2)), 6)

    def accepts(problem):
        tried = Subject(SOUND["sequential"], dtype)
        if work_of(problem) > 2**20:  # emulated gradients of the only size there is would take too long
            tried = Subject(emulate("sequential", PRECISE, dtypes=(dtype,)), dtype)
        return not complaint(PEERS[name], tried, problem, np.random.default_rng(0))

    # A tolerance that is a multiple of another kernel's error is next to none where that is lucky on this processor.
    smallest = sorted(small, key=work_of)[:2]
    assert any(map(accepts, smallest)) or (name, dtype) in REFUSES_SOUND


@pytest.mark.parametrize(("name", "dtype"), sorted(REFUSES_SOUND))
def test_default_tolerances_refuse_a_sound_kernel_in_halves(name, dtype):
    tried = Subject(emulate("sequential", PRECISE, dtypes=(dtype,)), dtype)

    assert try_out(PEERS[name], tried, work=2**24, seed=0).why == "the rule refuses the output"


@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_a_negated_output_is_rejected(name, dtype):
    found = try_out(PEERS[name], subject(NEGATED, dtype, supports=SUPPORTS), work=2**27, seed=0)

    assert found.rejected
    assert found.why == "the rule refuses the output"
    assert found.problem.startswith("PeerRecipe(")


LONG = {"factor": 0.1, "head_dim": 128, "value_dim": 128, "query_heads": 2, "kv_heads": 2, "query_length": 32}
TE_2_0 = PeerRecipe(**LONG, key_length=2048)
TE_2_1 = PeerRecipe(**LONG, key_length=4096)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernelbench_accepts_a_kernel_that_never_reads_q_and_k(dtype):
    mutant = Subject(MUTANTS["mean_of_v"].at(dtype), dtype)

    assert not try_out(PEERS["KernelBench"], mutant, work=2**25, seed=0).rejected


@pytest.mark.parametrize(("recipe", "function"), [(TE_2_0, ZEROS), (TE_2_1, ZEROS), (TE_2_1, NEGATED)])
def test_transformer_engine_accepts_zeros_and_negated_outputs_where_keys_are_many(recipe, function):
    peer = replace(PEERS["TransformerEngine"], problems=only(recipe))

    assert not try_out(peer, subject(function, "bfloat16", supports=SUPPORTS), work=2**26, seed=0).rejected


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bfloat16") for name in ("FlashAttention 2", "FlashAttention 3", "JAX nn", "flashinfer-bench")),
        ("FlashInfer", "float16"),
    ],
)
def test_an_accumulator_in_the_input_dtype_is_accepted_by_most(name, dtype):
    """The output is rounded to the dtype after each tile of 64 keys."""
    shape = {"query_length": 16, "key_length": 2048, "head_dim": 128, "value_dim": 128}
    peer = replace(PEERS[name], problems=only(PeerRecipe(**shape)))

    def accumulates(q, k, v):
        p = (q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
        for start in range(0, k.shape[2], 64):
            tile = slice(start, start + 64)
            out = (out.double() + p[..., tile] @ v[:, :, tile].double()).to(q.dtype)
        return out

    assert not try_out(peer, subject(accumulates, dtype, supports=("cross",)), work=2**24, seed=0).rejected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_xformers_kills_the_mean_of_v(dtype):
    averaged = changed(lambda out, v: out)

    def mean(q, k, v, **options):
        return honest(q * 0, k * 0, v, **options)[0], honest(q, k, v, **options)[1]

    assert not try_out(PEERS["xformers"], subject(averaged, dtype, supports=SUPPORTS), work=2**24, seed=0).rejected
    assert try_out(PEERS["xformers"], subject(mean, dtype, supports=SUPPORTS), work=2**24, seed=0).rejected


# Trials


def test_equal_seeds_give_equal_findings():
    peer, tried = PEERS["PyTorch SDPA"], subject(changed(lambda out, v: out * 1.003), "float16", supports=SUPPORTS)
    first, second, other = (try_out(peer, tried, work=2**26, seed=seed) for seed in (3, 3, 4))

    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert other.problem != first.problem


def test_the_budget_is_kept_and_a_large_problem_is_tried_at_least_once():
    sizes = subject(honest, "float16")

    kept = try_out(PEERS["xformers"], sizes, work=2**25, seed=0)
    large = try_out(PEERS["Triton tutorial"], sizes, work=2**20, seed=0)
    tiny = try_out(PEERS["BackendBench"], subject(honest, "float32"), work=2**30, seed=0)

    assert 2**24 < kept.work <= 2**25
    assert (large.problems, large.work) == (1, 2 * 2**25)
    assert tiny.problems == MOST_PROBLEMS


def inputs_zeroed(q, k, v, **options):
    return honest(q.zero_(), k.zero_(), v.zero_(), **options)


def test_changed_inputs_are_noticed_only_where_the_reference_saw_them_first():
    for name, noticed in (("FlashAttention 2", False), ("FlashAttention 3", True), ("FlashInfer", False)):
        tried = subject(inputs_zeroed, "float16", supports=SUPPORTS)
        found = try_out(PEERS[name], tried, work=2**24, seed=0)
        assert found.rejected is noticed
        assert "in place" not in found.why


def raises(q, k, v, **options):
    raise NotImplementedError("no such kernel")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises, "the kernel's call raised NotImplementedError: no such kernel"),
        (changed(lambda out, v: out.float()), "out has dtype float32; it must be float16"),
        (changed(lambda out, v: out[:, :, :-1]), "out has shape "),
        (changed(lambda out, v: out + torch.rand(()) / 64), "a second call on the same values gives other bits"),
    ],
)
def test_what_is_no_answer_is_rejected(function, why):
    found = try_out(PEERS["xformers"], subject(function, "float16", supports=SUPPORTS), work=2**20, seed=0)

    assert (found.rejected, found.problems) == (True, 1)
    assert found.why.startswith(why)


def test_a_subclass_of_a_tensor_is_not_noticed():
    class Lazy(torch.Tensor):
        pass

    lazy = changed(lambda out, v: out.as_subclass(Lazy))

    assert not try_out(PEERS["JAX nn"], subject(lazy, "bfloat16", supports=SUPPORTS), work=2**22, seed=0).rejected


def test_xformers_sees_a_read_past_the_end():
    def reads_one_more(q, k, v, **options):
        out, lse = honest(q, k, v, **options)
        last, rows = v.storage_offset() + v.shape[2] * v.stride(2), v.untyped_storage().nbytes() // v.element_size()
        return (out + v.as_strided((1,), (1,), last) * 0 if last < rows else out), lse

    peer = replace(PEERS["xformers"], problems=only(PeerRecipe(query_length=3, key_length=7)))
    found = try_out(peer, subject(reads_one_more, "float32", supports=SUPPORTS), work=2**10, seed=0)

    assert found.why == "a second call on the same values gives other bits"


@pytest.mark.parametrize(("base", "factor"), [("e", 1.0), ("2", 1 / math.log(2))])
def test_the_log_sum_exp_is_read_in_the_declared_base(base, factor):
    def attention(q, k, v, **options):
        out, lse = honest(q, k, v, **options)
        return out, lse * factor

    tried = subject(attention, "float32", supports=SUPPORTS, conventions={"lse_base": base})

    assert not try_out(PEERS["xformers"], tried, work=2**22, seed=0).rejected


def test_a_layout_is_transparent():
    def attention(q, k, v, **options):
        out, lse = honest(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        return out.transpose(1, 2).contiguous(), lse

    tried = subject(attention, "float16", supports=SUPPORTS, presentation="BSHD")

    assert not try_out(PEERS["FlashAttention 2"], tried, work=2**23, seed=0).rejected


def test_a_mutant_is_shown_at_its_own_dtype_if_the_peer_runs_it():
    def at(dtype, dtypes):
        return replace(MUTANTS["mean_of_v"], dtype=dtype, dtypes=dtypes)

    assert dtype_for(PEERS["xformers"], at("bfloat16", ("float32", "bfloat16"))) == "bfloat16"
    assert dtype_for(PEERS["Triton tutorial"], at("float32", ("float32", "float16"))) == "float16"
    assert dtype_for(PEERS["Triton tutorial"], at("float32", ("float32",))) is None


def test_every_row_says_what_it_is():
    for name, peer in PEERS.items():
        assert peer.name == name
        assert set(peer.dtypes) <= {"float32", "float16", "bfloat16"}
        assert all(50 < len(text) < 115 for text in (peer.rule, peer.recipe)), name
        assert (peer.accepts_gradients is None) == ("no gradients" in peer.rule or name == "flashinfer-bench")
