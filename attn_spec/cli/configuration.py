"""The table ``[tool.attn_spec]`` of ``pyproject.toml``: kernels and options of ``attn-spec certify`` without arguments.

[tool.attn_spec]
kernels = ["my_attention.py:attention"]
profile = "ci"                          # and any other option of certify, by its long name
known_defects = "known.toml"            # or the tables [[tool.attn_spec.defect]], see kernels.defects
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

#: Path of the file with the table, relative to the working directory.
FILE = Path("pyproject.toml")
_TABLE = f"[tool.attn_spec] of {FILE}"


class ConfigurationError(click.UsageError):
    """An invalid or missing table; the text says what to change."""


def kernels(context: click.Context, _: click.Parameter, named: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named kernels; without any, those of the table, whose options become the command's defaults.

    This is the callback of an eager argument, so that options are read after it. Raises :class:`ConfigurationError`.
    """
    if named or context.resilient_parsing:
        return named
    table = _table()
    listed = table.pop("kernels", None)
    if not listed or not _is_texts(listed):
        raise ConfigurationError(f"{_TABLE} needs kernels, a list of names of kernels, not {listed!r}")
    if table.pop("defect", None) is not None:
        if "known_defects" in table:
            raise ConfigurationError(f"{_TABLE} has known_defects and defect; keep all known defects in one of them")
        table["known_defects"] = str(FILE)
    context.default_map = defaults(table, context.command)
    return tuple(listed)


def defaults(table: Mapping[str, Any], command: click.Command) -> dict[str, Any]:
    """Return the table as defaults of a command, by the names of its parameters. Raises :class:`ConfigurationError`."""
    options = {_key(option): option for option in command.params if isinstance(option, click.Option)}
    if unknown := sorted(set(table) - set(options)):
        known = ", ".join(sorted(["kernels", *options]))
        raise ConfigurationError(f"{_TABLE} has unknown keys {', '.join(unknown)}; known are {known}")
    found = {}
    for key, value in table.items():
        option = options[key]
        if option.multiple and not _is_texts(value):
            raise ConfigurationError(f"{key} in {_TABLE} must be a list of texts, not {value!r}")
        if not option.multiple and isinstance(value, list | dict):
            raise ConfigurationError(f"{key} in {_TABLE} must be one value, not {value!r}")
        found[str(option.name)] = value
    return found


def _table() -> dict[str, Any]:
    """Return the table. Raises :class:`ConfigurationError`."""
    wanted = f"name a kernel, or list kernels in {_TABLE}: kernels = ['my_attention.py:attention']"
    if not FILE.is_file():
        raise ConfigurationError(f"no kernel is named, and {Path.cwd()} has no {FILE}; {wanted}")
    try:
        document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{FILE} cannot be read: {error}") from error
    table = document.get("tool", {}).get("attn_spec")
    if not isinstance(table, dict):
        raise ConfigurationError(f"no kernel is named, and {FILE} has no table [tool.attn_spec]; {wanted}")
    return dict(table)


def _key(option: click.Option) -> str:
    """Return the long name of an option as a key of the table."""
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
