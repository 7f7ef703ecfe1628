"""Known roundings, orders of sums and places of the scale against what a probe finds: nothing it says is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.subject import Subject
from attn_spec.probe.accumulators import output_accumulator
from attn_spec.probe.arithmetic import arithmetic
from attn_spec.probe.contracts import contract
from attn_spec.probe.order import accumulator_rounding, order
from attn_spec.probe.scale import scale_place
from attn_spec.probe.weights import weight_format, weight_rounding

CUT = replace(PRECISE, rounding="toward_zero")
NARROW = replace(PRECISE, probabilities="bfloat16")
SCALED = replace(PRECISE, scale_on="operands")
#: Order of an emulated kernel, and the order that a probe may report: that one or none.
ORDERS = {
    Order(kv_tile=16): "key by key, from the first",
    Order(kv_tile=48): "key by key, from the first",
    Order(kv_tile=None): "key by key, from the first",
    Order(kv_tile=16, sums="pairwise"): "tiles of 16 keys, from the first",
    Order(kv_tile=32, sums="pairwise"): "tiles of 32 keys, from the first",
    Order(kv_tile=64, sums="pairwise"): "tiles of 64 keys, from the first",
    Order(kv_tile=128, sums="pairwise"): "tiles of 128 keys, from the first",
    Order(kv_tile=16, sums="pairwise", tiles="reverse"): "tiles of 16 keys, from the last",
    Order(kv_tile=64, sums="pairwise", tiles="reverse"): "tiles of 64 keys, from the last",
}
#: Orders that a probe does not report.
OTHERS = (
    Order(kv_tile=48, sums="pairwise"),
    Order(kv_tile=None, sums="pairwise"),
    Order(kv_tile=None, sums="random"),
    Order(kv_tile=256, sums="pairwise"),
    *(Order(kv_tile=tile, tiles="random", sums="pairwise", seed=seed) for tile in (16, 32, 64) for seed in (0, 1)),
)


#: Experiment whose result each experiment needs.
FIRST = {order: output_accumulator, accumulator_rounding: output_accumulator, weight_rounding: weight_format}


def asked(experiment, executed, of=None, dtype="float32"):
    subject = Subject(emulate("known", executed, of or Order(), dtypes=(dtype,)), dtype)
    with np.errstate(all="ignore"):
        known = [FIRST[experiment](subject).value] if experiment in FIRST else []
        found = experiment(subject, *known)
    return None if found is None else found.value


@pytest.mark.one_in(2)
@pytest.mark.parametrize("of", ORDERS, ids=str)
def test_tiles_and_their_direction_are_found(of):
    assert asked(order, PRECISE, of) == ORDERS[of]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("of", OTHERS, ids=str)
def test_of_another_order_nothing_is_said(of):
    assert asked(order, PRECISE, of) is None


@pytest.mark.parametrize("of", [Order(kv_tile=None), Order(kv_tile=None, tiles="reverse"), Order(kv_tile=32)], ids=str)
@pytest.mark.parametrize(("executed", "wanted"), [(PRECISE, "rounded to nearest"), (CUT, "truncated")])
def test_sums_that_are_rounded_and_that_are_cut_are_told_apart(executed, wanted, of):
    assert asked(accumulator_rounding, executed, of) == wanted


@pytest.mark.parametrize(("executed", "named"), [(PRECISE, "fp32"), (CUT, None)])
def test_a_preset_that_rounds_to_nearest_is_named_of_no_kernel_that_cuts(executed, named):
    subject = Subject(emulate("known", executed, Order(kv_tile=None)), "float32")
    with np.errstate(all="ignore"):
        assert contract([subject], {"float32": arithmetic(subject)}).value == named


@pytest.mark.parametrize("normalize", ["after_product", "before_product"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", ["nearest", "toward_zero"])
def test_weights_that_are_rounded_and_that_are_cut_are_told_apart(way, dtype, normalize):
    executed = replace(NARROW, normalize=normalize, rounding=way)

    assert (
        asked(weight_rounding, executed, dtype=dtype)
        == {"nearest": "rounded to nearest", "toward_zero": "truncated"}[way]
    )


def test_weights_of_float32_are_not_asked():
    assert asked(weight_rounding, PRECISE) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("executed", "of", "wanted"),
    [
        (PRECISE, Order(), "scores, or an operand unrounded"),
        (SCALED, Order(scaling="query"), "q, in the dtype"),
        (SCALED, Order(scaling="roots"), "q and k, by its root"),
    ],
    ids=["scores", "query", "roots"],
)
def test_the_place_of_the_scale_is_found(executed, of, wanted, dtype):
    stored = replace(executed, multiplicands=dtype) if executed is SCALED else executed

    assert asked(scale_place, stored, of, dtype) == wanted


def test_a_scale_on_keys_is_found_and_of_float32_none_is_asked():
    def on_keys(q, k, v):
        k = (k * k.shape[-1] ** -0.5).to(k.dtype)
        return ((q.double() @ k.double().mT).softmax(-1) @ v.double()).to(q.dtype)

    kernel = from_callable(on_keys, framework="torch")

    assert scale_place(Subject(kernel, "bfloat16")).value == "k, in the dtype"
    assert scale_place(Subject(kernel, "float32")) is None
