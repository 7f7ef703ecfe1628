"""The command that asks a callable who it is, in a process that the kernel may end.

``python -m attn_spec.probe.command SPEC [FRAMEWORK]`` asks it here.
"""

from __future__ import annotations

import subprocess
import sys

import click

#: Seconds after which a process that does not end is ended.
LIMIT = 600.0


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
    command = [sys.executable, "-P", "-m", "attn_spec.probe.command", kernel, *([framework] if framework else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise CouldNotProbe(f"{kernel} gave no answer within {LIMIT:g} s") from None
    if done.returncode == CouldNotProbe.exit_code:
        raise CouldNotProbe(done.stdout.strip())
    if done.returncode:
        raise CouldNotProbe(f"{kernel} ended the process (exit code {done.returncode}); call it by hand to see why")
    click.echo(done.stdout, nl=False)


def main(spec: str, framework: str | None = None) -> int:
    """Print the declaration, or why there is none, and return the exit code."""
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.probe.declaration import declaration

    try:
        lines, code = declaration(spec, framework), 0
    except KernelError as error:
        lines, code = [str(error)], CouldNotProbe.exit_code
    print("\n".join(lines))  # noqa: T201 -- read by the parent process
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
