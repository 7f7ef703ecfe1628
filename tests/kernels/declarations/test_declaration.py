"""A declaration is checked when it is made, and an undecorated callable is read."""

import pytest

from attn_spec import Contract, Conventions, kernel
from attn_spec.contract.presets import FP32, FUSED, UNDECLARED
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.defects import Defect
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.resolve import declarations, resolve

DECLARED = {"framework": "numpy", "dtypes": ("float32",), "contract": "fused"}


def identity(q, k, v, *, softmax_scale=None, is_causal=False, attn_mask=None):
    return v


def test_the_decorator_keeps_the_function_and_the_declarations():
    made = kernel(**DECLARED, supports=("scale", "gqa"), conventions={"empty_row": "nan"}, presentation="BSHD")(
        identity
    )

    assert made(1, 2, 3) == 3
    assert made.supports == {"scale", "gqa"}
    assert made.conventions == Conventions(empty_row="nan")
    assert made.presentation == "BSHD"
    assert made.contract_declared("float32") == FUSED
    assert made.contract_for("float32") == FUSED.at("float32")
    assert made.declared


def test_a_contract_may_differ_by_dtype():
    both = {"float32": "fp32", "float16": Contract(kv_tile=64)}
    made = kernel(**{**DECLARED, "dtypes": ("float32", "float16"), "contract": both})(identity)

    assert made.contract_declared("float32") == FP32
    assert made.contract_declared("float16").kv_tile == 64


def test_options_travel_under_the_names_the_function_gives_them():
    made = kernel(**DECLARED, supports=("scale", "causal", "mask"))(identity)
    names = {option: made.keyword(option) for option in ("scale", "causal", "mask", "bias")}

    assert names == {"scale": "softmax_scale", "causal": "is_causal", "mask": "attn_mask", "bias": "bias"}


