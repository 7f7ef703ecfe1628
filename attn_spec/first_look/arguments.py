"""Options that libraries pass in several forms: a kernel is called again with the other form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attn_spec.first_look.misfit import MisfitError, declaring
from attn_spec.first_look.plain_look import look
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.subject import Subject
from attn_spec.problem.dtypes import dtype_of
from attn_spec.problem.problem import Problem


def explain_window(subject: Subject) -> None:
    """Test whether -1 means an unbounded side of a window. Raises :class:`MisfitError` if it does."""
    word = subject.kernel.keyword("window")
    changed = _passing(word, lambda window: tuple(-1 if side is None else side for side in window))
    if _is_the_remedy(subject, changed, "window", [(2, None), (1, None)]):
        cause = f"its {word} has -1 for a side without bound, and is given None"
        remedy = f"wrap it in a function that passes {word}=tuple(-1 if side is None else side for side in {word})"
        raise MisfitError(subject.kernel, cause, remedy)


def explain_mask(subject: Subject) -> None:
    """Test whether a mask is added to scores, or masks keys where it is True. Raises :class:`MisfitError` if so."""
    word, own = subject.kernel.keyword("mask"), subject.framework

    def added(mask: Any) -> Any:
        return own.give(np.where(own.take(mask), 0.0, -np.inf), dtype_of(subject.dtypes, "q"), subject.device)

    if _is_the_remedy(subject, _passing(word, added), "mask", MASKS):
        cause = f"its {word} is added to scores, -inf masks a key; it is given a bool mask, True = attend"
        remedy = f"rename {word} to bias, and {declaring(subject.kernel, merge='bias')}: masks are then added to scores"
        raise MisfitError(subject.kernel, cause, remedy)
    if _is_the_remedy(subject, _passing(word, lambda mask: ~mask), "mask", MASKS):
        cause = f"its {word} masks a key where it is True; it is given a bool mask, True = attend"
        raise MisfitError(subject.kernel, cause, f"wrap it in a function that passes {word}=~{word}")


def _is_the_remedy(subject: Subject, changed: Callable[[Kernel], Kernel], name: str, values: Sequence[Any]) -> bool:
    """Return whether the kernel is wrong with an option's first value, and right with all values in the other form.

    A second value is needed: a kernel that returns old answers can be right at the second call with a value, but not
    with the next value.
    """
    seen = look(subject, **{name: values[0]})
    if seen is None or seen.is_right:
        return False
    looks = (look(subject, changed, **{name: value}) for value in values)
    return all(seen is not None and seen.is_right for seen in looks)


def _passing(word: str, changed: Callable[[Any], Any]) -> Callable[[Kernel], Kernel]:
    """Return a function that wraps a kernel so that it passes the argument ``word`` in another form."""

    def around(kernel: Kernel) -> Kernel:
        def called(*tensors: Any, **options: Any) -> Any:
            return kernel(*tensors, **{n: changed(x) if n == word and x is not None else x for n, x in options.items()})

        return kernel.wrapped(called)

    return around


def _mask(hidden: int) -> Callable[[Problem], np.ndarray]:
    """Return a mask by which each query sees two of three keys.

    The inverted mask shows one of three keys, which is the mask of no other ``hidden``.
    """

    def made(problem: Problem) -> np.ndarray:
        rows, columns = np.ogrid[: problem.query_length, : problem.key_length]
        return np.broadcast_to((rows + columns) % 3 != hidden, problem.score_shape).copy()

    return made


#: Two masks, made for a problem.
MASKS = (_mask(0), _mask(1))
