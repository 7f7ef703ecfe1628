"""The arithmetic a kernel claims, stage by stage, and the presets.

A stage names a format of ``formats``, or one of two words that depend on the problem: ``"input"`` is the dtype
of q, k, v; ``"work"`` is float32, or float64 for float64 inputs. A bound is computed from these fields and the
data only; it holds for every tiling and every order of summation that respects them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from attn_spec.formats import FORMATS, Format


class ContractError(ValueError):
    """A contract that names an unknown preset, stage or format."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The arithmetic of one kernel. Each field is a promise; the defaults are the preset ``fused``."""

    #: Format each factor of q.k and p.v is rounded to on entry to the product ("tf32" for tensor-core tf32).
    multiplicands: str = "input"
    #: Format the products of q.k are accumulated in.
    score_accumulation: str = "work"
    #: Format scores are kept in between operations, one rounding per operation (scale, softcap, bias).
    stored_scores: str = "work"
    #: "operands": the scale may multiply q and k, rounded to stored_scores. "scores": it multiplies q.k only.
    scale_on: str = "operands"
    #: Format of s - max, of the exponentials, of the finished row sum and of the normalization.
    softmax: str = "work"
    #: Format the row sum is accumulated in.
    row_sum: str = "work"
    #: Relative error of one exponential beyond its rounding to ``softmax``, in unit roundoffs of "work".
    exp_error: float = 8.0
    #: Whether exp(0) is exactly 1, so that rescaling by an unchanged maximum is exact.
    exp_of_zero_is_one: bool = True
    #: "natural", or "base2": exp2 of arguments multiplied by a rounded log2(e).
    exponent: str = "base2"
    #: Error of one logarithm relative to 1 + |log|, beyond its rounding to ``softmax``, in unit roundoffs of "work".
    log_error: float = 4.0
    #: Error of one tanh, absolute (|tanh| <= 1), beyond its rounding to ``stored_scores``, in unit roundoffs of "work".
    tanh_error: float = 8.0
    #: Format of the probabilities when they enter the product with v.
    probabilities: str = "input"
    #: "after_product": out = (w @ v) / sum(w). "before_product": out = (w / sum(w)) @ v.
    normalize: str = "after_product"
    #: Whether the row sum adds the probabilities after their cast ("cast"), before it ("uncast"), or "either".
    row_sum_of: str = "either"
    #: Format the products p.v are accumulated in.
    output_accumulation: str = "work"
    #: Format of the output.
    output: str = "input"
    #: Rounding of every operation: "nearest", or "toward_zero" (twice the unit roundoff).
    rounding: str = "nearest"
    #: "flushed": results below the smallest normal of float32, tf32, bfloat16 may become 0. "kept": never.
    subnormals: str = "flushed"
    #: Most terms one partial sum passes through; None is any order at all.
    summation_depth: int | None = None
    #: Smallest number of keys per tile, which bounds the rescalings; 1 is any tiling.
    kv_tile: int = 1
    #: How far the subtracted reference may stay from the running maximum (lazy rescaling), natural units.
    reference_slack: float = 0.0
    #: Format of the log-sum-exp.
    lse: str = "work"
    #: Merges of normalized partial outputs through their rounded log-sum-exps that one key passes, at most: 1 for a
    #: kernel that splits the keys and combines once (split-KV), n - 1 for a ring of n. Merging (m, l, acc) is none.
    lse_merges: int = 0
    #: Weights of the backward pass: "recomputed" as exp(s - LSE), "stored" by the forward pass, or "either".
    backward_weights: str = "recomputed"
    #: Format of dS when it enters the products with k and q.
    score_gradients: str = "input"
    #: Format the products of dQ, dK, dV, dBias are accumulated in.
    gradient_accumulation: str = "work"
    #: Format partial sums of gradients are kept in between tiles or heads.
    partial_gradients: str = "work"
    #: How often a partial sum is stored in that format before the last rounding, at most.
    gradient_stores: int = 2

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ContractError(f"contract field {name} must be one of {allowed}, not {getattr(self, name)!r}")

    def at(self, dtype: str) -> Contract:
        """The contract with ``"input"`` and ``"work"`` replaced by formats for inputs of ``dtype``."""
        words = {"input": dtype, "work": "float64" if dtype == "float64" else "float32"}
        return replace(self, **{stage: words.get(getattr(self, stage), getattr(self, stage)) for stage in _STAGES})

    def format(self, stage: str) -> Format:
        """The format of a stage of a contract that :meth:`at` has resolved."""
        return FORMATS[getattr(self, stage)]


_STAGES = (
    "multiplicands",
    "score_accumulation",
    "stored_scores",
    "softmax",
    "row_sum",
    "probabilities",
    "output_accumulation",
    "output",
    "lse",
    "score_gradients",
    "gradient_accumulation",
    "partial_gradients",
)
_CHOICES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_STAGES, (*FORMATS, "input", "work")),
    "scale_on": ("scores", "operands"),
    "exponent": ("natural", "base2"),
    "normalize": ("after_product", "before_product"),
    "row_sum_of": ("cast", "uncast", "either"),
    "backward_weights": ("recomputed", "stored", "either"),
    "rounding": ("nearest", "toward_zero"),
    "subnormals": ("flushed", "kept"),
    "exp_of_zero_is_one": (True, False),
}

FUSED = Contract()
FP32 = Contract(multiplicands="float32", softmax="float32", probabilities="float32", score_gradients="float32")
TF32 = Contract(multiplicands="tf32", probabilities="tf32", score_gradients="tf32")
EAGER = Contract(
    stored_scores="input",
    softmax="input",
    exp_error=32.0,
    normalize="before_product",
    lse="input",
    backward_weights="stored",
    partial_gradients="input",
)
SPLIT_KV = Contract(lse_merges=1)
#: What is held against a callable that declares nothing: every operation may be stored in the inputs' format.
UNDECLARED = replace(EAGER, backward_weights="either", lse_merges=1)
FP64 = Contract(
    **dict.fromkeys(
        ("score_accumulation", "stored_scores", "softmax", "row_sum", "probabilities", "output_accumulation"), "float64"
    ),
    **dict.fromkeys(("lse", "score_gradients", "gradient_accumulation", "partial_gradients"), "float64"),
    subnormals="kept",
)

#: Presets by the name a kernel declares.
PRESETS: dict[str, Contract] = {
    "fused": FUSED,
    "fp32": FP32,
    "tf32": TF32,
    "eager": EAGER,
    "split_kv": SPLIT_KV,
    "fp64": FP64,
}


def as_contract(declared: str | Contract) -> Contract:
    """The contract a kernel declared, by preset name or in full. Raises :class:`ContractError`."""
    if isinstance(declared, Contract):
        return declared
    if declared not in PRESETS:
        raise ContractError(f"unknown contract {declared!r}; known are {', '.join(PRESETS)}, or pass a Contract(...)")
    return PRESETS[declared]


def describe(contract: Contract) -> str:
    """The preset's name with the fields that differ from it, e.g. ``fused(exp_error=32.0)``."""

    def differences(preset: Contract) -> dict[str, Any]:
        names = [field.name for field in fields(Contract)]
        return {n: getattr(contract, n) for n in names if getattr(contract, n) != getattr(preset, n)}

    name = min(PRESETS, key=lambda preset: len(differences(PRESETS[preset])))
    changed = ", ".join(f"{k}={v!r}" for k, v in differences(PRESETS[name]).items())
    return f"{name}({changed})" if changed else name
