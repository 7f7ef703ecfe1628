"""The certificate names every file that a kernel is made of, and changes with each."""

import json

from attn_spec.evidence import certificate


def test_a_file_that_is_imported_late_belongs_to_the_certificate(attn_spec, folder):
    chosen = ("--dtype", "float32", "--property", "linearity.zero_values_give_zero", "--profile", "smoke")
    (folder / "adapter.py").write_text(
        "def attention(q, k, v):\n    import inner\n    return inner.attention(q, k, v)\n"
    )
    for number in (1, 2):
        (folder / "inner.py").write_text(f"def attention(q, k, v):\n    return v * 0.0  # {number}\n")
        attn_spec("certify", "adapter.py:attention", *chosen, "-o", f"{number}.json")
    one, two = (certificate.load(folder / f"{number}.json") for number in (1, 2))
    assert sorted(one.subject.imported_sha256) == ["adapter.py", "inner.py"]
    assert one.subject.imported_sha256["adapter.py"] == one.subject.source_sha256
    (line,) = certificate.compare(one, two)
    assert line.startswith("subject.imported_sha256.inner.py: ")
    assert json.loads((folder / "1.json").read_text())["configuration"]["isolated"]
