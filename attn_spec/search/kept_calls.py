"""A refuted call of an assertion or of a watch, kept: a case that ``attn-spec replay`` runs, and a script.

The script holds the tensors of the call as they were given, and calls the function as it was called. It needs neither
attn-spec nor the test. The truth and the allowed error of the worst element stand in it.
"""

from __future__ import annotations

import math
import pprint
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from attn_spec import atomic, faults
from attn_spec.faults import with_article
from attn_spec.kernels.calls.call import tensor_of
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.signatures.table import signature
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.problem.quantities import OF_KEYS
from attn_spec.search.cases import HOME, LARGE, Case, save
from attn_spec.search.literals import FUNCTIONS, tensor_literal
from attn_spec.testing import Asserted, NotAttention

#: Property that a stored case of a quantity is a case of.
PROPERTIES = {
    "output": "accuracy.output_is_within_its_bound",
    "lse": "accuracy.log_sum_exp_is_within_its_bound",
    **dict.fromkeys(("dq", "dk", "dkv"), "gradients.query_and_key_gradients_are_within_their_bounds"),
    "dv": "gradients.value_gradients_are_within_their_bounds",
}
#: Largest number of elements in all tensors of a call that a script holds.
MOST = 2**17
#: Types of arguments, beside tensors, whose repr makes them again.
_PLAIN = (type(None), bool, int, float, str)

TEMPLATE = Template(
    '''"""A call that is no attention, written by attn-spec. Exits with 1 while the answer is still wrong, else 0.

$how
"""

import base64
import importlib
import sys
import zlib

import numpy as np

DEVICE = "$device"

# The element farthest outside its bound, and its index in the tensor that the call returned or in its gradient. Reals
# are hexadecimal floats; WORST has the index in [batch, head, ..], whatever the tensor's order of axes.
PLACE = $place
WORST = $worst
# Factor of the numbers of that tensor: 1, or the scale of the output.
UNIT = $unit


'''
    + FUNCTIONS
    + '''

# The arguments of the call by name; those that are passed by place; and the tensor that was judged.
ARGUMENTS = $arguments
PLACED = $placed
GIVEN = $given
# The argument that a gradient is of, and the cotangents of what the function returns; None for an output.
OF = $of
COTANGENTS = $cotangents


def answer():
    """Return the tensor that holds the element: from the function, or as it was judged if no function is known."""
    named = sys.argv[1] if len(sys.argv) > 1 else $function
    if not named:
        return GIVEN
    sys.path.insert(0, "")
    module, _, attribute = named.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    if OF:
        ARGUMENTS[OF].requires_grad_()
    others = {name: x for name, x in ARGUMENTS.items() if name not in PLACED}
    returned = function(*(ARGUMENTS[name] for name in PLACED), **others)
    results = returned if isinstance(returned, (tuple, list)) else (returned,)
    if not OF:
        return results[WORST["quantity"] == "lse"]
    import torch

    pairs = [(x, dx) for x, dx in zip(results, COTANGENTS) if dx is not None]
    return torch.autograd.grad([x for x, _ in pairs], ARGUMENTS[OF], [dx for _, dx in pairs])[0]


got = UNIT * float(values(answer())[PLACE])
truth, radius, allowed = (float.fromhex(WORST[name]) for name in ("truth", "radius", "allowed"))
print(f"{WORST['quantity']}{list(PLACE)} is {got!r}")
print(f"the truth is {truth!r} +- {radius:.3g}; allowed error {allowed:.3g}")
wrong = not (got == truth or abs(got - truth) <= allowed + radius)
print("still wrong" if wrong else "no longer wrong here")
sys.exit(wrong)
'''
)


class NoScriptError(Exception):
    """A call cannot be written down as a script; the message says why."""


@dataclass(frozen=True)
class Kept:
    """Stored case and script of a refuted call."""

    #: Id of the stored case.
    case: str
    #: Path of the script; None if there is none.
    script: Path | None = None
    #: Reason for which there is no script.
    missing: str = ""

    def lines(self, *, knows_function: bool) -> list[str]:
        """Return the lines of a message that say how to run the call again."""
        named = "" if knows_function else " --kernel NAME"
        other = "" if knows_function else " [package.module:function]"
        script = f"python {self.script}{other}" if self.script else f"none: {self.missing}"
        return [f"  replay    attn-spec replay {self.case}{named}", f"  script    {script}"]


