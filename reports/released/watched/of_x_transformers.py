"""x-transformers: a decoder and an encoder with its decoder, of random weights, with PyTorch's own attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper, XTransformer

TOKENS = 64
KINDS: dict[str, dict[str, Any]] = {
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "one kv head": {"attn_one_kv_head": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_training_and_generation(kind: str) -> None:
    """Losses have finite gradients, and generated tokens are of the vocabulary."""
    torch.manual_seed(0)
    layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, attn_flash=True, **KINDS[kind])
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=TOKENS, max_seq_len=64, attn_layers=layers))

    model(torch.randint(0, TOKENS, (2, 41))).backward()
    found = model.generate(torch.randint(0, TOKENS, (2, 9)), 8)

    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)
    assert found.shape == (2, 8)
    assert 0 <= found.min() <= found.max() < TOKENS


def test_an_encoder_and_its_decoder_with_padding() -> None:
    """The loss of pairs of sequences has finite gradients, where padding follows the first of each pair."""
    torch.manual_seed(0)
    sides = {
        f"{side}_{name}": value
        for side in ("enc", "dec")
        for name, value in {"num_tokens": TOKENS, "depth": 1, "heads": 4, "max_seq_len": 48, "attn_flash": True}.items()
    }
    model = XTransformer(dim=64, **sides)
    mask = torch.arange(40) < torch.tensor([[40], [23]])

    model(torch.randint(0, TOKENS, (2, 40)), torch.randint(0, TOKENS, (2, 33)), mask=mask).backward()

    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)
