"""What a kernel may not do whatever it computes: raise, hang, or return what is no attention output."""


class Misbehaviour(AssertionError):  # noqa: N818 -- a verdict, not an error of ours
    """A call that did not produce an attention output at all; the text says what came back instead."""


class CallFailed(Misbehaviour):
    """A call that raised, or did not return in time."""