#: Options of a kernel of a layer.
LAYER = ("query_projection", "key_projection", "value_projection", "output_projection")
REFUSED = {
    "option": ({"supports": ("rope",)}, "declares unknown options rope; known are causal, window"),
    "dtype": ({"dtypes": ("int4",)}, "declares unknown dtypes int4; known are float64, float32, float16, bfloat16"),
    "contract": ({"contract": "exact"}, "unknown contract 'exact'; known are fused, fp32, tf32, eager, split_kv, fp64"),
    "contract of a dtype": ({"contract": {"float16": "fused"}}, "declares no contract for float32"),
    "convention": ({"conventions": {"mood": "good"}}, "unknown conventions mood; known are causal_alignment"),
    "choice": (
        {"conventions": {"empty_row": "one"}},
        "convention empty_row must be one of 'zero', 'mean_of_v', 'nan', not 'one'",
    ),
    "choice nearly": ({"conventions": {"empty_row": "zeros"}}, "not 'zeros'; did you mean 'zero'?"),
    "choice of a call": ({"conventions": {"empty_row": "undeclared"}}, "one of 'zero', 'mean_of_v', 'nan', not 'und"),
    "choice of a call in a record": ({"conventions": Conventions(empty_row="undeclared")}, "not 'undeclared'"),
    "framework": ({"framework": "tensorflow"}, "framework must be one of jax, mlx, numpy, torch, not 'tensorflow'"),
    "presentation": (
        {"presentation": "HBSD"},
        f"presentation must be one of {', '.join(PRESENTATIONS)}, not 'HBSD'",
    ),
    "bare dtype": ({"dtypes": "float32"}, "dtypes must be several names, ('float32',), not the text 'float32'"),
    "bare option": ({"supports": "causal"}, "supports must be several names, ('causal',), not the text 'causal'"),
    "bare limit": ({"always": "causal"}, "always must be several names, ('causal',), not the text 'causal'"),
    "bare device": ({"devices": "cpu"}, "devices must be several names, ('cpu',), not the text 'cpu'"),
    "argument": (
        {"page_size": (16,)},
        "unknown argument page_size in the declaration of a kernel; did you mean 'page_s",
    ),
    "argument like no other": (
        {"cost": 2},
        "unknown argument cost in the declaration of a kernel; known are name, fra",
    ),
    "argument that a declaration fills": ({"limits": 2}, "unknown argument limits in the declaration of a kernel"),
    "arguments that turn off": (
        {"when_off": ("causal",)},
        "when_off must be a mapping of options to arguments, {'causal': False}, not ('causal',)",
    ),
    "arguments that turn off another": (
        {"when_off": {"causal": False}},
        "when_off names causal, which is no option in supports; give arguments of options that a problem does not",
    ),
    "arguments that are no values": (
        {"when_off": {"causal": []}, "supports": ("causal",)},
        "when_off gives a list for causal; a plain value turns an option off, {'causal': False}",
    ),
    "index dtypes": ({"index_dtypes": "int64"}, "index_dtypes must be a mapping, not 'int64'"),
    "index without a place": (
        {"index_dtypes": {"kv_indices": "int64"}},
        "index_dtypes has kv_indices, which is no array of integers of a call in the presentation BHSD; it has none",
    ),
    "index that is one number": (
        {"index_dtypes": {"max_seqlen_q": "int64"}, "presentation": "THD"},
        "no array of integers of a call in the presentation THD; it has cu_seqlens_q, cu_seqlens_k",
    ),
    "index of bytes": (
        {"index_dtypes": {"cu_seqlens_q": "uint8"}, "presentation": "THD"},
        "index_dtypes must be of int32, int64, and cu_seqlens_q has 'uint8'",
    ),
    "no dtypes": ({"dtypes": ()}, "test_declaration:identity declares no dtypes; known are float64, float32"),
    "no signatures": ({"signatures": 0}, "test_declaration:identity: signatures must be None or at least 1, not 0"),
    "no time": ({"slowness": 0.0}, "test_declaration:identity: slowness must be more than 0, not 0.0"),
    "head dimensions": (
        {"head_dims": [64, 128]},
        "test_declaration:identity: head_dims must be a tuple of numbers of at least 1, or of pairs of them, not [64",
    ),
    "head dimension": ({"head_dims": 64}, "a tuple of numbers of at least 1, or of pairs of them, not 64"),
    "head dimensions of three": ({"head_dims": ((8, 4, 2),)}, "or of pairs of them, not ((8, 4, 2),)"),
    "unequal widths": (
        {"head_dims": ((24, 16),)},
        "head_dims ((24, 16),) are pairs of unequal numbers, so that every problem uses dv; declare dv too",
    ),
    "query lengths of a presentation": (
        {"presentation": "decode", "query_lengths": (2, 4)},
        "query_lengths=(2, 4) has none of the numbers (1,), which calls in the presentation decode have",
    ),
    "multiples of query lengths": (
        {"presentation": "decode", "multiples": {"Q": 4}},
        "none of query_lengths=(1,) is a multiple of 4, as multiples= asks of the axis 'Q'",
    ),
    "page sizes": ({"presentation": "paged", "page_sizes": 16}, "page_sizes must be a tuple of numbers of at least 1"),
    "pages": ({"page_sizes": (16,)}, "page_sizes limit the pages of a cache, and a call as BHSD has none"),
    "equal lengths": ({"equal_lengths": True, "supports": ("cross",)}, "with equal_lengths no problem uses cross"),
    "numbers of sequences that nothing counts": (
        {"presentation": "segments", "supports": ("alibi_slopes",)},
        "cannot pass alibi_slopes, which may have a number for each sequence, and no argument counts these",
    ),
    "padding of a packed call": (
        {"presentation": "THD", "supports": ("leftpad_k",)},
        "a call in the presentation THD cannot pass leftpad_k, since no argument says it",
    ),
    "query heads": ({"query_heads": 32}, "query_heads must be a tuple of numbers of at least 1, not 32"),
    "query heads beyond": (
        {"query_heads": (4,), "largest": {"H": 2}},
        "query_heads=(4,) has a number above 2, as largest= asks of query heads; change query_heads or largest",
    ),
    "query heads of no kv head": (
        {"query_heads": (4, 8), "kv_heads": (3,)},
        "none of query_heads=(4, 8) is a multiple of one of kv_heads=(3,); change one of them",
    ),
    "groups": (
        {"query_heads": (8,), "kv_heads": (2,)},
        "no number of query_heads=(8,) is one of kv_heads=(2,), so that every problem uses gqa; declare gqa too",
    ),
    "group sizes": ({"group_sizes": (0, 1)}, "group_sizes must be a tuple of numbers of at least 1, not (0, 1)"),
    "group sizes without 1": (
        {"group_sizes": (2, 4)},
        "group_sizes=(2, 4) leaves 1 out, so that every problem uses gqa; declare gqa too",
    ),
    "query heads of no group": (
        {"query_heads": (8,), "kv_heads": (2,), "group_sizes": (1, 2), "supports": ("gqa",)},
        "none of query_heads=(8,) is a multiple of one of kv_heads=(2,), by one of group_sizes=(1, 2); change one of",
    ),
    "tight buffers": (
        {"tight_buffers": True},
        "tight_buffers is about buffers of sequences, and a call as BHSD has none",
    ),
    "kv heads": ({"kv_heads": (0,)}, "kv_heads must be a tuple of numbers of at least 1, not (0,)"),
    "query lengths": ({"query_lengths": ()}, "query_lengths must be a tuple of numbers of at least 1, not ()"),
    "decoding of one key": (
        {"query_lengths": (1,), "supports": ("causal",)},
        "query_lengths=(1,) needs 'cross' in supports: without it",
    ),
    "position": ({"largest_position": 0}, "largest_position must be a number of at least 1, not 0"),
    "multiples": ({"multiples": {"S": 16}}, "multiples must be of the axes 'Q' and 'K', not {'S': 16}"),
    "axis": ({"largest": {"D": 64}}, "largest must be of the axes B, H, BH, Q, K, not {'D': 64}"),
    "no mapping": ({"largest": 65535}, "largest must be of the axes B, H, BH, Q, K, not 65535"),
    "none": ({"largest": {"B": 0}}, "largest must be numbers of at least 1, not {'B': 0}"),
    "no length": (
        {"largest": {"K": 8}, "multiples": {"K": 16}},
        "no length of K is a multiple of 16 and at most 8; change multiples or largest",
    ),
    "length beyond": (
        {"largest": {"Q": 2}, "query_lengths": (1, 4)},
        "query_lengths has 4, but largest allows 2; leave it out",
    ),
    "kv heads beyond": (
        {"kv_heads": (2, 4), "largest": {"BH": 1}},
        "kv_heads=(2, 4) has no number of at most 1, as largest= asks of query heads; change kv_heads or largest",
    ),
    "multiple": ({"multiples": {"K": 0}}, "multiples must be numbers of at least 1, not {'K': 0}"),
    "defect of another": (
        {"known_defects": (Defect(property="a.b", reason="r", kernel="other"),)},
        "test_declaration:identity: the known defect of a.b names the kernel other; leave kernel out",
    ),
    "defect at another dtype": (
        {"known_defects": (Defect(property="a.b", reason="r", dtype="float16"),)},
        "test_declaration:identity: the known defect of a.b is at float16, which the kernel does not declare",
    ),
    "always in vain": (
        {"always": ("score_gamma", "rotary", "feature_map"), "supports": ("score_gamma", "rotary", "feature_map")},
        "always uses score_gamma and rotary, which exclude each other; leave one out of always",
    ),
    "always apart": (
        {"always": ("causal", "mask"), "supports": ("causal", "mask"), "exclusive": (("causal", "mask"),)},
        "always uses causal and mask, which are in exclusive; leave one out of always",
    ),
    "beside nothing": (
        {"supports": ("window",), "beside": {"window": ("causal", "mask")}},
        "beside takes window only with causal or mask, and supports has none of them; leave window out of supports",
    ),
    "beside a text": (
        {"supports": ("window", "causal"), "beside": {"window": "causal"}},
        "beside must map options to tuples of others, as {'window': ('causal',)}, not {'window': 'causal'}",
    ),
    "beside something unknown": ({"beside": {"window": ("casual",)}}, "declares unknown options casual; known are"),
    "parameter": (
        {"supports": ("rotary_base",)},
        "test_declaration:identity declares rotary_base, a parameter of rotary; declare rotary too",
    ),
    "p alone": (
        {"supports": ("dropout_p",)},
        "declares dropout_p, a parameter of dropout_keep; declare dropout_keep too, or dropout_by_chance instead",
    ),
    "seed of nothing": (
        {"supports": ("dropout_seed",)},
        "declares dropout_seed, a parameter of dropout_by_chance; declare dropout_by_chance too",
    ),
    "heads": (
        {"presentation": "SD", "supports": ("gqa",)},
        "a call in the presentation SD cannot pass gqa, since each call has one query head and one kv head; leave gqa",
    ),
    "a mask of packed sequences": (
        {"presentation": "THD", "supports": ("mask",)},
        "a call in the presentation THD cannot pass mask, which has numbers for each query or key of a rectangle",
    ),
    "a merge of packed sequences": (
        {"presentation": "THD", "merge": "bias"},
        "a call in the presentation THD cannot pass a bias, into which merge= writes other options; leave merge out",
    ),
    "a layer": (
        {"presentation": "SD", "supports": LAYER},
        "cannot pass key_projection, since each call has one query head and one kv head; leave key_projection out",
    ),
}


