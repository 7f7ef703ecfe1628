"""The watch: every call of a function is judged, within a share of the time, while somebody's own program runs."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_spec import faults
from attn_spec.contract.contract import Contract
from attn_spec.kernels.calls.call import CallError
from attn_spec.search.cases import HOME
from attn_spec.search.kept_calls import kept
from attn_spec.testing import NotAttention, NotJudged, assert_attention, assert_attention_gradients
from attn_spec.watching import autocast
from attn_spec.watching.backward import Backward, differentiates
from attn_spec.watching.replacement import replaced
from attn_spec.watching.seen import Seen, kind_of, tensors_of, versions_of, without_graph, without_values
from attn_spec.watching.tally import Refuted, Tally, table
from attn_spec.watching.target import Target, WatchError, target

#: Seconds of judging that a watch may spend on new kinds of calls before its share of the time allows them.
AT_FIRST = 2.0


@dataclass
class Watch:
    """One function under watch. Its calls return what they would return, bit for bit."""

    target: Target
    contract: str | Contract | None = None
    rows: int = 64
    share: float = 0.2
    keep: Path | None = HOME
    clock: Callable[[], float] = time.perf_counter
    tally: Tally = field(init=False)
    #: Seconds that the last judgement of each kind of call took; None before the first.
    kinds: dict[Any, float | None] = field(default_factory=dict)
    _began: float = field(init=False)
    _busy: threading.local = field(default_factory=threading.local)
    _lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Begin to count."""
        self.tally = Tally(self.target.spec, ", ".join(row.name for row in self.target.rows))
        self._began = self.clock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and judge the call."""
        if getattr(self._busy, "judging", False) or _is_compiling():
            return self.target.function(*args, **kwargs)
        try:
            seen = self._seen(args, kwargs)
        except Exception as error:  # whatever the judge meets, the program's call goes on
            seen = str(error) or type(error).__name__
        with self._lock:
            self.tally.calls += 1
            if isinstance(seen, str):
                self.tally.left[_line(seen)] += 1
        if isinstance(seen, str):
            return self.target.function(*args, **kwargs)
        return self._followed(seen, args, kwargs)

    def _seen(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Seen | str:
        """Return a call as it is read, or the reason for which it is not judged now."""
        passed = self.target.bound(args, kwargs)
        if odd := without_values(passed):
            return odd
        cast = autocast.dtype_of(passed)
        if cast is not None and not inspect.isbuiltin(self.target.function):
            return f"autocast to {cast} rounds operands inside the function"
        key = tuple((name, kind_of(x)) for name, x in passed.items())
        with self._lock:
            cost = self.kinds.setdefault(key, None)
            self.tally.kinds = len(self.kinds)
            if not self._affords(cost):
                return f"the share of {100 * self.share:.3g} % of the time was spent"
        called = self.target.of_call(passed)
        return Seen(called, key, passed, *tensors_of(called, passed), cast)

    def _affords(self, cost: float | None) -> bool:
        """Return whether the share of the time allows a judgement; a new kind comes first, without a known cost."""
        allowed = self.share * (self.clock() - self._began)
        return self.tally.seconds < allowed + AT_FIRST if cost is None else self.tally.seconds + cost <= allowed

    def _followed(self, seen: Seen, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call, which is judged at once; its gradients are judged when they are there."""
        try:
            backward, why = self._backward(seen)
        except Exception as error:
            backward, why = None, _failed(error)
        if backward is None:
            result = self.target.function(*args, **kwargs)
        else:
            result = self.target.function(*seen.with_views(backward, args), **seen.keywords(backward, kwargs))
        with self._judging():
            started = self.clock()
            out, lse = seen.target.answer(result, seen.passed)
            if out is None or not hasattr(out, "shape"):
                self.tally.left["the result is no tensor"] += 1
                return result
            reading = self._judged_forward(seen, out, lse)
            self.kinds[seen.key] = self.clock() - started
            if backward is not None and reading and backward.follow(out):
                why = "no backward pass made all its gradients"
            if why:
                self.tally.left_backward[why] += 1
        return result

    def _backward(self, seen: Seen) -> tuple[Backward | None, str]:
        """Return what follows the gradients of a call, or None, and the reason for which none are judged if some are
        made.
        """
        inputs = {name: x for name, x in seen.tensors.items() if name in ("q", "k", "v")}
        names = differentiates(inputs) if self._is_torch else []
        if not names:
            return None, ""
        if len({id(x) for x in seen.tensors.values()}) < len(seen.tensors):
            return None, "q, k or v are one tensor, whose gradient is their sum"
        versions = versions_of(seen.tensors)

        def done(dout: Any, found: dict[str, Any]) -> None:
            with self._judging():
                started = self.clock()
                changed = versions_of(seen.tensors) != versions
                self.tally.left_backward["no backward pass made all its gradients"] -= 1
                if changed:
                    self.tally.left_backward["q, k or v were changed in place after the call"] += 1
                else:
                    self._judged_backward(seen, backward.output, dout, found)
                self.kinds[seen.key] = (self.kinds[seen.key] or 0.0) + self.clock() - started

        backward = Backward({name: seen.tensors[name] for name in names}, done)
        return backward, ""

    @property
    def _is_torch(self) -> bool:
        return self.target.row is None or self.target.row.framework == "torch"

    def _judged_forward(self, seen: Seen, out: Any, lse: Any) -> bool:
        """Judge an output; return whether the call could be read."""
        how = {**self._how, "lse": None if lse is None else without_graph(lse)}

        def judge() -> Any:
            return assert_attention(seen.with_batch(without_graph(out)), **seen.words(), **how)

        judgement = self._told(seen, "forward", judge)
        if judgement is not None:
            self.tally.judged += 1
        return judgement is not None

    def _judged_backward(self, seen: Seen, out: Any, dout: Any, found: Mapping[str, Any]) -> None:
        gradients = {f"d{name}": seen.given(x) for name, x in found.items()}

        def judge() -> Any:
            how = {**self._how, "keys": self.rows, "out": None if out is None else seen.with_batch(out)}
            return assert_attention_gradients(gradients, seen.given(dout), **seen.words(), **how)

        if self._told(seen, "backward", judge) is not None:
            self.tally.judged_backward += 1

    @property
    def _how(self) -> dict[str, Any]:
        return {"contract": self.contract, "rows": self.rows, "seed": self.tally.judged, "unjudged": 1.0}

    def _told(self, seen: Seen, way: str, judge: Callable[[], Any]) -> Any:
        """Return the judgement of a call, counted; None if the call could not be judged."""
        left = self.tally.left if way == "forward" else self.tally.left_backward
        try:
            judgement = judge()
        except NotAttention as error:
            judgement = error.judgement
            self.tally.refuted.append(self._kept(seen, way, error))
        except (NotJudged, CallError) as error:
            left[_line(str(error))] += 1
            return None
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            left[f"{_failed(error)} at {where.filename}:{where.lineno}"] += 1
            return None
        self.tally.rows += judgement.rows
        self.tally.ratio = max(self.tally.ratio, judgement.ratio)
        return judgement

    def _kept(self, seen: Seen, way: str, error: NotAttention) -> Refuted:
        """Return the record of a refuted call, which is stored as a case."""
        if self.keep is None:
            return Refuted(error.text, way, missing="the watch keeps no cases")
        names = {} if self.target.row is not None else seen.names
        try:
            found = kept(
                error,
                self.keep,
                function=self.target.spec,
                declared=seen.target.declared,
                device=seen.device,
                names=names,
            )
        except Exception as fault:
            return Refuted(error.text, way, missing=faults.in_one_line(fault))
        return Refuted(error.text, way, found.case, script="" if found.script is None else str(found.script))

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """Judge within the block: calls in it are not judged, and its time is counted. No error leaves it."""
        with self._lock:
            started, self._busy.judging = self.clock(), True
            try:
                with contextlib.ExitStack() as quiet:
                    quiet.enter_context(warnings.catch_warnings())
                    warnings.simplefilter("ignore")
                    if (torch := sys.modules.get("torch")) is not None:
                        quiet.enter_context(torch.no_grad())
                    yield
            except Exception as error:
                self.tally.left[_failed(error)] += 1
            finally:
                self._busy.judging = False
                self.tally.seconds += self.clock() - started
                self.tally.elapsed = self.clock() - self._began

    def finished(self) -> Tally:
        """Return the tally, with the time until now."""
        self.tally.elapsed = self.clock() - self._began
        self.tally.left_backward = +self.tally.left_backward
        return self.tally


