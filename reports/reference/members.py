"""The members of the family: what attention is certified as, a row each. ``family`` makes the page.

A row names what a kernel must declare; kernels, properties and mutants are found by that. A new member is a new row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Columns of kernels, and all columns of the table.
KERNELS = ("NumPy", "PyTorch", "Triton, JAX")
COLUMNS = ("definition", "enclosure", "bound", *KERNELS, "gradients", "properties", "mutants")


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member. Files are paths from the root of the repository."""

    name: str
    #: Options and abilities that are its own: properties that need one belong to it, as do mutants they name.
    options: tuple[str, ...] = ()
    #: Options and abilities that its kernels must declare; None stands for its options.
    supports: tuple[str, ...] | None = None
    #: True if its kernels are those whose contract counts merges by the log-sum-exp.
    merges: bool = False
    #: True if there are kernels of it; False for statements about all members.
    has_kernels: bool = True
    definition: tuple[str, ...] = ("attn_spec/attention/definition.py",)
    enclosure: tuple[str, ...] = ("attn_spec/attention/enclosure.py",)
    bound: tuple[str, ...] = ("attn_spec/bounds/forward/score_bounds.py",)
    gradients: tuple[str, ...] = ("attn_spec/attention/gradients.py", "attn_spec/bounds/backward/gradient_bounds.py")
    #: Starts of ids of further properties; "" is every property that needs no option.
    properties: tuple[str, ...] = ()
    #: Families of further mutants.
    mutants: tuple[str, ...] = ()
    #: Tests that show more of it; they stand with the definition.
    tests: tuple[str, ...] = ()
    #: Reason of each empty column, by its name.
    lacks: Mapping[str, str] = field(default_factory=dict)


_SCORES = "attn_spec/attention/scores.py"
_OPERANDS = ("attn_spec/bounds/operand_bounds.py",)
_SCORE_GRADIENTS = (_SCORES, "attn_spec/bounds/backward/score_gradient_bounds.py")
_OUTPUT = ("attn_spec/bounds/forward/output_bounds.py",)
_MASKS = ("attn_spec/problem/masks.py",)
_BEFORE = "done to q or k before a plain kernel"
_VIEW = "a view of every kernel"

