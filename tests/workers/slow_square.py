"""Tasks that are told by files when to end: what a process does between two events of a test."""

import os
import time
from pathlib import Path


def square(n, folder):
    """n^2; says in ``folder`` which process begins it, and waits there for the file ``go``."""
    note = Path(folder, "begun", f"{n}-{os.getpid()}")
    note.parent.mkdir(exist_ok=True)
    note.touch()
    while not Path(folder, "go").exists():
        time.sleep(0.02)
    return n * n