def keep(error: NotAttention, folder: Path | str = HOME) -> str:
    """Keep the call of a refuted assertion in a folder; return how to run it again.

    A case is stored, which ``attn-spec replay ID --kernel NAME`` gives to a kernel. Beside it is a script with the
    tensors of the call, if they are small.
    """
    return "\n".join(kept(error, Path(folder)).lines(knows_function=False))


def kept(
    error: NotAttention,
    home: Path,
    *,
    function: str = "",
    declared: Mapping[str, Any] | None = None,
    device: str = "cpu",
    names: Mapping[str, str] | None = None,
) -> Kept:
    """Store a case of a refuted call, and write a script of it.

    ``function`` is the name of the called function, "package.module:name", and ``declared`` what it declares as a
    kernel. ``names`` are its parameters for q, k and v, where the call has these under other names.
    """
    call, worst = error.call, error.judgement.worst
    assert worst is not None
    problem = call.made.whole()
    if problem.entries > LARGE:
        b, h, *_ = worst.index
        problem = call.made.group(b, h // (1 if worst.quantity in OF_KEYS else call.made.group_size))
    case = Case(
        property_id=PROPERTIES.get(worst.quantity, PROPERTIES["output"]),
        kernel=function,
        declared=dict(declared or {}),
        device=device,
        problem=problem,
        message=error.text,
        worst=worst,
    )
    path = save(case, home)
    try:
        text = script(error, function=function, device=device, names=names or {})
    except NoScriptError as reason:
        return Kept(case.id, missing=str(reason))
    except Exception as fault:  # the case and the verdict stand
        return Kept(case.id, missing=faults.in_one_line(fault))
    return Kept(case.id, atomic.write(path.with_suffix(".py"), text))


def script(error: NotAttention, *, function: str, device: str, names: Mapping[str, str]) -> str:
    """Return the text of a script. Raises :class:`NoScriptError`."""
    call, worst = error.call, error.judgement.worst
    assert worst is not None
    arguments = {names.get(name, name): x for name, x in call.arguments.items() if name not in CONVENTIONS}
    given, of = tensor_of("the answer", call.answers[worst.quantity]), ""
    framework = frameworks.of(given)
    if call.cotangents:
        of = _argument_of(call, worst.quantity, names)
        if framework.name != "torch" or of not in arguments:
            raise NoScriptError(f"it differentiates calls of PyTorch in one argument, and this is {worst.quantity}")
    if (count := sum(_size(x) for x in (*arguments.values(), *call.cotangents, given))) > MOST:
        raise NoScriptError(f"the tensors have {count:,} numbers, and a script holds {MOST:,} at most")
    shown = {name: value for name, value in asdict(worst).items() if name != "bound_terms"}
    other = "No function is known: name one, python SCRIPT package.module:function, or the judged answer is shown."
    return TEMPLATE.substitute(
        how=f"It calls {function}." if function else other,
        device=device,
        place=repr(tuple(call.place)),
        worst=pprint.pformat(shown, sort_dicts=False),
        unit=repr(float(call.made.real(worst.quantity, np.ones(())))),
        give=textwrap.indent(framework.script_gives, "    "),
        take=textwrap.indent(framework.script_takes, "    "),
        arguments="{" + ", ".join(f"{name!r}: {_literal(name, x)}" for name, x in arguments.items()) + "}",
        placed=repr([] if call.signature or names else [name for name in "qkv" if name in arguments]),
        given=_literal("the answer", given),
        of=repr(of),
        cotangents=f"[{', '.join(_literal('a cotangent', x) for x in call.cotangents)}]",
        function=repr(function),
    )


def _argument_of(call: Asserted, quantity: str, names: Mapping[str, str]) -> str:
    """Return the name of the argument that a gradient is of."""
    own = quantity.removeprefix("d")
    return names.get(own, own if call.signature is None else signature(call.signature).keyword(own))


def _size(x: Any) -> int:
    return math.prod(getattr(x, "shape", (0,)))


def _literal(name: str, x: Any) -> str:
    """Return an expression for an argument, in terms of the script's ``tensor``. Raises :class:`NoScriptError`."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        found = tensor_of(name, x)
        own = frameworks.of(found)
        return tensor_literal(own.take(found), own.dtype_of(found))
    if isinstance(x, _PLAIN) or (isinstance(x, tuple | list) and all(isinstance(each, _PLAIN) for each in x)):
        return repr(x)
    raise NoScriptError(f"{name} is {with_article(type(x).__name__)}, which no script can write down")
