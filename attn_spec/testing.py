"""Assertions for a user's tests: whether an answer is the attention of its tensors, in one line.

    from attn_spec.testing import assert_attention

    assert_attention(out, q, k, v, causal=True, contract="fused")   # in place of torch.testing.assert_close

There is no tolerance to choose: each element has a bound of its own, derived from the contract and the data, and the
truth comes from an oracle. Tensors may be of any framework on any device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from attn_spec import faults
from attn_spec.bounds.outside import why_outside
from attn_spec.contract.contract import Contract, ResolvedContract
from attn_spec.contract.presets import UNDECLARED, as_contract, check_said, describe
from attn_spec.contract.readings import readings_of
from attn_spec.judgement.bound_terms import BoundTerm, of_gradient, of_row
from attn_spec.judgement.long.blocks import MEMORY, RowJudgement, Tally, judge_parts
from attn_spec.judgement.long.gradient_blocks import GradientJudgement, judge_gradient_parts
from attn_spec.judgement.long.gradient_parts import GradientPart
from attn_spec.judgement.long.key_sample import KeySample
from attn_spec.judgement.long.row_sample import RowSample
from attn_spec.judgement.measure import Judgement, judge, judge_gradients
from attn_spec.judgement.other_contracts import contracts_that_hold, gradient_contracts_that_hold
from attn_spec.judgement.other_problems import explains, has_gradient, is_small, plainest, right_for, within
from attn_spec.judgement.planted_errors import Power
from attn_spec.judgement.power import Planting
from attn_spec.judgement.power import power as planted_power
from attn_spec.judgement.worst import WorstElement
from attn_spec.kernels.calls.any_call import any_call, presentation_of
from attn_spec.kernels.calls.call import Call, CallError, answered, call_errors, dtype_of
from attn_spec.kernels.calls.gradient_call import pulled
from attn_spec.kernels.calls.other_calls import AsGiven, GradientsAsGiven, other_calls, with_other_keys
from attn_spec.kernels.signatures.reading import Reading, read
from attn_spec.numbers.formats import EIGHT_BITS, FORMATS
from attn_spec.problem.conventions import OF_ANSWERS, Conventions, of_call
from attn_spec.problem.dtypes import has_eight_bits
from attn_spec.problem.options.option_fields import is_number
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import OF_KEYS

#: Largest numbers of rows, and of batch entries and kv heads, in which errors are planted.
ROWS, HEADS = 64, 2

Judged = TypeVar("Judged", bound=RowJudgement)


#: Line of a failure that says how to run its call again.
AGAIN = "  again     pytest --attn-keep, or attn_spec.keep(error), stores this call as a case and a script"


@dataclass(frozen=True)
class Asserted:
    """Call of an assertion, as the test made it, from which it can be stored."""

    made: Call
    #: Arguments of the call, tensors among them, by the names that the test uses.
    arguments: Mapping[str, Any]
    #: Judged tensors by quantity, and the cotangents of output and log-sum-exp, if gradients are judged.
    answers: Mapping[str, Any]
    cotangents: tuple[Any, ...] = ()
    #: Signature that names the arguments; None if they have attn-spec's names.
    signature: str | None = None
    #: Index of the worst element in the tensor of the test.
    place: tuple[int, ...] = ()


class NotAttention(AssertionError):  # noqa: N818 -- a verdict, not an internal error
    """An element is outside its bound for certain; ``judgement`` holds the measurements, and ``call`` the call."""

    def __init__(self, text: str, judgement: RowJudgement, call: Asserted) -> None:
        super().__init__(f"{text}\n{AGAIN}")
        self.text, self.judgement, self.call = text, judgement, call


class NotJudged(AssertionError):  # noqa: N818 -- a verdict, not an internal error
    """The contract bounds too few elements of the answer; ``judgement`` holds the measurements."""

    def __init__(self, text: str, judgement: RowJudgement) -> None:
        super().__init__(text)
        self.judgement = judgement


def assert_attention(
    out: Any,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *,
    signature: str | None = None,
    lse: Any = None,
    contract: str | Contract | None = None,
    presentation: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    unjudged: float = 0.0,
    power: bool = False,
    memory: int = MEMORY,
    engine: str = "numpy",
    **words: Any,
) -> RowJudgement:
    """Raise :class:`NotAttention` unless ``out``, and ``lse``, are the attention of q, k and v within their bounds.

    Shapes in the presentation "BHSD": out [B, Hq, Sq, Dv], q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv]. The
    LSE is [B, Hq, Sq]. With ``cu_seqlens_q`` or ``block_table`` among the words the call is packed or paged, and the
    presentation "THD" or "paged": out [Tq, Hq, Dv], q [Tq, Hq, D], and the LSE [Hq, Tq].

    ``contract`` is the arithmetic that the kernel declares: the name of a preset, or a ``Contract``. Without one, any
    usual arithmetic may explain the answer. An answer in a dtype of its own is judged in that dtype.

    ``words`` are options and conventions. Options have their own names or those of other libraries (``is_causal``,
    ``attn_mask``, ``softmax_scale``, ``window_size``, ..). The conventions are those that
    one answer shows, for example ``lse_base`` and ``empty_row``; ``attn-spec explain conventions`` lists them. Rows
    that see no key are judged only if their convention is given.

    ``rows`` is the number of rows of each head that are judged, sampled by strata and by ``seed``; None judges all
    rows. ``unjudged`` is the allowed share of elements without a bound, for example where the contract's arithmetic may
    overflow. ``power=True`` plants errors; ``judgement.power`` says which of them would have been refuted. ``memory``
    is the number of bytes used at a time, about, beside the tensors. ``engine="torch:cuda"`` examines most rows on a
    GPU, in float64.

    ``signature`` names a library's function. Then ``words`` are the arguments of its call, tensors among them, and
    ``out`` and ``lse`` have its axes. Conventions that are not named are those of the function.

    Returns the judgement, with the largest error / bound and the examined rows. Raises :class:`NotJudged` if no element
    has a bound, or if more than the share ``unjudged`` has none. Raises :class:`CallError` for arguments that are no
    call of attention.
    """
    passed = _passed(q, k, v, words)
    reading = _reading(signature, {"q": q, "k": k, "v": v}, presentation, words)
    q, k, v = reading.tensors.values()
    told = {"output": out, "lse": lse}
    words, out, lse = dict(reading.words), reading.laid("output", out), reading.laid("lse", lse)
    conventions = _conventions(words)
    _check_effort(memory, unjudged, seed)
    if out is None:
        raise CallError("out must be the output of attention, not None: lse= is judged beside it")
    with reading.naming(), call_errors():
        shown = presentation_of(q, reading.presentation, words)
        made = any_call(q, k, v, presentation=shown, **words)
        made.check_conventions(conventions)
        answer = answered(made, output=out, lse=lse)
        dtypes = {name: dtype_of(name, x) for name, x in answer.items()}
        declared = UNDECLARED if contract is None else as_contract(contract)
        resolved = _resolved(declared, made.dtype, dtypes)
        sample = None if rows is None else RowSample(rows, seed)
        how: dict[str, Any] = {"sample": sample, "memory": memory, "engine": engine, "conventions": conventions}
        judgement = judge_parts(lambda: made.parts(answer, together=_is_whole(made, sample)), resolved, **how)
    tensors = {"q": q, "k": k, "v": v, "output": out, "lse": lse}
    given = AsGiven(**tensors, presentation=shown, words=words, conventions=conventions)
    asserted = Asserted(made, passed, told, signature=signature)
    asked = Asked(made, words, declared, conventions, given, reading, asserted)
    judgement = _verdict(asked, judgement, unjudged, answer)
    judgement.power = _power(made, resolved, conventions, seed, lse=lse is not None) if power else None
    return judgement


def assert_attention_gradients(
    gradients: Mapping[str, Any],
    dout: Any,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *,
    signature: str | None = None,
    out: Any = None,
    dlse: Any = None,
    contract: str | Contract | None = None,
    presentation: str | None = None,
    rows: int | None = None,
    keys: int | None = None,
    seed: int = 0,
    unjudged: float = 0.0,
    memory: int = MEMORY,
    **words: Any,
) -> GradientJudgement:
    """Raise :class:`NotAttention` unless ``gradients`` are those of attention for the cotangent ``dout`` of its output.

    ``gradients`` are by name: "dq", "dk", "dv" of the shapes of q, k, v, and those of options, for example "dbias".
    With ``latent=True`` "dkv", of the shape of k, is dK + [dV, 0], the gradient of keys that are values.
    ``dlse``, of the LSE's shape, is the cotangent of the LSE. dQ is judged in ``rows`` of each head, dK and dV at
    ``keys`` of each kv head; None judges all. The outputs of queries that see no key must be constants, which
    ``empty_row="zero"`` declares, or ``out``, the output of the forward pass, shows. Other arguments are those of
    :func:`assert_attention`. With ``signature``, gradients may also be named after the function's parameters: "dquery".
    """
    passed, sent = _passed(q, k, v, words), (dout, dlse)
    reading = _reading(signature, {"q": q, "k": k, "v": v}, presentation, words)
    q, k, v = reading.tensors.values()
    words, gradients = dict(reading.words), reading.gradients(gradients)
    out, dout, dlse = reading.laid("output", out), reading.laid("output", dout), reading.laid("lse", dlse)
    conventions = _conventions(words)
    _check_effort(memory, unjudged, seed)
    with reading.naming(), call_errors():
        shown = presentation_of(q, reading.presentation, words)
        made = any_call(q, k, v, presentation=shown, **words)
        made.check_conventions(conventions)
        if dlse is not None and "sinks" in made.options and not conventions.sink_in_lse:
            raise CallError("dlse must be that of a log-sum-exp with the sink; leave out dlse, or sink_in_lse=False")
        given = pulled(made, gradients, dout, dlse, conventions, out=out)
        if conventions.outputs_without_keys != {"zero"}:
            given.check_rows(memory)
        dtypes = {name: dtype_of(name, x) for name, x in (("output", given.cotangent), *given.found.items())}
        if "o_scale" in made.options or dtypes["output"] in EIGHT_BITS:
            raise CallError("no gradients beside o_scale, or an output of 8 bits, are judged; judge the output alone")
        if has_eight_bits(made.dtype):
            raise CallError(f"no gradients of inputs of 8 bits, {made.dtype}, are judged; judge the output alone")
        declared = UNDECLARED if contract is None else as_contract(contract)
        sample = None if rows is None else RowSample(rows, seed)
        chosen = None if keys is None else KeySample(keys, seed)
        resolved = _resolved(declared, made.dtype, dtypes)
        how: dict[str, Any] = {"sample": sample, "keys": chosen, "memory": memory, "conventions": conventions}
        is_whole = _is_whole(made, sample, chosen)
        judgement = judge_gradient_parts(lambda: given.parts(together=is_whole), resolved, **how)
    tensors = {"q": q, "k": k, "v": v, "gradients": gradients, "dout": dout, "dlse": dlse}
    as_given = GradientsAsGiven(**tensors, presentation=shown, words=words, conventions=conventions)
    asserted = Asserted(made, passed, gradients, sent, signature)
    return _verdict(Asked(made, words, declared, conventions, as_given, reading, asserted), judgement, unjudged)


def _is_whole(made: Call, sample: RowSample | None, keys: KeySample | None = None) -> bool:
    """Return whether samples of rows and of keys leave nothing out."""
    rows, of_keys = made.longest
    return (sample is None or rows <= sample.rows) and (keys is None or of_keys <= keys.keys)


def _power(made: Call, contract: ResolvedContract, conventions: Conventions, seed: int, *, lse: bool) -> Power:
    """Return the power in some rows of the first heads: the planted errors that would have been refuted."""
    problem = made.corner(HEADS)
    if problem.query_length > ROWS:
        first = problem.take("B", [0])
        head = first if problem.projects else first.head(0)
        problem = problem.rows(RowSample(ROWS, seed).of(head, 0).index)
    one = Planting(problem=problem, contract=contract, conventions=conventions, lse=lse)
    return planted_power([one], dtype=made.dtype, where="this call")


def _verdict(asked: Asked, judgement: Judged, unjudged: float, answer: Mapping[str, Any] | None = None) -> Judged:
    """Return a judgement that passes. Raises :class:`NotAttention` or :class:`NotJudged` for any other."""
    if judgement.refuted:
        raise NotAttention(asked.failure(judgement, answer), judgement, asked.call(judgement))
    if not judgement.exercised or judgement.silent_share > unjudged:
        raise NotJudged(asked.silence(judgement), judgement)
    return judgement


def _passed(q: Any, k: Any, v: Any, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without tensors that it does not have."""
    return {name: x for name, x in (("q", q), ("k", k), ("v", v)) if x is not None} | dict(words)


