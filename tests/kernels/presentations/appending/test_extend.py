"""Calls that extend sequences have the new keys beside their queries, and the keys before them in a pool."""

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe

SHOWN = PRESENTATIONS["extend"]
SHAPE = {"batch": 3, "query_heads": 4, "kv_heads": 2, "head_dim": 6, "value_dim": 2, "causal": True}
PROBLEM = Recipe(
    **SHAPE, query_length=3, key_length=7, seqused_q="ragged@B111", causal_alignment="bottom_right", seed=1
).problem()
ABLE = ("causal", "causal_alignment", "gqa", "cross", "dv", "lse", "seqused_q", "seqused_k")


def subject(presentation, **conventions):
    agreed = {"causal_alignment": "bottom_right", **conventions}
    made = emulate("k", PRECISE, supports=ABLE, presentation=presentation, conventions=agreed)
    return Subject(made, "float32")


def test_an_answer_is_that_of_the_rectangle():
    for unused in ("unread", "finite"):
        for quantity, x in subject("extend", unused=unused)(PROBLEM).items():
            assert bits.identical(x, subject("BHSD")(PROBLEM)[quantity]).all(), quantity


def test_the_pool_lists_the_keys_before_the_new_ones_which_lie_beside_their_queries():
    handed = SHOWN.handed(PROBLEM, unread=True)
    starts, bounds, listed = (handed.further[name] for name in ("qo_indptr", "kv_indptr", "kv_indices"))

    for b in range(3):
        new, before = starts[b + 1] - starts[b], bounds[b + 1] - bounds[b]
        assert before + new == 7
        for name, new_name, pool in (("k", "k_new", "k_cache"), ("v", "v_new", "v_cache")):
            x = getattr(PROBLEM, name)[b].swapaxes(0, 1)
            assert (handed.tensors[pool][listed[bounds[b] : bounds[b + 1]]] == x[:before]).all()
            assert (handed.tensors[new_name][starts[b] : starts[b + 1]] == x[before:]).all()
    assert np.isnan(handed.tensors["k_new"][starts[-1] :]).all()
    used = np.isin(np.arange(len(handed.tensors["k_cache"])), listed[: bounds[-1]])
    assert np.isnan(handed.tensors["v_cache"][~used]).all()


def test_a_call_that_writes_to_its_pool_is_refused():
    executed = subject("extend").kernel

    @kernel(framework="torch", dtypes=("float32",), presentation="extend", supports=("causal", "gqa", "dv", "cross"))
    def writes(q, k_new, v_new, k_cache, v_cache, **further):
        out, _ = executed.function(q, k_new, v_new, k_cache, v_cache, **further)
        k_cache[0] = 1.0
        return out

    with pytest.raises(Misbehaviour, match="changed its input k_cache in place"):
        Subject(writes, "float32")(PROBLEM)


def test_what_such_a_call_cannot_declare():
    with pytest.raises(KernelError, match="cannot pass backward, since keys are apart from those before them"):
        kernel(framework="torch", dtypes=("float32",), presentation="extend", supports=("backward",))(lambda *_: 0)
