"""Misbehaviour of a kernel: it raises, hangs, loses its device, or returns no attention."""

import os
import sys
import traceback
from typing import NoReturn

from attn_spec.faults import in_one_line


class Misbehaviour(AssertionError):  # noqa: N818 -- a verdict, not an error of ours
    """A call produced no attention output; the message says what happened instead."""


class CallFailed(Misbehaviour):
    """A call gave no answer: it raised, did not return in time, or its process died."""


class Crashed(CallFailed):
    """The kernel's process died during a call."""


class Raised(CallFailed):
    """A call raised an exception, as a kernel may do to refuse a problem."""


class OutOfMemory(Raised):
    """A call raised for lack of memory, which says nothing about the values that the kernel computes."""


#: Parts of messages by which libraries report a lack of memory: PyTorch on a CPU, XLA.
_WANT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "RESOURCE_EXHAUSTED")


#: Words of the message on a call that ended the kernel's process.
_DIED = " the process ("


def has_died(message: str) -> bool:
    """Return whether a message on a failed call says that the kernel ended its process."""
    return _DIED in message


def failed(call: str, error: BaseException) -> Raised:
    """Return the failure of a call that raised an exception: ``call`` names it, the message adds the exception and
    place.
    """
    where = traceback.extract_tb(error.__traceback__)[-1]
    starved = isinstance(error, MemoryError) or any(words in str(error) for words in _WANT_OF_MEMORY)
    made = OutOfMemory if starved else Raised
    return made(f"{call} raised {in_one_line(error)} ({where.filename}:{where.lineno})")


def end_process(reason: str) -> NoReturn:
    """End the process as a crash would, since after a lost device every call fails and proves nothing.

    An examination survives this, attributes the crash to the call in progress, and continues in another process.
    """
    sys.stderr.write(f"attn-spec: {reason}\n")
    sys.stderr.flush()
    os.abort()
