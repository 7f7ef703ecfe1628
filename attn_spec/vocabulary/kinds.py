"""Kinds of words, each read from the table, the comments and the docstrings beside what it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from attn_spec.contract import contract, presets, quantisers
from attn_spec.contract.contract import Contract
from attn_spec.contract.quantisers import Quantiser
from attn_spec.kernels import limits
from attn_spec.kernels.c_abi import words as c_words
from attn_spec.kernels.declarations.declaration import kernel as declare
from attn_spec.kernels.kernel import FOUND, Kernel
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.presentations import table as presentations
from attn_spec.kernels.signatures import table as signatures
from attn_spec.kernels.signatures.signature import REQUIRED, Argument
from attn_spec.numbers import formats
from attn_spec.problem import abilities, options, quantities
from attn_spec.problem.conventions import CONVENTIONS, Conventions
from attn_spec.problem.options.option import Option
from attn_spec.search import profiles, verdict
from attn_spec.search import property as property_module
from attn_spec.search.drawing import regimes, sizes
from attn_spec.vocabulary import libraries
from attn_spec.vocabulary.comments import comments_of, paragraphs, summary
from attn_spec.vocabulary.word import Kind, Word


def _facts(**told: Any) -> tuple[tuple[str, str], ...]:
    """Return labels and texts of facts, without empty ones."""
    return tuple((name.replace("_", " "), str(text)) for name, text in told.items() if text not in ("", None))


def _values(allowed: Iterable[Any]) -> str:
    return ", ".join(repr(value) for value in allowed)


def _texts(allowed: Iterable[Any]) -> tuple[str, ...]:
    return tuple(value for value in allowed if isinstance(value, str))


def _default(item: Field[Any]) -> str:
    """Return the default of a field; empty if the field must be given."""
    return "" if item.default is MISSING else repr(item.default)


def properties() -> list[Word]:
    """Return the word of every property, by its id."""
    return [
        Word(
            kind="property",
            name=property_.id,
            says=property_.statement,
            facts=_facts(
                source=property_.source,
                hunts=property_.hunts,
                needs=", ".join(property_.needs) or "nothing beyond a plain call",
                chance=f"at most {property_.false_alarm:g} for one problem, of a sound kernel"
                if property_.false_alarm
                else "",
            ),
            also=tuple(property_.id.split(".")),
        )
        for _, property_ in sorted(property_module.load_all().items())
    ]


def _value_of(row: Option) -> str:
    """Return a description of the valid values of an option."""
    if row.tensor is None:
        return row.wanted
    kind = row.tensor.__name__.rstrip("_")
    shape = f"[{row.shape_text}]{', or 1 along an axis of equal numbers' if _is_broadcast(row) else ''}"
    return f"a tensor {shape}, {'of a dtype' if kind == 'float64' else kind}" + (
        f", without {row.wanted}" if row.wanted else ""
    )


def _is_broadcast(row: Option) -> bool:
    """Return whether a kernel is given tensors of the option in which an axis has the length 1 for all its places."""
    drawn = {value.partition("@")[2] for value in row.draws if isinstance(value, str)}
    return len(drawn - {""}) > 1


def _options() -> list[Word]:
    return [
        Word(
            kind="option",
            name=name,
            says=row.says,
            facts=_facts(
                passed_as=", ".join(row.spellings),
                value=_value_of(row),
                off=_values(dict.fromkeys((row.off, *row.spelled_off))),
                belongs_to=row.of,
            ),
            also=row.spellings,
        )
        for name, row in options.OPTIONS.items()
    ]


def _abilities() -> list[Word]:
    return [
        Word(
            kind="ability",
            name=name,
            says=row.says,
            facts=_facts(
                passed_as=", ".join(row.spellings),
                belongs_to=row.of,
                declared="by no kernel: its framework has it" if row.of_framework else "",
            ),
            also=row.spellings,
        )
        for name, row in abilities.ABILITIES.items()
    ]


def _conventions() -> list[Word]:
    return [
        Word(
            kind="convention",
            name=name,
            says=row.says,
            facts=_facts(
                values=_values(row.choices),
                default=repr(row.default),
                decides=", ".join(row.decides),
                not_named="assert_attention says nothing of it" if row.left_open else "",
            )
            + tuple((f"{value!r}", _choice(name, value, means)) for value, means in row.choices.items()),
            also=_texts(row.choices),
        )
        for name, row in CONVENTIONS.items()
    ]


def _choice(convention: str, value: Any, means: str) -> str:
    """Return what a choice of a convention means, and the libraries that have it."""
    told = convention in LIBRARY_CONVENTIONS
    have = [one.name for one in libraries.LIBRARIES if told and one.convention(convention) == value]
    return f"{means} ({'; '.join(have)})" if have else means


#: Conventions that the table of libraries records: those that one answer shows, whatever options a library takes.
LIBRARY_CONVENTIONS = tuple(name for name, row in CONVENTIONS.items() if row.decides and not row.of)


def _libraries() -> list[Word]:
    return [
        Word(
            kind="library",
            name=library.name,
            says=("called by " if library.calls_it else "written after its source: ") + library.kernel,
            facts=_facts(
                axes=library.axes,
                **{name: library.convention(name) for name in LIBRARY_CONVENTIONS},
                mask=library.mask,
                window=library.window,
            ),
            also=(library.kernel,),
        )
        for library in libraries.LIBRARIES
    ]


def _contracts() -> list[Word]:
    comments = comments_of(presets)
    names = {id(value): name for name, value in vars(presets).items() if isinstance(value, Contract)}
    return [
        Word(
            kind="contract",
            name=name,
            says=comments[names[id(made)]],
            facts=_facts(fields=_fields(made) or "every default"),
        )
        for name, made in (presets.PRESETS | {"undeclared": presets.UNDECLARED}).items()
    ]


def _fields(made: Contract) -> str:
    """Return the fields of a contract that differ from the defaults."""
    own = [item.name for item in fields(Contract) if item.name != "alternatives"]
    return ", ".join(
        f"{name}={getattr(made, name)!r}" for name in own if getattr(made, name) != getattr(Contract(), name)
    )


def _chooser() -> list[str]:
    """Return lines on the contract to declare, and on the consequences of another contract."""
    rows = [f"{presets.describe(made)}: {says}" for says, made in presets.CHOOSER]
    return ["Choose by what the kernel does:", *rows, *paragraphs(presets)[1:]]


def _stages() -> list[Word]:
    comments = comments_of(Contract)
    return [
        Word(
            kind="stage",
            name=item.name,
            says=comments[item.name],
            facts=_facts(
                values=_values(contract.CHOICES.get(item.name, ())),
                default=_default(item),
                contracts=_values_of_presets(item.name),
            ),
            also=() if item.name in contract.STAGES else _texts(contract.CHOICES.get(item.name, ())),
        )
        for item in fields(Contract)
    ]


def _quantiser_steps() -> list[Word]:
    comments = comments_of(Quantiser)
    return [
        Word(
            kind="quantiser",
            name=item.name,
            says=comments[item.name],
            facts=_facts(
                values=_values(quantisers.CHOICES.get(item.name, ())),
                default=_default(item) or "none: it must be given",
            ),
            also=_texts(quantisers.CHOICES.get(item.name, ())) if "format" not in item.name else (),
        )
        for item in fields(Quantiser)
    ]


def _values_of_presets(stage: str) -> str:
    """Return the presets in which a stage differs from its default."""
    default = getattr(Contract(), stage)
    found = {name: getattr(made, stage) for name, made in presets.PRESETS.items()}
    return ", ".join(f"{name} {value!r}" for name, value in found.items() if value != default)


def _regimes() -> list[Word]:
    rows = regimes.REGIMES.items()
    return [Word(kind="regime", name=name, says=row.summary, facts=_facts(hunts=row.hunts)) for name, row in rows]


def _sizes() -> list[Word]:
    return [Word(kind="size", name=row.name, says=f"hunts {row.hunts}") for row in sizes.SIZES]


def _verdicts() -> list[Word]:
    comments = comments_of(verdict.Verdict)
    return [Word(kind="verdict", name=str(value), says=comments[value.name]) for value in verdict.Verdict]


def _quantities() -> list[Word]:
    rows = quantities.QUANTITIES.values()
    return [
        Word(kind="quantity", name=row.name, says=row.title, facts=_facts(axes=row.axes, made_by=row.made_by))
        for row in rows
    ]


def _profiles() -> list[Word]:
    words = []
    for row in profiles.PROFILES.values():
        limit = f"for at most {row.seconds:g} s, then {row.shrink_seconds:g} s to make a failing one smaller"
        says = f"{row.examples} problems for each property, kernel and dtype, {limit}"
        words.append(Word(kind="profile", name=row.name, says=says, facts=_facts(held=f"from {row.floor} problems on")))
    return words


def _formats() -> list[Word]:
    words = []
    for name, row in formats.EVERY.items():
        says = f"{row.precision} significant bits, from 2^{row.emin} to {row.largest:.6g}"
        stored = "dtype of tensors" if name in formats.DTYPES else "stage of a contract only"
        stored = "dtype of q, k and v" if name in formats.EIGHT_BITS else stored
        stored = "codes of a quantiser only" if name in formats.CODES else stored
        stored = "scales of a quantiser only" if name in formats.SCALES else stored
        facts = _facts(used_as=stored, above_the_largest=row.above, negative_zero=row.negative_zero, source=row.source)
        words.append(Word(kind="format", name=name, says=says, facts=facts))
    return words


def _presentations() -> list[Word]:
    rows = presentations.PRESENTATIONS.items()
    return [Word(kind="presentation", name=name, says=row.says) for name, row in rows]


def _signatures() -> list[Word]:
    rows = signatures.SIGNATURES.items()
    return [
        Word(
            kind="signature",
            name=name,
            says=f"is called as {row.function}, with tensors of {row.framework}",
            facts=_facts(presentation=row.presentation, **row.conventions)
            + tuple((argument.name, _parameter(argument)) for argument in row.arguments)
            + _facts(
                limits=_set_limits(row.limits),
                lacks=", ".join(sorted(row.lacks)),
                asks_for=", ".join(sorted(row.asks_for)),
                dtypes=", ".join(row.dtypes),
            )
            + tuple((f"fact {number}", f"{fact.says} ({fact.source})") for number, fact in enumerate(row.facts, 1))
            + (("source of names", row.source),),
            also=(row.function, row.function.rpartition(".")[2]),
        )
        for name, row in rows
    ]


def _parameter(argument: Argument) -> str:
    """Return what a parameter of a library's function says, how, and its default."""
    default = "required" if argument.default is REQUIRED else f"default {argument.default!r}"
    return "; ".join(filter(None, (", ".join(argument.says), argument.means, default)))


