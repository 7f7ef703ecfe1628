"""What a kernel can do that no problem asks for by a value: shapes it takes, results it returns, passes it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_spec.problem.options import OPTIONS


@dataclass(frozen=True, kw_only=True)
class Ability:
    """All that is known of one ability."""

    #: What a kernel that declares it does.
    says: str
    #: Whether a problem needs it; None for results and passes, which no problem needs.
    is_used: Callable[[Any], bool] = lambda _: False
    #: Whether a call can show that an undeclared kernel has it.
    shows: bool = True
    #: Whether the framework gives it to every kernel, and none declares it.
    of_framework: bool = False
    #: How often problems that need it are drawn, beside others; 0 for results and passes.
    weight: int = 0
    #: Names that callables give the parameter that asks for it; none: a call needs no parameter.
    spellings: tuple[str, ...] = ()
    #: The ability or option without which it means nothing.
    of: str = ""
    #: Whether equal calls that ask for it give answers of their own.
    by_chance: bool = False


#: Every ability by name.
ABILITIES: dict[str, Ability] = {
    "gqa": Ability(
        says="Hq may be a multiple of Hkv", is_used=lambda p: p.query_heads != p.kv_heads and not p.projects, weight=2
    ),
    "dv": Ability(
        says="the value dimension may differ from the head dimension",
        is_used=lambda p: p.head_dim != p.value_dim,
        weight=2,
    ),
    "head_widths": Ability(
        says="the heads of a layer, and its output, may have any widths, not D / Hq, and D, alone",
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
    "mask_of_two_axes": Ability(says="takes a mask [Sq, Sk] of all batch entries and heads, too", of="mask"),
    "lse": Ability(says="returns (out, lse)"),
    "backward": Ability(says="has gradients in q, k, v and bias, by its framework's or by @name.backward"),
    "lse_backward": Ability(says="its gradients honor a cotangent of the LSE too", shows=False),
    "dropout_by_chance": Ability(
        says="takes dropout_p alone: drops each weight with probability p, by a keep mask that it draws itself",
        spellings=OPTIONS["dropout_p"].spellings,
        by_chance=True,
    ),
    "dropout_seed": Ability(
        says="takes a seed of that keep mask: equal seeds drop equal weights",
        spellings=("dropout_seed", "seed"),
        of="dropout_by_chance",
    ),
    "strides": Ability(says="its framework lays tensors in memory in any strides", shows=False, of_framework=True),
    "in_place": Ability(says="its framework changes tensors in place", shows=False, of_framework=True),
    "autograd": Ability(says="its framework differentiates by itself", shows=False, of_framework=True),
}
