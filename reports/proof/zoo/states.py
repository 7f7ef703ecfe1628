"""Mutants of merges of attention states: a sound merge with one step wrong, of a stack, a pair or lists of states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.kernel import Kernel

from .mutants import introduce

OUTPUT = "accuracy.output_is_within_its_bound"
MAXIMA = "online_rescaling.the_maximum_may_move_anywhere"
LAYOUT = "independence.the_layout_in_memory_has_no_influence"
ALONE = "lengths.each_sequence_is_solved_as_if_it_were_alone"
EMPTY = "states.an_empty_state_takes_no_part"
AGAIN = "states.merged_states_merge_again"


class Merge:
    """A sound merge of states [tokens, states, H, D], one method a step."""

    def __call__(self, v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        s = self.read(s)
        top = s.amax(1)
        weights = self.exponential(s - self.reference(top)[:, None])
        total = weights.sum(1)
        values = self.values(v.float(), weights)
        out = (weights[..., None] * values).sum(1) / self.divisor(total)[..., None]
        return out.to(v.dtype), self.log_sum_exp(top, total)

    def read(self, s: Tensor) -> Tensor:
        """Return the log-sum-exps of states, minus infinity for those without keys."""
        return s.masked_fill(s.isinf(), -torch.inf)

    def reference(self, top: Tensor) -> Tensor:
        """Return what is subtracted from log-sum-exps."""
        return top.masked_fill(top == -torch.inf, 0.0)

    def exponential(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def values(self, v: Tensor, weights: Tensor) -> Tensor:
        """Return the outputs of states, 0 where the weight is 0."""
        return v.masked_fill((weights == 0)[..., None], 0.0)

    def divisor(self, total: Tensor) -> Tensor:
        return total.masked_fill(total == 0, 1.0)

    def log_sum_exp(self, top: Tensor, total: Tensor) -> Tensor:
        return top + torch.log(total)


class MergePair(Merge):
    """A sound merge of two states."""

    def pair(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
        return self(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))


class MergeLists(Merge):
    """A sound merge of as many states as each token has."""

    def listed(self, v: Tensor, s: Tensor, *, indptr: Tensor) -> tuple[Tensor, Tensor]:
        first, end = self.bounds(indptr)
        place = first[:, None] + torch.arange(int((end - first).max()) if len(first) else 0)
        there = place < end[:, None]
        place = place.clamp(max=len(v) - 1)
        nothing = torch.full((len(first), 1, s.shape[1]), -torch.inf)
        own = torch.cat([s[place].masked_fill(~there[..., None], -torch.inf), nothing], 1)
        return self(torch.cat([v[place], v.new_zeros(len(first), 1, *v.shape[1:])], 1), own)

    def bounds(self, indptr: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first state of each token, and the end of its states."""
        return indptr[:-1].long(), indptr[1:].long()


def merge_mutant(
    *, source: str, named_by: str | None, empty_state: str = "-inf", nonfinite: str = "excluded"
) -> Callable[[type[Merge]], type[Merge]]:
    """Register a merge with one wrong step, in the presentation of its class; a control when no property names it."""

    def register(wrong: type[Merge]) -> type[Merge]:
        def build(name: str, dtype: str) -> Kernel:
            conventions = {"empty_state": empty_state, "masked_nonfinite": nonfinite, "unused": "unread"}
            declared: dict[str, Any] = {"dtypes": (dtype,), "contract": "fp32", "supports": ("lse",)}
            declared |= {"framework": "torch", "name": name, "conventions": conventions, "devices": ("cpu",)}
            merge = wrong()
            if isinstance(merge, MergePair):
                return kernel(presentation="states_pair", **declared)(merge.pair)
            if isinstance(merge, MergeLists):
                return kernel(presentation="states_list", **declared)(merge.listed)
            return kernel(presentation="states", **declared)(merge)

        return introduce(wrong, build, source=source, named_by=named_by, dtype="float32")

    return register


@merge_mutant(
    source="made up: a sound merge, given +inf for states without keys", named_by=None, empty_state="either_inf"
)
class MergeOfStacks(Merge):
    """States are merged rightly, whatever infinity is the log-sum-exp of an empty one."""


@merge_mutant(source="made up: a sound merge of lists", named_by=None)
class MergeOfLists(MergeLists):
    """States are merged rightly, as many as each token has."""


