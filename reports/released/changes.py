"""Changes since an earlier page: versions, verdicts, verdicts at a production size, and watched calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .outcome import AtShape, Document, Outcome, Watched


def changes(before: Document, outcomes: Iterable[Outcome], watched: Iterable[Watched]) -> list[str]:
    """Return a line for each implementation, and for each watched project, that differs from an earlier document."""
    found = []
    for one in outcomes:
        old = before.outcomes.get(one.implementation)
        found += [f"{one.implementation}: new, {one.result}"] if old is None else _line(one.implementation, old, one)
    for one in watched:
        old = before.watched.get(one.name)
        found += [f"{one.name}: new, {one.result}"] if old is None else _line(one.name, old, one)
    return found


def _line(name: str, old: Outcome | Watched, one: Outcome | Watched) -> list[str]:
    told = [f"{old.result} before, {one.result} now"] if old.result != one.result else []
    if isinstance(old, Outcome) and isinstance(one, Outcome):
        told += [*_refutations(old, one), *_at_shape(old.at_shape, one.at_shape), *_findings(old, one)]
    if isinstance(old, Watched) and isinstance(one, Watched):
        told += _calls(old, one)
    versions = f"{old.version} to {one.version}" if old.version != one.version else one.version
    return (
        [f"{name} ({versions}): {'; '.join(told) or 'the same verdicts'}"] if told or old.version != one.version else []
    )


def _refutations(old: Outcome, one: Outcome) -> Iterator[str]:
    was, now = ({each.place for each in outcome.refutations} for outcome in (old, one))
    yield from (f"{place} is refuted" for place in sorted(now - was))
    yield from (f"{place} is not refuted any more" for place in sorted(was - now))


def _findings(old: Outcome, one: Outcome) -> Iterator[str]:
    was = {each.reason for each in old.stale}
    yield from (f"the finding {each.reason!r} {each.why}" for each in one.stale if each.reason not in was)


def _at_shape(old: AtShape | None, one: AtShape | None) -> Iterator[str]:
    if one is None:
        if old is not None:
            yield f"not examined at {old.shape} any more"
    elif old is None or old.shape != one.shape:
        yield f"examined at {one.shape} now, {one.result}"
    elif old.result != one.result:
        yield f"at {one.shape} {old.result} before, {one.result} now"


def _calls(old: Watched, one: Watched) -> Iterator[str]:
    """Yield what differs of the watched functions; counts of sampled calls, which depend on the time, may differ."""
    was, now = ({each.function: each for each in run.functions} for run in (old, one))
    yield from (f"{name} is watched now" for name in now if name not in was)
    yield from (f"{name} is not watched any more" for name in was if name not in now)
    for name in (name for name in now if name in was):
        before, after = was[name], now[name]
        if len(before.refuted) != len(after.refuted):
            yield f"refuted calls of {name}: {len(before.refuted)} before, {len(after.refuted)} now"
        if before.calls != after.calls:
            yield f"calls of {name}: {before.calls} before, {after.calls} now"
