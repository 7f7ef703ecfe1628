"""Options of a kernel drawn at random: scores of its own, dropout, layers, chunks, and the dtypes of their tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.contract.contract import Contract
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.dropout import BY_CHANCE, DROPOUT
from attn_spec.emulation.kernels import LONG_CONTEXT, SINKS
from attn_spec.emulation.operands import CHOICES
from attn_spec.emulation.scores import TIES
from attn_spec.emulation.sequences import LENGTHS
from attn_spec.numbers.formats import DTYPES, FORMATS
from attn_spec.problem.abilities import ABILITIES, DESCALE_AXES
from attn_spec.problem.options import FACTORS, OPTIONS, parameters

#: Scores that only change q and k, or pairs of them.
_SCORES = [name for name in CHOICES if OPTIONS[name].exponential and not OPTIONS[name].projects_values]
#: Formats of stages that any stage is drawn in: those that hold scores and sums without a factor of their own.
WIDE_FORMATS = ("float64", "float32", "tf32", "bfloat16", "float16")
#: Formats that probabilities alone are drawn in, times a scale, and the share of kernels that have them.
EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
SCALED = 1 / 16
#: Share of kernels that take layers, and of those that keep dP in a format of its own.
SHARE = 0.2
LAYER = "query_projection"


def drawn_scores(rng: np.random.Generator) -> tuple[list[str], dict[str, str]]:
    """Draw the scores that a kernel has beside the plain one, and the formats of their operands and tables."""
    scores = [name for name in _SCORES if rng.random() < 0.25]
    scores += [row.name for name in scores for row in parameters(name)]
    formats = {
        "operands": one_of(rng, ("input", "input", *WIDE_FORMATS)),
        "rotary_tables": one_of(rng, ("work", *WIDE_FORMATS)),
    }
    return scores, formats if scores else {}


def drawn_dtypes(rng: np.random.Generator) -> tuple[dict[str, str], dict[str, str], bool]:
    """Draw the dtypes of results, by stage, and of options, and whether a bias is rounded to the dtype of scores."""
    results = {stage: one_of(rng, DTYPES) for stage in ("output", "gradients") if rng.random() < 0.2}
    own = {name: one_of(rng, DTYPES) for name in ("bias", *_SCORES, "alibi_slopes") if OPTIONS[name].tensor}
    return results, own if rng.random() < 0.25 else {}, bool(rng.random() < 0.5)


def drawn_alibi(rng: np.random.Generator) -> tuple[str, dict[str, str]]:
    """Draw the key that ALiBi counts from, and the contract's fields on ALiBi and its terms."""
    origin = one_of(rng, ("query", "query", "first", "last"))
    counted = one_of(rng, ("distance", "positions")) if origin == "query" else "positions"
    return origin, {"alibi": counted, "alibi_terms": one_of(rng, ("work", "work", "input", *WIDE_FORMATS))}


def drawn_weight_gradients(rng: np.random.Generator, contract: Contract) -> tuple[str, str]:
    """Draw the format of dP, and the contract's word for it; mostly the format of scores.

    For a backward pass that is written down, as it is here, "either" stands for the format of scores.
    """
    if rng.random() >= SHARE:
        return contract.stored_scores, "either"
    form = one_of(rng, ("input", contract.probabilities, *WIDE_FORMATS))
    return form, one_of(rng, ("either", form)) if form == contract.stored_scores else form


def drawn_cast(rng: np.random.Generator, executes: Contract, declares: Contract) -> tuple[dict[str, Any], bool]:
    """Draw the fields of a cast of scaled probabilities, one kernel in 16, and whether exponents have the scale.

    A kernel whose lazy reference, as it is or is declared, would take the smallest scale out of the format has none.
    """
    form, in_exponent = FORMATS[one_of(rng, EIGHT_BITS)], bool(rng.random() < 0.5)
    scale, overflow = one_of(rng, (1.0, 128.0, 2.0**8, form.largest, 100.3)), one_of(rng, ("saturates", "leaves"))
    room = form.largest / math.exp(max(executes.reference_slack, declares.reference_slack))
    if rng.random() >= SCALED or executes.reference != "maximum" or room < 1:
        return {}, False
    most = 2.0 ** math.floor(math.log2(room))
    fields = {"probabilities": form.name, "probability_scale": min(scale, most), "overflow": overflow}
    return fields, in_exponent


def drawn_products(seed: int, executes: Contract) -> dict[str, str]:
    """Draw the format of products that are rounded before their sum, one kernel in 16 of those without pieces."""
    rng = np.random.default_rng([seed, 22])  # other draws stay as they are
    form = one_of(rng, WIDE_FORMATS)
    return {"products": form} if rng.random() < SCALED and executes.multiplicand_pieces == 1 else {}


