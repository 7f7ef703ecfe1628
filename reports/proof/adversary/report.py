"""Choose every rounding for the worst, and print how much of each bound that attains.

    python -m attn_spec.reports.proof.adversary.report
    python -m attn_spec.reports.proof.adversary.report --stage softmax --way ring
    python -m attn_spec.reports.proof.adversary.report --stage none --random 10000 --seed 1

Every stage of a contract is made narrow alone, in every way of computing that ``cases`` knows, forward and
backward; then the presets are attacked as they stand, and arithmetics drawn at random. Printed is the largest
attained / bound of each quantity, and where. Above 1 is a fault of the derivation; below 0.3 is looseness, for which
:data:`LOOSE` has the reason. Exit status 0: no fault, no looseness without a
reason, and no reason without looseness; 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from .attack import QUANTITIES, Attack, attained
from .cases import STAGES, WAYS, stages
from .presets import presets
from .random import random_attacks

#: Below this a bound is loose.
LOOSEST = 0.3
#: Error that the first order of the adversary, and float64, may add to a bound that is attained.
TOLERANCE = 1e-6

_PARTS = "every key may have the error of a log-sum-exp of its own; those of a part have one in common"
#: Stage and quantity, or preset and quantity, that the stage has no influence on, or that the bound is loose for.
LOOSE: dict[tuple[str, str], str] = {
    ("multiplicands", "dbias"): "dA is made of dO and v, which no scale multiplies; only its entries as a score count",
    ("partial_outputs", "lse"): "partial outputs are no part of the log-sum-exp",
    ("partial_outputs", "dv"): "the weights of the backward pass are made from the log-sum-exp",
    ("partial_outputs", "dbias"): "no kernel that merges parts has a bias here",
    ("split_kv float32", "output"): _PARTS,
    ("split_kv float32", "dk"): _PARTS,
}
_BACKWARD_ONLY = {"score_gradients", "gradient_accumulation", "partial_gradients", "gradients"}
#: Gradients of a layer that are made of dO, weights and outputs of heads, and those of dO alone.
_OF_WEIGHTS = {"dvalue_projection", "dvalue_projection_bias", "doutput_projection"}
_OF_COTANGENT = "doutput_projection_bias"
_SUMS_OF_ROWS = {"score_accumulation", "stored_scores", "partial_gradients", "gradients"}

Record = tuple[float, str]


def strongest(cases: Iterable[tuple[str, str, Attack]]) -> dict[str, dict[str, list[Record]]]:
    """Return what every case attained and its name, by label and quantity, the largest first."""
    found: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for label, name, attack in cases:
        for quantity, ratio in attained(attack).items():
            found[label][quantity].append((ratio, name))
    return {label: {q: sorted(records, reverse=True) for q, records in of.items()} for label, of in found.items()}


def faults(found: dict[str, dict[str, list[Record]]]) -> list[str]:
    """Return the cases outside their bound, in words."""
    return [
        f"{label}, {name}: {quantity} attains {ratio:.4g} of its bound"
        for label, of in found.items()
        for quantity, records in of.items()
        for ratio, name in records
        if not ratio <= 1 + TOLERANCE
    ]


def unexplained(found: dict[str, dict[str, list[Record]]]) -> list[str]:
    """Return stages and presets whose bound of a quantity is not nearly attained in any way, without a reason."""
    return [
        f"{stage}: {quantity} attains {records[0][0]:.2g} at most"
        for stage, of in found.items()
        for quantity, records in of.items()
        if records[0][0] < LOOSEST and concerns(stage, quantity) and (stage, quantity) not in LOOSE
    ]


def outdated(found: dict[str, dict[str, list[Record]]]) -> list[str]:
    """Return stages and presets that attain a bound although a reason says that they cannot."""
    return [
        f"{label}: {quantity} attains {records[0][0]:.2g}, so its reason for less is outdated"
        for label, of in found.items()
        for quantity, records in of.items()
        if records[0][0] >= LOOSEST and (label, quantity) in LOOSE
    ]


def concerns(stage: str, quantity: str) -> bool:
    """Return whether a stage has an influence on a quantity."""
    if quantity == _OF_COTANGENT:
        return stage in _SUMS_OF_ROWS
    if quantity.endswith(("_projection", "_projection_bias")) and stage == "output":
        return False  # the output is rounded after the heads
    if quantity in _OF_WEIGHTS and stage == "score_gradients":
        return False
    if quantity == "doutput_projection" and stage == "weight_gradients":
        return False
    if quantity in _OF_WEIGHTS - {"doutput_projection"} and stage == "output_accumulation":
        return False
    return not (stage in _BACKWARD_ONLY and quantity in {"output", "lse"})


def lines(found: dict[str, dict[str, list[Record]]]) -> Iterator[str]:
    """Yield a table: the largest ratio of each quantity and the case in which it was attained."""
    for label, of in found.items():
        for quantity in QUANTITIES:
            if of.get(quantity) and concerns(label, quantity):
                ratio, name = of[quantity][0]
                note = LOOSE.get((label, quantity), "") if ratio < LOOSEST else ""
                yield f"{label:22s} {quantity:6s} {ratio:6.3f}  {name}{f'  ({note})' if note else ''}"


def main(arguments: list[str] | None = None) -> int:
    """Run the attacks and print what they attain."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.proof.adversary.report", description=__doc__)
    parser.add_argument("--stage", choices=(*STAGES, "none"), help="this stage only, or none")
    parser.add_argument("--way", default="", help="ways of computing whose name contains this")
    parser.add_argument("--most", type=int, help="this many attacks only")
    parser.add_argument("--random", type=int, metavar="N", help="attacks drawn at random (default: 1000 with the rest)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    ways = tuple(way for way in WAYS if chosen.way in way.name)
    if not ways:
        parser.error(f"no way of computing has {chosen.way!r} in its name; leave --way out to see them all")
    narrow = (case for case in stages(ways, chosen.seed) if chosen.stage in {None, case[0]})
    every = chosen.stage is None and not chosen.way
    whole = presets(chosen.seed) if every else iter(())
    by_stage = strongest(islice(narrow, chosen.most))
    by_preset = strongest(islice(whole, chosen.most))
    drawn = chosen.random if chosen.random is not None else 1000 if every and chosen.most is None else 0
    by_chance = strongest(random_attacks(drawn, chosen.seed))
    print("attained / bound, one stage narrow", *lines(by_stage), sep="\n")
    if every:
        print("\nattained / bound, presets", *lines(by_preset), sep="\n")
    if drawn:
        print("\nattained / bound, drawn at random", *lines(by_chance), sep="\n")
    tables = (by_stage, by_preset, by_chance)
    wrong = list(chain.from_iterable(map(faults, tables)))
    loose: list[str] = []
    if every and chosen.most is None:
        loose = [*unexplained(by_stage), *unexplained(by_preset), *outdated(by_stage), *outdated(by_preset)]
    attacks = sum(len(records) for table in tables for of in table.values() for records in of.values())
    print(f"\n{attacks} bounds attacked: {len(wrong)} exceeded, {len(loose)} loose without a reason that holds")
    print(*wrong, *loose, sep="\n")
    return int(bool(wrong or loose))


if __name__ == "__main__":
    sys.exit(main())
