"""Models of ONNX are certified as kernels: a graph's inputs are the arguments, and what no call can be is told."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from attn_spec.contract.presets import UNDECLARED
from attn_spec.isolation.foreign import found, isolated
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.onnx_models import Model, ModelError
from attn_spec.kernels.resolve import is_of_the_package, resolve
from attn_spec.search.preflight import preflight
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search

FLOAT, HALF, DOUBLE, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL
PROPERTIES = load_all()
ACCURATE = "accuracy.output_is_within_its_bound"
#: Axes of q, k and v, with a symbol for each length.
SYMBOLS = (["B", "H", "S", "D"], ["B", "G", "T", "D"], ["B", "G", "T", "E"])
MASK = ["B", "M", "S", "T"]


def write(nodes, *, outputs=("Y",), names=("Q", "K", "V"), axes=SYMBOLS, kind=FLOAT, further=(), kinds=None):
    """Write a graph to model.onnx; ``further`` are inputs with their types and axes."""
    own = [make_tensor_value_info(*one) for one in zip(names, kinds or (kind,) * 3, axes, strict=True)]
    inputs = [*own, *(make_tensor_value_info(*one) for one in further)]
    results = [make_tensor_value_info(name, kind, None) for name in outputs]
    model = make_model(
        make_graph(nodes, "attention", inputs, results), opset_imports=[make_opsetid("", 23)], ir_version=11
    )
    onnx.save(model, "model.onnx")


def attention(further=(), names=("Q", "K", "V"), **attributes):
    """Return the one node of a graph: the operator Attention."""
    return [make_node("Attention", [*names, *(name for name, _, _ in further)], ["Y"], **attributes)]


#: Attention of heads of four columns, by more basic operators, and its log-sum-exp.
BY_HAND = [
    make_node("Transpose", ["key"], ["transposed"], perm=[0, 1, 3, 2]),
    make_node("MatMul", ["query", "transposed"], ["scores"]),
    make_node("Constant", [], ["half"], value_float=0.5),
    make_node("Mul", ["scores", "half"], ["scaled"]),
    make_node("Softmax", ["scaled"], ["weights"], axis=-1),
    make_node("MatMul", ["weights", "value"], ["Y"]),
    make_node("ReduceLogSumExp", ["scaled", "last"], ["lse"], keepdims=0),
    make_node("Constant", [], ["last"], value_ints=[-1]),
]


def in_float32():
    """Return the nodes of the operator Attention in float32, of queries and values in float16 and a bias in float32."""
    wide = [make_node("Cast", [name], [f"wide_{name}"], to=FLOAT) for name in "QKV"]
    return [
        *wide,
        make_node("Attention", ["wide_Q", "wide_K", "wide_V", "bias"], ["wide_Y"]),
        make_node("Cast", ["wide_Y"], ["Y"], to=HALF),
    ]


def with_sinks(sign):
    """Return nodes of attention in which a sink for each head, times ``sign``, is the score of one more key."""
    return [
        *BY_HAND[:4],
        make_node("Constant", [], ["last"], value_ints=[-1]),
        make_node("Constant", [], ["first"], value_ints=[0]),
        make_node("Constant", [], ["sign"], value_float=sign),
        make_node("Constant", [], ["shape"], value_ints=[1, -1, 1, 1]),
        make_node("Mul", ["sinks", "sign"], ["signed"]),
        make_node("Reshape", ["signed", "shape"], ["by_head"]),
        make_node("ReduceMax", ["scaled", "last"], ["largest"]),
        make_node("Sub", ["largest", "largest"], ["zeros"]),
        make_node("Add", ["zeros", "by_head"], ["column"]),
        make_node("Concat", ["scaled", "column"], ["all_scores"], axis=-1),
        make_node("Softmax", ["all_scores"], ["all_weights"], axis=-1),
        make_node("Slice", ["all_weights", "first", "last", "last"], ["weights"]),
        make_node("MatMul", ["weights", "value"], ["Y"]),
    ]


def verdict(made, property_id=ACCURATE, examples=6):
    profile = replace(PROFILES["smoke"], examples=examples, floor=1, shrink_seconds=0)
    subject = preflight(made).subjects[0]
    row, _ = search(PROPERTIES[property_id], subject, profile, seed=0)
    return str(row.verdict), row.message


@pytest.mark.parametrize(("kind", "dtype"), [(FLOAT, "float32"), (HALF, "float16")])
def test_a_graph_of_the_operator_attention_is_right(folder, kind, dtype):
    write(attention(), kind=kind)
    made = resolve("model.onnx")

    assert (made.framework, made.dtypes, made.name) == ("numpy", (dtype,), "model")
    assert made.contract == UNDECLARED
    assert not is_of_the_package("model.onnx")
    assert verdict(made) == ("held", "")
    assert {"gqa", "cross", "dv"} <= preflight(made).subjects[0].kernel.supports


def test_a_scale_of_float32_in_float64_is_refuted(folder):
    """ONNX Runtime 1.32.0 multiplies queries and keys of float64 by the root of the scale in float32."""
    write(attention(), kind=DOUBLE)
    assert verdict(resolve("model.onnx"))[0] == "refuted"

    one_column = [[*axes[:3], 1] for axes in SYMBOLS]  # whose root has no rounding
    write(attention(), kind=DOUBLE, axes=one_column)
    assert verdict(resolve("model.onnx")) == ("held", "")


def test_a_graph_of_another_scale_is_refuted_in_a_process_of_its_own_too(folder):
    write(attention(scale=0.3))

    for made in (resolve("model.onnx"), found("model.onnx")):
        assert verdict(made)[0] == "refuted"
    assert made.isolated
    assert made.file == folder / "model.onnx"


MASKS = {
    "a mask": ("attn_mask", BOOL, MASK),
    "numbers under the name of a mask": ("attn_mask", FLOAT, MASK),
    "a bias of another name": ("attn_bias", FLOAT, MASK),
}


@pytest.mark.parametrize("name", MASKS)
def test_an_input_is_an_option_that_every_problem_uses(folder, name):
    """The operator broadcasts no axis of queries and keys, so that a call does by the symbols of q and k."""
    further = [MASKS[name]]
    write(attention(further), further=further)
    made = resolve("model.onnx")
    option = "mask" if name == "a mask" else "bias"

    assert made.limits.always == (option,)
    assert verdict(made) == ("held", "")
    write(attention(further, scale=0.3), further=further)
    assert verdict(resolve("model.onnx"))[0] == "refuted"


def test_an_option_has_the_dtype_of_its_input(folder):
    write(in_float32(), kind=HALF, further=[("bias", FLOAT, MASK)])
    made = resolve("model.onnx")

    assert dict(made.option_dtypes) == {"bias": "float32"}
    assert verdict(made) == ("held", "")


def test_an_option_may_have_those_axes_alone_that_it_needs(folder):
    for sign, expected in ((1.0, "held"), (-1.0, "refuted")):
        axes = (["B", "H", "S", 4], ["B", "H", "T", 4], ["B", "H", "T", "E"])
        write(with_sinks(sign), names=("query", "key", "value"), axes=axes, further=[("sinks", FLOAT, ["H"])])
        made = resolve("model.onnx")
        assert made.limits.always == ("sinks",)
        assert verdict(made)[0] == expected


def test_a_graph_may_be_causal_in_every_call(folder):
    write(attention(is_causal=1))

    assert verdict(resolve("model.onnx"))[0] == "refuted"
    made = resolve("model.onnx", supports=("causal",))
    assert made.limits.always == ("causal",)
    assert verdict(made) == ("held", "")
    assert verdict(isolated("model.onnx", supports=("causal",))) == ("held", "")


def test_fixed_lengths_are_limits(folder):
    write(attention(), axes=([1, 8, 16, 32], [1, 2, 24, 32], ["B", 2, "T", 16]))
    made = resolve("model.onnx")
    limits = made.limits

    assert {"gqa", "cross", "dv"} <= made.supports
    assert (limits.query_heads, limits.kv_heads, limits.query_lengths) == ((8,), (2,), (16,))
    assert (limits.widths, limits.largest, limits.multiples) == (((32, 16),), {"B": 1, "K": 24}, {"K": 24})
    assert verdict(made, examples=2) == ("held", "")


def test_two_axes_of_one_symbol_have_one_length(folder):
    """Calls of other lengths are none of the graph's, so that they are not asked for."""
    write(attention(), axes=(["B", "H", "S", "D"],) * 3)
    looked = preflight(resolve("model.onnx"))

    assert re.search(r"ValueError: K has \d+ for the axis S, which is \d+ elsewhere", looked.declined["cross"])
    assert re.search(r"ValueError: K has \d+ for the axis H, which is \d+ elsewhere", looked.declined["gqa"])
    assert re.search(r"ValueError: V has \d+ for the axis D, which is \d+ elsewhere", looked.declined["dv"])


