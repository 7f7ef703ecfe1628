"""The conventions of libraries in wide use: what a wrapper around one of them declares.

Each row names a kernel that is examined with these conventions, in ``implementations`` where the library itself is
called, in ``reports/plain`` where its code is written down as it stands in its source.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_spec.problem.conventions import CONVENTIONS, Conventions


@dataclass(frozen=True, kw_only=True)
class Library:
    """What is known of one function of a library."""

    name: str
    #: The axes of q, k and v, where possible by a name of ``kernels.presentation``.
    axes: str = ""
    #: What is said of the LSE holds where one is returned.
    conventions: Conventions
    #: Whether a log-sum-exp is returned.
    returns_lse: bool = False
    #: What a bool mask means; empty where none is taken.
    mask: str = ""
    #: What a pair of window lengths means; empty where none is taken.
    window: str = ""
    #: What a caller decides that a convention would say.
    left_open: frozenset[str] = frozenset()
    #: A kernel that is examined with these conventions.
    kernel: str
    #: Whether that calls the library, or is written after its source.
    calls_it: bool = True

    def convention(self, name: str) -> str:
        """The value of one convention; empty where the library has none."""
        needs_lse = CONVENTIONS[name].decides == ("lse",)
        if name in self.left_open or (needs_lse and not self.returns_lse):
            return ""
        return str(getattr(self.conventions, name))


_ATTENDS, _HIDES = "True attends", "True hides"

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
        mask=_HIDES,
        left_open=frozenset({"causal_alignment"}),
        kernel="torch_layer:multihead",
    ),
    Library(
        name="torch.nn.MultiheadAttention with weights",
        axes="[B, S, H D]",
        conventions=Conventions(empty_row="nan"),
        mask=_HIDES,
        left_open=frozenset({"causal_alignment"}),
        kernel="torch_layer:multihead_weights",
    ),
    Library(
        name="jax.nn.dot_product_attention",
        axes="BSHD",
        conventions=Conventions(empty_row="mean_of_v", empty_lse="undeclared"),
        returns_lse=True,
        mask=_ATTENDS,
        window="(left, right), both inclusive",
        kernel="jax_attention:library",
    ),
    Library(
        name="flash_attn.flash_attn_func",
        axes="BSHD",
        conventions=Conventions(causal_alignment="bottom_right", empty_lse="+inf"),
        returns_lse=True,
        window="(left, right), both inclusive, -1 unbounded",
        kernel="attn_spec.reports.plain.flash:flash2",
        calls_it=False,
    ),
    Library(
        name="flashinfer",
        conventions=Conventions(causal_alignment="bottom_right", lse_base="2"),
        returns_lse=True,
        left_open=frozenset({"empty_lse"}),
        kernel="attn_spec.reports.plain.merging:cascade",
        calls_it=False,
    ),
    Library(
        name="Triton tutorial 06",
        axes="BHSD",
        conventions=Conventions(lse_base="2"),
        returns_lse=True,
        left_open=frozenset({"empty_row", "empty_lse"}),
        kernel="attn_spec.reports.plain.flash:tutorial",
        calls_it=False,
    ),
    Library(
        name="transformers eager_attention_forward",
        conventions=Conventions(empty_row="mean_of_v"),
        left_open=frozenset({"causal_alignment"}),
        kernel="attn_spec.reports.plain.eager:hf_eager",
        calls_it=False,
    ),
)
