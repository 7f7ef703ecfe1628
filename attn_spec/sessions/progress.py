"""The request to examine a kernel, and the progress of its examination."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attn_spec.isolation.choices import isolate_word
from attn_spec.judgement.planted_errors import Power
from attn_spec.kernels.defects import OWN, Defect
from attn_spec.search.verdict import Row, Verdict

Event = dict[str, Any]

#: Reasons why an examination ends early.
INTERRUPTION, FIRST_REFUTATION = "interrupted", "stopped at the first refutation"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to certify. Empty fields leave the choice to the kernel or the profile."""

    kernel: str
    dtypes: tuple[str, ...] = ()
    #: Parts of the ids of the properties to exercise.
    only: tuple[str, ...] = ()
    #: Further shapes at which to examine the kernel, as :meth:`attn_spec.problem.shape_spec.AskedShape.parse` reads
    #: them.
    shapes: tuple[str, ...] = ()
    device: str = "cpu"
    profile: str = "smoke"
    seed: int | None = None
    call_limit: float = 60.0
    framework: str | None = None
    contract: str | None = None
    supports: str | None = None
    #: Name of the library's signature with which an undecorated callable is called.
    signature: str | None = None
    #: Run time of an undecorated callable's call, as a multiple of that on ordinary hardware.
    slowness: float | None = None
    #: File of the definition that the kernel, a document, is a solution of, and file of workloads of that definition.
    definition: str | None = None
    workload: str | None = None
    #: True if the kernel runs in a process of its own; None chooses that for kernels outside attn-spec.
    isolate: bool | None = None
    #: Limit of this process's address space, in GiB.
    memory: float | None = None
    #: TOML file of known defects.
    known_defects: Path | None = None
    #: True if the first refutation ends the examination.
    fail_fast: bool = False
    #: Number of processes that examine the kernel side by side, each a share of the properties and dtypes.
    workers: int = 1
    #: Address of the Dask scheduler whose workers take the shares.
    scheduler: str | None = None

    def arguments(self) -> list[str]:
        """Return the options of the pytest plugin that express this request."""
        pairs = [("kernel", self.kernel), ("device", self.device)]
        pairs += [("dtype", dtype) for dtype in self.dtypes] + [("property", part) for part in self.only]
        pairs += [("shape", shape) for shape in self.shapes]
        pairs += [("profile", self.profile), ("seed", self.seed), ("call-limit", self.call_limit)]
        pairs += [("framework", self.framework), ("contract", self.contract), ("supports", self.supports)]
        pairs += [("signature", self.signature), ("definition", self.definition), ("workload", self.workload)]
        pairs += [("slowness", self.slowness)]
        pairs += [("isolate", isolate_word(self.isolate)), ("memory", self.memory)]
        table = self.known_defects
        pairs += [("known-defects", table if table in (None, OWN) else table.resolve())]
        return [f"--attn-{name}={value}" for name, value in pairs if value is not None]


@dataclass
class Progress:
    """The events that the child has written so far."""

    kernel: Event | None = None
    #: Facts that calls have shown of the kernel: files and packages that it imported, state that it changed.
    account: Event = field(default_factory=dict)
    #: Refutations of the kernel that the user expects.
    known_defects: list[Defect] = field(default_factory=list)
    #: Every (property, kernel, dtype) to examine, by share.
    shares: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    #: Each (property, kernel, dtype) under examination, by share; the last one begun is last.
    begun: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: Number of problems that the last one begun has seen.
    examples: int = 0
    rows: dict[tuple[str, ...], Row] = field(default_factory=dict)
    #: Messages of refutations whose problems are still being shrunk.
    found: dict[tuple[str, ...], str] = field(default_factory=dict)
    #: Failure blocks of refuted and suspect properties.
    blocks: dict[tuple[str, ...], str] = field(default_factory=dict)
    #: Planted errors that the judge would have refuted.
    powers: list[Power] = field(default_factory=list)
    #: Reason why the kernel cannot be examined, and an internal error of attn-spec.
    refusal: str | None = None
    fault: str | None = None
    #: Reason why the examination ended early; empty if it did not.
    stopped: str = ""
    #: Shares whose examination is complete.
    ended: set[int] = field(default_factory=set)

    @property
    def trouble(self) -> str | None:
        """Reason why there is no verdict on the kernel; None as long as there may be one."""
        return self.fault or self.refusal

    @property
    def is_refuted(self) -> bool:
        """True if a property is refuted."""
        return any(row.verdict is Verdict.REFUTED for row in self.rows.values())

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """Every (property, kernel, dtype) to examine, in the order of collection: shares take turns."""
        turns = zip_longest(*(self.shares[number] for number in sorted(self.shares)))
        return [key for turn in turns for key in turn if key is not None]

    @property
    def current(self) -> tuple[str, ...] | None:
        """The last begun (property, kernel, dtype) under examination; None if there is none."""
        return next(reversed(self.begun.values()), None)

    def hear(self, event: Event, share: int = 0) -> None:
        """Record one line of the report on a share."""
        self._hear_of_kernel(event)
        match event:
            case {"kind": "collected"}:
                self.shares.setdefault(share, [tuple(key) for key in event["keys"]])
            case {"kind": "start"}:
                self.begun.pop(share, None)
                self.begun[share], self.examples = tuple(event["key"]), 0
            case {"kind": "tick"}:
                self.examples = event["examples"]
            case {"kind": "found"}:
                self.found[tuple(event["key"])] = event["message"]
            case {"kind": "row"}:
                self.begun.pop(share, None)
                self.add(Row.from_json(event["row"]), event.get("block", ""))
            case {"kind": "refusal" | "fault" as kind}:
                setattr(self, kind, event["message"])
            case {"kind": "end"}:
                self.ended.add(share)

    def _hear_of_kernel(self, event: Event) -> None:
        """Record what a line says about the kernel as a whole."""
        match event:
            case {"kind": "kernel"}:
                self.kernel = event
                self.known_defects = [Defect(**row) for row in event["known_defects"]]
            case {"kind": "power"}:
                self.powers.append(Power.from_json(event["power"]))
            case {"kind": "account"}:
                self._add_account(event["account"])

    def take(self, other: Progress) -> None:
        """Add all that was reported on a share elsewhere."""
        self.kernel, self.known_defects = other.kernel or self.kernel, other.known_defects or self.known_defects
        self._add_account(other.account)
        self.shares |= other.shares
        self.rows |= other.rows
        self.blocks |= other.blocks
        self.powers += other.powers
        self.ended |= other.ended
        self.refusal, self.fault = self.refusal or other.refusal, self.fault or other.fault

    def _add_account(self, account: Event) -> None:
        for name, found in account.items():
            known = self.account.get(name, type(found)())
            self.account[name] = known | found if isinstance(found, dict) else sorted({*known, *found})

    def add(self, row: Row, block: str = "") -> None:
        """Record one verdict."""
        key = (row.property, row.kernel, row.dtype)
        self.rows[key] = row
        if row.verdict in {Verdict.REFUTED, Verdict.SUSPECT}:
            self.blocks[key] = block
