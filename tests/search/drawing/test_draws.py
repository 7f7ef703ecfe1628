"""Draws depend on their seed, not on which modules are loaded."""

import importlib.util
import sys

import hypothesis
from hypothesis import strategies as st

from attn_spec.search.drawing.draws import of_the_seed_alone

#: A number that nobody draws by chance, and that stands in no other source.
RARE = 3_141_592_654 ^ 0x5A5A


def drawn():
    found = []

    @hypothesis.seed(0)
    @hypothesis.settings(max_examples=300, database=None, phases=[hypothesis.Phase.generate])
    @hypothesis.given(st.integers(0, 2**32 - 1))
    def note(n):
        found.append(n)

    note()
    return found


def test_constants_of_a_module_that_is_loaded_are_not_drawn(monkeypatch, tmp_path_factory):
    before = of_the_seed_alone()(drawn)()
    folder = tmp_path_factory.getbasetemp().parent / "loaded"  # Hypothesis skips a path of a test
    folder.mkdir(exist_ok=True)
    source = folder / "rare.py"
    source.write_text(f"A = [{', '.join(str(RARE + n) for n in range(400))}]\n")
    spec = importlib.util.spec_from_file_location("rare", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "rare", module)

    plain, after = drawn(), of_the_seed_alone()(drawn)()

    assert any(RARE <= n < RARE + 400 for n in plain)
    assert after == before
