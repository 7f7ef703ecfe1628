"""How the command ends: an exit code for each result, and one line for whatever kept it from having one."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from attn_spec import atomic, faults

#: By the result of a certificate. No other end of the command has the code of a refutation.
CODES = {"certified": 0, "passed": 0, "refuted": 1, "inconclusive": 3}
COULD_NOT_RUN = 2
#: As shells have it: 128 and the number of SIGINT, and of SIGPIPE.
INTERRUPTED, UNREAD = 130, 141
#: Where what refuted a kernel is not seen again, and whether it is gone cannot be said.
NOT_SEEN = 4
#: From the end that says least to the one that says most.
_TELLING = (0, NOT_SEEN, CODES["inconclusive"], COULD_NOT_RUN, CODES["refuted"], INTERRUPTED)


def of_all(codes: Iterable[int]) -> int:
    """The exit code of several runs: that of the one that says most; of none, that nothing was examined."""
    return max(codes, key=_TELLING.index, default=CODES["inconclusive"])


class CouldNotRun(click.ClickException):
    """Ends the command with exit code 2."""

    exit_code = COULD_NOT_RUN


class Interrupted(click.ClickException):
    """Ends the command as Ctrl-C does."""

    exit_code = INTERRUPTED


def check_writable(path: Path) -> None:
    """Say before the work what would be in vain after it. Raises :class:`CouldNotRun`."""
    if reason := atomic.refusal(path):
        raise CouldNotRun(f"{path} cannot be written: {reason}; choose another place")


class Command(click.Group):
    """A command whose own errors are told from refutations, and from what a user can mend."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. Raises :class:`CouldNotRun` for any error that it does not know, with its traceback shown."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except BrokenPipeError:  # nobody reads on, as after `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to flush goes nowhere
            raise click.exceptions.Exit(UNREAD) from None
        except Exception as error:
            click.echo("".join(traceback.format_exception(error)), nl=False, err=True)
            raise CouldNotRun(faults.text(error)) from None
