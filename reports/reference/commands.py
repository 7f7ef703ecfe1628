"""Pages on the command: its help, its options in pytest, and its exit codes."""

from __future__ import annotations

import click

from attn_spec import pytest_plugin
from attn_spec.cli import exit_codes as codes
from attn_spec.cli.command import main

from .markdown import code, escaped, page, table

#: Columns of the help that the page shows.
WIDTH = 100


def command_line() -> str:
    """Return the page on the command line: the help of every command."""
    settings = {**main.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(main, info_name="attn-spec", **settings)
    sections = [_help(context)]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        if command is not None:
            # A command keeps the options for help of the first context that asks, so this is the context of a run.
            below = click.Context(command, info_name=name, parent=context, **settings)
            sections.append(f"## attn-spec {name}\n\n{_help(below)}")
    return page("Command line", "Each command prints its help with `--help`.", *sections)


def _help(context: click.Context) -> str:
    """Return the help of a command as a block."""
    return f"```text\n{context.get_help()}\n```"


def pytest_options() -> str:
    """Return the page on the options of the pytest plugin."""
    lines = [[code(f"--attn-{name}"), escaped(settings["help"])] for name, settings in pytest_plugin.OPTIONS.items()]
    return page(
        "Options of pytest",
        "The pytest plugin of attn-spec adds these options. `pytest --pyargs attn_spec.properties` runs the suite.",
        table(["option", "meaning"], lines),
    )


def exit_codes() -> str:
    """Return the page on exit codes."""
    return page(
        "Exit codes",
        "The exit code of `attn-spec certify` is the code of the most informative result of its kernels.",
        table(["code", "meaning"], [[str(value), escaped(says)] for value, says in codes.MEANINGS.items()]),
    )
