"""What attention computes, and a kernel returns: everything with a truth, a bound and an answer is one row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """All that is known of one quantity."""

    name: str
    #: In running text and in tables.
    symbol: str
    title: str
    #: Its axes: B, H query heads, G kv heads, Q queries, K keys, D, E and V dimensions, A, U and O widths, or 1; those
    #: of a gradient of an option may have length 1 where that has.
    axes: str
    #: The pass that computes it: "forward" or "backward".
    made_by: str
    #: The input whose gradient it is.
    gradient_of: str | None = None
    #: Whether pages show it on their own.
    shown: bool = True

    @property
    def has_rows(self) -> bool:
        """Return whether the last axis is that of a vector, one for each query or key."""
        return self.axes[-1] in "DV"


def _of_parameter(name: str, *, symbol: str, axes: str) -> Quantity:
    """The gradient of a parameter of a score."""
    found = {"title": f"Gradient {symbol}", "made_by": "backward", "gradient_of": name, "shown": False}
    return Quantity(name=f"d{name}", symbol=symbol, axes=axes, **found)


_ROWS = (
    Quantity(name="output", symbol="O", title="Output O", axes="BHQV", made_by="forward"),
    Quantity(name="lse", symbol="LSE", title="Log-sum-exp", axes="BHQ", made_by="forward"),
    Quantity(name="dq", symbol="dQ", title="Gradient dQ", axes="BHQD", made_by="backward", gradient_of="q"),
    Quantity(name="dk", symbol="dK", title="Gradient dK", axes="BGKD", made_by="backward", gradient_of="k"),
    Quantity(name="dv", symbol="dV", title="Gradient dV", axes="BGKV", made_by="backward", gradient_of="v"),
    Quantity(
        name="dbias",
        symbol="dBias",
        title="Gradient dBias",
        axes="BHQK",
        made_by="backward",
        gradient_of="bias",
        shown=False,
    ),
    _of_parameter("score_weight", symbol="dW", axes="BHDE"),
    _of_parameter("score_gamma", symbol="dgamma", axes="BH11"),
    _of_parameter("score_vector", symbol="dw", axes="BH1A"),
    _of_parameter("score_key_weight", symbol="dW1", axes="BHAD"),
    _of_parameter("score_query_weight", symbol="dW2", axes="BHAD"),
    _of_parameter("score_bias", symbol="db", axes="BH1A"),
    _of_parameter("query_projection", symbol="dW_Q", axes="1HAD"),
    _of_parameter("key_projection", symbol="dW_K", axes="1HAD"),
    _of_parameter("value_projection", symbol="dW_V", axes="1HUV"),
    _of_parameter("output_projection", symbol="dW_O", axes="1HOU"),
    _of_parameter("query_projection_bias", symbol="db_Q", axes="1H1A"),
    _of_parameter("key_projection_bias", symbol="db_K", axes="1H1A"),
    _of_parameter("value_projection_bias", symbol="db_V", axes="1H1U"),
    _of_parameter("output_projection_bias", symbol="db_O", axes="111O"),
)

#: Every quantity by name, in the order in which kernels return them.
QUANTITIES: dict[str, Quantity] = {row.name: row for row in _ROWS}
#: Quantities of the forward and of the backward pass.
FORWARD, BACKWARD = (
    tuple(name for name, row in QUANTITIES.items() if row.made_by == made_by) for made_by in ("forward", "backward")
)
#: Inputs that have a gradient, in the order in which a backward function returns theirs.
DIFFERENTIABLE = tuple(row.gradient_of for row in _ROWS if row.gradient_of)
