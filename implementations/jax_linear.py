"""Linear attention in JAX: a state of all keys, or a recurrent network whose state grows by a key for each query.

Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236), equations 16 to 20. Values have one more column of
ones, so that the state holds numerator and sum. All is float32, compiled anew for every shape; gradients are those of
``jax.vjp`` through ``lax.scan``.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from attn_spec import Contract, kernel

FEATURES = {"elu_plus_one": lambda x: jax.nn.elu(x) + 1, "relu": jax.nn.relu, "exp": jnp.exp}


@kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    contract=Contract(operands="work", kv_tile=1, backward_weights="stored", delta="probabilities"),
    supports=("feature_map", "feature_epsilon", "causal", "gqa", "dv", "cross", "backward"),
    always=("feature_map",),
    conventions={"masked_nonfinite": "may_leak"},
    signatures=2,
)
@partial(jax.jit, static_argnames=("feature_map", "feature_epsilon", "causal"))
def attention(
    q: Array, k: Array, v: Array, *, feature_map: str, feature_epsilon: float | None = None, causal: bool = False
) -> Array:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv]; query i sees key i."""
    a, b = (FEATURES[feature_map](x.astype(jnp.float32)) for x in (q, k))
    values = jnp.concatenate([v.astype(jnp.float32), jnp.ones((*v.shape[:3], 1))], axis=3)
    b, values = (jnp.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (b, values))
    if causal:
        u = _step_by_step(a, b, values)
    else:
        u = _product("bhid,bhdc->bhic", a, _product("bhjd,bhjc->bhdc", b, values))
    return (u[..., :-1] / (u[..., -1:] + (feature_epsilon or 0.0))).astype(q.dtype)


def _product(subscripts: str, x: Array, y: Array) -> Array:
    """Multiply in float32 on a GPU too, where the default is tf32."""
    return jnp.einsum(subscripts, x, y, precision=lax.Precision.HIGHEST)


def _step_by_step(a: Array, b: Array, values: Array) -> Array:
    """Visit the queries in turn: add the key of each query's own number to the state, if any, and read the state."""

    def of_queries(x: Array) -> Array:
        rest = max(a.shape[2] - x.shape[2], 0)
        return jnp.pad(x, ((0, 0), (0, 0), (0, rest), (0, 0)))[:, :, : a.shape[2]].transpose(2, 0, 1, 3)

    def visit(state: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        a_i, b_i, v_i = row
        state = state + b_i[..., :, None] * v_i[..., None, :]
        return state, _product("bhd,bhdc->bhc", a_i, state)

    start = jnp.zeros((*b.shape[:2], b.shape[3], values.shape[3]))
    return lax.scan(visit, start, (a.transpose(2, 0, 1, 3), of_queries(b), of_queries(values)))[1].transpose(1, 2, 0, 3)
