"""Known defects: refutations that somebody expects, with the reason, so that a run fails only for new ones.

A table of known defects stands beside a kernel (``known_defects=`` of :func:`attn_spec.kernel`), or in a TOML file:

    [[defect]]
    kernel = "torch_sdpa:flash"
    property = "scaling.the_scale_read_from_the_weights_is_the_one_asked_for"
    dtype = "float16"                                   # left out: every dtype
    reason = "the scale is rounded to float16"
    link = "https://github.com/..."                     # may be left out

    [[defect]]
    kernel = "mine"
    needs = ["window", "causal"]                        # every property that fails only with all of these options
    reason = "the window's edge is off by one where it is causal"

In a ``pyproject.toml`` the same rows are called ``[[tool.attn_spec.defect]]``.

The table beside an isolated kernel counts only with ``--known-defects own``, set by the person who runs the command.
Otherwise a kernel that is not trusted could excuse itself.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from attn_spec.numbers.formats import INPUT_DTYPES

#: Value in place of a file's path: the table beside the kernel that is examined.
OWN = Path("own")


class DefectError(Exception):
    """A table of known defects cannot be used; the message says what is wrong and where."""


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One refutation that is expected."""

    #: Reason for the refutation.
    reason: str
    #: Id of the property; None is every property, of an entry with ``needs``.
    property: str | None = None
    #: Options all of which the refutation needs: without any one of them the property holds for the refuting problem.
    needs: tuple[str, ...] = ()
    #: Dtype at which the property is refuted; None is every dtype.
    dtype: str | None = None
    #: Address of the report about the defect.
    link: str = ""
    #: Kernel by the name that reports use; None in a kernel's own table.
    kernel: str | None = None
    #: True if few problems show the defect, so that a search may miss it: a property that holds is no news then.
    rare: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", _options(self.needs))
        for name in ("property", "reason"):
            value = getattr(self, name)
            if name == "property" and value is None and self.needs:
                continue
            if not isinstance(value, str) or not value.strip():
                raise DefectError(f"a known defect needs a {name} that is a text, not {value!r}")

        if not isinstance(self.rare, bool):
            raise DefectError(f"rare of a known defect must be true or false, not {self.rare!r}")

        # ``problem.dtypes``, which reads them all, imports NumPy, and this file is imported by any run of pytest.
        if self.dtype is not None and {one.rpartition(":")[2] for one in self.dtype.split(",")} - set(INPUT_DTYPES):
            known = ", ".join(INPUT_DTYPES)
            raise DefectError(f"the dtype of a known defect must be one of {known}, not {self.dtype!r}")

    def is_of(self, kernel: str, dtype: str, property_id: str) -> bool:
        """Return whether the defect is expected of this kernel, at this dtype, for the property ``property_id``.

        An entry with ``needs`` expects a refutation only if that needs all of these options.
        """
        return self.property in (None, property_id) and self.dtype in (None, dtype) and self.kernel in (None, kernel)

    def __str__(self) -> str:
        return f"{self.reason} ({self.link})" if self.link else self.reason


def _options(needs: Any) -> tuple[str, ...]:
    """Return the names of options. Raises :class:`DefectError` for anything but a list of texts."""
    if isinstance(needs, str) or not all(isinstance(name, str) for name in needs):
        raise DefectError(f'the needs of a known defect are options, ["window"], not {needs!r}')
    return tuple(needs)


def read(path: Path) -> tuple[Defect, ...]:
    """Return the known defects of a TOML file. Raises :class:`DefectError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DefectError(f"{path} cannot be read as TOML: {error}") from error
    within: Any = document
    for name in ("tool", "attn_spec", "defect"):
        within = within.get(name) if isinstance(within, dict) else None
    rows = document.get("defect") if within is None else within
    if not isinstance(rows, list) or (within is None and set(document) != {"defect"}):
        raise DefectError(f"{path} must hold tables [[defect]] and nothing else, or [[tool.attn_spec.defect]]")
    return tuple(_defect(path, number, row) for number, row in enumerate(rows, start=1))


def _defect(path: Path, number: int, row: dict[str, Any]) -> Defect:
    known = [field.name for field in fields(Defect)]
    if unknown := sorted(set(row) - set(known)):
        raise DefectError(
            f"{path}, defect {number} has unknown keys {', '.join(unknown)}; known are {', '.join(known)}"
        )
    try:
        return Defect(**row)
    except TypeError as error:
        raise DefectError(f"{path}, defect {number} must have the keys property, or needs, and reason") from error
    except DefectError as error:
        raise DefectError(f"{path}, defect {number}: {error}") from error