MEMBERS = (
    Member(
        name="dot product",
        properties=("",),
        tests=("tests/attention/test_definition.py",),
    ),
    Member(
        name="bilinear score",
        options=("score_weight",),
        definition=(_SCORES,),
        bound=_OPERANDS,
        gradients=_SCORE_GRADIENTS,
        lacks={"NumPy": _BEFORE, "Triton, JAX": _BEFORE},
    ),
    Member(
        name="additive score",
        options=("score_vector", "score_key_weight", "score_query_weight"),
        definition=(_SCORES,),
        bound=_OPERANDS,
        gradients=_SCORE_GRADIENTS,
        tests=("tests/attention/test_score_laws.py",),
        lacks=dict.fromkeys(("NumPy", "Triton, JAX"), "not written: the only kernel is that of PyTorch"),
    ),
    Member(
        name="cosine score",
        options=("score_gamma",),
        definition=(_SCORES,),
        bound=_OPERANDS,
        gradients=_SCORE_GRADIENTS,
        lacks={"NumPy": _BEFORE, "Triton, JAX": _BEFORE},
    ),
    Member(
        name="rotary positions",
        options=("rotary",),
        definition=(_SCORES, "attn_spec/attention/rotations.py"),
        bound=_OPERANDS,
        gradients=_SCORE_GRADIENTS,
        tests=("tests/bounds/test_rotary_tables.py",),
    ),
    Member(
        name="given positions",
        options=("rotary_query_positions", "rotary_key_positions"),
        definition=("attn_spec/attention/rotations.py",),
        bound=_OPERANDS,
        gradients=_SCORE_GRADIENTS,
        mutants=("given_positions",),
        tests=("tests/attention/test_given_positions.py",),
    ),
    Member(name="ALiBi", options=("alibi_slopes",), tests=("tests/attention/test_alibi.py",)),
    Member(
        name="sinusoidal positions",
        definition=(),
        enclosure=(),
        bound=(),
        gradients=(),
        tests=("tests/attention/test_sinusoids.py",),
        has_kernels=False,
        lacks=dict.fromkeys(COLUMNS[1:], "added to inputs, before q and k"),
    ),
    Member(name="causal mask", options=("causal",), definition=_MASKS, bound=_OUTPUT),
    Member(name="sliding window", options=("window",), definition=_MASKS, bound=_OUTPUT),
    Member(
        name="sinks of a window",
        options=("window_sinks",),
        definition=_MASKS,
        bound=_OUTPUT,
        tests=("tests/attention/test_masks_in_use.py",),
    ),
    Member(
        name="chunks",
        options=("attention_chunk",),
        definition=_MASKS,
        bound=_OUTPUT,
        tests=("tests/attention/test_masks_in_use.py",),
    ),
    Member(
        name="multi-head latent attention",
        options=("latent",),
        supports=("latent", "scale"),
        tests=("tests/attention/test_latent.py",),
        lacks=dict.fromkeys(("NumPy", "Triton, JAX"), "an ordinary kernel whose values are part of its keys"),
    ),
    Member(name="mask", options=("mask",), bound=_OUTPUT),
    Member(
        name="packed documents",
        supports=("mask",),
        definition=_MASKS,
        bound=_OUTPUT,
        properties=("documents",),
    ),
    Member(
        name="trees of drafts",
        supports=("mask",),
        definition=_MASKS,
        bound=_OUTPUT,
        properties=("drafts",),
        mutants=("drafts",),
    ),
    Member(
        name="block-sparse and strided masks",
        supports=("mask",),
        definition=_MASKS,
        bound=_OUTPUT,
        properties=("masking.sparse_masks",),
        mutants=("block_sparse",),
        tests=("tests/implementations/test_sparse_kernels.py",),
    ),
    Member(
        name="decoding with a cache",
        supports=("causal", "cross"),
        definition=_MASKS,
        bound=_OUTPUT,
        properties=("decoding.", "causality.decoding"),
        mutants=("decoding",),
        tests=("tests/attention/test_masks_in_use.py",),
    ),
    Member(
        name="top-k selection",
        definition=(),
        enclosure=(),
        bound=(),
        gradients=(),
        has_kernels=False,
        tests=("tests/implementations/test_top_k.py", "implementations/numpy_top_k.py"),
        lacks=dict.fromkeys(COLUMNS[1:], "no option: attention under the selection as a mask"),
    ),
    Member(name="bias", options=("bias",)),
    Member(
        name="finite fill",
        supports=("bias",),
        properties=("masking.a_bias_as_low_as_a_fill",),
        mutants=("fills",),
        tests=("tests/attention/test_finite_fills.py",),
    ),
    Member(name="softcap", options=("softcap",)),
    Member(name="grouped heads", options=("gqa",), bound=_OUTPUT),
    Member(
        name="dropout, keep mask",
        options=("dropout_keep",),
        definition=("attn_spec/attention/dropout.py",),
        bound=("attn_spec/bounds/forward/dropout_bounds.py",),
        mutants=("dropout",),
    ),
    Member(
        name="dropout by chance",
        options=("dropout_by_chance",),
        definition=("attn_spec/attention/dropout.py", "attn_spec/search/drawn_masks.py"),
        bound=("attn_spec/bounds/forward/dropout_bounds.py", "attn_spec/chance/mask_statistics.py"),
        mutants=("dropout_by_chance",),
        lacks={"Triton, JAX": "not written: a mask that is given is"},
    ),
    Member(
        name="linear attention",
        options=("feature_map",),
        definition=(_SCORES, "attn_spec/attention/weightings.py"),
        bound=("attn_spec/bounds/linear/linear_bounds.py",),
        gradients=("attn_spec/bounds/linear/linear_gradient_bounds.py",),
        mutants=("linear",),
        tests=("tests/attention/test_linear.py",),
    ),
    Member(
        name="multi-head layer",
        options=("query_projection",),
        supports=("query_projection", "key_projection", "value_projection", "output_projection"),
        definition=(_SCORES,),
        bound=("attn_spec/bounds/layer/projection_bounds.py",),
        gradients=("attn_spec/bounds/layer/projection_bounds.py",),
        mutants=("layers",),
        tests=("tests/attention/test_layers.py",),
        lacks={"Triton, JAX": "a layer is projections around a kernel of theirs"},
    ),
    Member(
        name="split and merged softmax",
        supports=("lse",),
        merges=True,
        definition=("attn_spec/emulation/split.py", "attn_spec/emulation/ring.py"),
        bound=("attn_spec/bounds/forward/row_sum_bounds.py",),
        properties=("online_rescaling.parts_merge",),
        mutants=("merging", "ranks"),
        tests=("tests/emulation/test_ring.py", "tests/implementations/test_rank_pool.py"),
        lacks=dict.fromkeys(("NumPy", "Triton, JAX"), "not written: the kernels over ranks are those of PyTorch"),
    ),
    Member(
        name="regression, Gibbs distribution",
        definition=(),
        bound=(),
        gradients=(),
        has_kernels=False,
        properties=("temperature.",),
        tests=("tests/attention/test_views.py",),
        lacks=dict.fromkeys(("bound", *KERNELS, "gradients"), _VIEW),
    ),
)