def test_q_k_and_v_are_known_by_their_names_and_a_second_output_is_the_log_sum_exp(folder):
    axes = (["B", "G", "T", "E"], ["B", "H", "S", 4], ["B", "G", "T", 4])
    nodes = [BY_HAND[-1], *BY_HAND[:-1]]
    write(nodes, names=("value", "query", "key"), axes=axes, outputs=("Y", "lse"))
    made = resolve("model.onnx")

    assert made.limits.widths == ((4, 4),)
    assert verdict(made) == ("held", "")
    assert verdict(made, "accuracy.log_sum_exp_is_within_its_bound") == ("held", "")


def faults():
    q = ["B", "H", "S", "D"]
    third = ["B", "S", "D"]
    numbers = [("scale", FLOAT, [])]
    two = [("mask", BOOL, MASK), ("attn_mask", BOOL, MASK)]
    return {
        "two inputs": ({"names": ("Q", "K"), "axes": (q, q), "kinds": (FLOAT,) * 2}, "inputs are Q, K; a model of"),
        "no name of an option": (
            {"further": numbers},
            "input scale is no tensor that attn-spec knows: call a session in a function, or rename it; did you mean",
        ),
        "another dtype": (
            {"kinds": (TensorProto.BFLOAT16,) * 3, "kind": TensorProto.BFLOAT16},
            r"input Q is of tensor\(bfloat16\), and arrays of NumPy are tensor\(double\), tensor\(float\), ",
        ),
        "three axes": ({"axes": (third,) * 3}, r"input Q has 3 axes, and attn-spec calls a model with \[B, H, S, D\]"),
        "batch entries": ({"axes": ([2, *q[1:]], q, q)}, "input Q has 2 batch entries; export it with a symbol for"),
        "one option twice": ({"further": two}, "input attn_mask is a mask beside mask; leave one out$"),
        "numbers for a choice": (
            {"further": [("dropout_mask", FLOAT, MASK)]},
            r"input dropout_mask is of tensor\(float\), which no dropout_keep is$",
        ),
        "two axes of a mask": (
            {"further": [("mask", BOOL, ["S", "T"])]},
            r"input mask has 2 axes; the problems of attn-spec have mask \[B, Hq, Sq, Sk\]$",
        ),
        "one head of a mask": (
            {"further": [("mask", BOOL, ["B", 1, "S", "T"])]},
            "input mask has 1 for axis 1, in which attn-spec draws mask of other lengths; export it with a symbol",
        ),
    }


