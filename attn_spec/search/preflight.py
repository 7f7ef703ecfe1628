"""Preflight: whether a kernel can be called at all, and which abilities an undecorated callable has.

Preflight makes one small, plain call for each dtype. A kernel that fails in every dtype cannot be certified or refuted.
For an undecorated callable, dtypes and shape abilities that nobody named are tried; one that fails is *not declared*.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from attn_spec.contract.contract import ContractError
from attn_spec.contract.presets import check_said
from attn_spec.judgement.other_problems import explains
from attn_spec.kernels.dropping import dropping
from attn_spec.kernels.frameworks.framework import FrameworkError
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import CallFailed, Misbehaviour
from attn_spec.kernels.presentations.memory import of_two_axes
from attn_spec.kernels.presentations.packing.argument_names import spelled
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.kernels.subject import CALL_LIMIT, Subject, was_late
from attn_spec.kernels.time_limit import Guard, last_resort, no_guard
from attn_spec.nearest_names import suggestion
from attn_spec.numbers.formats import INPUT_DTYPES
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.conventions import OF_ANSWERS, OPEN
from attn_spec.problem.dtypes import has_eight_bits, in_one_spelling, input_dtypes, refusal
from attn_spec.problem.options import FACTORS, OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import judged
from attn_spec.search.new_shapes import FEW, LEAST, high_cost
from attn_spec.search.plain_calls import failure, plain, with_an_empty_row, with_defaults_off

#: Abilities that a call shows, since a signature does not say whether a kernel has them.
TRIED = tuple(name for name, row in ABILITIES.items() if row.shows)

#: Options of which an undecorated callable may refuse to combine two.
COMBINED = tuple(name for name, row in OPTIONS.items() if row.plain is not None)


class PlainCallError(KernelError):
    """A kernel returned from no plain call at any dtype; ``failures`` has the reasons by dtype."""

    def __init__(self, subjects: Sequence[Subject], failures: Mapping[str, str]) -> None:
        self.subjects, self.failures = subjects, failures
        kernel = subjects[0].kernel
        dtypes = {reason: [dtype for dtype in failures if failures[dtype] == reason] for reason in failures.values()}
        reasons = "\n".join(f"  {', '.join(found)}: {reason}" for reason, found in dtypes.items())
        shown = subjects[0].presentation
        tensors = shown.handed(next(shown.parts(plain(kernel, "float32")))).tensors
        shapes = {name: tuple(tensors[name].shape) for name in shown.tensors}
        alike = {shape: ", ".join(name for name in shapes if shapes[name] == shape) for shape in shapes.values()}
        given = "; ".join(f"{names} of shape {shape}" for shape, names in alike.items())
        more = "; if it needs more, wrap it in a function that passes the rest"
        if needed := _options_without_default(subjects[0]):
            more = f"; give {' and '.join(needed)} a default, such as None, or declare always={needed!r}"
        if not kernel.declared and kernel.framework != "numpy" and "framework" not in kernel.given:
            more += f". Its module imports {kernel.framework}; if its tensors are NumPy's, say --framework numpy"
        super().__init__(
            f"{kernel.name} cannot be run: a plain call failed in every dtype.\n{reasons}\n"
            f"It is given {given} ({kernel.presentation}){'' if all(map(was_late, failures.values())) else more}"
        )


@dataclass(frozen=True)
class Preflight:
    """A kernel ready to be searched."""

    #: Subjects, one for each dtype to examine.
    subjects: tuple[Subject, ...]
    #: Dtypes and options that were tried without success, with the reason.
    declined: dict[str, str] = field(default_factory=dict)
    #: Sentence about the cost of a new shape, if searches keep to few signatures for it; else empty.
    cost_of_new_shapes: str = ""

    def with_few_signatures(self, first: Subject) -> Preflight:
        """Return the preflight with few signatures if new shapes cost ``first`` much, and no number is declared."""
        if first.kernel.signatures is not None or (cost := high_cost(first)) is None:
            return self
        subjects = (replace(each, kernel=replace(each.kernel, signatures=FEW)) for each in self.subjects)
        return replace(self, subjects=tuple(subjects), cost_of_new_shapes=str(cost))


def preflight(
    kernel: Kernel,
    dtypes: Sequence[str] = (),
    device: str = "cpu",
    call_limit: float = CALL_LIMIT,
    guard: Guard = last_resort,
) -> Preflight:
    """Return the subjects of a kernel at ``dtypes``, or at every dtype that it declares. Raises :class:`KernelError`.

    ``call_limit`` (seconds) and ``guard`` are fields of every subject; an isolated kernel needs no guard.
    """
    _check_device(kernel, device)
    dtypes = [*map(in_one_spelling, dtypes)]
    check_dtypes(kernel, dtypes)
    _check_backward(kernel)
    _check_destinations(kernel)
    guard = no_guard if kernel.isolated else guard
    subjects = [Subject(kernel, dtype, device, call_limit, guard) for dtype in dtypes or kernel.dtypes]
    refused: dict[str, str] = {}
    if not kernel.declared:
        kernel, refused = with_defaults_off(subjects)
        subjects = [replace(subject, kernel=kernel) for subject in subjects]
    named = set(kernel.dtypes if kernel.declared else (*dtypes, *kernel.given.get("dtypes", ())))
    _check_given(subjects, named)
    begun = time.perf_counter()
    failures = {subject.dtype: reason for subject in subjects if (reason := failure(subject))}
    is_quick = time.perf_counter() - begun < LEAST  # then no new shape costs much
    if len(failures) == len(subjects):
        raise PlainCallError(subjects, failures)
    first = next(subject for subject in subjects if subject.dtype not in failures)
    if kernel.declared:
        checked = Preflight(tuple(subjects))
        return checked if is_quick else checked.with_few_signatures(first)
    able = [subject for subject in subjects if subject.dtype in named or subject.dtype not in failures]
    declined = {dtype: reason for dtype, reason in failures.items() if dtype not in named}
    untaken = {option: reason for option in TRIED if (reason := _refusal(first, option))}
    found = replace(kernel, supports=kernel.supports | set(TRIED) - set(untaken))
    clashes = {
        pair: reason for pair in combinations(COMBINED, 2) if (reason := _clash(replace(first, kernel=found), pair))
    }
    found = replace(found, limits=replace(found.limits, exclusive=(*found.limits.exclusive, *clashes)))
    refused |= untaken | {" with ".join(pair): reason for pair, reason in clashes.items()} | _not_understood(kernel)
    refused |= _left_open(replace(first, kernel=found))
    checked = Preflight(tuple(replace(subject, kernel=found) for subject in able), declined | refused)
    return checked.with_few_signatures(replace(first, kernel=found))


def _options_without_default(subject: Subject) -> tuple[str, ...]:
    """Return the parameters without a default of a declared kernel that are options, and that a plain call lacks."""
    kernel, given = subject.kernel, subject.presentation.recognised_by
    if not kernel.declared:
        return ()
    spellings = {each for name, row in OPTIONS.items() if name not in kernel.limits.needed for each in row.spellings}
    lacks = (
        name for name, one in kernel.parameters.items() if one.default is one.empty and one.kind is one.KEYWORD_ONLY
    )
    return tuple(name for name in lacks if name in spellings and name not in given)


def _check_device(kernel: Kernel, device: str) -> None:
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise KernelError(f"unknown device {device!r}; write cpu, cuda or cuda:N")
    try:
        own = kernel.library
    except FrameworkError as error:
        raise KernelError(f"{kernel.name}: {error}") from error
    if kind not in kernel.devices:
        runs_on = " and ".join(kernel.devices)
        raise KernelError(f"{kernel.name} runs on {runs_on} only, not on {device}; choose device {kernel.devices[0]}")
    if reason := own.missing(device):
        raise KernelError(reason)


def check_dtypes(kernel: Kernel, dtypes: Sequence[str]) -> None:
    """Raise :class:`KernelError` for a dtype that does not exist, or that the kernel does not declare."""
    for dtype in dtypes:
        if ":" not in dtype and dtype not in INPUT_DTYPES:
            known = f"; known are {', '.join(INPUT_DTYPES)}"
            raise KernelError(f"unknown dtype {dtype!r}{suggestion(dtype, INPUT_DTYPES, known)}")
        if (reason := refusal(dtype)) is not None:
            raise KernelError(f"the dtypes {dtype} {reason}")
    if kernel.declared and (unknown := [dtype for dtype in dtypes if dtype not in kernel.dtypes]):
        raise KernelError(f"{kernel.name} declares {', '.join(kernel.dtypes)}, not {', '.join(unknown)}")
    for dtype in dtypes:
        try:
            check_said(kernel.contract_declared(dtype), dtype)
        except ContractError as error:
            raise KernelError(f"{kernel.name}: {error}") from error


def _check_backward(kernel: Kernel) -> None:
    """Raise :class:`KernelError` if a kernel declares gradients that neither it nor its framework computes.

    The declaration cannot check this, since ``@NAME.backward`` completes it later.
    """
    able = kernel.backward_function is not None or _differentiates(kernel)
    if "backward" in kernel.supports and (eight := [dtype for dtype in kernel.dtypes if has_eight_bits(dtype)]):
        raise KernelError(
            f"{kernel.name} declares backward, and no gradients of inputs of 8 bits, {eight[0]}, are judged; leave "
            "backward out, or declare these dtypes for a kernel of their own"
        )
    if not able and (declared := sorted(kernel.supports & {"backward", "lse_backward"})):
        raise KernelError(
            f"{kernel.name} declares {', '.join(declared)}, but {_without_gradients(kernel)}; define "
            "its own with @NAME.backward, or leave them out"
        )


def _differentiates(kernel: Kernel) -> bool:
    """Return whether the framework differentiates calls of a kernel."""
    return "autograd" in kernel.library.abilities and not kernel.destinations


def _without_gradients(kernel: Kernel) -> str:
    """Return why the framework of a kernel does not differentiate its calls."""
    return (
        "a tensor that a call is given to write into carries no gradients"
        if kernel.destinations
        else f"{kernel.framework} carries no gradients"
    )


def _check_destinations(kernel: Kernel) -> None:
    """Raise :class:`KernelError` if a kernel writes into tensors that its framework does not change."""
    if kernel.destinations and "in_place" not in kernel.library.abilities:
        raise KernelError(
            f"{kernel.name} declares destinations, but tensors of {kernel.framework} cannot be written into; return "
            "the results instead"
        )


def _check_given(subjects: Sequence[Subject], named: Collection[str]) -> None:
    """Raise :class:`KernelError` if the framework lacks a dtype that the kernel, or a user for it, declares."""
    for subject in [subject for subject in subjects if subject.dtype in named]:
        try:
            for dtype in set(input_dtypes(subject.dtype)):
                subject.framework.give(np.zeros(1), dtype, subject.device)
        except FrameworkError as error:
            raise KernelError(f"{subject.kernel.name} cannot be examined at {subject.dtype}: {error}") from error


def _refusal(subject: Subject, option: str) -> str | None:
    """Try ``option``; return why an undecorated callable refuses it.

    Return None if it does not, or if the option is declared.
    """
    kernel = subject.kernel
    if option in kernel.supports:
        return None
    if option in kernel.given.get("without", ()):
        return "it was asked to be left out"
    if reason := _not_asked_for(kernel, option):
        return reason
    problem = plain(kernel, subject.dtype, option)
    willing = replace(subject, kernel=replace(kernel, supports=kernel.supports | {option}))
    try:
        return _refused(willing, option, problem)
    except NotTaken as error:
        return str(error)
    except Misbehaviour as error:
        return "it returns no (out, lse) pair" if option == "lse" and not isinstance(error, CallFailed) else str(error)


def _refused(willing: Subject, option: str, problem: Problem) -> str | None:
    """Call the kernel as one that declares ``option``; return what its answer lacks. Raises :class:`Misbehaviour`."""
    match option:
        case "backward" if not willing.supports("autograd"):
            return f"{_without_gradients(willing.kernel)}, and it has no @NAME.backward"
        case "backward":
            name = willing.presentation.inputs[-1]
            reached = willing.gradients(problem, np.ones(problem.output_shape))[f"d{name}"].any()
            return None if reached else f"no gradient reaches {name}"
        case "mask_of_two_axes":  # some callables read its axes as batch entries and keys
            masked = problem.replace(mask=np.tril(np.ones(problem.score_shape[2:], dtype=bool))[None, None])
            answer = willing(masked, arrange_options=of_two_axes)
            return "a mask of two axes has another meaning" if judged(willing, masked, answer).refuted else None
        case "descale_by_head" | "descale_by_key":  # others may read the first number alone
            one = {name: x[:1, :1, :1] for name in FACTORS if (x := getattr(problem, name)) is not None}
            several, alone = (judged(willing, x, willing(x)).refuted for x in (problem, problem.replace(**one)))
            return "its answer with several numbers in a descale is wrong, with one right" if several > alone else None
        case "dropout_by_chance":  # a kernel that does not drop weights is refuted later; one that raises lacks it
            dropping(willing, 0.5)(problem)
            return None
        case _:
            willing(problem)
            return None


def _not_asked_for(kernel: Kernel, ability: str) -> str | None:
    """Return why a call cannot ask for an ability: no parameter does, if one is needed, or the presentation or the
    signature forbids it.

    Return None if a call can.
    """
    if kernel.signature and ability in SIGNATURES[kernel.signature].lacks:
        return f"no call of the signature {kernel.signature} has it"
    of_any = ABILITIES[ability].of_any
    if of_any and kernel.supports.isdisjoint(of_any):
        return f"it takes none of {', '.join(of_any)}"
    for name in filter(None, (ABILITIES[ability].of, ability)):
        if name in OPTIONS:
            if name not in kernel.supports:
                return f"it does not take {name}"
            continue
        spellings = set(ABILITIES[name].spellings)
        if shared := [
            option for option in kernel.supports & set(OPTIONS) if spellings & set(OPTIONS[option].spellings)
        ]:
            return f"its {shared[0]} is a parameter of {OPTIONS[shared[0]].of}"
        if spellings and not spellings & set(kernel.parameters):
            return f"it has no parameter {ABILITIES[name].spellings[0]}"
    unsaid = PRESENTATIONS[kernel.presentation].refusal(ability)
    return f"a call as {kernel.presentation} cannot ask for it, {unsaid}" if unsaid else None


def _left_open(subject: Subject) -> dict[str, str]:
    """Return the conventions that an undecorated callable leaves open, each with the choice that a call shows.

    Rows without a visible key are not judged under such a convention, so the reader is told what they hold.
    """
    if not subject.supports("mask"):
        return {}
    problem, found = with_an_empty_row(subject.kernel, subject.dtype), {}
    try:
        answer = subject(problem)
    except (Misbehaviour, NotTaken):
        return {}
    for name, row in OF_ANSWERS.items():
        quantity = next((each for each in row.decides if each in answer), None)
        if quantity is None or getattr(subject.conventions, name) != OPEN or not row.shows(problem):
            continue
        part = {quantity: answer[quantity]}
        shown = [choice for choice in row.telling if explains(judged(subject.keeping(**{name: choice}), problem, part))]
        means = f"{row.choices[shown[0]]}; {name}={shown[0]!r} declares it" if len(shown) == 1 else "of no known choice"
        found[name] = f"the {quantity} of a query that sees no key is {means}"
    return found


def _not_understood(kernel: Kernel) -> dict[str, str]:
    """Return the parameters of an undecorated callable that pass no option, which stay at their defaults."""
    told = [row for row in OPTIONS.values() if not row.of or row.of in kernel.supports]
    shown = PRESENTATIONS[kernel.presentation]
    spellings = {spelling for row in (*told, *ABILITIES.values()) for spelling in row.spellings}
    spellings |= {"enable_gqa", *(word for name in shown.says_where for word in spelled(name))}
    spellings |= {name for names in shown.passes.values() for name in names}
    spellings |= set(kernel.destinations.values())
    parameters = list(kernel.parameters.values())[len(shown.tensors) :]
    named = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    reason = f"left at its default, since no option that it takes is spelled so; the options are {', '.join(OPTIONS)}"
    return {f"parameter {name}": reason for name in named if name not in spellings}


def _clash(subject: Subject, pair: tuple[str, str]) -> str | None:
    """Try two options together that a callable takes one by one; return why it refuses them, None if it does not.

    The code that a call reaches depends on its shape too, so each supported shape ability is tried.
    """
    if not subject.supports(*pair) or any(set(pair) == set(apart) for apart in subject.kernel.limits.exclusive):
        return None
    for shape in (None, *(option for option in ("dv", "cross", "gqa") if subject.supports(option))):
        apart = [_called(subject, shape, option) for option in pair]
        if apart == [None, None] and (reason := _called(subject, shape, *pair)):
            return reason
    return None


def _called(subject: Subject, shape: str | None, *options: str) -> str | None:
    """Call with the options; return why the call failed, None if it returned anything."""
    problem = plain(subject.kernel, subject.dtype, shape)
    values = {name: OPTIONS[name].plain for name in options}
    try:
        subject(problem.replace(**{name: plain(problem.lengths) for name, plain in values.items() if plain}))
    except (CallFailed, NotTaken) as error:
        return str(error)
    except Misbehaviour:
        return None
    return None
