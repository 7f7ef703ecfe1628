"""Every framework gives and takes exact values, says what its tensors are, and is found by its name and its tensors."""

import numpy as np
import pytest
import torch

from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.frameworks.framework import Differentiating, FrameworkError, Strided, framework, of, values_of
from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES
from attn_spec.problem.abilities import ABILITIES

NAMES = ("jax", "mlx", "numpy", "torch")


@pytest.fixture(params=NAMES)
def own(request):
    return framework(request.param)


def has(own, dtype):
    return dtype != "float64" or own.name != "jax"


def test_these_are_the_frameworks():
    assert frameworks.known() == NAMES


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_hold_the_exact_values_and_give_them_back(own, dtype):
    if not has(own, dtype):
        pytest.skip("as JAX is set")
    x = bits.nearest(np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 2.0**-24, 65504.0, np.pi]).reshape(3, 3), dtype)
    tensor = own.give(x, dtype)

    assert own.is_own(tensor)
    assert (own.dtype_of(tensor), own.device_of(tensor)) == (dtype, "cpu")
    assert bits.identical(own.take(tensor), x).all()
    assert bits.identical(values_of(tensor), x).all()
    assert of(tensor) is own


def test_masks_are_of_bool(own):
    mask = np.array([True, False])
    tensor = own.give(mask, "float32")

    assert own.dtype_of(tensor) == "bool"
    assert own.take(tensor).tolist() == [True, False]
    assert own.take(tensor).dtype == np.bool_
    assert values_of(tensor).tolist() == [1.0, 0.0]


def test_positions_are_of_integers(own):
    positions = np.array([0, 2**24])
    tensor = own.give(positions, "float16")

    assert own.dtype_of(tensor) == ("int32" if own.name == "jax" else "int64")
    assert own.take(tensor).tolist() == [0.0, 2.0**24]
    assert own.take(tensor).dtype == np.float64


def test_tensors_do_not_share_memory_with_the_problem(own):
    if "in_place" not in own.abilities:
        pytest.skip("never changed in place")
    x, mask = np.ones(3), np.ones(3, bool)
    for values in (x, mask):
        own.give(values, "float64")[...] = 0

    assert x.all()
    assert mask.all()


def test_tensors_of_a_transposed_array_are_packed(own):
    """A kernel of another presentation is given them as its callers do."""
    if not isinstance(own, Strided):
        pytest.skip("does not say how its tensors lie")
    for x in (np.arange(24.0).reshape(2, 3, 4), np.ones((2, 3, 4), dtype=bool)):
        tensor = own.give(x.swapaxes(0, 1), "float32")
        assert tensor.flags.c_contiguous if isinstance(tensor, np.ndarray) else tensor.is_contiguous()
        assert (own.take(tensor) == x.swapaxes(0, 1)).all()


def test_arrays_of_integers_index_what_is_indexable(own):
    x = np.arange(24.0).reshape(2, 3, 4)
    for dtype in ("float32", "bfloat16"):
        found = own.indexable(own.give(x, dtype))[np.array([[1]]), np.array([[2, 0]])]
        assert of(found).dtype_of(found) == dtype
        assert (values_of(found) == x[[[1]], [[2, 0]]]).all()


def test_the_one_entry_of_an_axis_is_repeated(own):
    x = own.give(np.arange(6.0).reshape(2, 1, 3), "float32")
    found = own.repeated(x, 1, 4)

    assert own.is_own(found)
    assert (own.take(found) == np.arange(6.0).reshape(2, 1, 3).repeat(4, axis=1)).all()


def test_a_tensor_is_cast_to_another_dtype(own):
    found = own.cast(own.give(np.array([3, 5]), "int64"), "int32")

    assert own.is_own(found)
    assert (own.dtype_of(found), own.take(found).tolist()) == ("int32", [3.0, 5.0])


def test_abilities_are_those_of_the_classes(own):
    assert ("strides" in own.abilities) == isinstance(own, Strided)
    assert ("autograd" in own.abilities) == isinstance(own, Differentiating)
    assert all(ABILITIES[name].of_framework for name in own.abilities)


