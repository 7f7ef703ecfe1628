"""Contracts by name: what the usual kinds of kernel promise.

A preset is what every kernel of its kind keeps, so that a kernel is refuted for a defect and not for its kind.

One that differs from a preset in some fields, ``eager(softmax='work')``, is declared as a preset of this module with
these replaced, ``contract=dataclasses.replace(EAGER, softmax="work")``.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from attn_spec.contract.contract import Contract, ContractError
from attn_spec.problem.dtypes import input_dtypes

#: FlashAttention and its kin: softmax in float32, tiles of 16 keys or more, half products on matrix units that may cut.
FUSED = Contract()
#: Products, softmax and gradients in float32 whatever the inputs, key by key or in tiles.
FP32 = Contract(
    **dict.fromkeys(("multiplicands", "softmax", "probabilities", "weight_gradients", "score_gradients"), "float32"),
    alibi_terms="float32",
    kv_tile=1,
)
#: float32 on tensor cores, which cut every operand to tf32 where it enters: weights and dS too, float32 until then.
TF32 = Contract(
    multiplicands="tf32",
    entry_rounding="toward_zero",
    **dict.fromkeys(("probabilities", "weight_gradients", "score_gradients"), "work"),
)
#: matmul, softmax over whole rows, matmul; every result stored in the inputs' format.
EAGER = Contract(
    stored_scores="input",
    alibi_terms="input",
    rotary_tables="input",
    softmax="input",
    exp_error=32.0,
    normalize="before_product",
    kv_tile=None,
    lse="input",
    backward_weights="stored",
    delta="probabilities",
    weight_gradients="input",
    partial_gradients="input",
)
#: Keys dealt to parts, whose outputs are merged once through their log-sum-exps (FlashDecoding).
SPLIT_KV = Contract(lse_merges=1, kv_tile=1)
#: Everything in float64.
FP64 = Contract(
    **dict.fromkeys(("score_accumulation", "stored_scores", "alibi_terms", "rotary_tables"), "float64"),
    **dict.fromkeys(("softmax", "row_sum"), "float64"),
    **dict.fromkeys(("probabilities", "output_accumulation", "lse", "partial_outputs"), "float64"),
    **dict.fromkeys(("weight_gradients", "score_gradients", "gradient_accumulation"), "float64"),
    partial_gradients="float64",
    alibi="distance",
    subnormals="kept",
    kv_tile=1,
)

#: Freedom of a kernel that declares nothing, whatever its kind.
_FREE: dict[str, Any] = {"scale_on": "operands", "delta": "either", "score_gradients_of": "cast"}
_FREE |= {"weight_gradients": "input", "partial_gradients": "input", "lse": "work"}
_FREE |= {"alibi_terms": "input", "rotary_tables": "input"}
#: Contracts for a callable that declares nothing: one of these must explain all of an answer. First matmul,
#: softmax and matmul, each in the inputs' dtype, as libraries call them one after the other. Then
#: 1. the same compiled: a softmax in float32, whose row sum is found tile by tile;
#: 2. one kernel with products of half and all else in float32, keys in tiles or in parts that are merged;
#: 3. two passes: scores and their log-sum-exp, then weights exp(s - LSE).
#: Whoever keeps a log-sum-exp in half says so by a contract, or by returning it in half.
UNDECLARED = replace(
    EAGER,
    **_FREE,
    alternatives=(
        replace(EAGER, **_FREE, softmax="work", kv_tile=1),
        replace(SPLIT_KV, **_FREE, row_sum_of="either", partial_outputs="input"),
        replace(EAGER, **_FREE, softmax="work", normalize="by_lse"),
    ),
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

#: Descriptions of kernels, as their authors would say it, and the contract to declare then; the plainest first.
CHOOSER: tuple[tuple[str, Contract], ...] = (
    ("tiles of keys, products of the inputs' dtype, softmax in float32: a flash kernel in Triton, CUDA, CuTe", FUSED),
    ("the same of float32 inputs on tensor cores, which multiply tf32", TF32),
    ("keys dealt to parts, whose normalized outputs are merged once by their log-sum-exps: FlashDecoding", SPLIT_KV),
    ("matmul, softmax and matmul, each stored in the inputs' dtype", EAGER),
    (
        "the same, but the softmax in float32 before its cast: Hugging Face's eager attention",
        replace(EAGER, softmax="work"),
    ),
    (
        "scores, softmax and sums in float32, weights cast before p.v, differentiated by the framework",
        replace(
            FUSED,
            kv_tile=None,
            normalize="before_product",
            backward_weights="stored",
            delta="probabilities",
            weight_gradients="input",
        ),
    ),
    (
        "products of q and k, and of p and v, as tensors of the inputs' dtype, which are summed in float32",
        replace(FUSED, products="input"),
    ),
    ("a flash kernel given ALiBi as a matrix of the inputs' dtype", replace(FUSED, alibi_terms="input")),
    ("inputs widened to float32 first, and all else in float32", FP32),
    ("float64 inputs, or everything in float64", FP64),
)


def as_contract(declared: str | Contract) -> Contract:
    """Return the contract that a kernel declared, by preset name or in full. Raises :class:`ContractError`."""
    if isinstance(declared, Contract):
        return declared
    if declared not in PRESETS:
        raise ContractError(f"unknown contract {declared!r}; known are {', '.join(PRESETS)}, or pass a Contract(...)")
    return PRESETS[declared]


def check_said(contract: Contract, dtype: str) -> None:
    """Raise :class:`ContractError` if inputs have several dtypes, and nothing says in which one products are computed.

    ``dtype`` is as ``problem.dtypes`` spells it.
    """
    if contract is UNDECLARED and len(set(input_dtypes(dtype))) > 1:
        raise ContractError(f"inputs of several dtypes, {dtype}, need a contract, which says what products compute in")


def describe(contract: Contract, dtype: str | None = None) -> str:
    """Return the preset's name with the fields that differ from it, e.g. ``fused(exp_error=32.0)``.

    ``dtype`` is that of a resolved contract, which is compared with presets resolved for it.
    """
    presets = PRESETS | {"undeclared": UNDECLARED}
    known = {name: preset.at(dtype) if dtype else preset for name, preset in presets.items()}

    def differences(preset: Contract) -> dict[str, Any]:
        names = [field.name for field in fields(Contract)]
        return {n: getattr(contract, n) for n in names if getattr(contract, n) != getattr(preset, n)}

    name = min(known, key=lambda preset: len(differences(known[preset])))
    changed = ", ".join(f"{k}={v!r}" for k, v in differences(known[name]).items())
    return f"{name}({changed})" if changed else name