@pytest.mark.parametrize("name", faults())
def test_a_graph_that_attn_spec_does_not_call_is_told(folder, name):
    changes, message = faults()[name]
    write([make_node("Identity", ["Q"], ["Y"])], **changes)

    with pytest.raises(ModelError, match=f"^model.onnx: {message}"):
        resolve("model.onnx")


def test_declarations_beside_a_model_are_told(folder):
    write(attention())

    with pytest.raises(ModelError, match=r"^model.onnx is a model, whose graph says what --signature would; leave it"):
        resolve("model.onnx", signature="onnx_attention")
    with pytest.raises(ModelError, match=r"^model.onnx has no input for window; leave window out of --supports$"):
        resolve("model.onnx", supports=("window", "gqa"))
    write(attention([MASKS["a mask"]]), further=[MASKS["a mask"]])
    with pytest.raises(ModelError, match=r"^model.onnx takes attn_mask in every call; leave -mask out of --supports$"):
        resolve("model.onnx", without=("mask",))


def test_what_is_no_model_is_told(folder):
    with pytest.raises(KernelError, match=r"^model.onnx does not exist \(looked in .*\); give the path of a file that"):
        resolve("model.onnx")
    folder.joinpath("model.onnx").write_text("no graph")
    with pytest.raises(ModelError, match=r"^model.onnx is no model that ONNX Runtime can run: InvalidProtobuf: "):
        resolve("model.onnx")


def test_what_runs_models_may_be_missing(folder, monkeypatch):
    write(attention())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(ModelError, match=r"^onnxruntime is not installed \(.*\); pip install 'attn-spec\[onnx\]'$"):
        Model("model.onnx")


def test_the_command_certifies_a_model_and_stores_a_script_of_a_wrong_one(folder, attn_spec):
    write(attention(is_causal=1))
    asked = ("certify", "model.onnx", "--supports", "causal", "--property", ACCURATE)
    done = attn_spec(*asked)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(folder.joinpath("certificate.json").read_text())
    assert written["subject"]["distribution"].startswith("onnxruntime ")

    write(attention(is_causal=1, scale=0.3))
    assert attn_spec(*asked).returncode == 1
    (script,) = folder.joinpath(".attn-spec", "cases").glob("*.py")
    again = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert re.search(r"the truth is .*\nstill fails\n$", again.stdout)
