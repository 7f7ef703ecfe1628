"""Families of problems that a contract says nothing of: no theorem of theirs knows what one of its fields says."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from attn_spec.contract.contract import Contract, ResolvedContract
from attn_spec.numbers.formats import EIGHT_BITS
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Silence:
    """A field of contracts that the theorems of a family of problems do not know."""

    #: The option that makes a problem one of the family, and what that is in words.
    option: str
    family: str
    #: The field, and whether what a contract says there is unknown.
    field: str
    unknown: Callable[[Contract], bool]
    #: Reason, as a clause.
    reason: str
    #: Other options, one of which such a problem uses beside that option; none of them: with that option alone.
    beside: tuple[str, ...] = ()

    def concerns_options(self, names: Collection[str]) -> bool:
        """Return whether problems with some of these options may be of the family."""
        return self.option in names and (not self.beside or any(name in names for name in self.beside))

    def concerns(self, problem: Problem) -> bool:
        """Return whether a problem is one of the family."""
        others = [name for name in self.beside if getattr(problem, name) is not None]
        return OPTIONS[self.option].is_used(getattr(problem, self.option)) and (bool(others) or not self.beside)

    def words(self, contract: Contract) -> str:
        """Return a sentence with the field of a contract, the family of problems without a theorem, and the reason."""
        value = getattr(contract, self.field)
        said = f"{self.field}={'; '.join(map(str, value)) if self.field == 'quantisers' else repr(value)}"
        return f"a contract with {said} says nothing of {self.family} ({self.option}): {self.reason}"


def _quantises(contract: Contract) -> bool:
    return bool(contract.quantisers)


def _quantises_tensor(name: str) -> Callable[[Contract], bool]:
    return lambda contract: any(one.of == name and not one.is_of_appended for one in contract.quantisers)


def _subtracts(contract: Contract) -> bool:
    return any(one.subtracts for one in contract.quantisers)


#: Options that make something of q, k or v of which no theorem says whether it precedes a quantiser.
_BEFORE_QUANTISERS = {
    "rotary": "operands that are rotated",
    "score_weight": "bilinear scores",
    "score_gamma": "cosines as scores",
    "score_vector": "additive scores",
    "query_projection": "a layer",
    "feature_map": "linear attention",
    "latent": "values that are columns of keys",
    "states": "states without products",
}
SILENCES = (
    Silence(
        option="feature_map",
        family="linear attention",
        field="lse_merges",
        unknown=lambda contract: contract.lse_merges > 0,
        reason="sums without an exponential are merged as they are",
    ),
    Silence(
        option="feature_map",
        family="linear attention",
        field="normalize",
        unknown=lambda contract: contract.normalize in ("every_tile", "by_lse"),
        reason="its weights are divided by their sum once",
    ),
    Silence(
        option="feature_map",
        family="linear attention",
        field="probability_scale",
        unknown=lambda contract: contract.probability_scale != 1,
        reason="its weights may be of any size",
    ),
    *(
        Silence(
            option=option,
            family=family,
            field=field,
            unknown=unknown,
            reason="no theorem of their outputs knows a cast to 8 bits, or one that saturates",
        )
        for option, family in (("feature_map", "linear attention"), ("query_projection", "layers"))
        for field, unknown in (
            ("output", lambda contract: contract.output in EIGHT_BITS),
            ("output_overflow", lambda contract: contract.output_overflow == "saturates"),
        )
    ),
    Silence(
        option="score_vector",
        family="additive scores",
        field="reference",
        unknown=lambda contract: contract.reference == "upper_bound",
        reason="the lengths of q and k do not bound them",
    ),
    Silence(
        option="sinks",
        family="attention sinks",
        field="reference",
        unknown=lambda contract: contract.reference == "upper_bound",
        reason="the lengths of q and k do not bound a sink",
    ),
    *(
        Silence(
            option=option,
            family="scores of other operands than q and k, beside their descales",
            field="descale_on",
            unknown=lambda contract: contract.descale_on == "operands",
            reason="no theorem says whether a descale multiplies before or behind the formula of operands",
            beside=("q_descale", "k_descale"),
        )
        for option in ("rotary", "score_weight")
    ),
)


SILENCES += tuple(
    Silence(
        option=option,
        family=family,
        field="quantisers",
        unknown=_quantises,
        reason="no theorem says what is quantised there",
    )
    for option, family in _BEFORE_QUANTISERS.items()
)
SILENCES += tuple(
    Silence(
        option=f"{name}_descale",
        family=f"descales of {name}, which the quantiser makes itself",
        field="quantisers",
        unknown=_quantises_tensor(name),
        reason="a quantiser's scales are the descales",
    )
    for name in "qkv"
)
SILENCES += (
    Silence(
        option="sinks",
        family="attention sinks",
        field="quantisers",
        unknown=_subtracts,
        reason="what is subtracted from keys moves their scores and not the sink's",
    ),
    Silence(
        option="softcap",
        family="capped scores",
        field="quantisers",
        unknown=_subtracts,
        reason="what is subtracted from keys moves scores before the softcap bends them",
    ),
)


def says_nothing(contract: Contract, problem: Problem) -> bool:
    """Return True if a field of ``contract`` has a value for which no bound of the problem's family is proved.

    The alternatives of the contract are not looked at.
    """
    return any(_unknown(contract, problem))


def silence_of(contract: Contract, problem: Problem) -> str:
    """Return a sentence: why a contract says nothing of a problem, whatever its values; empty if it says something."""
    return next((each.words(contract) for each in _unknown(contract, problem)), "")


def _unknown(contract: Contract, problem: Problem) -> Iterator[Silence]:
    """Return the reasons for which a contract says nothing of a problem."""
    return (each for each in SILENCES if each.concerns(problem) and each.unknown(contract))


def silence_of_probabilities(contract: ResolvedContract) -> str:
    """Return a sentence if the scale of probabilities takes the largest of any row out of their format; else empty.

    The largest is the scale, times exp(reference_slack) where weights of a lazy reference are cast before the row sum
    divides them. A contract with an alternative that keeps them in says something.
    """
    return "" if any(map(_holds_probabilities, _with_alternatives(contract))) else _too_large(contract)


def _holds_probabilities(contract: ResolvedContract) -> bool:
    if contract.reference != "maximum":
        return True
    most = math.log(contract.probability_scale) + _slack_of_cast(contract)
    return most <= math.log(contract.format("probabilities").largest)


def _slack_of_cast(contract: Contract) -> float:
    return contract.reference_slack if contract.normalize == "after_product" else 0.0


def _too_large(contract: ResolvedContract) -> str:
    slack, form = _slack_of_cast(contract), contract.format("probabilities")
    most = math.log2(contract.probability_scale) + slack / math.log(2)
    blamed = f"probability_scale={contract.probability_scale!r}" + f", reference_slack={slack!r}" * bool(slack)
    return (
        f"a contract with {blamed} has probabilities of 2^{most:.4g} before their cast, above {form.largest:g}, the "
        f"largest number of probabilities={form.name!r}; declare less {'of either' if slack else ''}".rstrip()
    )


def silence_of_gradients(contract: Contract) -> str:
    """Return a sentence: why a contract, or an alternative of it, says nothing of gradients; empty if none does."""
    if contract.quantisers:
        return "a contract with quantisers says nothing of gradients: what is rounded to codes has none"
    for one in _with_alternatives(contract):
        if one.probability_scale != 1:
            blamed, unknown = f"probability_scale={one.probability_scale!r}", "such a scale"
        elif one.output in EIGHT_BITS:
            blamed, unknown = f"output={one.output!r}", "an output of 8 bits"
        elif one.output_overflow == "saturates":
            blamed, unknown = "output_overflow='saturates'", "an output that saturates"
        else:
            continue
        return f"a contract with {blamed} says nothing of gradients: no theorem of a backward pass knows {unknown}"
    return ""


def silences(contract: Contract) -> list[Silence]:
    """Families of which neither a contract nor an alternative of it says anything, with a field to blame for each."""
    found: dict[str, Silence] = {}
    for option in dict.fromkeys(each.option for each in SILENCES):
        reasons = [_reason(one, option) for one in _with_alternatives(contract)]
        if (first := reasons[0]) is not None and all(reasons):
            found[option] = first
    return list(found.values())


def _reason(contract: Contract, option: str) -> Silence | None:
    """Return a silence about an option; one that stands by itself before one beside other options."""
    found = [each for each in SILENCES if each.option == option and each.unknown(contract)]
    return min(found, key=lambda each: bool(each.beside), default=None)


def _with_alternatives(contract: Any) -> list[Any]:
    """Return a contract and all its alternatives, and theirs; all are resolved if it is."""
    return [contract, *(found for other in contract.alternatives for found in _with_alternatives(other))]