def drawn_output(rng: np.random.Generator, layer: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Draw the fields of an output in 8 bits, one kernel in 16 but for layers, and for most the option of its scale."""
    form, overflow = FORMATS[one_of(rng, EIGHT_BITS)], one_of(rng, ("saturates", "leaves"))
    options = ("o_scale",) if rng.random() < 0.8 else ()
    if rng.random() >= SCALED or layer:
        return {}, ()
    return {"output": form.name, "output_overflow": overflow}, options


def drawn_dropout(rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Draw the factor that dropout multiplies by 1 / (1 - p), and the options that a kernel with dropout declares."""
    multiplied = one_of(rng, ("weights", "probabilities", "values", "output", "gradients"))
    return multiplied, (*DROPOUT, *BY_CHANCE) if rng.random() < 0.4 else ()


def drawn_lengths(rng: np.random.Generator) -> tuple[tuple[str, ...], dict[str, str]]:
    """Draw the lengths of sequences that a kernel takes, and its conventions on what lies behind them."""
    taken = tuple(name for name in LENGTHS if rng.random() < 0.4)
    ways = {"unused": ("finite", "unread"), "unused_rows": ("undeclared", "zero"), "table_tail": ("page", "any")}
    ways |= {"empty_state": ("-inf", "either_inf")}
    return taken, {name: one_of(rng, choices) for name, choices in ways.items()}


def drawn_cache(rng: np.random.Generator, dtype: str) -> tuple[str, str]:
    """Draw the dtypes of a call that appends to its caches, some of 8 bits, and the convention ``cache_overflow``."""
    form, overflow = one_of(rng, (*EIGHT_BITS, "int8")), one_of(rng, ("none", "saturates"))
    return (f"q:{dtype},kv:{form}", overflow) if rng.random() < 0.3 else (dtype, "none")


@dataclass(frozen=True)
class DrawnSinks:
    """Choices of a kernel that concern attention sinks."""

    #: Options that the kernel declares: none, or the sinks.
    options: tuple[str, ...]
    #: Tile of the sink, see ``Order.sink``, and the contract's ``sink_reference``.
    tile: str
    reference: str
    #: The convention of that name.
    sink_in_lse: bool
    #: The dtype of the sinks, by option.
    dtypes: dict[str, str]


def drawn_sinks(rng: np.random.Generator, executes: Contract, order: Order) -> DrawnSinks:
    """Draw how a kernel adds a sink; whole rows in one tile have the sink there, as one more column."""
    reference = one_of(rng, ("keys", "maximum"))
    tile = one_of(rng, ("with_keys", "first", "last")) if order.kv_tile is not None else "with_keys"
    bounded = executes.reference != "upper_bound"
    return DrawnSinks(
        options=SINKS if bounded and rng.random() < 0.4 else (),
        tile=tile,
        reference=reference if tile == "last" else one_of(rng, ("keys", "maximum")),
        sink_in_lse=bool(rng.random() < 0.8),
        dtypes={"sinks": one_of(rng, DTYPES)} if rng.random() < 0.3 else {},
    )


def drawn_descales(rng: np.random.Generator, others: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str], bool]:
    """Draw the descales that a kernel takes, the contract's words on them, and whether they multiply the scale first.

    Beside ``others``, scores whose operands are formulas of q and k, no theorem tells of operands with a descale.
    """
    taken = tuple(name for name in FACTORS if rng.random() < 0.7) if rng.random() < 0.25 else ()
    words = {
        "descale_on": one_of(rng, ("scores", "scores", "operands")),
        "value_descale_on": one_of(rng, ("output", "probabilities", "operands")),
    }
    if others and words["descale_on"] == "operands":
        taken = tuple(name for name in taken if name == "v_descale")
    return taken, words, bool(rng.random() < 0.5)


def drawn_descale_shapes(rng: np.random.Generator, descales: Collection[str]) -> tuple[str, ...]:
    """Draw whether a kernel with these descales takes several numbers in each, by head and by key."""
    wanted = [name for name in DESCALE_AXES if rng.random() < 0.7]
    return tuple(name for name in wanted if not set(ABILITIES[name].of_any).isdisjoint(descales))


def drawn_ties(rng: np.random.Generator) -> tuple[str, ...]:
    """Draw whether a kernel takes values that are part of the keys."""
    return tuple(name for name in TIES if rng.random() < 0.4)


def drawn_long_context(rng: np.random.Generator) -> tuple[str, ...]:
    """Draw the options for long contexts that a kernel declares: each in two kernels of five."""
    return tuple(name for name in LONG_CONTEXT if rng.random() < 0.4)


def drawn_layer(rng: np.random.Generator) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Draw a kernel's options for layers, the formats of their operands, and dtypes of tensors; mostly none."""
    if rng.random() >= SHARE:
        return [], {}, {}
    options = [LAYER, *(row.name for row in parameters(LAYER))]
    own = {name: str(rng.choice(DTYPES)) for name in options} if rng.random() < 0.25 else {}
    widths = ["head_widths"] if rng.random() < 0.7 else []
    return [*options, *widths], {"operands": str(rng.choice(["input", "input", *WIDE_FORMATS]))}, own


def without_orphans(supports: Sequence[str]) -> tuple[str, ...]:
    """Return the options and abilities without those that belong to options which are not among them."""
    owners = {name: OPTIONS[name].of for name in supports if name in OPTIONS}
    of_any = {name: ABILITIES[name].of_any for name in supports if name in ABILITIES}
    alone = {name for name, others in of_any.items() if others and set(others).isdisjoint(supports)}
    return tuple(name for name in supports if owners.get(name, "") in ("", *supports) and name not in alone)


def one_of(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    """Draw one of the choices, each as likely."""
    return choices[int(rng.integers(len(choices)))]
