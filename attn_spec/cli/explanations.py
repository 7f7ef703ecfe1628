"""The commands that explain the words of the suite, and its properties."""

from __future__ import annotations

import click

from attn_spec.cli.exit_codes import CouldNotRun


@click.command()
@click.argument("word", nargs=-1)
def explain(word: tuple[str, ...]) -> None:
    """Explain WORD: a property, an option, a convention, a contract, a verdict, ...; without it, list the kinds.

    The name of a kind, such as options, lists its words.
    """
    from attn_spec.vocabulary import lookup

    try:
        click.echo("\n".join(lookup.explained(" ".join(word))))
    except lookup.UnknownWordError as error:
        raise CouldNotRun(str(error)) from None


@click.command()
@click.argument("name", required=False)
def properties(name: str | None) -> None:
    """List the properties, or describe those whose id contains NAME."""
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.sessions.selection import named
    from attn_spec.vocabulary import kinds, lookup

    words = {word.name: word for word in kinds.properties()}
    try:
        ids = named([name] if name else [], words)
    except KernelError as error:
        raise CouldNotRun(str(error)) from None
    found = [word for word in words.values() if word.name in ids]
    for word in found:
        click.echo("\n".join(lookup.entry(word) if name else lookup.line(word)))
    click.echo(f"{len(found)} properties")
