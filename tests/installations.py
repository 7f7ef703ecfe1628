"""Install attn-spec from this checkout in fresh environments, and certify a right and a wrong kernel in each.

    python tests/installations.py python3.11 python3.12 python3.13

Each Python is tried with the newest versions of what attn-spec needs. The first is also tried with the oldest that
``pyproject.toml`` allows. It needs an index of packages. Exit status 0: each environment tells the kernels apart.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: A tiled kernel; ``{shift}`` moves the diagonal of its causal mask.
KERNEL = """
import numpy as np


def attention(q, k, v, *, causal=False, scale=None):
    s = q @ k.swapaxes(2, 3) * q.dtype.type(q.shape[3] ** -0.5 if scale is None else scale)
    if causal:
        s = np.where(np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + {shift}, -np.inf, s)
    p = np.exp(s - s.max(axis=3, keepdims=True))
    return p @ v / p.sum(axis=3, keepdims=True)
"""


def oldest(requirements: Iterable[str]) -> list[str]:
    """Return constraints that allow no newer release than the lower bound of each requirement.

    A bound of two numbers, ``>=1.26``, allows its patches. Raises ``ValueError`` for a requirement of another form.
    """
    found = []
    for requirement in requirements:
        match = re.fullmatch(r"([\w-]+)>=(\d+(?:\.\d+)*)", requirement)
        if match is None:
            raise ValueError(f"{requirement!r} has no lower bound alone; write name>=version")
        name, version = match.groups()
        found.append(f"{name}=={version if version.count('.') else version + '.0'}.*")
    return found


def certifies(python: str, constraints: Sequence[str]) -> str:
    """Return why attn-spec is of no use in a fresh environment of this Python; an empty text if it is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "constraints.txt").write_text("".join(f"{line}\n" for line in constraints))
        own = folder / "venv" / "bin"
        commands: list[tuple[Sequence[str | Path], int]] = [
            ((python, "-m", "venv", folder / "venv"), 0),
            ((own / "pip", "install", "--quiet", "--constraint", folder / "constraints.txt", ROOT), 0),
        ]
        for file, shift, code in (("right", 0, 0), ("wrong", 1, 1)):
            (folder / f"{file}.py").write_text(KERNEL.format(shift=shift))
            asked = ("--dtype", "float32", "--property", "accuracy", "--property", "causality")
            commands.append(((own / "attn-spec", "certify", f"{file}.py:attention", *asked), code))
        for command, code in commands:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode != code:
                shown = " ".join(map(str, command))
                return f"{shown}: exit status {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    return ""


def main(pythons: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Try each Python, and say what was found of each."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    tried = [(python, "newest", []) for python in pythons] + [(pythons[0], "oldest", oldest(needed))]
    failed = 0
    for python, which, constraints in tried:
        why = certifies(python, constraints)
        say(f"{python}, {which} versions: {why or 'a right kernel passes, a wrong one is refuted'}")
        sys.stdout.flush()
        failed += bool(why)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
