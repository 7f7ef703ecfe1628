"""The command ``attn-spec probe``, which asks an undecorated callable, in a process of its own, what it computes."""

from __future__ import annotations

import click


class CouldNotProbe(click.ClickException):
    """An error that ends the command with exit code 2, as every command that cannot run ends."""

    exit_code = 2


@click.command()
@click.argument("kernel")
@click.option("--framework", help="For undecorated callables: jax, mlx, numpy or torch.")
@click.option(
    "--dtype", "dtypes", multiple=True, help="Dtype to ask in; may be repeated. Default: all in which it is right."
)
@click.option(
    "--supports",
    help="Options that no parameter shows, as those of a function that builds: causal,mask; a - removes one.",
)
@click.option(
    "--builds",
    is_flag=True,
    help="The function is build(shapes, dtypes, options), and returns the callable of a signature.",
)
def probe(kernel: str, framework: str | None, dtypes: tuple[str, ...], supports: str | None, *, builds: bool) -> None:
    """Probe KERNEL, file.py:name, and print a declaration to paste, with the evidence for each line.

    Facts that the answers do not decide are left out of the declaration. Of a function with @kernel the declaration is
    not read, but whether it builds. No verdict depends on this command. What is asked is told on stderr.
    """
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.kernels.resolve import declarations
    from attn_spec.probe.declaration import declaration
    from attn_spec.probe.instrument import announcing

    given = declarations(framework, None, supports) | {"builds": builds}
    try:
        with announcing(lambda what: click.echo(f"asking: {what}", err=True)):
            lines = declaration(kernel, dtypes, **given)
    except KernelError as error:
        raise CouldNotProbe(str(error)) from None
    click.echo("\n".join(lines))
