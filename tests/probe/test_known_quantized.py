"""Known arithmetic of quantized inputs against what a probe finds: what descales multiply, and weights in 8 bits."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import SUPPORTS, emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import FORMATS
from attn_spec.probe.arithmetic import arithmetic
from attn_spec.probe.descales import key_descale, value_descale
from attn_spec.probe.eight_bits import weights_in_eight_bits
from attn_spec.problem.options import FACTORS

SINGLE = dict.fromkeys(FACTORS, "float32")


def subject(dtype="bfloat16", order=None, option_dtypes=SINGLE, supports=FACTORS, **fields):
    contract = replace(PRECISE, **{"operands": "input", "probabilities": "input", "output": "input"} | fields)
    declared = {"supports": (*SUPPORTS, *supports), "option_dtypes": option_dtypes if supports else {}}
    return Subject(emulate("known", contract, order, dtypes=(dtype,), **declared), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("on", ["scores", "operands"])
@pytest.mark.parametrize("stored", ["work", "input"])
def test_what_a_descale_of_keys_multiplies_is_found(dtype, on, stored):
    for first in (False, True):
        made = subject(dtype, Order(descales_first=first), descale_on=on, stored_scores=stored)
        assert key_descale(made).value == on


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("on", ["output", "probabilities", "operands"])
@pytest.mark.parametrize("normalize", ["after_product", "before_product"])
def test_what_a_descale_of_values_multiplies_is_found(dtype, on, normalize):
    made = subject(dtype, value_descale_on=on, normalize=normalize)

    assert value_descale(made).value == on


def test_what_no_answer_tells_is_not_said():
    assert value_descale(subject("float32")).value is None
    assert value_descale(subject("bfloat16", option_dtypes={})).value is None
    assert key_descale(subject(supports=())) is None
    assert value_descale(subject(supports=())) is None


@pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
@pytest.mark.parametrize("scale", [1.0, 2.0**8, "largest"])
@pytest.mark.parametrize("of", ["cast", "uncast"])
def test_weights_in_8_bits_have_their_format_and_factor(form, scale, of):
    factor = FORMATS[form].largest if scale == "largest" else min(scale, 128.0) if "fnuz" in form else scale
    fields = {"probabilities": form, "probability_scale": factor, "overflow": "saturates", "row_sum_of": of}
    made = Subject(emulate("known", replace(PRECISE, **fields)), "float32")

    # Twice the factor in float8_e4m3fn is the same arithmetic.
    alike = {"float8_e4m3fnuz times 128": "float8_e4m3fn times 256"}
    said = f"{form} times {factor:g}"
    assert weights_in_eight_bits(made).value == alike.get(said, said)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "float16"])
def test_wider_weights_are_none_of_8_bits(form):
    assert weights_in_eight_bits(Subject(emulate("known", replace(PRECISE, probabilities=form)), "float32")) is None


def test_all_findings_are_told_together():
    made = subject(descale_on="operands", probabilities="float8_e4m3fn", probability_scale=2.0**8, overflow="saturates")
    with np.errstate(all="ignore"):
        found = {one.name: one.value for one in arithmetic(made)}

    assert found["descale of keys"] == "operands"
    assert found["weights in 8 bits"] == "float8_e4m3fn times 256"
