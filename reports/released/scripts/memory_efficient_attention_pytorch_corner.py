# /// script
# dependencies = ["memory-efficient-attention-pytorch==0.1.6", "torch==2.13.0"]
# ///
"""memory-efficient-attention-pytorch 0.1.6: its flash attention hides too many keys where there are more than queries.

The package's own ``attention`` starts the diagonal so that the last query sees all keys. ``FlashAttentionFunction``
subtracts the difference of the lengths where it should add it. Exit status 3: the two differ.
"""

import sys

import torch
from memory_efficient_attention_pytorch.flash_attention import FlashAttentionFunction
from memory_efficient_attention_pytorch.memory_efficient_attention import attention

q = torch.ones(1, 1, 1, 1)
k = torch.tensor([0.0, 5.0]).reshape(1, 1, 2, 1)
v = torch.tensor([1.0, 3.0]).reshape(1, 1, 2, 1)
plain = attention(q, k, v, causal=True).item()
flash = FlashAttentionFunction.apply(q, k, v, None, True, 1, 1).item()
print("attention of one query and two keys, causal:", plain)
print("FlashAttentionFunction of the same:", flash)
sys.exit(3 if abs(plain - flash) > 1e-3 else 0)
