"""The fingerprint of a kernel names every file that it is made of, and changes with each."""

from attn_spec.isolation.foreign import imported, isolated
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.plain_calls import plain


def fingerprint(folder, text):
    (folder / "inner.py").write_text(text)
    kernel = isolated("adapter.py:attention")
    before = imported(kernel)
    Subject(kernel, "float32")(plain(kernel, "float32"))
    after = imported(kernel)
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
    assert imported(resolve("numpy_naive")) == {}
