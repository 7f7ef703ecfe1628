"""The interface of a definition: a presentation, what each input says in it, and the declaration that follows.

A definition is known by its op type. Its inputs have fixed names there, and ``qo_indptr`` among them says that
sequences have several queries (prefill); without it each sequence has one (decode). A prefill is causal if its name has
the word "causal", as ``gqa_paged_prefill_causal_h32_kv8_d128_ps1``. The diagonal then ends in the bottom-right corner.

Source: the public definitions of FlashInfer-Bench, and the adapters of flashinfer_bench 0.1.2 in
``integration/flashinfer``, which build their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attn_spec.kernels.flashinfer_trace.documents import DocumentError
from attn_spec.kernels.flashinfer_trace.schema import Definition, Tensor
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.nearest_names import suggestion
from attn_spec.numbers.formats import DTYPES

#: Axes of the tensors of a definition, by what they count. "rows" are queries of all sequences, "keys" their keys.
_QUERIES, _POOL = ("rows", "query heads", "D"), ("pages", "page size", "kv heads")
#: Axes of outputs: the log-sum-exp to the base 2 lies as the rows of the output.
_LSE = ("rows", "query heads")
#: Input that bounds queries, and so says that a sequence may have several.
BOUNDS = "qo_indptr"
#: Input with the factor of scores.
SCALE = "sm_scale"
#: Input that lists the keys of each query.
LISTED = "sparse_indices"
#: Inputs of integers that say where sequences lie.
LISTS = (BOUNDS, "kv_indptr", "kv_indices", "kv_last_page_len", LISTED)


#: Tensors of latent attention, and their names in the presentations.
_LATENT = {
    "q_nope": ("rows", "query heads", "Dv"),
    "q_pe": ("rows", "query heads", "rotated part of D"),
    "ckv_cache": ("pages", "page size", "Dv"),
    "kpe_cache": ("pages", "page size", "rotated part of D"),
}
_LATENT_NAMES = {"ckv_cache": "ckv", "kpe_cache": "kpe"}


@dataclass(frozen=True, kw_only=True)
class OpType:
    """A row of the table of op types."""

    says: str
    #: Presentation of a call with one query of each sequence; empty if there is none.
    decode: str
    #: Presentation of a call whose sequences have several queries.
    prefill: str
    #: Axes of the tensors that are given, by name.
    tensors: Mapping[str, tuple[str, ...]]
    #: Names in the presentation of inputs that are called otherwise in the definition.
    renamed: Mapping[str, str]
    #: Inputs that a definition must have beside the tensors.
    needed: tuple[str, ...]
    #: Further inputs that it may have.
    optional: tuple[str, ...]
    #: True if values are the first columns of keys.
    latent: bool = False


#: Every op type that attn-spec knows, by name.
OP_TYPES: dict[str, OpType] = {
    "gqa_paged": OpType(
        says="grouped-query attention over pages of a cache",
        decode="decode_csr",
        prefill="paged_csr",
        tensors={"q": _QUERIES, "k_cache": (*_POOL, "D"), "v_cache": (*_POOL, "Dv")},
        renamed={"k_cache": "k", "v_cache": "v"},
        needed=("kv_indptr", "kv_indices"),
        optional=(BOUNDS, "kv_last_page_len", SCALE),
    ),
    "gqa_ragged": OpType(
        says="grouped-query attention of sequences one behind the other",
        decode="",
        prefill="THD",
        tensors={"q": _QUERIES, "k": ("keys", "kv heads", "D"), "v": ("keys", "kv heads", "Dv")},
        renamed={BOUNDS: "cu_seqlens_q", "kv_indptr": "cu_seqlens_k"},
        needed=(BOUNDS, "kv_indptr"),
        optional=(SCALE,),
    ),
    "mla_paged": OpType(
        says="latent attention (MLA) over pages of a cache",
        decode="mla_decode_csr",
        prefill="mla_csr_last_page",
        tensors=_LATENT,
        renamed=_LATENT_NAMES,
        needed=("kv_indptr", "kv_indices", SCALE),
        optional=(BOUNDS, "kv_last_page_len"),
        latent=True,
    ),
    "dsa_paged": OpType(
        says="latent attention (MLA) of each query to the keys that are listed for it",
        decode="mla_sparse",
        prefill="",
        tensors=_LATENT,
        renamed=_LATENT_NAMES,
        needed=(LISTED, SCALE),
        optional=(),
        latent=True,
    ),
}


@dataclass(frozen=True)
class Interface:
    """A definition as attn-spec calls it. Raises :class:`DocumentError` for one that it does not know.

    ``file`` is the definition's file, for messages.
    """

    definition: Definition
    file: str

    def __post_init__(self) -> None:
        self._check_inputs()
        self._check_outputs()
        self._check_dtypes()
        if "kv_indices" in self.row.needed and not self.states_last_pages and self.sizes["page size"] != 1:
            raise self._error(
                "inputs", "has no kv_last_page_len, and its pages may have several keys; add kv_last_page_len"
            )

    @property
    def row(self) -> OpType:
        """Row of the op type. Raises :class:`DocumentError`."""
        if (found := OP_TYPES.get(self.definition.op_type)) is None:
            known = "; ".join(f"{name} ({row.says})" for name, row in OP_TYPES.items())
            near = suggestion(self.definition.op_type, OP_TYPES)
            raise self._error(
                "op_type", f"is {self.definition.op_type!r}, which attn-spec does not know{near}; known: {known}"
            )
        return found

    @property
    def is_prefill(self) -> bool:
        """True if a sequence may have several queries."""
        return BOUNDS in self.definition.inputs

    @property
    def is_causal(self) -> bool:
        """True if queries see no later keys: the name of the definition says so."""
        return self.is_prefill and "causal" in self.definition.name.split("_")

    @property
    def states_last_pages(self) -> bool:
        """True if the definition says how many keys each last page has."""
        return "kv_last_page_len" in self.definition.inputs

    @property
    def presentation(self) -> str:
        """Name of the presentation of a call."""
        return self.row.prefill if self.is_prefill else self.row.decode

    @property
    def shown(self) -> Presentation:
        """Presentation of a call."""
        return PRESENTATIONS[self.presentation]

    def own(self, name: str) -> str:
        """Return attn-spec's name for an input."""
        return "scale" if name == SCALE else self.row.renamed.get(name, name)

    @cached_property
    def sizes(self) -> dict[str, int | None]:
        """Length of each axis by what it counts; None if workloads give it. Raises :class:`DocumentError`."""
        found: dict[str, int | None] = {}
        for name, axes in self.axes.items():
            shape = self.tensor(name).shape
            if shape is None or len(shape) != len(axes):
                held = "a number" if shape is None else f"axes ({', '.join(shape)})"
                raise self._error(name, f"has {held}, and must have the axes ({', '.join(axes)})")
            for what, axis in zip(axes, shape, strict=True):
                length = self.definition.length(axis)
                if found.setdefault(what, length) != length:
                    raise self._error(
                        name, f"has the axis {axis} of length {length} for the {what}, which is {found[what]} elsewhere"
                    )
        return found

    def axis(self, name: str, place: int) -> str:
        """Return the name of an axis of an input."""
        return (self.definition.inputs[name].shape or ())[place]

    @property
    def dtype(self) -> str:
        """Dtype of queries, keys, values and the output."""
        return self.definition.outputs["output"].dtype

    @property
    def declared(self) -> dict[str, Any]:
        """Facts of the kernel's declaration that the definition says.

        The Bench refuses every answer with an infinite or undefined number. So no workload has a query without keys,
        and none is asked for. Nor does it ask two calls for equal bits, or have a scale below 0.
        """
        sizes, inputs = self.sizes, self.definition.inputs
        heads, kv_heads = sizes["query heads"], 1 if self.row.latent else sizes["kv heads"]
        supports = {"gqa"} if heads is None or heads != kv_heads else set()
        supports |= {"cross", *(["lse"] if "lse" in self.definition.outputs else [])}
        supports |= {"scale"} if SCALE in inputs else set()
        supports |= {"latent", "dv"} if self.row.latent else {"dv"} if sizes["D"] != sizes["Dv"] else set()
        supports |= {"causal"} if self.is_causal else set()
        facts: dict[str, Any] = {
            "presentation": self.presentation,
            "dtypes": (self.dtype,),
            "supports": supports,
            "conventions": {"causal_alignment": "bottom_right", "lse_base": "2", "deterministic": False},
            "head_dims": self._widths(),
            "query_heads": None if heads is None else (heads,),
            "kv_heads": None if kv_heads is None else (kv_heads,),
            "least_keys": 1,
            "keys_reach_queries": self.is_causal,
            "tight_buffers": True,
            "positive_scale": True,
            "always": ("causal",) if self.is_causal else (),
            "index_dtypes": {self.own(name): inputs[name].dtype for name in LISTS if name in inputs},
        }
        if (size := sizes.get("page size")) is not None:
            facts["page_sizes"] = (size,)
        if self.listed_keys is not None:
            facts["largest"] = {"K": self.listed_keys}
        return facts

    @property
    def listed_keys(self) -> int | None:
        """Number of keys that are listed for each query; None if workloads give it, or none are listed."""
        return self.sizes.get("listed keys")

    def _widths(self) -> tuple[tuple[int, int], ...] | None:
        """Return the pair (D, Dv), or None if workloads give one of them."""
        value, width = self.sizes["Dv"], self.sizes["rotated part of D" if self.row.latent else "D"]
        if value is None or width is None:
            return None
        return ((value + width if self.row.latent else width, value),)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Axes of tensors and outputs by name, by what they count."""
        lse = {"lse": _LSE} if "lse" in self.definition.outputs else {}
        listed = {LISTED: ("rows", "listed keys")} if LISTED in self.row.needed else {}
        return {**self.row.tensors, **listed, "output": ("rows", "query heads", "Dv"), **lse}

    def tensor(self, name: str) -> Tensor:
        return (self.definition.inputs | self.definition.outputs)[name]

    def _check_inputs(self) -> None:
        row, inputs = self.row, self.definition.inputs
        known = (*row.tensors, *row.needed, *row.optional)
        listed = f"; an input of {self.definition.op_type} is {', '.join(known)}"
        if unknown := [name for name in inputs if name not in known]:
            raise self._error(
                "inputs", f"has {unknown[0]!r}, which attn-spec does not know{suggestion(unknown[0], known)}{listed}"
            )
        if missing := [name for name in (*row.tensors, *row.needed) if name not in inputs]:
            raise self._error("inputs", f"lacks {missing[0]!r}{listed}")
        if SCALE in inputs and inputs[SCALE].shape is not None:
            raise self._error(f"inputs.{SCALE}", "must be a number, with the shape null")

    def _check_outputs(self) -> None:
        outputs = self.definition.outputs
        if unknown := [name for name in outputs if name not in ("output", "lse")]:
            raise self._error("outputs", f"has {unknown[0]!r}, which attn-spec does not know; known are output and lse")
        if "output" not in outputs:
            raise self._error("outputs", "lacks 'output'; add it")

    def _check_dtypes(self) -> None:
        inputs, outputs = self.definition.inputs, self.definition.outputs
        for name in self.row.tensors:
            if inputs[name].dtype not in DTYPES:
                raise self._error(f"inputs.{name}.dtype", f"is {inputs[name].dtype!r}; known are {', '.join(DTYPES)}")
            if inputs[name].dtype != self.dtype:
                raise self._error(
                    f"inputs.{name}.dtype",
                    f"is {inputs[name].dtype}, and that of output is {self.dtype}; attn-spec takes one dtype of both",
                )
        for name in LISTS:
            if name in inputs and inputs[name].dtype not in ("int32", "int64"):
                raise self._error(f"inputs.{name}.dtype", f"is {inputs[name].dtype!r}; known are int32 and int64")
        if "lse" in outputs and outputs["lse"].dtype != "float32":
            raise self._error("outputs.lse.dtype", f"is {outputs['lse'].dtype!r}; attn-spec knows float32")

    def _error(self, field: str, words: str) -> DocumentError:
        return DocumentError(f"{self.file}: {field} {words}")
