"""Scripts of refuted calls that write to their caches: each fails until the kernel is mended."""

import runpy

import pytest

from attn_spec.kernels.resolve import resolve


def assert_fails_until_mended(script, file, kernel, spec, capsys):
    """Run a script twice: it fails as the caches have other numbers, and not after ``kernel`` is written to a file."""
    for text, code in (("other than it must", 1), ("no longer fails here", 0)):
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(script), run_name="__main__")
        shown = capsys.readouterr().out
        assert (text in shown, left.value.code) == (True, code), shown
        file.write_text(kernel)
        resolve(spec)