def _check_effort(memory: int, unjudged: float, seed: int) -> None:
    """Raise :class:`CallError` for an invalid number of bytes, share, or seed."""
    if type(seed) is not int or seed < 0:
        raise CallError(f"seed must be an integer of 0 or more, not {seed!r}")
    if not isinstance(memory, Integral) or isinstance(memory, bool) or memory <= 0:
        raise CallError(f"memory must be a positive number of bytes, not {memory!r}; give an integer")
    if not is_number(unjudged) or not 0 <= unjudged <= 1:
        raise CallError(f"unjudged must be a share of the answer, from 0 to 1, not {unjudged!r}")


def _reading(
    signature: str | None, tensors: Mapping[str, Any], presentation: str | None, words: Mapping[str, Any]
) -> Reading:
    """Return the arguments of a call in attn-spec's words; without a signature they are so already."""
    if signature is None:
        return Reading(tensors=tensors, words=words, presentation=presentation)
    if presentation is not None:
        raise CallError(f"signature={signature!r} has a presentation; leave presentation= out")
    return read(signature, tensors, words)


def _conventions(words: dict[str, Any]) -> Conventions:
    """Remove the conventions from the words of a call, and return them."""
    with call_errors():
        return of_call({name: words.pop(name) for name in OF_ANSWERS if name in words})


