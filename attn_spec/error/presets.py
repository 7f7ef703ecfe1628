"""Contracts by name: what the usual kinds of kernel promise.

A preset is what every kernel of its kind keeps, so that a kernel is refuted for a defect and not for its kind.

One that differs from a preset in some fields, ``eager(softmax='work')``, is declared as a preset of this module with
these replaced, ``contract=dataclasses.replace(EAGER, softmax="work")``.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from attn_spec.error.contract import Contract, ContractError

#: FlashAttention and its kin: softmax in float32, tiles of 16 keys or more, half products on matrix units that may cut.
FUSED = Contract()
#: Products, softmax and gradients in float32 whatever the inputs, key by key or in tiles.
FP32 = Contract(
    multiplicands="float32", softmax="float32", probabilities="float32", score_gradients="float32", kv_tile=1
)
#: float32 on tensor cores, which cut operands to tf32.
TF32 = Contract(multiplicands="tf32", probabilities="tf32", score_gradients="tf32", entry_rounding="toward_zero")
#: matmul, softmax over whole rows, matmul; every result stored in the inputs' format.
EAGER = Contract(
    stored_scores="input",
    rotary_tables="input",
    softmax="input",
    exp_error=32.0,
    normalize="before_product",
    kv_tile=None,
    lse="input",
    backward_weights="stored",
    delta="probabilities",
    partial_gradients="input",
)
#: Keys dealt to parts, whose outputs are merged once through their log-sum-exps (FlashDecoding).
SPLIT_KV = Contract(lse_merges=1, kv_tile=1)
#: Everything in float64.
FP64 = Contract(
    **dict.fromkeys(("score_accumulation", "stored_scores", "rotary_tables", "softmax", "row_sum"), "float64"),
    **dict.fromkeys(("probabilities", "output_accumulation", "lse", "partial_outputs"), "float64"),
    **dict.fromkeys(("score_gradients", "gradient_accumulation"), "float64"),
    partial_gradients="float64",
    alibi="distance",
    subnormals="kept",
    kv_tile=1,
)

#: What a kernel that declares nothing is free to do, whatever its kind.
_FREE: dict[str, Any] = {"scale_on": "operands", "delta": "either", "score_gradients_of": "cast"}
_FREE |= {"partial_gradients": "input", "rotary_tables": "input"}
#: What is held against a callable that declares nothing: one of these must explain all of an answer. They are eager;
#: the same compiled, with a softmax in float32 whose row sum is found tile by tile; fused, or split and merged, which
#: is more; and eager with weights exp(s - LSE).
UNDECLARED = replace(
    EAGER,
    **_FREE,
    alternatives=(
        replace(EAGER, **_FREE, softmax="work", kv_tile=1),
        replace(SPLIT_KV, **_FREE, row_sum_of="either", partial_outputs="input"),
        replace(EAGER, **_FREE, normalize="by_lse"),
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

#: What a kernel does, as its author would say it, and the contract to declare then; the plainest first.
CHOOSER: tuple[tuple[str, Contract], ...] = (
    ("tiles of keys, products of the inputs' dtype, softmax in float32: a flash kernel in Triton, CUDA, CuTe", FUSED),
    ("the same of float32 inputs on tensor cores, which multiply tf32", TF32),
    ("keys dealt to parts, whose normalized outputs are merged once by their log-sum-exps: FlashDecoding", SPLIT_KV),
    ("matmul, softmax and matmul, each stored in the inputs' dtype", EAGER),
    (
        "the same, but the softmax in float32 before its cast: Hugging Face's eager attention",
        replace(EAGER, softmax="work"),
    ),
    ("inputs widened to float32 first, and all else in float32", FP32),
    ("float64 inputs, or everything in float64", FP64),
)


def as_contract(declared: str | Contract) -> Contract:
    """The contract a kernel declared, by preset name or in full. Raises :class:`ContractError`."""
    if isinstance(declared, Contract):
        return declared
    if declared not in PRESETS:
        raise ContractError(f"unknown contract {declared!r}; known are {', '.join(PRESETS)}, or pass a Contract(...)")
    return PRESETS[declared]


def describe(contract: Contract, dtype: str | None = None) -> str:
    """The preset's name with the fields that differ from it, e.g. ``fused(exp_error=32.0)``.

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
