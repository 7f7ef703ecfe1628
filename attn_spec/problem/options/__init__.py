"""Options of a problem, beyond softmax(q k^T / sqrt(D)) v: each is one field of :class:`Options`, with its row.

Validation, masks, JSON, declarations of kernels, preflight, search and help all read these rows. A new option is a new
field in a file of this folder, and kernels that take it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from attn_spec.problem import masks
from attn_spec.problem.options.descales import Descales
from attn_spec.problem.options.dropout import Dropout
from attn_spec.problem.options.latent import Latent
from attn_spec.problem.options.layer import Layer
from attn_spec.problem.options.lengths import Lengths
from attn_spec.problem.options.linear import Linear
from attn_spec.problem.options.masking import Masking
from attn_spec.problem.options.option import CHOICE, Option
from attn_spec.problem.options.option_fields import option
from attn_spec.problem.options.output_scale import OutputScale
from attn_spec.problem.options.rotary import Rotary
from attn_spec.problem.options.scores import Scores
from attn_spec.problem.options.sinks import Sinks
from attn_spec.problem.options.states import States
from attn_spec.problem.options.terms import Terms


@dataclass(frozen=True, kw_only=True, eq=False)
class Options(
    States, Latent, Sinks, Dropout, OutputScale, Descales, Linear, Layer, Rotary, Scores, Terms, Lengths, Masking
):
    """All options of a problem; the fields of the last base come first.

    Scores are ``scale * q.k -> q_descale * k_descale * s -> softcap * tanh(s / softcap) -> + bias -> - slope *
    distance -> mask``. Weights are the softmax of the scores, beside a sink if there is one. Dropout keeps or drops
    them, and descales of values multiply them. The output is divided by ``o_scale`` when it is stored. In a recipe,
    names of patterns stand for tensors.
    """

    #: Corner in which the diagonal of ``causal``, ``window``, ``attention_chunk`` and positions starts when Sq != Sk:
    #: "top_left" or "bottom_right".
    causal_alignment: str = option(
        off="top_left",
        says="takes causal_alignment; otherwise the alignment is the declared convention",
        kind=CHOICE,
        spellings=("causal_alignment",),
        wanted=f"one of {', '.join(masks.ALIGNMENTS)}",
        accepts=lambda value: value in masks.ALIGNMENTS,
        draws=masks.ALIGNMENTS,
    )


#: Every option by name.
OPTIONS: dict[str, Option] = {each.name: replace(each.metadata["row"], name=each.name) for each in fields(Options)}
#: Names of the options that are real factors of q, k and v, in this order.
FACTORS = tuple(name for name, row in OPTIONS.items() if row.factor_of)


def parameters(option: str) -> tuple[Option, ...]:
    """Return the rows of the further parameters of an option."""
    return tuple(row for row in OPTIONS.values() if row.of == option)


def with_parameters(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of options and abilities, each followed by the further parameters that it requires."""
    found = ((name, *(row.name for row in parameters(name) if not row.optional)) for name in names)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))
