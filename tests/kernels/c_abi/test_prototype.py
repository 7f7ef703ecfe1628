"""Prototypes are read as C compilers read them, and what no call can pass is an error that names it."""

import ctypes

import pytest

from attn_spec.kernels.c_abi.prototype import Parameter, Prototype, PrototypeError, read
from attn_spec.kernels.c_abi.words import check, supported, words
from attn_spec.kernels.presentations.table import PRESENTATIONS

TENSORS = "float *q, float *k, float *v, float *out"


@pytest.mark.parametrize(
    ("text", "symbol", "status", "parameters"),
    [
        ("void f(void)", "f", None, ()),
        ("int f();", "f", ctypes.c_int, ()),
        ("void f(const float *q)", "f", None, [("q", "float", True)]),
        ("void f(float const*__restrict q, long long B)", "f", None, [("q", "float", True), ("B", "long long", False)]),
        ('extern "C" int64_t\nf_2(\n  unsigned   int B /* of, a batch */,\n  struct DLTensor * q // queries\n);', "f_2",
         ctypes.c_int64, [("B", "unsigned int", False), ("q", "DLTensor", True)]),
    ],
)  # fmt: skip
def test_a_prototype_is_read(text, symbol, status, parameters):
    assert read(text) == Prototype(symbol, status, tuple(Parameter(*each) for each in parameters))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention", "'attention' is no prototype of one C function; write it as in a header: 'int attention\\(const"),
        ("void f(int B) { }", "is no prototype of one C function"),
        ("void f(void (*callback)(int))", "is no prototype of one C function"),
        ("float f(int B)", "f returns float; it must return void, or a status of type int that is 0 for success"),
        ("void *f(int B)", "is no prototype of one C function"),
        (
            "void f(float **q)",
            "f has a parameter 'float \\*\\*q'; a parameter is a number or a pointer, with a type and",
        ),
        ("void f(float q[4])", "f has a parameter 'float q\\[4\\]'"),
        ("void f(int)", "f has a parameter 'int'; a parameter is a number or a pointer, with a type and a name"),
        ("void f(int B, ...)", "f has a parameter '...'"),
        ("void f(flaot *q)", "f: q points to the type flaot, which is unknown; did you mean 'float'"),
        ("void f(DLTensor q)", "f: q has the type DLTensor, which is unknown; known are float, double, int"),
        ("void f(dim3 B)", "f: B has the type dim3, which is unknown"),
    ],
)
def test_what_cannot_be_read_is_an_error(text, message):
    with pytest.raises(PrototypeError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (f"{TENSORS}, int heads", r"f: no call passes 'heads'; words are q, k, .*, and strides such as q_stride_S"),
        (f"{TENSORS}, int Hkw", "f: no call passes 'Hkw'; did you mean 'Hkv'"),
        (f"{TENSORS}, int q_stride_R", "f: no call passes 'q_stride_R'; did you mean 'q_stride_"),
        (f"{TENSORS}, int B, long B", "f has two parameters B; leave one out"),
        ("float *q, float *k, float *v", "f has no pointer out; a function is passed q, k, v and out"),
        (f"{TENSORS}, int window_left", "f has one side of a window; it needs window_left and window_right"),
        ("float q, float *k, float *v", r"f: q is a tensor, and float q no pointer; write float \*q"),
        (f"{TENSORS}, int scale", "f: scale is a real number, and int scale none; its type may be float or double"),
        (f"{TENSORS}, float causal", "f: causal is an integer, and float causal none; its type may be int or unsigned"),
        (f"{TENSORS}, float B", "f: B is an integer, and float B none"),
        (f"{TENSORS}, int *B", r"f: B is an integer, and int \*B none"),
    ],
)
def test_what_no_call_passes_is_an_error(parameters, message):
    with pytest.raises(PrototypeError, match=message):
        check(read(f"void f({parameters})"), PRESENTATIONS["BHSD"])


@pytest.mark.parametrize(
    ("presentation", "has", "lacks"),
    [
        ("BHSD", ("q_stride_D", "lse_stride_S", "mask_stride_K", "alibi_slopes_stride_H"), ("sinks_stride_1",)),
        ("BS(HD)", ("q_stride_S", "lse_stride_H"), ("q_stride_H", "out_stride_D")),
        ("SD", ("q_stride_S", "mask_stride_Q", "lse_stride_S"), ("q_stride_H", "mask_stride_H", "lse_stride_H")),
    ],
)
def test_strides_are_those_of_the_axes_that_a_call_has(presentation, has, lacks):
    known = words(PRESENTATIONS[presentation])

    assert set(has) <= set(known)
    assert not set(lacks) & set(known)


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [
        ("int B, int Hq, int Sq, int D", set()),
        ("int Hq, int Hkv, int Sk", {"gqa"}),
        ("int Sq, int Sk, int D, int Dv", {"cross", "dv"}),
        ("int window_left, int window_right, double scale, bool *mask", {"window", "scale", "mask"}),
        ("float *lse, float *sinks", {"lse", "sinks"}),
    ],
)
def test_parameters_show_options_and_abilities(parameters, shown):
    assert supported(read(f"void f({TENSORS}, {parameters})"), PRESENTATIONS["BHSD"]) == shown


def test_a_call_for_one_head_has_no_groups():
    own = read(f"void f({TENSORS}, int Hq, int Hkv, int Sq, int Sk)")

    assert supported(own, PRESENTATIONS["SD"]) == {"cross"}
    assert supported(own, PRESENTATIONS["HSD"]) == {"gqa", "cross"}
