"""The template of a stand-alone script, with a placeholder for every part that depends on the case."""

from string import Template

from attn_spec.search.literals import FUNCTIONS

TEMPLATE = Template(
    '''"""Counterexample $id, written by attn-spec. Exits with 1 while the kernel still fails, else 0.

Property: $statement
Kernel:   $kernel
Why:      $why
"""

import base64
import hashlib
import importlib
import sys
import types
import zlib

import numpy as np

try:
    import attn_spec
except ImportError:  # a file that declares its kernel imports it only for the decorator
    class Declared:
        """A kernel: its function, and its backward function."""

        def __init__(self, function):
            self.function, self.backward_function = function, None

        def __call__(self, *tensors, **options):
            return self.function(*tensors, **options)

        def backward(self, function):
            self.backward_function = function
            return function

    def declared(builds=False, **words):
        if builds:
            sys.exit("attn-spec builds this kernel for each signature; install it to run this script")
        return Declared

    def anything(name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "c_kernel":
            sys.exit("attn-spec calls this kernel in a shared library; install it to run this script")
        return lambda *values, **words: None

    sys.modules["attn_spec"] = types.ModuleType("attn_spec")
    sys.modules["attn_spec"].kernel, sys.modules["attn_spec"].__getattr__ = declared, anything

$find

DEVICE = "$device"

# The element farthest outside its bound, the call and the tensor that returned it, and its index there. Reals are
# hexadecimal floats; WORST has the index in [batch, head, ..], whatever the tensor's order of axes.
WORST_CALL, WORST_PART, PLACE = $worst_call
WORST = $worst
# Factor of the numbers of that tensor: 1, or the scale of the output.
UNIT = $unit


'''
    + FUNCTIONS
    + '''

def listed(answer):
    """Return the tensors of an answer."""
    every = answer if isinstance(answer, (tuple, list)) else (answer,)
    return [x for x in (answer.values() if isinstance(answer, dict) else every) if hasattr(x, "dtype")]


def forward(tensors, options):
    """Return the tensors that a call returns."""
    return listed(kernel(*tensors, **options))


def backward(tensors, options):
    """Return the gradients that the kernel's backward function returns."""
    return listed(kernel.backward_function(*tensors, **options))


def differentiated(tensors, options, wrt, cotangents, passes):
    """Return the tensors that a call returns, and its gradients in the arguments `wrt`."""

    def call(inputs):
        swapped = dict(zip(wrt, inputs))
        given = [swapped.get(place, x) for place, x in enumerate(tensors)]
        return listed(kernel(*given, **{name: swapped.get(name, x) for name, x in options.items()}))

    inputs = [tensors[x] if isinstance(x, int) else options[x] for x in wrt]
    returned, gradients = through(call, inputs, cotangents, passes)
    return [*returned, *(x for x in gradients if x is not None)]


def through(call, inputs, cotangents, passes):
    """Return what a call returns, and the gradients of backward passes through it."""
$differentiate


# Each call that the property made: function, digest of the answer that refuted it, tensors and options. Differentiated
# calls add the arguments to differentiate in, the cotangents, and the number of passes.
CALLS = [
$calls
]

# Tensors that a call must change, by the number of the call and their places, or the names of options, with what they
# must hold after it.
PROMISED = $promised

# Allowed distance of each number from that; a tensor that is left out must be equal.
ALLOWED = $allowed


def is_kept(x, y, allowed):
    """Say whether numbers are equal to others, or as near to them as is allowed."""
    if allowed is None or np.array_equal(x, y, equal_nan=True):
        return np.array_equal(x, y, equal_nan=True)
    with np.errstate(invalid="ignore"):
        near = (allowed == np.inf) | (np.abs(x.astype("float64") - y) <= allowed)
    return bool(np.all(near | (np.isnan(x) & np.isnan(y)) | (x == y)))


failed = False
repeated = True
for number, (function, digest, tensors, *others) in enumerate(CALLS):
    promised = PROMISED.get(number, {})
    given = {place: x for place, x in enumerate(tensors) if hasattr(x, "dtype")}
    given |= {name: others[0][name] for name in promised if name in others[0]}
    expected = [promised.get(place, values(x).copy()) for place, x in given.items()]
    parts = function(tensors, *others)
    print(f"call {number}: " + ", ".join(f"{tuple(part.shape)} {part.dtype}" for part in parts))
    after = [values(x) for x in given.values()]
    near = [ALLOWED.get(number, {}).get(place) for place in given]
    if not all(map(is_kept, after, expected, near)):
        print("  the kernel changed its inputs" + " other than it must" * bool(promised))
        failed = True
    seen = [*parts, *(given[place] for place in promised)]
    repeated &= hashlib.sha256(b"".join(values(x).tobytes() for x in seen)).hexdigest()[:16] == digest
    if number == WORST_CALL:
        got = UNIT * float(values(parts[WORST_PART])[PLACE])
        truth, radius, allowed = (float.fromhex(WORST[name]) for name in ("truth", "radius", "allowed"))
        print(f"  {WORST['quantity']}{list(WORST['index'])} is {got!r}")
        print(f"  the truth is {truth!r} +- {radius:.3g}; allowed error {allowed:.3g}")
        failed |= not (got == truth or abs(got - truth) <= allowed + radius)
if WORST_CALL is None:
    print("the answers that refuted the property came back, bit for bit" if repeated else "the answers have changed")
    failed |= repeated
print("still fails" if failed else "no longer fails here; attn-spec replay $id checks the property itself")
sys.exit(failed)
'''
)