@pytest.mark.parametrize("left_out", ["all", "framework", "dtypes"])
def test_a_decorator_that_declares_too_little_says_what_it_needs(left_out):
    declared = {name: value for name, value in DECLARED.items() if name != left_out}

    with pytest.raises(KernelError, match=r'write @kernel\(framework="numpy", dtypes=\["float32"\]\)'):
        kernel(identity) if left_out == "all" else kernel(**declared)(identity)


@pytest.mark.parametrize("name", REFUSED)
def test_a_declaration_that_names_nothing_known_is_refused(name):
    changes, text = REFUSED[name]

    with pytest.raises(KernelError) as refused:
        kernel(**{**DECLARED, **changes})(identity)
    assert text in str(refused.value)


def test_an_undecorated_callable_is_read_from_its_signature():
    made = from_callable(identity)

    assert not made.declared
    assert made.framework == "numpy"
    assert made.dtypes == ("float64", "float32")
    assert made.supports == {"scale", "causal", "mask"}
    assert made.contract_declared("float32") == UNDECLARED


def test_what_is_declared_beside_an_undecorated_callable_is_kept():
    made = from_callable(identity, framework="torch", contract="fused", supports=("lse",), dtypes=())

    assert (made.framework, made.contract_declared("float16")) == ("torch", FUSED)
    assert made.supports == {"scale", "causal", "mask", "lse"}


