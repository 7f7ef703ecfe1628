"""Selection of the verdicts to reach: those of chosen properties, without those of an earlier report."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from attn_spec.nearest_names import suggestion

#: Key of a verdict: (property id, kernel name, dtype).
Key = tuple[str, str, str]


def chosen(parts: Sequence[str], keys: set[Key]) -> set[Key]:
    """Return the keys of the properties that the parts name. Raises :class:`KernelError` as :func:`named` does."""
    ids = named(parts, {property_id for property_id, _, _ in keys})
    return {key for key in keys if key[0] in ids}


def named(parts: Sequence[str], ids: Collection[str]) -> set[str]:
    """Return the ids that contain one of the parts, or all. Raises :class:`KernelError` if a part fits none."""
    for part in parts:
        if not any(part in property_id for property_id in ids):
            from attn_spec.kernels.kernel import KernelError

            words = sorted({*ids, *(word for property_id in ids for word in property_id.split("."))})
            known = suggestion(part, words, "; `attn-spec properties` lists them")
            raise KernelError(f"no property's id contains {part!r}{known}")
    return {property_id for property_id in ids if not parts or any(part in property_id for part in parts)}


def reported(path: Path | None) -> set[Key]:
    """Return the keys of the verdicts in an earlier report; empty if there is none."""
    lines = path.read_text().splitlines() if path and path.is_file() else []
    rows = [row for line in lines if (row := json.loads(line).get("row"))]
    return {(row["property"], row["kernel"], row["dtype"]) for row in rows}
