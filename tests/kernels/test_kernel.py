"""The kernel door: names are found, and what is found is called."""

import sys
from functools import partial

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.contract.presets import EAGER, UNDECLARED
from attn_spec.contract.readings import gradient_readings, readings
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.resolve import in_tree, resolve

DECLARED = {"framework": "numpy", "dtypes": ("float32",), "contract": "fused"}


def identity(q, k, v, *, softmax_scale=None, is_causal=False, attn_mask=None):
    return v


@pytest.fixture
def source(folder):
    folder.joinpath("mine.py").write_text(
        "from attn_spec import kernel\n"
        "attention = kernel(framework='numpy', dtypes=('float32',))(lambda q, k, v: v)\n"
        "def bare(q, k, v): return v\n"
        "number = 3\n"
    )
    return folder


@pytest.mark.parametrize("spec", ["mine.py", "mine.py:attention", "./mine.py:attention", "mine:attention"])
def test_a_kernel_is_found_by_file_or_module(source, spec):
    found = resolve(spec)

    assert isinstance(found, Kernel)
    assert found.spec == spec
    assert found.declared


def test_a_kernel_is_built_once_for_each_signature():
    """Values do not matter; shapes, dtypes and options do, and tensors that are options among them."""
    built = []

    def build(shapes, dtypes, options):
        built.append((shapes, dtypes, options))
        scale = options.get("scale", 1.0)
        return lambda q, k, v, mask=None: scale * q * (1 if mask is None else mask)

    made = kernel(framework="numpy", dtypes=("float32",), supports=("scale", "mask"), builds=True)(build)
    one, other = np.ones((1, 2), np.float32), np.ones((2, 2), np.float32)

    for q, options in [(one, {}), (3 * one, {}), (other, {}), (one, {"scale": 2.0}), (one, {"mask": one > 1})]:
        assert (made(q, one, one, **options) == options.get("scale", 1.0) * q * (0 if "mask" in options else 1)).all()

    shapes = [shapes["q"] for shapes, _, _ in built]
    assert shapes == [(1, 2), (2, 2), (1, 2), (1, 2)]
    assert [options for _, _, options in built] == [{}, {}, {"scale": 2.0}, {}]
    assert built[3][1] == {"q": "float32", "k": "float32", "v": "float32", "mask": "bool"}
    assert (made.wrapped(partial(made, mask=one > 0))(one, one, one) == one).all()
    assert len(built) == 4  # around the calls, not around what builds


def test_what_is_put_around_the_calls_keeps_its_own_attributes():
    def function(q, k, v, *, softmax_scale=None):
        return v

    def around(*tensors, **options):
        return "around"

    function.calls, around.calls = 3, []
    made = kernel(**DECLARED, supports=("scale",), name="k")(function).wrapped(around)

    assert made(1, 2, 3) == "around"
    assert around.calls == []
    assert made.keyword("scale") == "softmax_scale"


def test_every_kernel_in_the_tree_is_found_by_its_short_name():
    names = in_tree()

    assert {"numpy_naive", "numpy_tiled", "torch_eager", "torch_tiled"} <= set(names)
    assert [resolve(name).name for name in names] == names


def test_a_file_in_the_tree_that_does_not_import_here_is_known_by_its_own_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "attn_spec.implementations.jax_attention", None)

    assert "jax_attention" in in_tree()
    with pytest.raises(KernelError, match="jax_attention does not import"):
        resolve("jax_attention")


def test_only_modules_that_hold_kernels_are_offered():
    with pytest.raises(KernelError) as refused:
        resolve("no_such")

    offered = str(refused.value).rpartition("one of: ")[2].split(", ")
    assert {"numpy_naive", "torch_ring"} <= set(offered)
    assert {"rank_pool", "rank_process", "rotary", "triton_tiles"}.isdisjoint(offered)


NOT_FOUND = {
    "nowhere.py:f": "nowhere.py does not exist (looked in ",
    "mine.py:absent": "mine has no 'absent'; it has attention",
    "mine:number": "mine:number is an int, not a function or a kernel",
    "no.such.module:f": "no.such.module does not import: ModuleNotFoundError: No module named 'no'",
    "definition:abc": "definition:abc must name a number of bits from 128 to 4096",
    "definition:64": "definition:64 must name a number of bits from 128 to 4096",
    "short_name": "no kernel is called 'short_name'. Write file.py:name or package.module:name, definition:200, or",
    "torch_sdpa:nothing": "attn_spec.implementations.torch_sdpa has no 'nothing'; it has ",
}


@pytest.mark.parametrize("spec", NOT_FOUND)
@pytest.mark.usefixtures("source")
def test_what_cannot_be_found_says_where_it_was_looked_for(spec):
    with pytest.raises(KernelError) as refused:
        resolve(spec)
    assert NOT_FOUND[spec] in str(refused.value)


@pytest.mark.usefixtures("source")
def test_declarations_beside_a_decorated_kernel_are_refused():
    with pytest.raises(KernelError, match="mine:attention is declared by @kernel; leave out the options for contract"):
        resolve("mine:attention", contract="fused", framework=None)
    assert resolve("mine:bare", contract="fused", framework=None).given == {"contract": "fused"}


def test_the_digest_follows_the_source(source):
    before = resolve("mine.py:bare").digest
    path = source / "mine.py"
    path.write_text(path.read_text() + "# changed\n")

    assert len(before) == 64
    assert resolve("mine.py:bare").digest != before


def test_an_entry_point_gives_a_short_name(monkeypatch):
    class Entry:
        name = "plugged"

        @staticmethod
        def load():
            return kernel(**DECLARED)(identity)

    monkeypatch.setattr(
        "attn_spec.kernels.resolve.entry_points", lambda group: [Entry] if group == "attn_spec.kernels" else []
    )

    assert resolve("plugged").spec == "plugged"
    assert resolve("plugged")(1, 2, np.pi) == np.pi


def test_files_of_one_name_in_two_folders_are_two_kernels(folder):
    for name, factor in (("one", 2), ("other", 3)):
        folder.joinpath(name).mkdir()
        folder.joinpath(name, "mine.py").write_text(f"def attention(q, k, v): return {factor} * v\n")
    one, other, again = (resolve(f"{name}/mine.py:attention") for name in ("one", "other", "one"))

    assert [made(1, 1, 1) for made in (one, other, again)] == [2, 3, 2]
    assert [made.name for made in (one, other, again)] == ["mine", "mine_2", "mine"]
    assert one.digest == again.digest != other.digest


def test_a_file_named_as_a_module_in_use_does_not_take_its_place(folder):
    import json

    folder.joinpath("json.py").write_text("def attention(q, k, v): return v\n")

    assert resolve("json.py:attention").module == "json_2"
    assert sys.modules["json"] is json


def test_a_contract_that_leaves_the_backward_weights_open_is_read_both_ways():
    open_to_both = UNDECLARED.at("bfloat16")

    assert {c.backward_weights for c in gradient_readings(open_to_both)} == {"stored", "recomputed"}
    assert {c.lse for c in gradient_readings(open_to_both) if c.backward_weights == "recomputed"} == {"float32"}
    assert gradient_readings(EAGER.at("bfloat16")) == readings(EAGER.at("bfloat16"))