def _resolved(contract: Contract, dtype: str, answers: Mapping[str, str]) -> ResolvedContract:
    """Return the contract at the inputs' dtype, with the dtype of each answer where the contract leaves it open."""
    check_said(contract, dtype)
    found = {}
    if contract.output == "input":
        found["output"] = answers["output"]
    if contract.lse in ("input", "work") and "lse" in answers:
        form, declared = FORMATS[answers["lse"]], contract.at(dtype).format("lse")
        found["lse"] = answers["lse"] if form.precision < declared.precision else declared.name
    if contract.gradients == "input" and (own := {answers[name] for name in ("dq", *OF_KEYS) if name in answers}):
        found["gradients"] = min(own, key=lambda name: FORMATS[name].precision)
    others = tuple(_resolved(other, dtype, answers) for other in contract.alternatives)
    return replace(contract.at(dtype), **found, alternatives=others)


@dataclass(frozen=True)
class Asked:
    """The arguments of an assertion, from which its failure message is written."""

    made: Call
    words: Mapping[str, Any]
    contract: Contract
    conventions: Conventions
    #: Tensors and words as the test gave them; hints try other readings of these.
    given: AsGiven | GradientsAsGiven
    reading: Reading
    asserted: Asserted

    def call(self, judgement: RowJudgement) -> Asserted:
        """Return the call, with the place of its worst element."""
        assert judgement.worst is not None
        place = self.reading.place(judgement.worst.quantity, self._place(judgement.worst))
        return replace(self.asserted, place=place)

    def failure(self, judgement: RowJudgement, answer: Mapping[str, Any] | None) -> str:
        """Return about ten lines: the worst element, its error, the allowed error, and what would explain it."""
        worst = judgement.worst
        assert worst is not None
        hint, missing = "", []
        with faults.told("terms of the bound", missing):
            worst = replace(worst, bound_terms=self._bound_terms(worst, judgement.contract, answer))
        with faults.told("hint", missing):
            hint = self._hint_of_gradients(worst) if answer is None else self._hint(worst, answer)
        return "\n".join(
            [
                "this is not the attention of these tensors: an error is larger than the roundings of the contract",
                *self._lines(judgement),
                *worst.lines(
                    self.reading.place(worst.quantity, self._place(worst)), of_states="states" in self.made.options
                ),
                *([f"  hint      {hint}"] if hint else []),
                *missing,
            ]
        )

    def _bound_terms(
        self, worst: WorstElement, reading: ResolvedContract, answer: Mapping[str, Any] | None
    ) -> tuple[BoundTerm, ...]:
        """Return the largest terms of the worst element's bound; none for gradients too large to judge again."""
        if answer is not None:
            b, h, i, *column = worst.index
            problem = self.made.head(b, 0 if self.made.layer else h)
            return of_row(problem, reading, worst.quantity, (0, h if self.made.layer else 0, i, *column))
        if (part := self._small_part(worst)) is None:
            return ()
        b, h, *rest = worst.index
        first = part.at[1] * (self.made.group_size if worst.quantity == "dq" else 1)
        at = (b - part.at[0], h - first, *rest)
        return of_gradient(part.problem, reading, (part.cotangent, part.lse_cotangent), worst.quantity, at)

    def silence(self, judgement: RowJudgement) -> str:
        """Return the share of the answer that the contract does not bound, and the reason."""
        silent = [tally for tally in judgement.tallies.values() if tally.silent_at is not None]
        if not silent:
            what = "no query sees a key" if judgement.tallies else "there is none"
            return "\n".join([f"nothing of this answer can be judged: {what}", *self._lines(judgement)])
        share = f"{100 * judgement.silent_share:.3g} %" if judgement.exercised else "nothing"
        why = []
        with faults.told("reason", why):
            why = [f"  first     {self._why(silent[0])}"]
        how = "of this answer cannot be judged" if judgement.exercised else "of this answer can be judged"
        return "\n".join(
            [
                f"{share} {how}: the contract says nothing of it",
                *self._lines(judgement),
                *why,
                "  next      declare the contract that the kernel keeps, or allow a share by unjudged=",
            ]
        )

    def _why(self, tally: Tally) -> str:
        """Return the first element that the contract does not bound, and the reason."""
        at = tally.silent_at
        assert at is not None
        index = self.reading.place(tally.name, self.made.place(tally.name, at))
        place = f"{tally.name}[{', '.join(map(str, index))}]"
        if tally.name in ("output", "lse"):
            problem = self.made.head(at[0], 0 if self.made.layer else at[1]).rows(np.array(at[2:3]))
            reasons = (
                why_outside(problem, contract) for contract in readings_of(self.contract.at(self.made.dtype), problem)
            )
            return f"{place}: {next(filter(None, reasons), 'it may overflow')}"
        return f"{place}: a gradient, or what it is made of, may overflow"

    def _lines(self, judgement: RowJudgement) -> list[str]:
        made, given = self.made, self.reading.shapes
        shapes = ", ".join(f"{name} {x}" for name, x in (given or {name: made.shape(name) for name in "qkv"}).items())
        plain = "" if given else ", ".join(f"{n}={_shown(x)}" for n, x in self.words.items())
        return [
            self.reading.named(f"  tensors   {shapes}, {made.dtype}" + (f"; {plain}" if plain else "")),
            *made.described,
            f"  contract  {describe(self.contract)}",
            f"  looked at {judgement}",
        ]

    @property
    def _contract(self) -> str:
        return describe(self.contract)

    def _place(self, worst: WorstElement) -> tuple[int, ...]:
        """Return the worst element's index in the tensor that the test gave."""
        return self.made.place(worst.quantity, worst.index)

    def _hint(self, worst: WorstElement, answer: Mapping[str, Any]) -> str:
        """Return other problems, or else contracts, that explain the row of the worst element."""
        b, h, *_ = worst.index
        part, row = self.made.part(answer, b, 0 if self.made.layer else h), np.array(worst.index[2:3])
        found, problem = {**part.answer(row), "conventions": self.conventions}, part.problem.rows(row)
        declared = self.contract.at(problem.dtype)
        others = ((words, other.rows(row)) for words, other in with_other_keys(self.made, b, h))
        of_others = (words for words, other in others if explains(judge(other, declared, **found)))
        hints = [
            *(f"right for the same tensors {words}" for words in (*self._meant(worst), *of_others)),
            *right_for(problem, lambda other: judge(other, declared, **found)),
        ]
        if not hints:
            # One row tells contracts apart less than all rows of its head do.
            small = is_small(part.problem)
            whole, rows = (part.problem, np.arange(part.problem.query_length)) if small else (problem, row)
            every = {**part.answer(rows), "conventions": self.conventions}
            holding = contracts_that_hold(declared, whole, **every)
            hints = [*plainest(within(name, zeros) for name, zeros in holding.items() if name != self._contract)]
        return f"this row is {', or '.join(hints)}" if hints else ""

    def _hint_of_gradients(self, worst: WorstElement) -> str:
        """Return other calls or problems, or else contracts, that explain the gradients of the worst element's kv head.

        All heads are explained together if a gradient is a sum over them. The text is empty if the problem is too large
        to judge again.
        """
        assert isinstance(self.given, GradientsAsGiven)
        place, contract = self._place(worst), self.contract.at(self.made.dtype)
        if (part := self._small_part(worst)) is None:
            return ""

        def of(other: GradientPart, problem: Problem) -> Judgement:
            found, conventions = (other.found, other.lse_cotangent), self.conventions
            return judge_gradients(problem, contract, other.cotangent, *found, conventions=conventions)

        def of_same_tensors(problem: Problem) -> Judgement | None:
            same = all(has_gradient(problem, name, x.shape) for name, x in part.found.items())
            return of(part, problem) if same else None

        hints = [
            f"right for the same tensors {words}"
            for words, other in other_calls(self.given)
            if (meant := other.part(worst.quantity, place)) is not None
            and is_small(meant.problem)
            and explains(of(meant, meant.problem))
        ]
        hints += right_for(part.problem, of_same_tensors)
        if not hints:
            found = (part.cotangent, part.found, part.lse_cotangent)
            hints = [*plainest(starmap(within, gradient_contracts_that_hold(contract, part.problem, *found).items()))]
        return f"these gradients are {', or '.join(hints)}" if hints else ""

    def _small_part(self, worst: WorstElement) -> GradientPart | None:
        """Return the kv head of the worst element, or all heads together; None if that is too large to judge again."""
        assert isinstance(self.given, GradientsAsGiven)
        part = self.given.part(worst.quantity, self._place(worst))
        return part if part is not None and is_small(part.problem) else None

    def _meant(self, worst: WorstElement) -> Iterator[str]:
        """Yield descriptions of other calls whose answer is the row of the worst element."""
        assert isinstance(self.given, AsGiven)
        for words, other in other_calls(self.given):
            if (found := other.part(worst.quantity, self._place(worst))) is not None:
                part, row = found[0], np.array([found[1]])
                problem, contract = part.problem.rows(row), self.contract.at(part.problem.dtype)
                if explains(judge(problem, contract, **part.answer(row), conventions=other.conventions)):
                    yield words


def _shown(value: Any) -> str:
    """Return the repr of a plain value, or a tensor's shape."""
    return f"<{tuple(value.shape)}>" if getattr(value, "shape", ()) else repr(value)
