"""Sound kernels drawn at random: a seed decides the arithmetic, the order, the conventions and the options.

Each kernel executes what it declares, or less than it declares where a contract says "at most": fewer stores, smaller
errors of elementary functions, larger tiles. What the emulation cannot execute is never drawn:

- a log-sum-exp in tf32, which torch lacks;
- gradients of scaled probabilities, of which no theorem says anything;
- stored weights that are not normalized before the product, but where dP is so narrow that dO / l is rounded as well;
- splits by accumulators that may be empty where exp(0) is not 1, since they rescale the others once more than there are
  tiles;
- gradients of kernels that return no log-sum-exp, or one in base 2 or without the sink, from which the backward pass
  starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attn_spec.attention.terms import DESCALES
from attn_spec.bounds.backward.weight_gradient_bounds import divides_cotangent
from attn_spec.contract.contract import Contract, ContractError, ResolvedContract
from attn_spec.contract.coverage import silence_of_gradients
from attn_spec.contract.presets import UNDECLARED
from attn_spec.contract.products import number_of_products
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import DifferentiatedProduct, StoredWeights, TiledGradients
from attn_spec.emulation.conventions import varied
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import SUPPORTS, emulate, emulate_both
from attn_spec.emulation.passes import steps_of
from attn_spec.emulation.sinks import SinkFactor
from attn_spec.emulation.sound import PRECISE
from attn_spec.emulation.split import NormalizedSplitAttention, RingAttention, SplitAttention
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.problem.abilities import ABILITIES, DESCALE_AXES
from attn_spec.problem.conventions import SAME, Conventions
from attn_spec.problem.options import parameters
from attn_spec.problem.traits import named_by, projects
from attn_spec.search.drawing.shapes import HEAD_DIMS, TILE_EDGES, VALUE_DIMS

from .random_linear import NO_SOFTMAX, linear_kernel
from .random_options import (
    WIDE_FORMATS,
    drawn_alibi,
    drawn_cache,
    drawn_cast,
    drawn_descale_shapes,
    drawn_descales,
    drawn_dropout,
    drawn_dtypes,
    drawn_layer,
    drawn_lengths,
    drawn_long_context,
    drawn_output,
    drawn_products,
    drawn_scores,
    drawn_sinks,
    drawn_ties,
    drawn_weight_gradients,
    one_of,
    without_orphans,
)
from .random_quantisers import NOT_QUANTISED, drawn_of_appended, drawn_quantisers, of_appended, without_silent

#: Dtypes, each repeated by its share: the truth for float64 is expensive, and its bounds are those of float32.
_DTYPES = ("float32", "float16", "bfloat16") * 2 + ("float64",)
#: Stages that may have any format; those of results have dtypes, see :func:`_dtypes`.
_STAGES = (
    *("multiplicands", "score_accumulation", "stored_scores", "softmax", "row_sum", "probabilities"),
    *("output_accumulation", "lse", "partial_outputs", "score_gradients", "gradient_accumulation", "partial_gradients"),
)
#: Shares of those stages that leave the format they have in ``PRECISE``.
_UNUSUAL = (0.0, 0.1, 0.2, 0.4)
#: float64's own elementary functions, in the units of a contract, as NumPy computes them: for float32, for float64.
_NUMPY_ERROR = (2.0**-20, 4.0)
#: Errors of elementary functions, in the same units.
_ERRORS, _FUNCTIONS = (0.0, 2.0, 8.0, 32.0), ("exp_error", "log_error", "tanh_error")
#: Scores whose sizes no lengths of q and k bound.
_ADDITIVE = {"score_vector", *(row.name for row in parameters("score_vector"))}
_MERGING = (NormalizedSplitAttention, RingAttention)
#: The longest row of keys that is searched.
LONGEST = max(TILE_EDGES)
#: Query heads that share a kv head, at most, whose gradients are stored one after the other.
_MEMBERS = 8


@dataclass(frozen=True, kw_only=True)
class RandomKernel:
    """A kernel and how it was drawn."""

    seed: int
    dtype: str
    #: The arithmetic that the kernel executes, and the one that it declares.
    executes: Contract
    declares: Contract
    order: Order
    kernel: Kernel = field(repr=False)


def random_kernel(seed: int, presentation: str | None = None, **worse: Any) -> RandomKernel:
    """Return the sound kernel of a seed, at one dtype; ``worse`` are fields it executes, undeclared.

    With those it is no longer sound: all else that it executes and declares stays as it was. A ``presentation`` is in
    place of the one that is drawn, of a kernel with a softmax.
    """
    rng = np.random.default_rng(seed)
    dtype = one_of(rng, _DTYPES)
    order = drawn_order(rng)
    executes = executed_arithmetic(rng, dtype, order)
    declares = _declared(rng, dtype, executes, order)
    scores, formats = drawn_scores(np.random.default_rng([seed, 1]))  # other draws stay as they are
    changes, own, rounds = drawn_dtypes(np.random.default_rng([seed, 2]))
    layer, of_layer, dtypes = drawn_layer(np.random.default_rng([seed, 6]))
    formats, own = of_layer | formats, own | dtypes
    origin, alibi = drawn_alibi(np.random.default_rng([seed, 3]))
    executes, declares = (_with(contract, **formats, **changes, **alibi) for contract in (executes, declares))
    sinks = drawn_sinks(np.random.default_rng([seed, 11]), executes, order)
    executes, declares = (_with(contract, sink_reference=sinks.reference) for contract in (executes, declares))
    own |= sinks.dtypes if sinks.options else {}
    descales, words, folds = drawn_descales(np.random.default_rng([seed, 14]), (*scores, *layer))
    descales += drawn_descale_shapes(np.random.default_rng([seed, 16]), descales)
    executes, declares = (_with(contract, **words) for contract in (executes, declares))
    raised, dropout = drawn_dropout(np.random.default_rng([seed, 4]))
    for_matrix, for_dP = (np.random.default_rng([seed, n]) for n in (7, 8))
    made, said = drawn_weight_gradients(for_dP, executes)
    executes, declares = replace(executes, weight_gradients=made), _with(declares, weight_gradients=said)
    if may_differentiate(executes.at(dtype), order) and for_dP.random() < 0.5:
        executes, declares = (_with(contract, backward_weights="stored") for contract in (executes, declares))
    cast, in_exponent = drawn_cast(np.random.default_rng([seed, 15]), executes, declares)
    executes, declares = (_with(contract, **cast) for contract in (executes, declares))
    factors = {} if presentation else drawn_quantisers(seed, executes)
    executes, declares = (
        _with(contract, **factors, **drawn_products(seed, executes)) for contract in (executes, declares)
    )
    stored, of_output = drawn_output(np.random.default_rng([seed, 18]), layer)
    executes, declares = (_with(contract, **stored) for contract in (executes, declares))
    executes = replace(executes, **worse)
    order = replace(order, bias_rounded=rounds, alibi_from=origin, dropout_on=raised, descales_first=folds)
    order = replace(order, matrix_on=one_of(for_matrix, ("keys", "queries")))
    order = replace(order, results_stored=bool(for_matrix.random() < 0.3), sink=sinks.tile)
    order = replace(
        order, scale_in_exponent=in_exponent, divides_first=bool(np.random.default_rng([seed, 23]).random() < 0.3)
    )
    context = drawn_long_context(np.random.default_rng([seed, 12]))
    given: dict[str, Any] = {"dtypes": (dtype,), "contract": declares}
    if (apart := np.random.default_rng([seed, 5])).random() < 0.08 and presentation is None and not cast | stored:
        executes, declares = (_with(contract, **NO_SOFTMAX, quantisers=()) for contract in (executes, declares))
        given |= {"contract": declares, "slowness": 2 * _slowness(executes, order)}
        kernel = linear_kernel(apart, f"random_{seed}", executes, order, beside=context, **given)
    else:
        ties = drawn_ties(np.random.default_rng([seed, 13]))
        beside = (*scores, *dropout, *layer, *context, *ties, *sinks.options, *descales, *of_output)
        beside = beside if executes.reference != "upper_bound" else tuple(set(beside) - _ADDITIVE)
        lengths, unused = drawn_lengths(np.random.default_rng([seed, 9]))
        agreed = {
            **unused,
            "sink_in_lse": sinks.sink_in_lse or not sinks.options,
            "overwrites_results": bool(np.random.default_rng([seed, 21]).random() < 0.2),
        }
        given |= {"beside": (*beside, *lengths), "option_dtypes": own, "agreed": agreed}
        given |= {name: np.random.default_rng([seed, n]) for name, n in (("apart", 10), ("caches", 19))}
        executes, kernel = _kernel(rng, f"random_{seed}", executes, order, presentation=presentation, **given)
    return RandomKernel(
        seed=seed,
        dtype=kernel.dtypes[0],
        executes=executes,
        declares=kernel.contract_declared(kernel.dtypes[0]),
        order=order,
        kernel=kernel,
    )


def _kernel(
    rng: np.random.Generator,
    name: str,
    executes: Contract,
    order: Order,
    *,
    beside: Sequence[str],
    agreed: Mapping[str, Any],
    apart: np.random.Generator,
    caches: np.random.Generator,
    presentation: str | None,
    **declared: Any,
) -> tuple[Contract, Kernel]:
    """Make a kernel of that arithmetic, with drawn conventions and options, and the options of ``beside``.

    ``agreed`` are its conventions on sinks, and on what lies behind the lengths of sequences. Whether sequences are
    packed is drawn ``apart``, unless a ``presentation`` is given, and so are the dtypes of ``caches`` that it writes.
    The arithmetic is returned as well, as it may quantise what a call appends.
    """
    conventions = replace(_conventions(rng), **agreed)
    drawn = _presentation(rng, apart)
    presentation = presentation or drawn
    shown = PRESENTATIONS[presentation]
    if executes.quantisers and not shown.carries.isdisjoint(NOT_QUANTISED):
        presentation, shown = "BHSD", PRESENTATIONS["BHSD"]
    if "states" in shown.carries:
        conventions = replace(conventions, lse_base="e")
    if shown.appends:
        (dtype,) = declared["dtypes"]
        dtypes, overflow = drawn_cache(caches, dtype)
        declared["dtypes"], conventions = (dtypes,), replace(conventions, cache_overflow=overflow)
        if dtypes == dtype and (quantisers := drawn_of_appended(caches, executes)):
            shown, own = shown.handing(descales_by_key=True), of_appended(quantisers, dtype)
            executes, declares = (
                _with(contract, quantisers=quantisers, quantisation_within=None)
                for contract in (executes, declared["contract"])
            )
            beside = tuple(dict.fromkeys((*beside, *own["always"], *DESCALE_AXES)))
            dtypes_of_options = {**declared["option_dtypes"], **own["option_dtypes"]}
            declared |= {**own, "option_dtypes": dtypes_of_options, "contract": declares}
    one_head, of_all_heads = shown.of_one_head, {*named_by([projects]), "head_widths"}
    owned = {name: ABILITIES[name].of for name in SUPPORTS if name in ABILITIES and ABILITIES[name].of}
    chosen = (name for name in SUPPORTS if name not in owned)
    supports = [name for name in chosen if rng.random() < 0.85 and not (one_head and name == "gqa")]
    supports += [name for name, of in owned.items() if of in supports and shown.calls_once]
    supports = [name for name in supports if shown.can_say(name)]
    beside = beside if _stores_rotated(shown, declared) else [name for name in beside if "rotary" not in name]
    said = (name for name in beside if shown.can_say(name) and not (one_head and name in of_all_heads))
    declared["supports"] = without_orphans(without_silent((*supports, *said), declared["contract"]))
    if "states" in shown.carries.union(declared["supports"]):
        conventions = replace(conventions, empty_row_by_bias=SAME)  # a state's log-sum-exp is its bias
    declared |= {
        "conventions": conventions,
        "head_dims": _head_dims(rng, shown),
        "slowness": max(one_of(rng, (1.0, 4.0, 16.0)), _slowness(executes, order)),
        "steps": varied(with_sinks(drawn_steps(rng, executes, order), order, beside), conventions),
        "presentation": presentation,
        "multiples": _multiples(rng, shown),
        "exclusive": one_of(rng, ((), (), (("causal", "mask"), ("window", "bias")))),
    }
    stored_again = executes.descale_on == "operands" and any(option in DESCALES for option in declared["supports"])
    if not shown.can_say("backward") or stored_again or silence_of_gradients(declared["contract"]):
        return executes, emulate(name, executes, order, **declared)
    if "lse" not in supports or conventions.lse_base == "2" or not conventions.sink_in_lse:
        return executes, emulate(name, executes, order, **declared)
    gradients = varied(drawn_gradients(executes), conventions)
    return executes, emulate_both(name, executes, order, gradients=gradients, **declared)


def _stores_rotated(shown: Presentation, declared: Mapping[str, Any]) -> bool:
    """Return whether a kernel may have rotary positions under its contract, whatever a call stores of them."""
    (dtype,) = declared["dtypes"]
    try:
        shown.contract(declared["contract"].at(dtype), dtype)
    except ContractError:
        return False
    return True


def _head_dims(rng: np.random.Generator, shown: Presentation) -> tuple[int | tuple[int, int], ...] | None:
    """Draw head dimensions, narrower ones of values if every call of the presentation has these."""
    found = one_of(rng, (None, None, None, (64, 128), (16,)))
    return ((24, 16),) if found == (16,) and "dv" in shown.limits.always else found


def _multiples(rng: np.random.Generator, shown: Presentation) -> dict[str, int]:
    """Draw divisors of lengths; those of queries are left out if calls have one query of each sequence."""
    drawn = one_of(rng, ({}, {}, {"Q": 4, "K": 4}, {"K": 2}))
    one_query, few_keys = shown.limits.query_lengths is not None, "K" in shown.limits.largest
    return {axis: step for axis, step in drawn.items() if not {"Q": one_query, "K": few_keys}[axis]}


def with_sinks(steps: type[TiledAttention], order: Order, beside: Sequence[str]) -> type[TiledAttention]:
    """Return steps that add a sink by a factor, in place of those that merge normalized parts, if the order says so."""
    by_factor = "sinks" in beside and order.sink == "last" and steps is NormalizedSplitAttention
    return SinkFactor if by_factor else steps


def _presentation(rng: np.random.Generator, apart: np.random.Generator) -> str:
    """Draw a presentation: half of the time BSHD, and one time in ten one that packs sequences, drawn ``apart``.

    Of the others some are merges of states, drawn ``apart`` too.
    """
    merges = [name for name, row in PRESENTATIONS.items() if "states" in row.carries]
    packs = [name for name, row in PRESENTATIONS.items() if row.carries and name not in merges]
    others = tuple(name for name in PRESENTATIONS if name not in (*packs, *merges))
    chosen = one_of(rng, ("BHSD",) * 2 + ("BSHD",) * 4 + others)
    if apart.random() < 0.1:
        return one_of(apart, packs)
    return one_of(apart, merges) if chosen != "BSHD" and apart.random() < 0.12 else chosen


def drawn_gradients(executes: Contract) -> type[TiledGradients]:
    """Return the steps of the backward pass that execute a contract."""
    if executes.backward_weights != "stored":
        return TiledGradients
    return DifferentiatedProduct if executes.normalize == "after_product" else StoredWeights


def may_differentiate(executes: ResolvedContract, order: Order) -> bool:
    """Return whether a backward pass may have dO / l: of whole rows, divided by l last, and of a narrow dP."""
    return divides_cotangent(executes) and order.kv_tile is None and not executes.lse_merges


def _with(contract: Contract, **changes: Any) -> Contract:
    """Return a contract with some fields changed, in each of its alternatives too."""
    alternatives = tuple(_with(other, **changes) for other in contract.alternatives)
    return replace(contract, **changes, alternatives=alternatives)


def _slowness(executes: Contract, order: Order) -> float:
    """Return 16 times the emulation's array operations for a key, or 1 for the plainest arithmetic.

    Small problems keep a few such kernels from being most of a run.
    """
    inner = 1 if executes.inner_accumulation is None else 4
    operations = math.ceil(16 / min(order.kv_tile or 16, 16)) * int(number_of_products(executes, 1)) * inner
    return 16.0 * operations if operations > 1 else 1.0


def drawn_steps(rng: np.random.Generator, executes: Contract, order: Order) -> type[TiledAttention]:
    """Draw steps that execute a contract."""
    if executes.lse_merges:
        return RingAttention if executes.merging == "difference" else one_of(rng, _MERGING)
    splits, plain = executes.normalize == "after_product" and executes.exp_of_zero_is_one, steps_of(executes, order)
    return one_of(rng, (plain, SplitAttention)) if splits else plain


def drawn_order(rng: np.random.Generator) -> Order:
    """Draw tiles, sums and the other choices that no contract makes."""
    return Order(
        kv_tile=one_of(rng, (1, 3, 8, 16, 17, 64, None, None)),
        tiles=one_of(rng, ("forward", "reverse", "random")),
        sums=one_of(rng, ("sequential", "pairwise", "random")),
        seed=int(rng.integers(2**31)),
        fused=bool(rng.random() < 0.5),
        scaling=one_of(rng, ("roots", "query", "folded")),
        exponent_folded=bool(rng.random() < 0.5),
        bias_first=bool(rng.random() < 0.3),
        divides=bool(rng.random() < 0.3),
        gradient_scaling=one_of(rng, ("products", "dS", "slope")),
        expands_dS=bool(rng.random() < 0.3),
        inaccuracy=one_of(rng, (0.0, 0.5, 1.0)),
        error_signs=one_of(rng, ("random", "up", "down")),
    )


def executed_arithmetic(rng: np.random.Generator, dtype: str, order: Order) -> Contract:
    """Draw formats, functions and steps."""
    normalize = one_of(rng, ("after_product", "after_product", "before_product", "every_tile", "by_lse"))
    stored = normalize == "before_product" and order.kv_tile is None and rng.random() < 0.5
    contract = replace(
        PRECISE,
        **_formats(rng) | _products(rng) | _reference(rng),
        scale_on=one_of(rng, ("scores", "operands")),
        exponent=one_of(rng, ("natural", "base2_fused" if order.exponent_folded else "base2")),
        normalize=normalize,
        backward_weights="stored" if stored else "recomputed",
        delta=one_of(rng, ("output", "probabilities")),
        score_gradients_of=one_of(rng, ("cast", "uncast")),
        row_sum_of=one_of(rng, ("cast", "uncast")),
        rounding=one_of(rng, ("nearest", "nearest", "toward_zero")),
        subnormals=one_of(rng, ("kept", "flushed")),
        float16_subnormals=one_of(rng, ("kept", "flushed_on_entry", "flushed")),
        exp_of_zero_is_one=bool(rng.random() < 0.8),
        lse_merges=one_of(rng, (0, 0, SplitAttention.splits - 1)) if normalize == "after_product" else 0,
        merging=one_of(rng, ("weighted", "difference")),
    )
    errors = {name: one_of(rng, _ERRORS) for name in _FUNCTIONS}
    return replace(contract, **errors, gradient_stores=_stores(contract.at(dtype), order))


def _products(rng: np.random.Generator) -> dict[str, Any]:
    """Draw how factors enter products, and how these are summed."""
    inner = {"inner_accumulation": one_of(rng, WIDE_FORMATS), "inner_terms": one_of(rng, (1, 3, 16, 128))}
    return {
        "multiplicand_pieces": one_of(rng, (1, 1, 1, 2, 3)),
        "entry_rounding": one_of(rng, (None, None, "nearest", "toward_zero")),
        "matrix_rounding": one_of(rng, (None, None, "toward_zero")),
        "matrix_block": one_of(rng, (1, 4, 8, 16)),
        "matrix_extra_bits": one_of(rng, (0, 0, 1, 2, -3)),
    } | (inner if rng.random() < 0.15 else {})


def _reference(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the reference that is subtracted from the scores."""
    if rng.random() < 0.75:
        return {"reference_slack": one_of(rng, (0.0, 0.0, round(rng.uniform(0.5, 8.0), 3)))}
    return {"reference": one_of(rng, ("zero", "upper_bound")), "reference_range": one_of(rng, (4.0, 16.0, 60.0))}


