"""The properties in somebody's own test file."""

import numpy as np
import pytest

from attn_spec import kernel, parametrize
from attn_spec.kernels.kernel import KernelError
from attn_spec.search.property import load_all

TEST = """
import numpy as np
from attn_spec import kernel, parametrize

@kernel(framework="numpy", dtypes=("float32", "float64"), contract="fused", supports=("dv", "cross"))
def attention(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v

@kernel(framework="numpy", dtypes=("float32",), supports=("dv", "cross"))
def zeros(q, k, v):
    return np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)

@parametrize(attention, properties=["accuracy.output", "softcapped"], dtypes=["float32"])
def test_attention(search, property_, subject):
    search(property_, subject)

@parametrize(zeros, properties=["accuracy.output"])
def test_zeros(search, property_, subject):
    search(property_, subject)
"""


def attention(q, k, v):
    return np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)


def test_each_property_is_a_test_with_a_verdict(pytester):
    pytester.makepyfile(test_mine=TEST)
    done = pytester.runpytest_inprocess("-v", "-p", "no:cacheprovider")

    done.assert_outcomes(passed=1, failed=1, skipped=1)
    done.stdout.fnmatch_lines(
        [
            "*test_mine.py::test_attention[[]accuracy.output_is_within_its_bound-float32[]] PASSED*",
            "*test_mine.py::test_attention[[]accuracy.softcapped*-float32[]] SKIPPED*",
            "*test_mine.py::test_zeros[[]accuracy.output_is_within_its_bound-float32[]] FAILED*",
            "  replay    attn-spec replay *",
        ]
    )


def test_all_properties_and_dtypes_are_asked_for_unless_some_are_chosen():
    made = kernel(framework="numpy", dtypes=("float32", "float64"))(attention)
    mark = parametrize(made).mark

    assert mark.args[0] == ("property_", "subject")
    assert len(mark.args[1]) == 2 * len(load_all())


@pytest.mark.parametrize("given", ["numpy_tiled", attention])
def test_a_kernel_may_be_named_or_undeclared(given):
    ((property_, subject),) = parametrize(given, properties=["accuracy.output"], dtypes=["float32"]).mark.args[1]

    assert property_.id == "accuracy.output_is_within_its_bound"
    assert (subject.dtype, subject.kernel.declared) == ("float32", given == "numpy_tiled")


def test_a_case_finds_the_kernel_by_the_file_of_its_module(monkeypatch):
    (_, subject), *_ = parametrize(attention, properties=["accuracy.output"]).mark.args[1]

    assert subject.kernel.spec.endswith("test_parametrization.py:attention")


def test_a_property_that_is_none_and_a_declaration_of_a_declared_kernel_are_errors():
    made = kernel(framework="numpy", dtypes=("float32",), name="made")(attention)

    with pytest.raises(KernelError, match=r"^no property's id contains 'acuracy'; did you mean 'accuracy'\?$"):
        parametrize(made, properties=["acuracy"])
    with pytest.raises(KernelError, match=r"made declares itself with @kernel; drop contract"):
        parametrize(made, contract="fused")