def _set_limits(limits: Limits) -> str:
    """Return the limits that are set."""
    found = {item.name: getattr(limits, item.name) for item in fields(Limits)}
    return ", ".join(f"{name}={value!r}" for name, value in found.items() if value != getattr(Limits(), name))


def _limits() -> list[Word]:
    comments = comments_of(Limits)
    return [Word(kind="limit", name=item.name, says=comments[item.name]) for item in fields(Limits)]


def _declarations() -> list[Word]:
    comments = comments_of(Kernel)
    written = [item for item in fields(Kernel) if item.name not in FOUND]
    return [
        Word(kind="declaration", name=item.name, says=comments[item.name], facts=_facts(default=_default(item)))
        for item in written
    ]


def _parameters() -> list[Word]:
    every = c_words.words(presentations.PRESENTATIONS["BHSD"])
    strides = {name: says for name, says in every.items() if name.startswith(f"q{c_words.STRIDE}")}
    return [Word(kind="parameter", name=name, says=says) for name, says in {**c_words.PLAIN, **strides}.items()]


@cache
def kinds() -> tuple[Kind, ...]:
    """Return every kind, in the order in which a reader meets them."""

    def kind(name: str, says: str, words: Callable[[], list[Word]], plural: str = "", **more: Any) -> Kind:
        return Kind(name=name, plural=plural or f"{name}s", says=says, words=words, **more)

    return (
        kind("declaration", summary(declare).partition(" Raises ")[0], _declarations),
        kind("option", summary(options), _options),
        kind("ability", summary(abilities), _abilities, "abilities"),
        kind("limit", summary(limits), _limits),
        kind("presentation", summary(presentations), _presentations),
        kind("signature", summary(signatures), _signatures),
        kind("parameter", summary(c_words), _parameters),
        kind("convention", summary(Conventions), _conventions, in_full=True),
        kind("library", summary(libraries), _libraries, "libraries", in_full=True),
        kind("contract", summary(presets), _contracts, also=("preset", "presets"), closing=_chooser),
        kind("stage", paragraphs(contract)[1], _stages, also=("input", "work")),
        kind("quantiser", summary(quantisers), _quantiser_steps, "quantiser-steps"),
        kind("format", summary(formats), _formats, also=("dtype", "dtypes")),
        kind("property", summary(property_module), properties, "properties"),
        kind("regime", summary(regimes), _regimes),
        kind("size", summary(sizes), _sizes),
        kind("profile", summary(profiles), _profiles),
        kind("verdict", summary(verdict.Verdict), _verdicts),
        kind("quantity", summary(quantities), _quantities, "quantities"),
    )