def _formats(rng: np.random.Generator) -> dict[str, str]:
    """Draw other formats for some stages."""
    share = one_of(rng, _UNUSUAL)
    chosen = {stage: one_of(rng, WIDE_FORMATS) for stage in _STAGES if rng.random() < share}
    if chosen.get("lse") == "tf32":
        del chosen["lse"]
    return chosen


def _stores(contract: ResolvedContract, order: Order) -> int:
    """Return a bound on the stores of a partial gradient in a format that rounds it; the default where none does."""
    narrows = contract.format("partial_gradients").precision < contract.format("gradient_accumulation").precision
    return max(_tiles(order), _MEMBERS) if narrows else PRECISE.gradient_stores


def _tiles(order: Order) -> int:
    return math.ceil(LONGEST / (order.kv_tile or LONGEST))


def _declared(rng: np.random.Generator, dtype: str, executes: Contract, order: Order) -> Contract:
    """Return the contract that a user would declare: the executed arithmetic, in some fields weaker."""
    numpy_error = _NUMPY_ERROR[executes.at(dtype).score_accumulation == "float64"]
    errors = {name: getattr(executes, name) + numpy_error for name in (*_FUNCTIONS, "sine_error")}
    declares = replace(executes, **errors, kv_tile=one_of(rng, (1, order.kv_tile)))
    plain = executes.multiplicand_pieces == 1 and executes.inner_accumulation is None and not executes.matrix_rounding
    if order.sums == "pairwise" and plain and rng.random() < 0.5:
        declares = replace(declares, summation_depth=_depth(order))
    weaker = {
        "scale_on": "operands",
        **dict.fromkeys(("subnormals", "float16_subnormals"), "flushed"),
        "exp_of_zero_is_one": False,
        "matrix_rounding": executes.matrix_rounding or "toward_zero",
        **dict.fromkeys(("row_sum_of", "backward_weights", "delta", "score_gradients_of"), "either"),
    }
    declares = replace(declares, **{name: value for name, value in weaker.items() if rng.random() < 0.2})
    # A declared contract may have alternatives, of which the kernel meets one.
    return replace(UNDECLARED, alternatives=(declares,)) if rng.random() < 0.1 else declares


def _depth(order: Order) -> int:
    """Count the roundings of one term: as a leaf, on the way up its tree, and when tiles and splits are added."""
    widest = max(order.kv_tile or LONGEST, *HEAD_DIMS, *VALUE_DIMS)
    return 1 + math.ceil(math.log2(widest)) + _tiles(order) + SplitAttention.splits


def _conventions(rng: np.random.Generator) -> Conventions:
    return Conventions(
        causal_alignment=one_of(rng, ("top_left", "bottom_right")),
        empty_row=one_of(rng, ("zero", "zero", "mean_of_v", "nan")),
        empty_row_by_bias=one_of(rng, ("same", "same", "zero", "mean_of_v", "nan")),
        lse_base=one_of(rng, ("e", "e", "e", "2")),
        empty_lse=one_of(rng, ("-inf", "-inf", "+inf", "undeclared")),
        masked_nonfinite=one_of(rng, ("excluded", "excluded", "may_leak")),
        deterministic=bool(rng.random() < 0.8),
        batch_invariant=bool(rng.random() < 0.5),
    )
