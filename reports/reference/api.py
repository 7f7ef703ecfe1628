"""The page on the public API: the names of the package, each with its docstring."""

from __future__ import annotations

import attn_spec

from . import markdown

#: Errors of the public functions, by the module that defines them.
ERRORS = {"attn_spec.testing": ("NotAttention", "NotJudged"), "attn_spec.kernels.kernel": ("KernelError",)}


def _entry(name: str) -> str:
    """Return the directives that document a name of the package."""
    found = getattr(attn_spec, name)
    kind, members = ("class", "   :members:\n") if isinstance(found, type) else ("function", "")
    return f".. auto{kind}:: attn_spec.{name}\n{members}"


def page() -> str:
    """Return the page."""
    entries = [f"## {name}\n\n```{{eval-rst}}\n{_entry(name)}```" for name in sorted(attn_spec.__all__)]
    errors = "\n\n".join(
        f"```{{eval-rst}}\n.. autoexception:: {module}.{name}\n```"
        for module, names in ERRORS.items()
        for name in names
    )
    return markdown.page("Public API", "`import attn_spec` gives these names.", *entries, "## Errors", errors)
