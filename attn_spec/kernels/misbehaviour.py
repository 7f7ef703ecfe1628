"""Misbehaviour of a kernel, whatever it computes: to raise, hang, lose its device, or return no attention."""

import os
import sys
import traceback
from typing import NoReturn

from attn_spec.faults import in_one_line


class Misbehaviour(AssertionError):  # noqa: N818 -- a verdict, not an error of ours
    """A call that did not produce an attention output at all; the text says what came back instead."""


class CallFailed(Misbehaviour):
    """A call that gave no answer: it raised, did not return in time, or what follows."""


class Crashed(CallFailed):
    """A call during which the kernel's process died."""


class Raised(CallFailed):
    """A call that raised, as a kernel may to refuse it."""


class OutOfMemory(Raised):
    """A call that raised for want of memory, which says nothing of what it computes."""


#: What libraries say where memory could not be had: PyTorch on a CPU, XLA.
_WANT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "RESOURCE_EXHAUSTED")


def failed(call: str, error: BaseException) -> Raised:
    """The failure of a ``call``, in words, that raised an exception of any library: which one, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    starved = isinstance(error, MemoryError) or any(words in str(error) for words in _WANT_OF_MEMORY)
    made = OutOfMemory if starved else Raised
    return made(f"{call} raised {in_one_line(error)} ({where.filename}:{where.lineno})")


def end_process(reason: str) -> NoReturn:
    """End the process as a crash would: what follows a lost device fails whatever is called, and proves nothing.

    An examination outlives that, blames the call that was under way, and goes on in another process.
    """
    sys.stderr.write(f"attn-spec: {reason}\n")
    sys.stderr.flush()
    os.abort()
