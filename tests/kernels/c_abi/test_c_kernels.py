"""Kernels in C are judged as others are: right ones hold, and each error that a macro puts in is seen."""

import ctypes
import re
import shutil

import numpy as np
import pytest

from attn_spec import c_kernel
from attn_spec.isolation.foreign import isolated
from attn_spec.kernels.c_abi.prototype import INTEGERS, REALS
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Crashed, Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.plain_calls import plain
from tests.kernels.c_abi.compiled import ATTENTION, attention, library, needs_compiler
from tests.kernels.presentations.packing.test_plain_packed_kernels import verdict

pytestmark = needs_compiler

ACCURATE = "accuracy.output_is_within_its_bound"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
FUTURE = "causality.future_keys_change_nothing"
LAYOUT = "independence.the_layout_in_memory_has_no_influence"
EXPANDED = "independence.expanded_views_are_read_right"
FAR = "independence.rows_and_batch_entries_may_lie_far_apart"
STALE = "independence.old_answers_are_not_given_again"

STRIDES = ", ".join(f"int64_t {name}_stride_{axis}" for name in "qkv" for axis in "BHS")
BY_STRIDES = f"""int by_strides(const float *q, const float *k, const float *v, float *out, int64_t B, int64_t Hq,
    int64_t Sq, int64_t Sk, int64_t D, int64_t Dv, float scale, {STRIDES})"""
BY_STRUCTURES = """int by_structures(const DLTensor *q, const DLTensor *k, DLManagedTensor *v, struct DLTensor *out,
    float scale)"""


@pytest.mark.parametrize("name", [ACCURATE, LSE, FUTURE, LAYOUT, EXPANDED, FAR, STALE])
def test_a_right_kernel_holds(name):
    assert verdict(attention(), name, 10) == ("held", "")


def test_numbers_of_2_bytes_are_passed_as_they_are():
    own = attention("-DOF_2_BYTES", number="uint16_t", dtypes=("bfloat16",), contract="fused")

    assert verdict(own, ACCURATE, 10, "bfloat16") == ("held", "")
    assert verdict(own, LSE, 10, "bfloat16") == ("held", "")


@pytest.mark.parametrize(
    ("flag", "name", "told"),
    [
        ("-DFACTOR=1+0*scale", ACCURATE, "allowed error"),
        ("-DFACTOR=1+0*scale", LSE, "allowed error"),
        ("-DVISIBLE=(i+2)", FUTURE, "after masked keys and values were replaced"),
        ("-DVISIBLE=(i+2)", ACCURATE, "allowed error"),
        ("-DROWS=(B*Hq*Sq-1)", ACCURATE, "is nan; the truth is"),
        ("-DKEPT", STALE, "allowed error"),
    ],
)
def test_a_wrong_kernel_is_refuted(flag, name, told):
    found, message = verdict(attention(flag), name, 10)

    assert found == "refuted"
    assert told in message


def declared(folder, *flags):
    """Write the file of a declaration, and return what names its kernel."""
    declaration = f"""
from attn_spec import c_kernel
attention = c_kernel({str(library("attention.c", *flags))!r}, {ATTENTION.format(number="float")!r}, dtypes=["float32"],
                     contract="eager")
"""
    (folder / "in_c.py").write_text(declaration)
    return "in_c.py:attention"


@pytest.mark.exhaustive
def test_a_right_kernel_passes_every_property(folder, attn_spec):
    done = attn_spec("certify", declared(folder))

    assert done.returncode == 0
    assert " 0 refuted, 0 suspect" in done.stdout


def test_a_key_past_the_end_crashes_the_kernel_in_a_process_of_its_own(folder):
    """The last key of the last head is followed by a page without access, though its score would not be used."""
    subject = Subject(isolated(declared(folder, "-DREAD=(seen+1)")), "float32")
    with pytest.raises(Crashed, match=r"the kernel crashed the process \(SIGSEGV\)"):
        subject(plain(subject.kernel, "float32"))


@pytest.mark.parametrize(("place", "side"), [("-1", "before"), ("B*Hq*Sq*Dv", "behind")])
def test_a_write_beside_the_output_is_told(place, side):
    subject = Subject(attention(f"-DBESIDE={place}"), "float32")
    problem = Recipe(query_length=3, key_length=3, value_dim=5).problem()  # 60 bytes, and 4 before the page
    with pytest.raises(
        Misbehaviour, match=rf"OverrunError: attention wrote {side} the memory of out, of shape \(1, 1, 3"
    ):
        subject(problem)


def test_a_status_is_told():
    subject = Subject(attention("-DSTATUS=3"), "float32")
    with pytest.raises(Misbehaviour, match="StatusError: attention returned the status 3; 0 is success"):
        subject(Recipe().problem())


@pytest.mark.parametrize("name", [ACCURATE, LAYOUT, EXPANDED, FAR])
def test_tensors_are_passed_with_their_strides(name):
    own = c_kernel(library("strided.c"), BY_STRIDES, dtypes=["float32"], contract="eager")

    assert own.supports == {"scale", "cross", "dv"}
    assert verdict(own, name, 6) == ("held", "")


