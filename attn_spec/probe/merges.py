"""Find whether a callable with a bias and no mask also does what masks do: by a bias that is -inf where they hide."""

from __future__ import annotations

from dataclasses import replace

from attn_spec.judgement.other_problems import explains
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import judged
from attn_spec.search.plain_calls import plain, used

from .instrument import Finding, asked

#: Options that a bias of -inf stands for, if the callable takes none of them.
WRITTEN = ("causal", "mask")


def with_merge(subject: Subject) -> tuple[Subject, Finding | None]:
    """Return the subject as one into whose bias other options are written, and the finding; unchanged if it does not
    take a bias alone, or a bias of -inf does not mask.
    """
    kernel = subject.kernel
    if "bias" not in kernel.supports or kernel.merge or not kernel.supports.isdisjoint(WRITTEN):
        return subject, None
    merging = replace(subject, kernel=replace(kernel, merge="bias", supports=kernel.supports | set(WRITTEN)))

    def experiment() -> Finding:
        problem = plain(merging.kernel, merging.dtype)
        for name in WRITTEN:
            masked = problem.replace(**{name: used(name, problem)})
            if not explains(judged(merging, masked, merging(masked))):
                return Finding("merge", None, f"no contract bounds the answer to a bias that stands for {name}")
        return Finding("merge", "bias", f"a bias of -inf does what {' and '.join(WRITTEN)} do")

    found = asked("merge", experiment)
    return (merging if found.value else subject), found
