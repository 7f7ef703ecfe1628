"""A probe promises no more than a kernel keeps: known contracts against what it finds."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.presets import PRESETS, UNDECLARED
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate
from attn_spec.kernels.subject import Subject
from attn_spec.probe.arithmetic import arithmetic
from attn_spec.probe.contracts import ORDER, contract
from attn_spec.probe.weights import weight_format

#: Bits of the weights and the scores of a preset at a dtype, as an experiment finds them.
FOUND = {
    ("fused", "float16"): ("float32", "float16 or tf32"),
    ("fused", "bfloat16"): ("float32", "bfloat16"),
    ("fused", "float32"): ("float32", "float32"),
    ("fp32", "float16"): ("float32", "float32"),
    ("fp32", "bfloat16"): ("float32", "float32"),
    ("eager", "float16"): ("float16 or tf32", "float16 or tf32"),
    ("eager", "bfloat16"): ("bfloat16", "bfloat16"),
    ("tf32", "float32"): ("float32", "float16 or tf32"),
    ("fp64", "float64"): ("float64", "float64"),
}


def of(name, dtype, seed=0):
    """Return a kernel that rounds as the preset allows, and declares nothing."""
    exact = replace(PRESETS[name], exponent="natural", exp_error=2.0**-20, log_error=2.0**-20)
    kernel = emulate(name, exact, Order(seed=seed), dtypes=(dtype,), contract=UNDECLARED, supports=("dv", "cross"))
    return Subject(kernel, dtype)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "dtype"), FOUND)
def test_the_contract_that_is_found_is_kept(name, dtype, seed):
    subject = of(name, dtype, seed)
    with np.errstate(all="ignore"):
        told = arithmetic(subject)
        found = contract([subject], {dtype: told})

    values = {finding.name: finding.value for finding in told}
    scores, weights = FOUND[name, dtype]
    assert values["scores"] in (scores, None)
    assert values["weights"] == weights, told
    same = {n for n in ORDER if n != "fp64" or dtype == "float64"} if name == "fp64" else {name}
    assert found.value in same or _promises(found.value, dtype) == _promises(name, dtype)


def _promises(name, dtype):
    c = PRESETS[name].at(dtype)
    return [getattr(c, stage) for stage in ("score_accumulation", "stored_scores", "softmax", "probabilities")]


def test_weights_that_are_no_weights_tell_nothing():
    subject = of("fused", "float32")

    def mean(q, k, v):
        return v.mean(2, keepdim=True).expand(v.shape).clone()

    assert weight_format(replace(subject, kernel=subject.kernel.wrapped(mean))).value is None
