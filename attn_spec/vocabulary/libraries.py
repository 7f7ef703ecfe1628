"""The conventions of widely used libraries: what a wrapper around each of them declares.

Each row names a kernel that is examined with these conventions: in ``implementations`` if the kernel calls the library,
in ``reports/proof/plain`` if the kernel follows the library's source.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.problem.conventions import CONVENTIONS, Conventions


@dataclass(frozen=True, kw_only=True)
class Library:
    """Conventions of one function of a library."""

    name: str
    #: Axes of q, k and v, as a name of ``kernels.presentations.table`` if there is one.
    axes: str = ""
    #: Conventions of the function; those of the LSE apply if one is returned.
    conventions: Conventions
    #: True if a log-sum-exp is returned.
    returns_lse: bool = False
    #: Meaning of a bool mask; empty if the function takes none.
    mask: str = ""
    #: Meaning of a pair of window lengths; empty if the function takes none.
    window: str = ""
    #: True if the function takes lengths of sequences.
    takes_lengths: bool = False
    #: Conventions that the caller decides.
    left_open: frozenset[str] = frozenset()
    #: Kernel that is examined with these conventions.
    kernel: str
    #: True if this kernel calls the library, False if it is written after the library's source.
    calls_it: bool = True

    def convention(self, name: str) -> str:
        """Return the value of one convention; empty if the library has none."""
        needs_lse = CONVENTIONS[name].decides == ("lse",)
        if name in self.left_open or (needs_lse and not self.returns_lse):
            return ""
        if CONVENTIONS[name].behind_lengths and not self.takes_lengths:
            return ""
        return str(getattr(self.conventions, name))


_ATTENDS, _MASKS = "True attends", "True masks"

LIBRARIES = (
    Library(
        name="torch.nn.functional.scaled_dot_product_attention",
        axes="BHSD",
        conventions=Conventions(),
        mask=_ATTENDS,
        kernel="torch_sdpa:math",
    ),
    Library(
        name="torch.nn.attention.flex_attention",
        axes="BHSD",
        conventions=Conventions(),
        returns_lse=True,
        left_open=frozenset({"causal_alignment"}),
        kernel="torch_flex",
    ),
    Library(
        name="torch.nn.MultiheadAttention without weights",
        axes="[B, S, H D]",
        conventions=Conventions(),
        mask=_MASKS,
        left_open=frozenset({"causal_alignment"}),
        kernel="torch_layer:multihead",
    ),
    Library(
        name="torch.nn.MultiheadAttention with weights",
        axes="[B, S, H D]",
        conventions=Conventions(empty_row="nan"),
        mask=_MASKS,
        left_open=frozenset({"causal_alignment"}),
        kernel="torch_layer:multihead_weights",
    ),
    Library(
        name="jax.nn.dot_product_attention",
        axes="BSHD",
        conventions=Conventions(**SIGNATURES["jax"].conventions),
        returns_lse=True,
        mask=_ATTENDS,
        takes_lengths=True,
        window="(left, right), both inclusive",
        kernel="jax_attention:library",
    ),
    Library(
        name="flash_attn.flash_attn_func",
        axes="BSHD",
        conventions=Conventions(**SIGNATURES["flash_attn"].conventions),
        returns_lse=True,
        window="(left, right), both inclusive, -1 unbounded",
        kernel="attn_spec.reports.proof.plain.flash:flash2",
        calls_it=False,
    ),
    Library(
        name="flashinfer",
        conventions=Conventions(causal_alignment="bottom_right", lse_base="2"),
        returns_lse=True,
        left_open=frozenset({"empty_lse"}),
        kernel="attn_spec.reports.proof.plain.merging:cascade",
        calls_it=False,
    ),
    Library(
        name="Triton tutorial 06",
        axes="BHSD",
        conventions=Conventions(lse_base="2"),
        returns_lse=True,
        left_open=frozenset({"empty_row", "empty_lse"}),
        kernel="attn_spec.reports.proof.plain.flash:tutorial",
        calls_it=False,
    ),
    Library(
        name="transformers eager_attention_forward",
        conventions=Conventions(empty_row="mean_of_v"),
        left_open=frozenset({"causal_alignment"}),
        kernel="attn_spec.reports.proof.plain.eager:hf_eager",
        calls_it=False,
    ),
)
