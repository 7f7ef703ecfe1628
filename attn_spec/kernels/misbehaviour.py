"""What a kernel may not do whatever it computes: raise, hang, lose its device, or return what is no attention."""

import os
import sys
from typing import NoReturn


class Misbehaviour(AssertionError):  # noqa: N818 -- a verdict, not an error of ours
    """A call that did not produce an attention output at all; the text says what came back instead."""


class CallFailed(Misbehaviour):
    """A call that raised, or did not return in time."""


def end_process(reason: str) -> NoReturn:
    """End the process as a crash would: what follows a lost device fails whatever is called, and proves nothing.

    An examination outlives that, blames the call that was under way, and goes on in another process.
    """
    sys.stderr.write(f"attn-spec: {reason}\n")
    sys.stderr.flush()
    os.abort()