def test_cotangents_are_pulled_back_to_the_inputs(own):
    """The function is (a b, a) with cotangents (1, 2) or (1,); c has no influence."""
    if not isinstance(own, Differentiating):
        pytest.skip("differentiates nothing")
    a, b, c, one, two = (own.give(np.array([x]), "float32") for x in (3.0, 5.0, 7.0, 1.0, 2.0))

    for sent, expected in (((one, two), (7.0, 3.0)), ((one,), (5.0, 3.0))):
        inputs = {"a": own.give(values_of(a), "float32"), "b": own.give(values_of(b), "float32"), "c": c}
        returned, pull = own.differentiate(lambda x: (x["a"] * x["b"], x["a"]), inputs)
        found = pull(sent)
        assert own.take(returned[0]).item() == 15.0
        assert (own.take(found["a"]).item(), own.take(found["b"]).item()) == expected
        assert found["c"] is None or own.take(found["c"]).item() == 0.0


EXTRAS = {
    "None": lambda x: None,
    "whole numbers": lambda x: x.argmax(),
    "a dictionary": lambda x: {"weights": x},
    "a text": lambda x: "fused",
}


@pytest.mark.parametrize("name", EXTRAS)
def test_what_a_call_returns_beside_its_output_may_be_anything(own, name):
    if not isinstance(own, Differentiating):
        pytest.skip("differentiates nothing")
    a, one = (own.give(np.array([x]), "float32") for x in (3.0, 1.0))

    for sent in ((one,), (one, one)):
        inputs = {"a": own.give(values_of(a), "float32")}
        returned, pull = own.differentiate(lambda x: (x["a"] * x["a"], EXTRAS[name](x["a"]), x["a"]), inputs)
        assert own.take(pull(sent)["a"]).item() == 6.0
        assert type(returned[1]) is type(EXTRAS[name](a))


def test_a_cotangent_may_be_of_another_dtype_than_the_output(own):
    if not isinstance(own, Differentiating):
        pytest.skip("differentiates nothing")
    inputs = {"a": own.give(np.array([3.0]), "float16")}
    _, pull = own.differentiate(lambda x: x["a"] * 2, inputs)

    gradient = pull((own.give(np.ones(1), "float32"),))["a"]
    assert (own.dtype_of(gradient), own.take(gradient).item()) == ("float16", 2.0)


def test_an_output_that_depends_on_no_input_has_no_gradients(own):
    if not isinstance(own, Differentiating):
        pytest.skip("differentiates nothing")
    one = own.give(np.ones(1), "float32")
    _, pull = own.differentiate(lambda _: own.give(np.ones(1), "float32"), {"a": one})
    found = pull((one,))["a"]

    assert found is None or not own.take(found).any()


def test_what_is_no_tensor_is_refused(own):
    assert not own.is_own([1.0])
    with pytest.raises(FrameworkError, match="a list is a tensor of none of jax, mlx, numpy, torch"):
        of([1.0])


def test_a_subclass_is_of_its_framework_and_may_not_be_returned():
    masked, parameter = np.ma.array([1.0]), torch.nn.Parameter(torch.ones(1))

    assert [of(masked).name, of(parameter).name] == ["numpy", "torch"]
    assert not of(masked).is_own(masked)
    assert not of(parameter).is_own(parameter)


def test_an_unknown_framework_and_one_that_is_not_installed_are_told_apart(monkeypatch):
    with pytest.raises(FrameworkError, match="framework must be one of jax, mlx, numpy, torch, not 'tensorflow'"):
        framework("tensorflow")

    class Entry:
        name = "absent"

        def load(self):
            raise ModuleNotFoundError("No module named 'absent'")

    monkeypatch.setattr(frameworks, "entry_points", lambda group: [Entry()])
    with pytest.raises(
        FrameworkError, match=r"absent is not installed \(No module .*\); pip install 'attn-spec\[absent\]'"
    ):
        framework("absent")


def test_jax_without_float64_says_how_to_have_it():
    with pytest.raises(
        FrameworkError,
        match=r"no float64 as it is set; call jax.config.update\('jax_enable_x64', True\) in the .* file",
    ):
        framework("jax").give(np.ones(1), "float64")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("numpy", "numpy has no device"), ("jax", "jax has no device"), ("mlx", "arrays of mlx are on no device")],
)
def test_a_device_that_is_missing_has_a_reason(name, reason):
    assert framework(name).missing("cpu") == ""
    assert framework(name).missing("cuda").startswith(reason)


class TestLostDevice:
    def test_a_device_that_answers_is_not_lost(self):
        assert not framework("torch").lost("cpu")
        assert not framework("numpy").lost("cpu")

    def test_a_device_is_lost_when_waiting_for_it_fails_again(self, monkeypatch):
        def refuse(device):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(torch.cuda, "synchronize", refuse)

        assert framework("torch").lost("cuda:0")
