"""The command ``attn-spec probe``, which asks an undecorated callable, in a process of its own, what it computes."""

from __future__ import annotations

import click


class CouldNotProbe(click.ClickException):
    """An error that ends the command with exit code 2, as every command that cannot run ends."""

    exit_code = 2


@click.command()
@click.argument("kernel")
@click.option("--framework", help="For undecorated callables: numpy, torch or jax.")
def probe(kernel: str, framework: str | None) -> None:
    """Probe KERNEL, file.py:name, and print a declaration to paste, with the evidence for each line.

    Facts that the answers do not decide are left out of the declaration. No verdict depends on this command.
    """
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.probe.declaration import declaration

    try:
        lines = declaration(kernel, framework)
    except KernelError as error:
        raise CouldNotProbe(str(error)) from None
    click.echo("\n".join(lines))
