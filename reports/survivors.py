"""Mutants that no test can kill, and why: they do what the code does, or what it may do as well."""

from __future__ import annotations

#: Reasons by module and change, as ``mutation`` prints them.
REASONS: dict[tuple[str, str], str] = {}
