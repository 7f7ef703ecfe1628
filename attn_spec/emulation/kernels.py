"""Kernels that execute the arithmetic of a contract: calls of the emulated passes on tensors of PyTorch.

With projections, or with a score of its own, a kernel first computes operands and then attends as for a product of q
and k.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attn_spec.attention.terms import BENDS, DESCALES
from attn_spec.contract.contract import Contract, ResolvedContract
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.frameworks.framework import of
from attn_spec.kernels.frameworks.torch import TORCH
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.appending.append import Append
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.presentations.table import PRESENTATIONS, presented
from attn_spec.problem.conventions import of_kernel
from attn_spec.problem.dtypes import INPUTS, dtype_of, spelled
from attn_spec.problem.options import OPTIONS

from .appended import AppendedQuantising, written
from .arithmetic import Order
from .backward import TiledGradients
from .forward import TiledAttention
from .layers import Layer, heads_contract
from .operands import Operands, chooses_score
from .quantisers import quantising
from .reused_memory import reuse
from .scores import ADDED

#: Options and abilities that an emulated kernel declares by default. Random kernels are drawn in this order.
SUPPORTS = (
    *("scale", "causal", "causal_alignment", "window", "mask", *ADDED),
    *(name for name in BENDS if name not in DESCALES),
    *("gqa", "dv", "cross", "empty", "lse", "mask_of_two_axes"),
)
#: Options for long contexts that an emulated kernel declares if it is told to, beside ``SUPPORTS``.
LONG_CONTEXT = ("attention_chunk", "window_sinks")
CONVENTIONS = {
    "empty_row": "zero",
    "masked_nonfinite": "excluded",
    "batch_invariant": True,
    "unused": "unread",
    "unused_rows": "zero",
}
#: The option of a sink, which random kernels and a few sound ones declare beside those.
SINKS = ("sinks",)
#: Options that are tensors.
TENSORS = tuple(name for name, row in OPTIONS.items() if row.tensor)


def emulate(
    name: str,
    executes: Contract | Mapping[str, Contract],
    order: Order | None = None,
    *,
    dtypes: Iterable[str] = ("float32",),
    reads: Presentation | None = None,
    steps: type[TiledAttention] = TiledAttention,
    operands: type[Operands] = Operands,
    layer: type[Layer] = Layer,
    quantises: type[AppendedQuantising] = AppendedQuantising,
    **declared: Any,
) -> Kernel:
    """Return a torch kernel that executes the arithmetic of a contract, one for all dtypes or one for each.

    ``declared`` are arguments of :func:`attn_spec.kernel`. By default the kernel declares this contract and
    ``SUPPORTS``. ``reads`` is how it reads its arguments, by default as its presentation hands them over.
    """
    chosen = order or Order()
    defaults = {"contract": executes, "supports": SUPPORTS, "conventions": CONVENTIONS, "devices": ("cpu",)}
    arguments = {**defaults, **declared}

    base = of_kernel(arguments["conventions"]).lse_base
    shown = reads or presented(arguments.get("presentation", "BHSD"), base)
    shown = shown.handing(descales_by_key="descale_by_key" in arguments["supports"])

    def executed_at(*stored: Any) -> tuple[str, ResolvedContract]:
        dtype = spelled({name: of(x).dtype_of(x) for name, x in zip("qkv", stored, strict=True)})
        return dtype, (executes[dtype] if isinstance(executes, Mapping) else executes).at(dtype)

    def attention(*inputs: Any, **options: Any) -> Any:
        buffers = {quantity: options.pop(name) for quantity, name in made.destinations.items()}
        if isinstance(shown, Append):
            _, executed = executed_at(*shown.apart(*inputs))
            inputs = written(shown, executed, quantises(chosen, inputs[0].shape[1]), inputs, options)
        (q, k, v), begun = shown.begun(inputs, {"causal_alignment": made.conventions.causal_alignment, **options})
        options = dict(begun)
        stored = (v, v, v) if "states" in shown.carries else (q, k, v)  # q and k are the log-sum-exps of states
        dtype, contract = executed_at(*stored)
        projects = options.get("query_projection") is not None
        given = {**options, "q": q, "k": k}
        options = shown.options_of(given)
        q, k, v = (shown.read(name, x, **given) for name, x in (("q", q), ("k", k), ("v", v)))
        tensors = {name: shown.read(name, options[name], **given) for name in TENSORS if options.get(name) is not None}
        options = {"causal_alignment": made.conventions.causal_alignment, **options, **tensors}
        options |= _of_tables(options, dtype_of(dtype, "q"))
        if projects:
            call = layer(contract, chosen, q, k, options)
            out, lse = steps(heads_contract(contract), chosen, *call(), call.values(v), **call.options)()
            out = call.joined(out)
        elif chooses_score(options):
            call = operands(contract, chosen, q, k, options)
            out, lse = steps(contract, chosen, *call(), call.repeated(v), **call.options)()
        else:
            attend = quantising(steps) if contract.quantisers else steps
            out, lse = attend(contract, chosen, q, k, v, **options)()
        results = {"output": TORCH.give(shown.presented("output", out, **given), contract.output)}
        if "lse" in arguments["supports"]:
            results["lse"] = TORCH.give(shown.presented("lse", lse, **given), contract.lse)
        if made.conventions.overwrites_results:
            results = {quantity: memory[quantity](x) for quantity, x in results.items()}
        for quantity, buffer in buffers.items():
            buffer[...] = results[quantity]
        if buffers.keys() == results.keys():
            return None
        return tuple(results.values()) if "lse" in results else results["output"]

    memory = {quantity: reuse() for quantity in ("output", "lse")}
    made = kernel(name=name, framework="torch", dtypes=tuple(dtypes), **arguments)(attention)
    return made


def emulate_both(
    name: str,
    executes: Contract | Mapping[str, Contract],
    order: Order | None = None,
    *,
    gradients: type[TiledGradients] = TiledGradients,
    operands: type[Operands] = Operands,
    layer: type[Layer] = Layer,
    supports: Iterable[str] = SUPPORTS,
    **declared: Any,
) -> Kernel:
    """Return a kernel of :func:`emulate` that has a backward pass under the same contract and in the same order.

    A kernel in a presentation that has no gradients has no backward pass.
    """
    presentation = PRESENTATIONS[declared.get("presentation", "BHSD")]
    able = (*supports, *(["lse_backward"] if presentation.can_say("backward") else []))
    made = emulate(name, executes, order, operands=operands, layer=layer, supports=able, **declared)
    if not presentation.can_say("backward"):
        return made
    attending = declared.get("steps", TiledAttention)
    shown, chosen = declared.get("reads") or presentation, order or Order()
    shown = shown.handing(descales_by_key="descale_by_key" in able)

    @made.backward
    def attention_gradients(dout: Any, *given: Any, **options: Any) -> dict[str, Any]:
        *tensors, out, lse = given
        saved = (*shown.apart(*tensors, **options), out, lse)
        dtype = spelled({name: of(x).dtype_of(x) for name, x in zip("qkv", saved, strict=False)})
        contract = (executes[dtype] if isinstance(executes, Mapping) else executes).at(dtype)
        projects = options.get("query_projection") is not None
        asked = {**options, "q": saved[0], "k": saved[1]}
        options = shown.options_of(asked)
        named = zip(("q", "k", "v", "output", "lse"), saved, strict=True)
        *vectors, lse = (shown.read(name, x, **asked) for name, x in named)
        dO = shown.read("output", dout, **asked)
        rows = {n: shown.read(n, options[n], **asked) for n in (*TENSORS, "dlse") if options.get(n) is not None}
        aligned = {"causal_alignment": made.conventions.causal_alignment}
        dtypes, usual = made.dtypes_at(dtype), contract.gradients
        of_inputs = {name: own for name in INPUTS if (own := dtype_of(dtypes, name, usual)) != usual}
        options = {**aligned, **options, **rows, "option_dtypes": {**made.option_dtypes, **of_inputs}}
        options |= _of_tables(options, dtype_of(dtype, "q"))

        def run(
            contract: ResolvedContract, saved: tuple[Any, ...], options: Mapping[str, Any], dO: Any
        ) -> TiledGradients:
            return gradients(contract, chosen, dO, saved, **options)

        def attend(contract: ResolvedContract, heads: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any]:
            taken = {name: value for name, value in options.items() if name not in ("dlse", "option_dtypes")}
            return attending(contract, chosen, *heads, **taken)()

        q, k, v, out = vectors
        without_values = "dkv" in shown.key_gradients
        if projects:
            found = layer(contract, chosen, q, k, options).layer_backward(run, attend, v, lse, dO)
        elif chooses_score(options):
            found = operands(contract, chosen, q, k, options).backward(run, v, dO, out, lse)
        else:
            options |= {"without_values": True} if without_values else {}
            call = run(contract, (*vectors, lse), options, dO)
            found = dict(zip(call.differentiated(options), call(), strict=True))
        if without_values and "v" in found:
            found["kv"] = found.pop("k") + 0.0
            found["kv"][..., : v.shape[-1]] += found.pop("v")
        own = made.dtypes_at(dtype)
        laid_out = {f"d{name}": shown.presented(f"d{name}", x, **asked) for name, x in found.items()}
        return {
            name: TORCH.give(x, dtype_of(own, of_what, contract.gradients))
            for name, x in shown.together(laid_out).items()
            for whole in (name.removeprefix("d"),)
            for of_what in (whole if whole in OPTIONS else shown.input_of(whole),)
        }

    return made


def _of_tables(options: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """Return the dtype of cosines and sines in place of the option that says that they are of tables, if it does."""
    return {"rotary_from_tables": dtype} if options.get("rotary_from_tables") else {}
