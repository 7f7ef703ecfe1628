"""Calls of a function are judged while a program runs, and the program's numbers are what they were."""

import math
import sys
import types
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from attn_spec import watch
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.subject import Subject
from attn_spec.search.cases import load
from attn_spec.search.property import Refutation, load_all
from attn_spec.watching import watch as watching
from attn_spec.watching.target import WatchError
from attn_spec.watching.watch import RefutedCalls, Watch, target
from tests.kernels.signatures import own_caches, own_merges

SDPA = "torch.nn.functional:scaled_dot_product_attention"


def attention(q, k, v, *, causal=False):
    """Return attention of torch tensors."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    unseen = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(s.masked_fill(unseen, -math.inf) if causal else s, -1) @ v


def of_the_future(q, k, v, *, causal=False):
    """Return attention whose diagonal is one key late."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    unseen = torch.ones(s.shape[-2:], dtype=torch.bool).triu(2)
    return torch.softmax(s.masked_fill(unseen, -math.inf) if causal else s, -1) @ v


def masked(q, k, v, *, mask):
    """Return attention of the keys where the mask is True, and 0 for a query that sees none."""
    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -math.inf)
    p = (s - s.amax(-1, keepdim=True).clamp_min(-1e30)).exp()
    return p / p.sum(-1, keepdim=True).clamp_min(1e-30) @ v


def without_a_gradient(q, k, v):
    """Return attention whose keys get half of their gradient."""
    return attention(q, 0.5 * k + 0.5 * k.detach(), v)


