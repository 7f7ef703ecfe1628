"""Print the processor seconds of one call of a kernel at a shape, and of its backward pass, as JSON.

    python call_seconds.py torch_sdpa:flash --dtype float32 --shape Hq=32,Hkv=8,S=1024,D=128

The kernel runs in this process. Tensors are made, and the answer is taken, outside of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from attn_spec.isolation.foreign import found
from attn_spec.kernels.resolve import declarations
from attn_spec.kernels.subject import Subject
from attn_spec.kernels.time_limit import no_guard
from attn_spec.numbers import bits
from attn_spec.problem.shape_spec import AskedShape, ShapeError
from attn_spec.search.drawing import asked_shapes
from attn_spec.search.preflight import preflight


class Stopwatch:
    """Processor seconds of the calls of a kernel, the last of which counts."""

    def __init__(self) -> None:
        self.last = 0.0

    @contextlib.contextmanager
    def __call__(self, seconds: float) -> Iterator[Callable[[float], None]]:
        """Time the block. Its limit, ``seconds``, is kept elsewhere."""
        with no_guard(seconds) as postpone:
            start = time.process_time()
            yield postpone
            self.last = time.process_time() - start


def _shape(text: str) -> AskedShape:
    """Return the shape that a text describes."""
    try:
        return AskedShape.parse(text)
    except ShapeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kernel")
    parser.add_argument("--dtype", action="append", required=True, help="the first one is timed")
    parser.add_argument("--shape", type=_shape, required=True)
    for name in ("contract", "supports", "signature"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args(arguments)
    words = declarations(None, options.contract, options.supports, signature=options.signature)
    watch = Stopwatch()
    checked = preflight(found(options.kernel, "never", **words), options.dtype[:1], guard=watch)
    subject = replace(checked.subjects[0], shapes=(options.shape,))
    seconds = {"forward": forward(subject, watch)}
    if subject.for_gradients.supports("backward"):
        seconds["backward"] = backward(subject.for_gradients, watch)
    sys.stdout.write(f"{json.dumps(seconds)}\n")


def forward(subject: Subject, watch: Stopwatch) -> float:
    """Return the seconds of a call without options, after one that may compile."""
    problem = asked_shapes.recipes(subject, 0)[0].problem()
    for _ in range(2):
        subject(problem)
    return watch.last


def backward(subject: Subject, watch: Stopwatch) -> float:
    """Return the seconds of a backward pass without options, after one that may compile."""
    problem = asked_shapes.recipes(subject, 0, gradients=True)[0].problem()
    dout = bits.nearest(np.random.default_rng(0).standard_normal(problem.output_shape), subject.contract.output)
    for _ in range(2):
        subject.gradients(problem, dout, wrt=subject.presentation.inputs)
    return watch.last


if __name__ == "__main__":
    main()