@pytest.mark.parametrize("name", [ACCURATE, LAYOUT, EXPANDED, FAR])
def test_tensors_are_passed_as_structures(name):
    facts = {"dtypes": ["float32"], "contract": "eager", "supports": ("cross", "dv")}
    own = c_kernel(library("strided.c"), BY_STRUCTURES, **facts)

    assert own.supports == {"scale", "cross", "dv"}
    assert verdict(own, name, 6) == ("held", "")


def test_a_library_that_changes_the_floating_point_environment_changes_it_for_its_calls_alone(tmp_path):
    source = tmp_path / "upward.c"
    source.write_text(
        "#include <fenv.h>\n#include <stdint.h>\n"
        "__attribute__((constructor)) static void up(void) { fesetround(FE_UPWARD); }\n"
        "void add(const double *q, const double *k, const double *v, double *out) { *out = *q + *k + 0 * *v; }\n"
    )
    own = c_kernel(
        library(source, "-frounding-math"), "void add(double *q, double *k, double *v, double *out)", dtypes=["float64"]
    )
    q, k = np.array([[[[1.0]]]]), np.array([[[[2.0**-60]]]])
    out = np.full_like(q, np.nan)
    own.function(q, k, k, out=out)

    assert q + k == 1.0
    assert out == 1 + 2.0**-52


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            None,
            r"there is no file .*none\.so \(looked in .*\); compile it, and name it from the declaration's file: Path",
        ),
        ("text", r"attention\.so cannot be loaded: .*; compile it for this machine with -shared -fPIC, and link what"),
        ("strided", r'exports no function attention; a function of C\+\+ needs extern "C", and a static one is not'),
    ],
)
def test_a_library_without_the_function_is_an_error(file, message, tmp_path):
    (tmp_path / "attention.so").write_text("no library")
    path = {None: tmp_path / "none.so", "text": tmp_path / "attention.so", "strided": library("strided.c")}[file]
    with pytest.raises(KernelError, match=message) as told:
        c_kernel(path, ATTENTION.format(number="float"), dtypes=["float32"])
    assert type(told.value).__name__ == "LibraryError"


def test_types_of_numbers_are_those_of_the_compiler(tmp_path):
    every = {**INTEGERS, **REALS}
    facts = ", ".join(f"sizeof({name}), ({name})-1 < 0" for name in every)
    source = tmp_path / "types.c"
    head = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n"
    source.write_text(f"{head}int facts[] = {{{facts}}};\n")
    found = (ctypes.c_int * (2 * len(every))).in_dll(ctypes.CDLL(str(library(source, "-Wno-bool-compare"))), "facts")

    expected = [(ctypes.sizeof(kind), kind(-1).value < 0) for kind in every.values()]
    assert list(zip(found[::2], map(bool, found[1::2]), strict=True)) == expected


def test_a_name_is_that_of_the_library_and_of_the_function(tmp_path):
    own = c_kernel(library("strided.c"), BY_STRIDES, dtypes=["float32"])
    shutil.copy(library("attention.c"), tmp_path / "libattention.so.1")
    other = c_kernel(tmp_path / "libattention.so.1", ATTENTION.format(number="float"), dtypes=["float32"])

    assert (own.name, attention().name, other.name) == ("strided:by_strides", "attention", "attention")
    assert own.module == __name__
    assert re.fullmatch("[0-9a-f]{64}", own.digest)


def test_numbers_of_another_dtype_are_an_error():
    with pytest.raises(KernelError) as told:
        attention(dtypes=["float32", "bfloat16"])
    assert str(told.value) == (
        "attention: float *q points to float32, and calls in bfloat16 have q in bfloat16; write void *q, or declare "
        "what the function has"
    )
    for right, wrong, dtype in (("bool", "float", "bool"), ("float", "int32_t", "float32")):
        name = "mask" if right == "bool" else "bias"
        head = BY_STRUCTURES[:-1]
        c_kernel(library("strided.c"), f"{head}, {right} *{name})", dtypes=["float32"])
        with pytest.raises(KernelError, match=f"points to .*, and calls in float32 have {name} in {dtype}"):
            c_kernel(library("strided.c"), f"{head}, {wrong} *{name})", dtypes=["float32"])
    with pytest.raises(KernelError, match=r"float \*lse points to float32, and calls in float64 have lse in float64"):
        attention(number="double", dtypes=["float64"])


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"framework": "torch"}, "framework is no argument of c_kernel; a C function writes into memory of the CPU"),
        ({"devices": ("cuda",)}, "devices is no argument of c_kernel"),
        (
            {"presentation": "THD"},
            r"presentation of a C function must be one of BHSD, BSHD, BS\(HD\), HSD, SD, not 'THD'",
        ),
        ({"without": ("causl",)}, "no parameters show causl, which without= leaves out; did you mean 'causal'?"),
        ({"without": "causal"}, r"without must be several names, \('causal',\), not the text 'causal'"),
    ],
)
def test_what_a_c_function_cannot_have_is_an_error(declared, message):
    with pytest.raises(KernelError, match=message):
        attention(**declared)


def test_parameters_show_what_is_supported():
    every = {"scale", "causal", "lse", "gqa", "cross", "dv"}

    assert attention().supports == every
    assert attention(without=("gqa", "causal"), supports=("empty",)).supports == every - {"gqa", "causal"} | {"empty"}