def _is_compiling() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and (torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.jit.is_scripting())


def _failed(error: Exception) -> str:
    """Return the reason for which the judge's own error leaves a call without a judgement."""
    return f"attn-spec failed: {faults.in_one_line(error)}"


def _line(text: str) -> str:
    return text.splitlines()[0][:200] if text else ""


@contextlib.contextmanager
def watch(
    *targets: str | Callable[..., Any],
    signature: str | None = None,
    contract: str | Contract | None = None,
    rows: int = 64,
    share: float = 0.2,
    keep: Path | str | None = HOME,
    report_only: bool = False,
) -> Iterator[list[Tally]]:
    """Judge the calls of functions while the block runs; give their tallies, which are whole at its end.

    A target is a function of a module, or its name: "torch.nn.functional:scaled_dot_product_attention". Arguments are
    read by the function's ``signature``, which is known for functions of libraries. Outputs are judged in ``rows`` rows
    of each head, and gradients too where PyTorch makes those of q, k and v. Judging takes about the ``share`` of the
    time, and new kinds of calls come first. The results of calls are what they are without a watch, bit for bit, and no
    error of the judge reaches the program.

    Refuted calls are stored as cases in the folder ``keep`` (None: none), for ``attn-spec replay``. At the end of the
    block :class:`RefutedCalls` is raised if any was refuted, unless ``report_only`` is True. Raises
    :class:`WatchError` for a function that cannot be watched.
    """
    if not targets:
        raise WatchError("name a function to watch, for example torch.nn.functional:scaled_dot_product_attention")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise WatchError(f"rows must be a number of at least 1, not {rows!r}")
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise WatchError(f"share must be a share of the time, above 0 and at most 1, not {share!r}")
    folder = None if keep is None else Path(keep)
    watches = [Watch(target(one, signature), contract, rows, share, folder) for one in targets]
    try:
        with contextlib.ExitStack() as stack:
            for one in watches:
                stack.enter_context(replaced(one.target.function, one))
            yield [one.tally for one in watches]
    finally:
        tallies = [one.finished() for one in watches]
    if not report_only and (refuted := [each for one in tallies for each in one.refuted]):
        raise RefutedCalls("\n".join([*map(str, refuted[:3]), *table(tallies)]))


class RefutedCalls(AssertionError):  # noqa: N818 -- a verdict, not an internal error
    """Calls of a watched function are no attention; the message has the first of them, and what was seen of all."""
