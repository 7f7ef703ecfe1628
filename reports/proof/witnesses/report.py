"""Show that every term of a bound is needed: without it, some choice of roundings leaves the bound.

    python -m attn_spec.reports.proof.witnesses.report
    python -m attn_spec.reports.proof.witnesses.report --table scores

A witness of a term is an attack whose error exceeds the bound of one quantity if the term's name is struck, and does
not exceed the whole bound. The attacks are those of ``adversary.cases`` and, where none of them suffices, of
``attacks``; roundings are chosen under the whole theorems. Guards of the judge have answers instead (``guards``); terms
without a witness have a reason (``unwitnessed``). Exit status 0: each term is needed; 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..adversary.attack import allowed, errors, ratios
from ..adversary.report import TOLERANCE
from .attacks import attack_of
from .descales import DESCALES
from .gradients import GRADIENTS
from .guards import GUARDS, missed
from .layer_sums import LAYER_SUMS
from .layers import LAYERS
from .linear import LINEAR
from .linear_gradients import LINEAR_GRADIENTS
from .output import OUTPUT
from .score_gradients import SCORE_GRADIENTS
from .scores import SCORES
from .strikes import Strike, without
from .unwitnessed import UNWITNESSED
from .weights import WEIGHTS

#: Terms to strike, by the attack that exceeds a bound without them.
TABLES = {
    "scores": SCORES,
    "weights": WEIGHTS,
    "output": OUTPUT,
    "score_gradients": SCORE_GRADIENTS,
    "gradients": GRADIENTS,
    "linear": LINEAR,
    "linear_gradients": LINEAR_GRADIENTS,
    "layers": LAYERS,
    "layer_sums": LAYER_SUMS,
    "descales": DESCALES,
}


@dataclass(frozen=True, kw_only=True)
class Witness:
    """A term, and the attack that exceeds a bound without it."""

    strike: Strike
    #: The table that it stands in.
    table: str
    #: The attack: its stage and way, and the quantity whose bound is exceeded.
    stage: str
    way: str
    quantity: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The largest error / bound of a witness, with its term and without."""

    witness: Witness
    with_term: float
    without: float

    @property
    def is_needed(self) -> bool:
        """Return whether the attack stays within its bound with the term and exceeds it without."""
        return self.with_term <= 1 + TOLERANCE < self.without


WITNESSES = tuple(
    Witness(strike=strike, table=table, stage=stage, way=way, quantity=quantity)
    for table, attacks in TABLES.items()
    for (stage, way, quantity), strikes in attacks.items()
    for strike in strikes
)


def outcomes(witnesses: Iterable[Witness] = WITNESSES) -> Iterator[Outcome]:
    """Yield what each witness attains; every attack is made once."""
    by_attack: dict[tuple[str, str], list[Witness]] = defaultdict(list)
    for witness in witnesses:
        by_attack[witness.stage, witness.way].append(witness)
    for (stage, way), group in by_attack.items():
        attack, quantities = attack_of(stage, way), {witness.quantity for witness in group}
        found = errors(attack, quantities)
        bounds = allowed(attack, quantities)
        for witness in group:
            wanted = {witness.quantity}
            own = [one for one in found if one.quantity == witness.quantity]
            with without(witness.strike):
                less = allowed(attack, wanted)
            first, second = (ratios(own, allowed_errors)[witness.quantity] for allowed_errors in (bounds, less))
            yield Outcome(witness=witness, with_term=first, without=second)


def main(arguments: list[str] | None = None) -> int:
    """Print what every witness attains, with its term and without."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.proof.witnesses.report", description=__doc__)
    parser.add_argument("--table", choices=TABLES, help="terms of this table only")
    chosen = parser.parse_args(arguments).table
    found = list(outcomes(witness for witness in WITNESSES if chosen in {None, witness.table}))
    print("error / bound with the term and without")
    for outcome in found:
        witness = outcome.witness
        ratios = f"{outcome.with_term:8.5f} {outcome.without:8.5g}"
        print(f"{witness.strike!s:75s} {ratios}  {witness.stage}, {witness.way}: {witness.quantity}")
    superfluous = [str(outcome.witness.strike) for outcome in found if not outcome.is_needed]
    guards = [] if chosen else list(missed(GUARDS))
    print(f"\n{len(found)} terms: {len(superfluous)} not shown to be needed", *superfluous, sep="\n")
    if not chosen:
        print(f"{len(GUARDS)} guards of the judge: {len(guards)} not shown to be needed", *guards, sep="\n")
        print(f"{len(UNWITNESSED)} terms have a reason instead of a witness")
    return int(bool(superfluous or guards))


if __name__ == "__main__":
    sys.exit(main())
