"""Contents of the page of the suite's power, as numbers and sentences: scores, first kills, each property's reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..peers.trial import PEERS
from .contest import SUITE, Outcome, score
from .document import Teeth
from .kill_matrix import unique_kills


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One line of the table of rules."""

    name: str
    caught: int
    shown: int
    problems: int
    rule: str
    recipe: str
    source: str

    @property
    def share(self) -> float:
        return self.caught / self.shown if self.shown else 0.0


@dataclass(frozen=True, kw_only=True)
class Stay:
    """The reason why a property is worth its time."""

    property_id: str
    kills: int
    #: Mutants that it alone catches, and those that it catches with the fewest problems.
    alone: tuple[str, ...]
    first: tuple[str, ...]
    #: Mutants whose fault it names: another refutation shows that something is wrong, this one what.
    names: tuple[str, ...]


def contestants(made: Teeth) -> list[Contestant]:
    """Return the suite, then the peers from the best to the worst."""
    table = score(made.outcomes)
    rows = [_contestant(name, made.outcomes, *table[name]) for name in table]
    return sorted(rows, key=lambda row: (row.name != SUITE, -row.share, row.name))


def stays(made: Teeth) -> list[Stay]:
    """Return every property's reason to stay, in the order of the catalogue."""
    alone = unique_kills(made.cells)
    return [
        Stay(
            property_id=name,
            kills=sum(cell.caught for cell in made.cells if cell.property_id == name),
            alone=tuple(alone.get(name, ())),
            first=tuple(kill.mutant for kill in made.kills if kill.property_id == name),
            names=tuple(mutant.id for mutant in made.mutants if mutant.named_by == name),
        )
        for name in made.properties
    ]


def survivors(made: Teeth) -> list[str]:
    """Return the mutants that no property caught."""
    caught = {kill.mutant for kill in made.kills}
    return [mutant.id for mutant in made.mutants if mutant.id not in caught]


def alarms(made: Teeth) -> tuple[int, int]:
    """Return the number of refutations of sound kernels, and of examples over them."""
    return sum(len(run.refuted) for run in made.alarms), sum(run.examples for run in made.alarms)


def opening(made: Teeth) -> list[tuple[str, str]]:
    """Return the three numbers that the page begins with."""
    suite, *peers = contestants(made)
    refuted, examples = alarms(made)
    best = max(peers, key=lambda peer: (peer.caught, peer.share))
    return [
        (f"{suite.caught} of {suite.shown}", "wrong kernels caught by attn-spec within the budget"),
        (f"{best.caught} of {best.shown}", f"caught by the best of {len(peers)} rules in use, {best.name}"),
        (f"{refuted:,} of {examples:,}", "examples over sound kernels that were refuted"),
    ]


def headline(made: Teeth) -> str:
    """Return the finding in one sentence."""
    suite, *peers = contestants(made)
    most = max(peer.caught for peer in peers)
    refuted, _ = alarms(made)
    accused = f"with {refuted} false alarms" if refuted else "without a false alarm"
    return f"{suite.caught} of {suite.shown} wrong kernels caught {accused}; the best rule in use catches {most}"


def _contestant(name: str, outcomes: Sequence[Outcome], caught: int, shown: int) -> Contestant:
    own = [outcome for outcome in outcomes if outcome.contestant == name]
    told = {
        "rule": "every property in turn, each element within its bound",
        "recipe": "generated",
        "source": "this suite",
    }
    if name in PEERS:
        told = {part: getattr(PEERS[name], part) for part in told}
    problems = sum(outcome.problems for outcome in own)
    return Contestant(name=name, caught=caught, shown=shown, problems=problems, **told)
