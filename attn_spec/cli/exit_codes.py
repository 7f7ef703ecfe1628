"""Exit codes: one for each result of the command, and one line for an error that prevented a result."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from attn_spec import atomic, faults

#: Exit codes by the result of a certificate. The command returns the code of a refutation for nothing else.
CODES = {"certified": 0, "passed": 0, "refuted": 1, "inconclusive": 3}
COULD_NOT_RUN = 2
#: Exit codes as in shells: 128 plus the number of SIGINT, and of SIGPIPE.
INTERRUPTED, UNREAD = 130, 141
#: Exit code of replay if a failure by chance did not occur again, which does not show that it is mended.
NOT_SEEN = 4
#: Meaning of each exit code.
MEANINGS = {
    CODES["passed"]: "Every property that was exercised held. Suspects and known defects do not change that.",
    CODES["refuted"]: "A property is refuted. No other result has this code.",
    COULD_NOT_RUN: "The kernel could not be examined, or the command could not run. The message says what to do.",
    CODES["inconclusive"]: "A property was not exercised enough to judge, none held, or a known defect is gone.",
    NOT_SEEN: "attn-spec replay only: a failure by chance did not occur again, which does not show that it is fixed.",
    INTERRUPTED: "Ctrl-C stopped the run. The certificate has the verdicts so far, and says that it is not complete.",
    UNREAD: "stdout was closed, as by head (SIGPIPE).",
}
#: Exit codes from the least to the most informative.
_TELLING = (0, NOT_SEEN, CODES["inconclusive"], COULD_NOT_RUN, CODES["refuted"], INTERRUPTED)


def of_all(codes: Iterable[int]) -> int:
    """Return the exit code of several runs: the most informative one; without runs, that of an inconclusive result."""
    return max(codes, key=_TELLING.index, default=CODES["inconclusive"])


class CouldNotRun(click.ClickException):
    """An error that ends the command with exit code 2."""

    exit_code = COULD_NOT_RUN


class Interrupted(click.ClickException):
    """An error that ends the command as Ctrl-C does."""

    exit_code = INTERRUPTED


def check_writable(path: Path) -> None:
    """Check before the work that its result can be written. Raises :class:`CouldNotRun`."""
    if reason := atomic.refusal(path):
        raise CouldNotRun(f"{path} cannot be written: {reason}; choose another place")


def check_apart(page: Path, certificate: Path, option: str) -> None:
    """Check that no file of a report is the certificate; ``option`` names the page. Raises :class:`CouldNotRun`."""
    from attn_spec.evidence import report

    if certificate.resolve() in {file.resolve() for file in report.files(page).values()}:
        raise CouldNotRun(f"{option} {page} would overwrite the certificate {certificate}; choose another {option}")


class Command(click.Group):
    """A group of commands that distinguishes internal errors from refutations and from errors of the user."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises :class:`CouldNotRun` for any unknown error, after printing its traceback."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except BrokenPipeError:  # stdout was closed, as with `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # unflushed output is dropped
            raise click.exceptions.Exit(UNREAD) from None
        except Exception as error:
            click.echo("".join(traceback.format_exception(error)), nl=False, err=True)
            raise CouldNotRun(faults.text(error)) from None
