# /// script
# dependencies = ["local-attention==1.11.2", "torch==2.13.0"]
# ///
"""local-attention 1.11.2: with autopad, queries attend to the padding, unless a mask of True is given.

The README says that autopad pads the inputs and the mask, and truncates the output appropriately. A mask of True masks
nothing. Exit status 3: the answers with and without it differ.
"""

import sys

import torch
from local_attention import LocalAttention

attend = LocalAttention(window_size=2, look_backward=1, look_forward=1, autopad=True, use_rotary_pos_emb=False)
ones = torch.ones(1, 3, 1)
padded = attend(ones, ones, ones).ravel()
masked = attend(ones, ones, ones, mask=torch.ones(1, 3, dtype=torch.bool)).ravel()
print("values are all 1, and 3 queries are padded to 4:", padded)
print("the same under a mask of True:", masked)
sys.exit(0 if torch.allclose(padded, masked) else 3)