@merge_mutant(source="flashinfer-ai/flashinfer#4051, vllm-project/vllm#39148", named_by=EMPTY)
class MergeUnguarded(Merge):
    """Minus infinity is subtracted from itself where all states are empty."""

    def reference(self, top: Tensor) -> Tensor:
        return top


@merge_mutant(source="vllm-project/vllm#28181, Dao-AILab/flash-attention#978", named_by=EMPTY, empty_state="either_inf")
class MergeInfiniteLse(Merge):
    """A log-sum-exp of plus infinity, which says that a state is empty, is taken for a weight."""

    def read(self, s: Tensor) -> Tensor:
        return s


@merge_mutant(source="made up: merge_attn_states of vLLM 0.33.0, if outputs may be anything", named_by=EMPTY)
class MergeSpreadsNan(MergePair):
    """The output of an empty state is multiplied by a weight of 0, so that NaN in it reaches the result."""

    def values(self, v: Tensor, weights: Tensor) -> Tensor:
        del weights
        return v


@merge_mutant(source="jzhang38/EasyContext#14", named_by=MAXIMA)
class MergeNaive(Merge):
    """States are folded by a + log(1 + exp(b - a)), which overflows when b is far above a."""

    def __call__(self, v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        s, values = self.read(s), v.float()
        out, lse = values[:, 0].masked_fill((s[:, 0] == -torch.inf)[..., None], 0.0), s[:, 0]
        for state in range(1, s.shape[1]):
            other = s[:, state]
            total = torch.where(lse == -torch.inf, other, lse + torch.log(1 + torch.exp(other - lse)))
            a, b = (torch.exp(x - self.reference(total)).masked_fill(x == -torch.inf, 0.0) for x in (lse, other))
            kept = values[:, state].masked_fill((b == 0)[..., None], 0.0)
            out, lse = a[..., None] * out + b[..., None] * kept, total
        return out.to(v.dtype), lse


@merge_mutant(source="flashinfer-ai/flashinfer#4484, meta-pytorch/attention-gym#205", named_by=OUTPUT)
class MergeBaseTwoAsE(Merge):
    """Natural log-sum-exps are read as logarithms to the base 2."""

    def exponential(self, x: Tensor) -> Tensor:
        return torch.exp2(x)


@merge_mutant(source="flashinfer-ai/flashinfer#4484, the other way", named_by=AGAIN)
class MergeWritesBaseTwo(Merge):
    """The log-sum-exp is read as a natural one, and returned to the base 2."""

    def log_sum_exp(self, top: Tensor, total: Tensor) -> Tensor:
        return (top + torch.log(total)) / 0.6931471805599453


@merge_mutant(source="made up: right for the output, wrong for the next merge", named_by=AGAIN)
class MergeReturnsTheMaximum(Merge):
    """The log-sum-exp that is returned is the largest of the states', without the sum."""

    def log_sum_exp(self, top: Tensor, total: Tensor) -> Tensor:
        del total
        return top


@merge_mutant(source="made up: arguments of a call in the order v_a, v_b, s_a, s_b", named_by=OUTPUT)
class MergeSwapsLogSumExps(MergePair):
    """Each output has the weight of the other state."""

    def pair(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
        return super().pair(v_a, s_b, v_b, s_a)


@merge_mutant(source="local-inference-lab/vllm#15", named_by=LAYOUT)
class MergeOneStride(MergePair):
    """The output of the second state is read with the strides of the first."""

    def pair(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
        memory = torch.empty(0, dtype=v_b.dtype).set_(v_b.untyped_storage())
        at = torch.tensor(v_b.storage_offset())
        for length, stride in zip(v_b.shape, v_a.stride(), strict=True):
            at = at[..., None] + torch.arange(length) * stride
        return super().pair(v_a, s_a, memory[at.clamp(max=len(memory) - 1)], s_b)


@merge_mutant(source="local-inference-lab/vllm#468", named_by=OUTPUT)
class MergeAlias(MergePair):
    """The log-sum-exp is written over that of the first state before this is read for the output."""

    def pair(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
        s_a.copy_(torch.logaddexp(s_a, s_b))
        out, _ = super().pair(v_a, s_a, v_b, s_b)
        return out, s_a


@merge_mutant(source="ROCm/aiter#3955, deepseek-ai/FlashMLA#77", named_by=ALONE)
class SplitCountStale(MergeLists):
    """Each token is given as many states as the first one has."""

    def bounds(self, indptr: Tensor) -> tuple[Tensor, Tensor]:
        first, end = super().bounds(indptr)
        return first, first + (end - first)[:1]
