"""A certificate names what ran: a kernel whose files change while it is examined gets none."""

import re
import subprocess
import sys

import pytest

from attn_spec.isolation import sources
from attn_spec.isolation.foreign import account, isolated
from attn_spec.isolation.sources import ChangedError, Sources
from attn_spec.kernels.subject import Subject
from attn_spec.search.plain_calls import plain

KERNEL = """import numpy as np
import pathlib
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="fp32")
def attention(q, k, v):
    {late}
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v

{last}
"""
OVERWRITES = "pathlib.Path(__file__).write_text('# another text')"
#: After the calls that come before the first property.
LATE = f"CALLS.append(1); len(CALLS) == 9 and {OVERWRITES}"
SOUND = KERNEL.format(late="", last="")


@pytest.mark.parametrize("text", [KERNEL.format(late="", last=OVERWRITES), KERNEL.format(late=OVERWRITES, last="")])
def test_a_kernel_that_writes_over_its_own_file_gets_no_certificate(text, attn_spec, folder):
    (folder / "mine.py").write_text(text)
    done = attn_spec("certify", "mine.py:attention", "--property", "accuracy.output")
    assert done.returncode == 2
    assert re.search(
        r"mine\.py changed while the kernel was examined: its SHA-256 began with", done.stderr + done.stdout
    )
    assert not (folder / "certificate.json").exists()


@pytest.mark.parametrize("text", [KERNEL.format(late=OVERWRITES, last=""), KERNEL.format(late=LATE, last="CALLS = []")])
def test_pytest_ends_with_the_code_of_a_wrong_call(text, folder):
    (folder / "mine.py").write_text(text)
    suite = ("-p", "attn_spec.pytest_plugin", "--pyargs", "attn_spec.properties", "-p", "no:cacheprovider")
    asked = ("--attn-kernel", "mine.py:attention", "--attn-property", "accuracy.output")
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", *suite, *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "mine.py changed while the kernel was examined" in done.stdout + done.stderr
    assert ("no verdict counts: " in done.stdout) == ("CALLS" in text)


def test_a_file_that_is_imported_late_and_changes_itself_is_told(folder):
    (folder / "inner.py").write_text(SOUND.replace("attention", "inner") + OVERWRITES)
    (folder / "mine.py").write_text("def attention(q, k, v):\n    import inner\n    return inner.inner(q, k, v)\n")
    kernel = isolated("mine.py:attention")
    assert sorted(account(kernel)["imported_sha256"]) == ["mine.py"]

    Subject(kernel, "float32")(plain(kernel, "float32"))
    with pytest.raises(ChangedError, match=r"inner\.py changed while the kernel was examined"):
        account(kernel)
    kernel.host.end()


def test_a_file_that_changed_is_not_loaded_again(folder):
    (folder / "mine.py").write_text(SOUND)
    kernel = isolated("mine.py:attention")
    first = kernel.digest
    kernel.host.end()
    (folder / "mine.py").write_text(SOUND + "# more")
    with pytest.raises(ChangedError, match=f"began with {first[:8]} and is now "):
        kernel.host.wire.process.begin()
    assert kernel.digest == first
    (folder / "mine.py").unlink()
    with pytest.raises(ChangedError, match="is gone"):
        kernel.host.wire.process.begin()


def test_files_that_the_kernel_does_not_import_may_change(folder):
    for name in ("mine.py", "other.py"):
        (folder / name).write_text(SOUND)
    kernel = isolated("mine.py:attention")
    (folder / "other.py").write_text("")
    assert sorted(account(kernel)["imported_sha256"]) == ["mine.py"]
    kernel.host.end()


def test_many_files_are_read_in_part_the_nearest_first(folder, monkeypatch):
    monkeypatch.setattr(sources, "MOST_FILES", 3)
    monkeypatch.setattr(sources, "MOST_FOLDERS", 3)
    for name in ("mine.py", "b.py", "deep/c.py", "deep/deeper/d.py", "deep/deeper/deepest/e.py", ".hidden/f.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    names = [path.name for path in sources._below(folder)]
    assert names == ["b.py", "mine.py", "c.py"]
    monkeypatch.setattr(sources, "MOST_FILES", 9)
    assert [path.name for path in sources._below(folder)] == [*names, "d.py"]
    assert Sources(str(folder / "mine.py")).digest == sources.digest(folder / "mine.py")
    assert Sources("").digest == Sources(str(folder / "none.py")).digest == ""
