"""Quantities that attention computes and a kernel returns: each has a truth, a bound, an answer, and one row here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A row of the table of quantities: a quantity and its facts."""

    name: str
    #: Name in running text and in tables.
    symbol: str
    #: Heading of the quantity on pages.
    title: str
    #: Axes, one letter each: B, H query heads, G kv heads, Q queries, K keys, D, E, V dimensions, A, U, O widths, or 1.
    #: An axis of an option's gradient has length 1 where that axis of the option has.
    axes: str
    #: Pass that computes the quantity: "forward" or "backward".
    made_by: str
    #: Input whose gradient the quantity is; None if it is no gradient.
    gradient_of: str | None = None
    #: True if pages show the quantity on its own.
    shown: bool = True

    @property
    def has_rows(self) -> bool:
        """True if the quantity is one vector for each query or key."""
        return self.axes[-1] in "DV"


def _of_parameter(name: str, *, symbol: str, axes: str) -> Quantity:
    """Return the row of the gradient of a parameter of a score or layer."""
    found = {"title": f"Gradient {symbol}", "made_by": "backward", "gradient_of": name, "shown": False}
    return Quantity(name=f"d{name}", symbol=symbol, axes=axes, **found)


_ROWS = (
    Quantity(name="output", symbol="O", title="Output O", axes="BHQV", made_by="forward"),
    Quantity(name="lse", symbol="LSE", title="Log-sum-exp", axes="BHQ", made_by="forward"),
    Quantity(name="dq", symbol="dQ", title="Gradient dQ", axes="BHQD", made_by="backward", gradient_of="q"),
    Quantity(name="dk", symbol="dK", title="Gradient dK", axes="BGKD", made_by="backward", gradient_of="k"),
    Quantity(name="dv", symbol="dV", title="Gradient dV", axes="BGKV", made_by="backward", gradient_of="v"),
    #: Gradient of the keys of a call without values, whose v is the first columns of k: a problem with ``latent``.
    Quantity(
        name="dkv",
        symbol="dK + [dV, 0]",
        title="Gradient of keys that are values",
        axes="BGKD",
        made_by="backward",
        gradient_of="k",
        shown=False,
    ),
    Quantity(
        name="dbias",
        symbol="dBias",
        title="Gradient dBias",
        axes="BHQK",
        made_by="backward",
        gradient_of="bias",
        shown=False,
    ),
    _of_parameter("sinks", symbol="dSinks", axes="1H11"),
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
#: Names of the quantities of the forward and of the backward pass.
FORWARD, BACKWARD = (
    tuple(name for name, row in QUANTITIES.items() if row.made_by == made_by) for made_by in ("forward", "backward")
)
#: Inputs that have a gradient, in the order in which a backward function returns the gradients.
DIFFERENTIABLE = tuple(dict.fromkeys(row.gradient_of for row in _ROWS if row.gradient_of))
#: Names of the gradients of keys, of values, and of keys that are values.
OF_KEYS = tuple(row.name for row in _ROWS if row.gradient_of in ("k", "v"))
