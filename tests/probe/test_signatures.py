"""The probe recognises a function of a library's signature by its parameters, and proposes the signature."""

import inspect
from pathlib import Path

import pytest

from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.signatures.fitting import fitting
from attn_spec.probe.declaration import _proposed, declaration
from tests.kernels.signatures import own_functions as own

FILE = Path(own.__file__)


def of(function):
    return fitting(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (own.flash_attn_func, ["flash_attn"]),
        (own.flash_attn_varlen_func, ["flash_attn_varlen"]),
        (own.fa4_func, ["fa4"]),
        (own.varlen_attn, ["torch_varlen"]),
        (own.unified_attention, ["vllm_unified", "vllm_unified_fp8", "vllm_unified_scale_caches"]),
        (own.attend, []),
        (lambda q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1): q, ["flash_attn"]),
        (lambda q, k, v, softmax_scale=None, causal=False, window_size=(None, None): q, ["fa4"]),
        (lambda q, k, v, softmax_scale=None, causal=True, window_size=(-1, -1): q, []),
        (lambda q, k, v, causal=False: q, []),
        (lambda q, k, v, softmax_scale=None, causal=False, page=3: q, []),
    ],
)
def test_a_function_has_the_signature_of_its_parameters_and_defaults(function, names):
    assert of(function) == names


def test_a_function_that_no_presentation_explains_is_told_its_signature():
    told = r"no presentation was found.*; signature='vllm_unified' or .*: its parameters and defaults are those of vllm"

    with pytest.raises(KernelError, match=told):
        declaration(f"{FILE}:unified_attention")


def test_a_proposal_names_the_function_of_the_library():
    text = _proposed(from_callable(own.flash_attn_func), "# ")

    assert text == "# signature='flash_attn': its parameters and defaults are those of flash_attn.flash_attn_func"
    assert not _proposed(from_callable(own.attend), "# ")
