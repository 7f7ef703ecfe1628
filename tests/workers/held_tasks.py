"""Tasks that note who runs them and wait until a test says go. They import nothing heavy, since processes do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def square(n, folder):
    """Return n^2, once the test says go."""
    note(n, folder)
    return n * n


def note(name, folder):
    """Say in ``folder`` which process began the task, and of which parent; wait there for the file ``go``."""
    Path(folder, f"begun {name} {time.monotonic_ns()} {os.getppid()} {os.getpid()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)


def begun(folder):
    """Return each task that began, in that order: its name, its parent and its process."""
    notes = [path.name.split()[1:] for path in Path(folder).glob("begun *")]
    return [
        (" ".join(name), int(parent), int(own)) for *name, _, parent, own in sorted(notes, key=lambda n: int(n[-3]))
    ]


def die(_):
    """Take the process down, as a kernel does that crashes."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(n):
    """Raise on 2."""
    if n == 2:
        raise ValueError("two")
    return n


def end_nothing(folder):
    """Begin a process that a task must end, and wait for longer than any test."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        Path(folder, f"child {os.getpid()} {child.pid}").touch()
        child.wait()
    finally:
        child.kill()
        child.wait()
