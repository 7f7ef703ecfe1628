"""The fingerprint of a kernel names every file that it is made of, and changes with each."""

import _ctypes
import importlib.metadata
from pathlib import Path

from attn_spec.isolation.foreign import account, isolated
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.plain_calls import plain


def fingerprint(folder, text):
    (folder / "inner.py").write_text(text)
    kernel = isolated("adapter.py:attention")
    before = account(kernel)["imported_sha256"]
    Subject(kernel, "float32")(plain(kernel, "float32"))
    after = account(kernel)["imported_sha256"]
    kernel.host.end()
    assert sorted(before) == ["adapter.py"]
    assert before["adapter.py"] == after["adapter.py"] == kernel.digest
    return after


def test_a_file_that_is_imported_late_belongs_to_it(folder):
    (folder / "adapter.py").write_text(
        "def attention(q, k, v):\n    import inner\n    return inner.attention(q, k, v)\n"
    )
    one, two = (fingerprint(folder, f"def attention(q, k, v):\n    return v  # {number}\n") for number in (1, 2))
    assert sorted(one) == sorted(two) == ["adapter.py", "inner.py"]
    assert one["inner.py"] != two["inner.py"]


def test_a_kernel_in_this_process_has_its_own_file_alone():
    assert account(resolve("numpy_naive")) == {"imported_sha256": {}, "packages": {}, "changes": []}


def test_packages_have_their_version_and_a_digest_of_their_files(folder):
    (folder / "adapter.py").write_text("import numpy\ndef attention(q, k, v):\n    return v\n")
    kernel = isolated("adapter.py:attention")
    packages = account(kernel)["packages"]
    kernel.host.end()

    version, digest = packages["numpy"].split()
    assert version == importlib.metadata.version("numpy")
    assert len(digest) == 16
    assert not {"attn-spec", "pytest", "hypothesis"} & set(packages)


def test_a_library_that_no_module_is_belongs_to_the_kernel(folder):
    (folder / "own.so").write_bytes(Path(_ctypes.__file__).read_bytes())
    (folder / "adapter.py").write_text(
        "import ctypes, pathlib\n"
        "HELD = ctypes.CDLL(str(pathlib.Path(__file__).with_name('own.so')))\n"
        "def attention(q, k, v):\n    return v\n"
    )
    kernel = isolated("adapter.py:attention")
    files = account(kernel)["imported_sha256"]
    kernel.host.end()

    assert sorted(files) == ["adapter.py", "own.so"]
