"""Run the scripts that show defects of released implementations, each in a fresh environment.

    python -m attn_spec.reports.released.reproduce

    python -m attn_spec.reports.released.reproduce onnx-reference

NAME is that of an implementation; without one, the scripts of all are run. Each runs twice, with the packages that it
names and nothing else. Exit statuses are those of ``attn-spec``:

- 0: each run shows its defect, and prints the same text.
- 2: the command could not run.
- 3: a run shows no defect, prints another text, or failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from attn_spec.cli.exit_codes import CODES, COULD_NOT_RUN
from attn_spec.nearest_names import suggestion

from . import findings
from .environments import ReleasedError
from .findings import Finding
from .reproduction import reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the module's docstring lists the exit statuses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="implementation whose scripts are run")
    options = parser.parse_args(arguments)
    try:
        return _reproduced(_chosen(options.names))
    except ReleasedError as error:
        sys.stderr.write(f"{error}\n")
        return COULD_NOT_RUN


def _chosen(names: Sequence[str]) -> list[Finding]:
    """Return the defects of some implementations; all without any. Raises :class:`ReleasedError`."""
    defects = [one for one in findings.read() if one.script]
    known = list(dict.fromkeys(one.implementation for one in defects))
    for name in names:
        if name not in known:
            near = suggestion(name, known, f"; known are {', '.join(known)}")
            raise ReleasedError(f"no script shows a defect of {name!r}{near}")
    return [one for one in defects if not names or one.implementation in names]


def _reproduced(defects: Sequence[Finding]) -> int:
    """Run the scripts of some defects, print what they printed, and return the exit status."""
    is_shown = True
    for finding in defects:
        found = reproduce(finding.script)
        is_shown &= not found.failure
        sys.stdout.write(f"{finding.implementation}: {finding.reason}\n{found.sentence}\n")
        sys.stdout.writelines(f"    {line}\n" for text in found.printed for line in text.splitlines())
        sys.stdout.flush()
    return 0 if is_shown else CODES["inconclusive"]


if __name__ == "__main__":
    sys.exit(main())
