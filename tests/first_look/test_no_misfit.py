"""A first look is silent on a sound kernel, and on a wrong one that no misfit explains."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from attn_spec.reports.proof.plain.examination import PLAIN
from attn_spec.reports.proof.validation.random_kernels import random_kernel
from attn_spec.reports.proof.zoo.mutants import load_all

from attn_spec.first_look.first_look import first_look
from attn_spec.first_look.misfit import MisfitError
from attn_spec.kernels.resolve import resolve
from attn_spec.search.preflight import preflight
from tests.first_look.callables import adding, attend, bshd, causal, declared, subjects, with_lse


def wrong(q, k, v, *, causal=False, mask=None, window=None):
    return attend(q, k[:, :, :-1], v[:, :, :-1])


def in_place(q, k, v):
    v *= 2
    return attend(q, k, v / 2)


WRONG = {
    "a key is lost": declared(wrong, supports=("causal", "cross", "mask", "window")),
    "NaN": declared(lambda q, k, v: attend(q, k, v) * torch.nan),
    "changes its inputs": declared(in_place),
    "says the bottom right and means the top left": declared(
        causal("top_left"), supports=("causal", "cross"), conventions={"causal_alignment": "bottom_right"}
    ),
    "says base 2 and means e": declared(with_lse(np.e), supports=("lse",), conventions={"lse_base": "2"}),
    "heads and lengths swapped, and a key lost": declared(lambda q, k, v: bshd(q, k[:, :-1], v[:, :-1])),
    "a base of 10": declared(with_lse(10), supports=("lse",)),
    **{name: load_all()[0][name].kernel for name in ("last_buffer", "causal_top_left", "head_modulo_kv_heads")},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_that_no_misfit_explains_is_left_to_the_properties(name):
    first_look(subjects(WRONG[name]))


@pytest.mark.parametrize("name", ["numpy_naive", "torch_eager", "jax_attention:tiled", "numpy_layer", "numpy_linear"])
def test_no_kernel_of_the_tree_has_a_misfit(name):
    first_look(preflight(resolve(name)).subjects)


def test_sound_kernels_have_no_misfit():
    for made in (*list(PLAIN.values())[::8], *(random_kernel(seed).kernel for seed in range(6))):
        first_look(subjects(made))


def test_a_kernel_made_for_few_signatures_or_slow_to_call_is_not_asked_for_options():
    few = declared(adding, supports=("mask",), signatures=2)
    first_look(subjects(few))
    with pytest.raises(MisfitError):
        first_look(subjects(replace(few, signatures=None)))
