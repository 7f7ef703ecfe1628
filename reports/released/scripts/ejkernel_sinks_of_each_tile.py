# /// script
# dependencies = ["ejkernel==0.0.80.3", "jax==0.10.2"]
# ///
"""ejkernel 0.0.80.3: flash_attention on XLA adds the sinks to the sum of weights once for each tile of keys.

The package's own ``attention`` adds them once, and a size of tiles changes no answer. Exit status 3: the two functions
differ where there are two tiles, and agree where there is one.
"""

import sys

import jax.numpy as jnp
from ejkernel.kernels._xla.attention import attention
from ejkernel.kernels._xla.flash_attention import flash_attention


def differ(keys: int) -> bool:
    """Print the outputs of both functions for one query and equal keys, and return whether they differ."""
    q, k, sink = jnp.ones((1, 1, 1, 1)), jnp.ones((1, keys, 1, 1)), jnp.array([5.0])
    plain = attention(q, k, k, softmax_aux=sink, dtype=jnp.float32)[0].item()
    tiled = flash_attention(q, k, k, softmax_aux=sink).item()
    print(f"{keys} keys, tiles of 128: attention {plain}, flash_attention {tiled}")
    return abs(plain - tiled) > 1e-3


sys.exit(3 if differ(256) and not differ(128) else 0)
