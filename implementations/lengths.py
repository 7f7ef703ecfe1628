"""Lengths of the sequences of a batch: where their diagonals start, and which queries and keys there are.

Lengths are arrays of NumPy or tensors of PyTorch, integers [B, 1, 1, 1], or None where all sequences fill the tensor.
"""

from typing import Any

LENGTHS = ("seqused_q", "seqused_k")


def first_aligned(alignment: str, Sq: int, Sk: int, seqused_q: Any, seqused_k: Any) -> Any:
    """Return the key that the first query of each sequence is aligned with, [B, 1, 1, 1]; one number without lengths.

    It is key 0 from the top-left corner; from the bottom-right one the last query is aligned with the last key.
    """
    if alignment != "bottom_right":
        return 0
    return (Sk if seqused_k is None else seqused_k) - (Sq if seqused_q is None else seqused_q)


def within(places: Any, length: Any) -> Any:
    """Return which places, queries [S, 1] or keys [S], come before the length of their sequence; True without one."""
    return True if length is None else places < length
