"""Documented bugs of attention kernels that are not among the mutants, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """One bug that no mutant retells."""

    #: Report of the bug: owner/repository#number.
    sources: tuple[str, ...]
    #: The bug, in one line.
    what: str
    #: Reason why no mutant retells it, in one line.
    why: str


LEFT_OUT: tuple[LeftOut, ...] = (
    LeftOut(
        sources=("pytorch/pytorch#187227",),
        what="The random offset of dropout is 32 bits wide in the forward pass and 64 in the backward one.",
        why="The offsets differ from 2^32 scores on only; a backward pass that drops other weights is in the zoo.",
    ),
    LeftOut(
        sources=("ROCm/rocm-libraries#6054",),
        what="Byte offsets into a pool of pages wrap at 4 GB, and another page is read.",
        why="No search draws a cache of 4 GB; wrapped offsets as such are retold as scale models.",
    ),
    LeftOut(
        sources=("pytorch/pytorch#195320",),
        what="A compiler takes any permutation of K for its transpose, and fuses another product.",
        why="The bug is in a rewriting of graphs, not in a kernel that is called with q, k and v.",
    ),
    LeftOut(
        sources=("NVIDIA/TransformerEngine#3528",),
        what="Two paths of one backend are compared with one another, and are all zero both.",
        why="The bug is in a test harness; its kernel is the cheat that returns zeros.",
    ),
    LeftOut(
        sources=(
            "ml-explore/mlx#2835",
            "pytorch/executorch#22426",
            "microsoft/onnxruntime#29020",
            "microsoft/onnxruntime#29050",
            "onnx/onnx#8068",
        ),
        what="Causal attention with fewer queries than keys starts in the top-left or ends in the bottom-right corner.",
        why="Either is right when it is declared; the mutants that break a declared diagonal are in the zoo.",
    ),
)
