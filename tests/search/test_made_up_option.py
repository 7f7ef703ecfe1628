"""A positional option that nobody has heard of: one row makes it known, and no property accuses a sound kernel.

Properties move, drop and split queries and keys. That some option depends on where they stand they must read from its
row, or they would take right answers for wrong ones.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Keys are hidden in front of the first, for queries below the diagonal alone.
ROW = """
    #: How many keys at the start are hidden from every second query.
    hidden_start: int = option(
        off=0,
        says="hides keys at the start from every second query",
        kind=MASK,
        spellings=("hidden_start",),
        wanted="an integer of 0 or more",
        accepts=lambda value: isinstance(value, int) and value >= 0,
        sees=lambda p: (np.arange(p.query_length)[:, None] % 2 == 0) | (np.arange(p.key_length) >= p.hidden_start),
        positional={positional},
        draws=(1, 3, 17),
        weight=20,
    )
"""

EXAMINE = """
import json
import numpy as np
from attn_spec.emulation import PRECISE, TiledAttention, TiledGradients, emulate_both
from attn_spec.emulation.kernels import SUPPORTS
from attn_spec.kernels.subject import Subject
from attn_spec.problem.shape_spec import AskedShape
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search


class Hiding:
    def __init__(self, *arguments, hidden_start=0, **options):
        self.hidden_start = hidden_start
        super().__init__(*arguments, **options)

    def on_band(self, cols):
        seen = (np.arange(self.Sq)[:, None] % 2 == 0) | (cols >= self.hidden_start)
        return super().on_band(cols) & seen


class Forward(Hiding, TiledAttention): pass
class Backward(Hiding, TiledGradients): pass


kernel = emulate_both(
    "hiding", PRECISE, steps=Forward, gradients=Backward, supports=(*SUPPORTS, "hidden_start"), slowness=16.0
)
profile = Profile(name="test", examples=EXAMPLES, floor=1, seconds=60, shrink_seconds=0, seed=0)
shapes = (AskedShape.parse("H=2,Sq=20,Sk=24,D=4"),)
found = {}
for name, property_ in load_all().items():
    if all(kernel.supports.issuperset([need]) for need in property_.needs):
        row, _ = search(property_, Subject(kernel, "float32", shapes=shapes), profile, seed=0)
        found[name] = str(row.verdict)
        if found[name] == "refuted":
            break
print(json.dumps(found))
"""


def verdicts(folder, examples, *, positional):
    """Return the verdicts of properties on a sound kernel that takes the option, in a package copy with its row.

    Of every property, up to the first that refutes.
    """
    package = folder / "attn_spec"
    shutil.copytree(ROOT / "attn_spec", package)
    shutil.copytree(ROOT / "properties", package / "properties")
    options = package / "problem" / "options" / "masking.py"
    place = "    #: Window (left, right) around the diagonal"
    text = options.read_text(encoding="utf-8")
    assert text.count(place) == 1
    options.write_text(text.replace(place, ROW.format(positional=positional) + place), encoding="utf-8")
    folder.joinpath("examine.py").write_text(EXAMINE.replace("EXAMPLES", str(examples)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "examine.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("examples", [3, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_no_property_accuses_a_sound_kernel_of_an_option_it_has_not_heard_of(tmp_path, examples):
    found = verdicts(tmp_path, examples, positional=True)

    silent = {name: verdict for name, verdict in found.items() if verdict != "held"}
    # The kernel computes the gradient of no parameter, and its contract has no quantiser.
    others = {name for name in silent if not name.startswith("quantisers.")}
    assert others == {"gradients.gradients_of_a_scores_parameters_are_within_their_bounds"}
    assert set(silent.values()) == {"not declared"}
    assert len(found) > 60


def test_the_row_is_what_keeps_properties_from_it(tmp_path):
    found = verdicts(tmp_path, 8, positional=False)

    assert "refuted" in found.values()