IMPORTS = {
    "import torch": "torch",
    "import numpy as np, torch.nn": "torch",
    "from torch import softmax": "torch",
    "from torch import matmul": "torch",
    "from torch.nn.functional import softmax": "torch",
    "from torch import nn": "torch",
    "from torch import Tensor": "torch",
    "from torch import float32": "torch",
    "import jax.numpy as jnp": "jax",
    "from jax.numpy import exp": "jax",
    "from jax.nn import softmax": "jax",
    "import mlx.core as mx": "mlx",
    "import mlx.nn": "mlx",
    "from mlx.core import softmax": "mlx",
    "from mlx.core.fast import scaled_dot_product_attention": "mlx",
    "import numpy as np": "numpy",
    "from numpy import exp": "numpy",
    "import math": "numpy",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_the_framework_is_the_one_that_anything_is_imported_from(folder, line):
    folder.joinpath("imports.py").write_text(f"{line}\ndef attention(q, k, v): return v\n")

    assert resolve("imports.py:attention").framework == IMPORTS[line]


def test_of_two_frameworks_one_is_to_be_named(folder):
    folder.joinpath("both.py").write_text("import jax, torch\ndef attention(q, k, v): return v\n")

    with pytest.raises(
        KernelError, match=r"the module of both imports jax and torch; say whose .*: --framework jax, or"
    ):
        resolve("both.py:attention")
    assert resolve("both.py:attention", framework="torch").framework == "torch"


USES = {
    "def attention(q, k, v): return torch.softmax(q @ k.mT, -1) @ v": "torch",
    "def attention(q, k, v): return attend(q, k, v)\ndef attend(q, k, v): return jax.nn.softmax(q @ k.mT) @ v": "jax",
    "def attention(q, k, v): return [jax.numpy.dot(row, k) for row in q]": "jax",
    "def attention(q, k, v): return own(q)\n@functools.cache\ndef own(q): return torch.exp(q)": "torch",
}


@pytest.mark.parametrize("function", USES)
def test_of_two_frameworks_the_one_is_taken_that_the_function_uses(folder, function):
    folder.joinpath("uses.py").write_text(f"import functools, jax, torch\nimport numpy as np\n{function}\n")

    assert resolve("uses.py:attention").framework == USES[function]


def test_numpy_is_not_taken_for_the_one_that_is_used_since_its_functions_take_other_numbers_too(folder):
    function = "def attention(q, k, v): return (q @ k.mT * np.sqrt(1 / 8)).softmax(-1) @ v"
    folder.joinpath("uses.py").write_text(f"import torch\nimport numpy as np\n{function}\n")

    assert resolve("uses.py:attention").framework == "torch"


@pytest.mark.parametrize("source", ["functools.partial(sound, n=3)", "lambda q, k, v: v", "Made()"])
def test_a_callable_is_called_as_it_is_asked_for(folder, source):
    made = "class Made:\n    def __call__(self, q, k, v): return v\n"
    folder.joinpath("mine.py").write_text(f"import functools\ndef sound(q, k, v, n): return v\n{made}own = {source}\n")

    assert resolve("mine.py:own").name == "mine:own"


def test_a_builtin_without_a_signature_is_to_be_wrapped():
    with pytest.raises(
        KernelError, match=r"no signature found for builtin .*; wrap it in a Python function that names"
    ):
        resolve("torch.nn.functional:scaled_dot_product_attention")


def test_a_declared_builtin_without_a_signature_is_refused_when_it_is_declared():
    from torch.nn.functional import scaled_dot_product_attention

    with pytest.raises(KernelError, match=r"no signature found for builtin .*; wrap it in a Python function"):
        kernel(**DECLARED)(scaled_dot_product_attention)


def test_objects_with_a_call_method_are_read_too(folder):
    folder.joinpath("objects.py").write_text(
        "import functools, torch\n"
        "class Attention:\n    def __call__(self, q, k, v, *, causal=False): return v\n"
        "attention = Attention()\n"
        "def options(q, k, v, causal, scale): return v\n"
        "partial = functools.partial(options, scale=1.0)\n"
    )
    found, partial = resolve("objects.py:attention"), resolve("objects.py:partial")

    assert (found.framework, found.supports, found.module) == ("torch", {"causal"}, "objects")
    assert (partial.framework, partial.supports, partial.module) == ("torch", {"causal", "scale"}, "objects")


def test_an_undecorated_callable_may_be_asked_less():
    made = from_callable(identity, framework="numpy", without=("causal", "dv"))

    assert made.supports == {"scale", "mask"}
    with pytest.raises(KernelError, match=r"^unknown options causl to leave out; did you mean 'causal'"):
        from_callable(identity, framework="numpy", without=("causl",))


def test_how_slow_an_undecorated_function_is_may_be_typed():
    typed = declarations("numpy", None, None, slowness=100.0)

    assert from_callable(identity, **typed).slowness == 100


@pytest.mark.parametrize(
    ("typed", "supports", "without"),
    [(None, (), ()), ("dv, lse", ("dv", "lse"), ()), ("-backward,dv,- lse", ("dv",), ("backward", "lse"))],
)
def test_options_that_are_typed_are_asked_for_or_left_out(typed, supports, without):
    found = declarations(None, "fused", typed)

    assert found == {"framework": None, "contract": "fused", "supports": supports, "without": without}


@pytest.mark.parametrize("facts", [{"merge": "bias"}, {"presentation": "states"}])
def test_a_call_of_one_tensor_of_hidden_keys_has_no_convention_for_a_bias_alone(facts):
    declared = {"framework": "numpy", "dtypes": ("float32",), "conventions": {"empty_row_by_bias": "nan"}, **facts}
    with pytest.raises(KernelError, match=r"one tensor of a call says which keys .* leave empty_row_by_bias out"):
        kernel(**declared)(lambda q, k, v, bias=None: q)
    kernel(**{**declared, "conventions": {"empty_row": "nan"}})(lambda q, k, v, bias=None: q)
