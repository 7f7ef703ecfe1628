"""The command that asks a callable who it is. The callable has a process of its own."""

from __future__ import annotations

import click


class CouldNotProbe(click.ClickException):
    """Ends the command as any other that could not run."""

    exit_code = 2


@click.command()
@click.argument("kernel")
@click.option("--framework", help="For undecorated callables: numpy, torch or jax.")
def probe(kernel: str, framework: str | None) -> None:
    """Ask KERNEL, file.py:name, who it is, and print a declaration to paste, with the evidence for each line.

    What an answer does not decide is left out. No verdict depends on it.
    """
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.probe.declaration import declaration

    try:
        lines = declaration(kernel, framework)
    except KernelError as error:
        raise CouldNotProbe(str(error)) from None
    click.echo("\n".join(lines))
