"""Lengths of the sequences of a batch: where their diagonals start, and which queries and keys there are.

Lengths are arrays of NumPy or tensors of PyTorch, integers [B, 1, 1, 1], or None where all sequences fill the tensor.
"""

from typing import Any

LENGTHS = ("seqused_q", "seqused_k")
PADDED = (*LENGTHS, "leftpad_k")


def first_aligned(  # noqa: PLR0917  (lengths in the order of a call)
    alignment: str, Sq: int, Sk: int, seqused_q: Any, seqused_k: Any, leftpad_k: Any = None
) -> Any:
    """Return the key that the first query of each sequence is aligned with, [B, 1, 1, 1]; one number without lengths.

    It is the first key from the top-left corner; from the bottom-right one the last query is aligned with the last key.
    """
    if alignment != "bottom_right":
        return 0 if leftpad_k is None else leftpad_k
    return (Sk if seqused_k is None else seqused_k) - (Sq if seqused_q is None else seqused_q)


def behind_padding(places: Any, leftpad: Any) -> Any:
    """Return which keys [S] come behind the padding on the left of their sequence; True without padding."""
    return True if leftpad is None else places >= leftpad


def within(places: Any, length: Any) -> Any:
    """Return which places, queries [S, 1] or keys [S], come before the length of their sequence; True without one."""
    return True if length is None else places < length
