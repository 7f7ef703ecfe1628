"""Transformers: Llama and GPT-2 of random weights, in training, with padding, and in generation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TOKENS = 64


def llama(attention: str) -> Any:
    """Return a Llama of two layers, with two query heads for each kv head."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=TOKENS, num_hidden_layers=2, attn_implementation=attention, **sizes)
    return LlamaForCausalLM(config)


def gpt2(attention: str) -> Any:
    """Return a GPT-2 of two layers, without dropout."""
    config = GPT2Config(
        vocab_size=TOKENS,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        attn_pdrop=0.0,
        attn_implementation=attention,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


@pytest.fixture(params=[(llama, "sdpa"), (llama, "eager"), (gpt2, "sdpa")], ids=["llama", "llama-eager", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    """Return a model of random weights."""
    torch.manual_seed(0)
    make, attention = request.param
    return make(attention)


def test_a_step_of_training(model: Any) -> None:
    """Losses of two sequences have finite gradients."""
    ids = torch.randint(3, TOKENS, (2, 40))

    model(ids, labels=ids).loss.backward()

    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)


@torch.no_grad()
def test_padding_on_the_left_changes_no_logits(model: Any) -> None:
    """A sequence has equal logits alone and behind padding."""
    ids = torch.randint(3, TOKENS, (1, 24))
    padded, mask = torch.cat([torch.zeros(1, 8, dtype=torch.long), ids], 1), torch.ones(1, 32, dtype=torch.long)
    mask[:, :8] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    found = model.eval()(padded, attention_mask=mask, position_ids=positions).logits[:, 8:]

    torch.testing.assert_close(found, model(ids).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_generation_with_a_cache_is_generation_without_it(model: Any) -> None:
    """Greedy tokens are equal with a growing cache and without one."""
    ids = torch.randint(3, TOKENS, (2, 12))
    how = {"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0}

    found = model.eval().generate(ids, attention_mask=torch.ones_like(ids), use_cache=True, **how)

    assert torch.equal(found, model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=False, **how))
