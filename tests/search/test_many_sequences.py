"""Descales of one sequence that serve another are found from whichever sequence on they do."""

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTY = load_all()["descales.each_sequence_has_its_own_descales"]


@pytest.mark.parametrize("first", [1, 4, 16, None])
def test_the_descale_of_the_first_sequence_in_place_of_later_ones_is_refuted(first):
    def attention(q, k, v, *, seqused_k=None, k_descale=None):
        s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
        if k_descale is not None:
            d = np.broadcast_to(k_descale, (*k.shape[:3], 1)).copy()
            if first is not None:
                d[first:] = d[:1]
            s = s * d.swapaxes(-1, -2)
        if seqused_k is not None:
            s = np.where(np.arange(k.shape[2]) < seqused_k, s, np.float32(-np.inf))
        top = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(np.isfinite(top), top, np.float32(0)))
        total = p.sum(-1, keepdims=True)
        return (p / np.where(total == 0, 1, total)) @ v

    supports = ("seqused_k", "k_descale", "descale_by_head", "descale_by_key")
    made = kernel(framework="numpy", dtypes=("float32",), contract="fp32", supports=supports)(attention)

    row, _ = search(PROPERTY, Subject(made, "float32"), PROFILES["smoke"], 0)

    assert row.verdict is (Verdict.HELD if first is None else Verdict.REFUTED)
