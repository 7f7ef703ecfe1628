"""Abilities of kernels that no field of a problem asks for: shapes it takes, results it returns, passes it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_spec.problem.options import FACTORS, OPTIONS


@dataclass(frozen=True, kw_only=True)
class Ability:
    """A row of the table of abilities: an ability and its facts."""

    #: Meaning of the ability in a kernel's declaration, as ``attn-spec explain`` prints it.
    says: str
    #: True for a problem that needs the ability. Results and passes keep the default, since no problem needs them.
    is_used: Callable[[Any], bool] = lambda _: False
    #: True if a call can show that an undeclared kernel has the ability.
    shows: bool = True
    #: True if the framework gives the ability to every kernel, so that no kernel declares it.
    of_framework: bool = False
    #: Relative frequency with which the search draws problems that need the ability; 0 for results and passes.
    weight: int = 0
    #: Names of the parameter by which callables are asked for the ability; empty if a call needs no parameter.
    spellings: tuple[str, ...] = ()
    #: The ability or option without which this ability means nothing; empty for none.
    of: str = ""
    #: Options without all of which this ability means nothing; empty for none.
    of_any: tuple[str, ...] = ()
    #: True if two equal calls that use the ability may return different answers.
    by_chance: bool = False


def varies(problem: Any, name: str, axes: str) -> bool:
    """Return whether a descale has several numbers along one of these axes, of a problem or of its recipe."""
    x, row = getattr(problem, name), OPTIONS[name]
    if x is None:
        return False
    named = isinstance(x, str)  # a recipe has the name of a pattern, with the axes that are not broadcast
    lengths = [problem.lengths.get(axis, 1) for axis in x.partition("@")[2]] if named else x.shape
    return any(length > 1 for axis, length in zip(row.axes, lengths, strict=True) if axis in axes)


#: Axes along which a descale may have several numbers, by the ability of kernels that take these.
DESCALE_AXES = {"descale_by_head": "BG", "descale_by_key": "K"}
#: Every ability by name.
ABILITIES: dict[str, Ability] = {
    "gqa": Ability(
        says="Hq may be a multiple of Hkv", is_used=lambda p: p.query_heads != p.kv_heads and not p.projects, weight=2
    ),
    "dv": Ability(
        says="the value dimension may differ from the head dimension",
        is_used=lambda p: p.head_dim != p.value_dim and not p.states,
        weight=2,
    ),
    "head_widths": Ability(
        says="the heads of a layer, and its output, may have any widths, not only D / Hq and D",
        is_used=lambda p: (
            p.projects
            and {p.score_width * p.query_heads, p.head_value_dim * p.query_heads, p.output_width} != {p.head_dim}
        ),
        of="query_projection",
        weight=1,
    ),
    "cross": Ability(
        says="the query length may differ from the key length",
        is_used=lambda p: p.query_length != p.key_length,
        weight=4,
    ),
    "empty": Ability(says="either length may be zero", is_used=lambda p: 0 in (p.query_length, p.key_length)),
    "mask_of_two_axes": Ability(says="also takes a mask [Sq, Sk] for all batch entries and heads", of="mask"),
    "descale_by_head": Ability(
        says="a descale may have a number for each batch entry and kv head; otherwise it is one number for a tensor",
        is_used=lambda p: any(varies(p, name, DESCALE_AXES["descale_by_head"]) for name in FACTORS),
        of_any=FACTORS,
    ),
    "descale_by_key": Ability(
        says="the descales of keys and values may have a number for each key",
        is_used=lambda p: any(varies(p, name, DESCALE_AXES["descale_by_key"]) for name in FACTORS),
        of_any=tuple(name for name in FACTORS if "K" in OPTIONS[name].axes),
    ),
    "lse": Ability(says="returns (out, lse)"),
    "backward": Ability(says="has gradients in q, k, v and bias, by its framework or by @name.backward"),
    "lse_backward": Ability(says="its gradients include the cotangent of the LSE", shows=False),
    "dropout_by_chance": Ability(
        says="takes dropout_p alone: draws the keep mask itself and drops each weight with probability p",
        spellings=OPTIONS["dropout_p"].spellings,
        by_chance=True,
    ),
    "dropout_seed": Ability(
        says="takes the seed of the keep mask that it draws: equal seeds drop equal weights",
        spellings=("dropout_seed", "seed"),
        of="dropout_by_chance",
    ),
    "strides": Ability(says="its framework supports tensors with any strides", shows=False, of_framework=True),
    "in_place": Ability(says="its framework changes tensors in place", shows=False, of_framework=True),
    "autograd": Ability(says="its framework differentiates by itself", shows=False, of_framework=True),
}
