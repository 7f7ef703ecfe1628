"""Give gross errors to the judgement, of every member of the family, and say which are accepted and why.

    python -m attn_spec.reports.proof.gross.report
    python -m attn_spec.reports.proof.gross.report --pass backward --member cosine --dtype bfloat16 --explain 0

An error is one answer of one problem under one contract: zeros, the mean of V, V, another row, no scale, a lost key,
another kv head, NaN; of gradients zeros, negated ones, those of another row or head (``cells``). What is accepted is
explained by an arithmetic within the contract whose answer is at least half as far off (``explanation``).
Exit status 0: every right answer holds, and every error that was accepted is explained; 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .cells import CONTRACTS, DTYPES, LENGTHS, MEMBERS, SIZES, Cell, cells
from .explanation import ENOUGH, explained

#: Name of the contract of an undeclared kernel.
UNDECLARED = "undeclared"
PASSES = ("forward", "backward")


@dataclass(kw_only=True)
class Table:
    """Outcomes of the errors of each member under each contract."""

    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Errors that were refuted, and errors of which some elements were reported as not judged.
    refuted: Counter[tuple[str, str]] = field(default_factory=Counter)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    accepted: list[Cell] = field(default_factory=list)
    #: Right answers that were refuted.
    accused: list[Cell] = field(default_factory=list)

    def add(self, cell: Cell) -> None:
        """Count one answer."""
        if cell.error == "right":
            self.accused += [cell] * cell.refuted
            return
        at = cell.member, cell.contract or UNDECLARED
        self.errors[at] += 1
        self.refuted[at] += cell.refuted
        self.told[at] += not cell.refuted and cell.silent > 0
        self.accepted += [cell] * cell.accepted

    def __str__(self) -> str:
        accepted = Counter((cell.member, cell.contract or UNDECLARED) for cell in self.accepted)
        lines = [f"{'member':12} {'contract':12} {'errors':>7} {'refuted':>8} {'told':>5} {'accepted':>9}"]
        for at, errors in self.errors.items():
            counts = f"{errors:7} {self.refuted[at]:8} {self.told[at]:5} {accepted[at]:9}"
            lines.append(f"{at[0]:12} {at[1]:12} {counts}")
        total = f"{len(self.accepted)} of {sum(self.errors.values())} errors were accepted"
        return "\n".join([*lines, f"{total}, {len(self.accused)} right answers were refuted"])


def tabulated(found: Iterable[Cell]) -> Table:
    """Count all cells in a table."""
    table = Table()
    for cell in found:
        table.add(cell)
    return table


def main(arguments: list[str] | None = None) -> int:
    """Print the table of each pass, then every error that was accepted with what explains it."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.proof.gross.report", description=__doc__)
    parser.add_argument("--pass", dest="which", choices=PASSES, help="this pass only")
    parser.add_argument("--member", choices=tuple(MEMBERS), action="append", help="these members only")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="these dtypes only")
    parser.add_argument("--keys", type=int, choices=LENGTHS, action="append", help="these numbers of keys only")
    parser.add_argument("--size", type=float, choices=SIZES, action="append", help="these sizes of q and k only")
    contracts = [name or UNDECLARED for name in CONTRACTS]
    parser.add_argument("--contract", choices=contracts, action="append", help="these contracts only")
    parser.add_argument("--explain", type=int, metavar="N", help="explain this many of each pass at most")
    given = parser.parse_args(arguments)
    wanted = (
        given.member or tuple(MEMBERS),
        given.dtype or DTYPES,
        given.keys or LENGTHS,
        given.size or SIZES,
        [None if name == UNDECLARED else name for name in given.contract] if given.contract else CONTRACTS,
    )
    failed = False
    for which in [given.which] if given.which else PASSES:
        table = tabulated(cells(*wanted, backward=which == "backward"))
        print(f"{which} pass\n{table}", flush=True)
        for cell in table.accused:
            print(f"REFUTED: {cell}, error / bound {cell.ratio:.3g}")
        for cell in table.accepted[: given.explain]:
            share = explained(cell)
            failed |= share < ENOUGH
            print(f"{cell}: {cell.ratio:.2f} of the bound, an arithmetic reaches {share:.2f} of it", flush=True)
        failed |= bool(table.accused)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