def of_arrays(q, k, v):
    """Return attention of NumPy arrays."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=np.float32)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def qkv(n=9, *, grad=False, dtype=torch.float32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 4, n, 16, generator=rng).to(dtype).requires_grad_(grad) for _ in range(3)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_right_function_is_judged_forward_and_backward():
    with watch(attention) as (seen,):
        for _ in range(2):
            attention(*qkv(grad=True), causal=True).sum().backward()

    assert (seen.calls, seen.kinds, seen.refuted) == (2, 1, [])
    assert seen.judged >= 1
    assert seen.judged_backward >= 1
    assert 0 < seen.ratio < 1


def test_a_refuted_call_is_a_case_that_runs_again(tmp_path):
    with pytest.raises(RefutedCalls, match="the diagonal a key later") as raised, watch(of_the_future):
        of_the_future(*qkv(), causal=True)

    (path,) = (tmp_path / ".attn-spec" / "cases").glob("*.json")
    case = load(path)
    assert f"attn-spec replay {case.id}" in str(raised.value)
    assert f"script    python .attn-spec/cases/{case.id}.py" in str(raised.value)
    assert f"else '{__name__}:of_the_future'" in path.with_suffix(".py").read_text()
    assert case.kernel == f"{__name__}:of_the_future"
    with pytest.raises(Refutation, match="the truth is"):
        load_all()[case.property_id].check(Subject(from_callable(of_the_future), "float32"), case.problem)


def test_a_wrong_gradient_is_refuted():
    with watch(without_a_gradient, report_only=True) as (seen,):
        without_a_gradient(*qkv(grad=True)).square().sum().backward()

    assert [one.way for one in seen.refuted] == ["backward"]
    assert seen.judged == seen.judged_backward == 1


def test_hooks_of_the_program_that_change_a_cotangent_come_first():
    with watch(attention) as (seen,):
        out = attention(*qkv(grad=True))
        out.register_hook(lambda gradient: 3 * gradient)
        out.square().sum().backward()

    assert (seen.judged_backward, seen.refuted) == (1, [])


@pytest.mark.parametrize("changed", [False, True])
def test_gradients_beside_queries_without_keys_are_judged_where_their_output_is_known(changed):
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    mask[:, :3] = False  # padding on the left
    with watch(masked) as (seen,):
        out = masked(*qkv(grad=True), mask=mask)
        (out.mul_(2) if changed else out).square().sum().backward()

    assert (seen.judged, seen.judged_backward) == (1, 0 if changed else 1)
    assert not changed or "a query sees no key" in next(iter(seen.left_backward))


def step(x, **how):
    """Return the output, the gradients and the random state after a step of training of two layers."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True, **how)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    out = model(x)
    out.square().mean().backward()
    quick = model.eval()(x.detach())
    return [out, quick, *(p.grad for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_numbers_of_a_program_are_what_they_are_without_a_watch(dropout):
    x = torch.randn(2, 17, 32, generator=torch.Generator().manual_seed(3))
    before = step(x, dropout=dropout)
    with watch(SDPA) as (seen,):
        within = step(x, dropout=dropout)

    assert all(map(torch.equal, before, within))
    assert seen.refuted == []
    assert seen.judged_backward == 0 if dropout else seen.judged_backward > 0
    assert not dropout or "dropout_p" in next(iter(seen.left))


def test_a_name_imported_before_is_watched_and_put_back():
    own = functional.scaled_dot_product_attention
    with watch(SDPA) as (seen,):
        kept: Any = functional.scaled_dot_product_attention
        kept(*qkv())
    kept(*qkv())

    assert seen.calls == 1
    assert functional.scaled_dot_product_attention is own


def test_a_call_of_three_axes_is_one_batch_entry():
    with watch(SDPA) as (seen,):
        q, k, v = (x[0] for x in qkv(grad=True))
        functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    assert (seen.judged, seen.judged_backward, seen.left) == (1, 1, Counter())


@pytest.mark.parametrize("function", [functional.scaled_dot_product_attention, attention])
def test_operands_that_autocast_rounds_are_rounded_in_the_truth_or_not_judged(function):
    with watch(function) as (seen,), torch.autocast("cpu", torch.bfloat16):
        out = getattr(functional, function.__name__, attention)(*qkv(40, grad=True))
        out.sum().backward()

    assert seen.refuted == []
    if function is attention:
        assert seen.left == {"autocast to torch.bfloat16 rounds operands inside the function": 1}
    else:
        assert (seen.judged, seen.judged_backward) == (1, 1)


def test_one_tensor_in_several_places_keeps_its_gradient_to_itself():
    (x, *_) = qkv(grad=True)
    with watch(attention) as (seen,):
        attention(x, x, x).sum().backward()

    assert seen.judged == 1
    assert seen.left_backward == {"q, k or v are one tensor, whose gradient is their sum": 1}


def test_arrays_are_judged():
    with watch(of_arrays) as (seen,):
        of_arrays(*(x.numpy() for x in qkv()))

    assert (seen.judged, seen.left) == (1, Counter())


def test_an_error_of_the_judge_reaches_no_program(monkeypatch):
    monkeypatch.setattr(watching, "assert_attention", lambda *_, **__: 1 / 0)
    with watch(attention) as (seen,):
        out = attention(*qkv())

    assert torch.equal(out, attention(*qkv()))
    assert next(iter(seen.left)).startswith("attn-spec failed: ZeroDivisionError: division by zero at ")


def test_an_error_of_the_program_reaches_it():
    with watch(attention) as (seen,), pytest.raises(RuntimeError, match="Expected size"):
        attention(*(x[..., : 3 + i] for i, x in enumerate(qkv())))

    assert seen.calls == 1


def test_new_kinds_of_calls_come_first_within_the_share_of_the_time():
    now = [0.0]
    made = Watch(target(attention), share=0.25, keep=None, clock=lambda: now[0])
    made._told = lambda seen, way, judge: now.__setitem__(0, now[0] + 1.0)  # each judgement takes a second
    judged = []
    for n in [9, 9, 9, 10, 9, 9, 11, 12]:
        now[0] += 1.0
        spent = made.tally.seconds
        made(*qkv(n))
        judged.append(made.tally.seconds > spent)

    assert judged == [True, False, False, True, False, False, True, True]
    assert made.tally.left == {"the share of 25 % of the time was spent": 4}


@pytest.mark.parametrize(
    ("targets", "how", "message"),
    [
        ((), {}, "name a function to watch, for example torch.nn.functional:scaled_dot_product_attention"),
        (("attention",), {}, "a function to watch is named package.module:function, not 'attention'"),
        (("no_such_package:f",), {}, "no_such_package cannot be imported: No module named 'no_such_package'"),
        (("math:sqroot",), {}, "math has no function sqroot; did you mean 'sqrt'"),
        ((lambda q, k, v: q,), {}, "is no function of a module"),
        ((attention,), {"signature": "torch_sdp"}, "unknown signature 'torch_sdp'; did you mean 'torch_sdpa'"),
        ((attention,), {"rows": 0}, "rows must be a number of at least 1, not 0"),
        ((attention,), {"share": 2}, "share must be a share of the time, above 0 and at most 1, not 2"),
    ],
)
def test_what_cannot_be_watched_is_told(targets, how, message):
    with pytest.raises(WatchError, match=message), watch(*targets, **how):
        pass


@pytest.fixture
def flash_attn(monkeypatch):
    """Give a module of that name with a function of three signatures."""
    module: Any = types.ModuleType("flash_attn")
    module.flash_attn_with_kvcache = own_caches.flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


def test_each_call_is_read_by_the_signature_that_it_fits(flash_attn, tmp_path):
    q, k, v = (torch.randn(2, 3, heads, 8) for heads in (4, 2, 2))
    before = torch.tensor([4, 0], dtype=torch.int32)
    lies = {
        "flash_attn_kvcache": ((2, 9), {}),
        "flash_attn_kvcache_indexed": ((4, 9), {"cache_batch_idx": torch.tensor([3, 1], dtype=torch.int32)}),
        "flash_attn_kvcache_paged": ((6, 4), {"block_table": torch.tensor([[5, 2], [0, 3]], dtype=torch.int32)}),
    }

    def calls():
        for places, where in lies.values():
            caches = (torch.randn(*places, 2, 8), torch.randn(*places, 2, 8))
            flash_attn.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=before, causal=True, **where)
            flash_attn.flash_attn_with_kvcache(q[:, :1], *caches, cache_seqlens=before + 1, **where)

    with watch("flash_attn:flash_attn_with_kvcache", keep=None, share=1.0) as tallies:
        calls()
    assert tallies[0].signature == ", ".join(lies)
    assert (tallies[0].judged, tallies[0].left) == (6, Counter())

    right = own_caches.flash_attn_with_kvcache
    flash_attn.flash_attn_with_kvcache = lambda q, *given, **how: right(-q, *given, **how)
    with watch("flash_attn:flash_attn_with_kvcache", keep=tmp_path, share=1.0, report_only=True) as tallies:
        calls()
    assert len(tallies[0].refuted) == 6
    assert {load(path).declared["signature"] for path in tmp_path.rglob("*.json")} == set(lies)


def test_a_merge_of_states_is_judged(monkeypatch):
    module: Any = types.ModuleType("flashinfer.cascade")
    module.merge_state = own_merges.merge_state
    monkeypatch.setitem(sys.modules, "flashinfer.cascade", module)
    states = [x for _ in range(2) for x in (torch.randn(5, 4, 8), torch.randn(5, 4))]

    with watch("flashinfer.cascade:merge_state", keep=None) as tallies:
        module.merge_state(*states)
    assert (tallies[0].judged, tallies[0].left) == (1, Counter())


def test_arguments_that_a_function_ignores_are_no_part_of_a_call(monkeypatch):
    def eager(module, query, key, value, *masks, scaling, **ignored):
        return functional.scaled_dot_product_attention(query, key, value, scale=scaling).transpose(1, 2), None

    places = ["transformers", "models", "llama", "modeling_llama"]
    for depth in range(1, 5):
        monkeypatch.setitem(sys.modules, ".".join(places[:depth]), types.ModuleType(places[depth - 1]))
    llama: Any = sys.modules[".".join(places)]
    llama.eager_attention_forward = eager

    with watch(f"{'.'.join(places)}:eager_attention_forward", keep=None) as tallies:
        llama.eager_attention_forward(None, *qkv(), None, scaling=0.5, position_ids=torch.arange(9), use_cache=True)
    assert (tallies[0].signature, tallies[0].judged, tallies[0].left) == ("hf", 1, Counter())
