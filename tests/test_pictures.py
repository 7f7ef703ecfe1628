"""Pictures of the site are made from the code that they show."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from attn_spec.bounds.theorems import forward_bound
from attn_spec.contract.presets import PRESETS
from attn_spec.contract.terms import met
from attn_spec.judgement.analysis import analysis_of

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "extensions"))
import pictures


def element(drawing):
    """Return a drawing as a tree of its elements."""
    return ET.fromstring(drawing)  # noqa: S314 -- of our own making


def words(drawing):
    """Return the words of a drawing, in order."""
    return ["".join(each.itertext()) for each in element(drawing).iter("text")]


def widths(drawing):
    """Return the widths of the filled boxes of a drawing."""
    return [float(box.get("width")) for box in element(drawing).iter("rect")]


@pytest.mark.parametrize("name", pictures.DRAWINGS)
def test_a_drawing_is_an_element_with_a_text_for_those_who_do_not_see_it(name):
    drawing = element(pictures.DRAWINGS[name]())

    assert drawing.tag == "svg"
    assert drawing.get("aria-label")


def test_the_bars_of_bounds_name_terms_and_fill_their_width():
    drawing = pictures.bounds()
    shares = [re.fullmatch(r"(\d+) % (.+)", each) for each in words(drawing)]
    named = {each[2] for each in shares if each} - {"all other terms"}
    with met() as names:
        for preset, dtype, keys in pictures.CALLS:
            problem = pictures.problem_of(dtype, keys)
            forward_bound(analysis_of(problem).intermediates, PRESETS[preset].at(dtype))
    bars = [width for width in widths(drawing) if width != 11]

    assert named <= set(names)
    assert sum(bars) == pytest.approx(640 * len(pictures.CALLS), abs=1)


def test_buffers_hold_every_key_of_every_sequence_once():
    drawing = words(pictures.buffers())
    keys = [f"{name}{place}" for name, length in zip("abc", pictures.LENGTHS, strict=True) for place in range(length)]

    assert sorted(each for each in drawing if re.fullmatch(r"[abc]\d", each)) == sorted(4 * keys)


def test_layers_are_the_folders_of_the_package():
    folder = Path(pictures.attn_spec.__file__).parent
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

    assert set(words(pictures.layers())) == found - {"__init__", "__main__"}


def test_an_unknown_picture_ends_the_build(tmp_path):
    from sphinx.cmd.build import build_main

    (tmp_path / "conf.py").write_text("extensions = ['myst_parser', 'pictures']\n")
    (tmp_path / "index.md").write_text("# Page\n\n```{picture} towers\n```\n")

    assert build_main(["-q", "-W", str(tmp_path), str(tmp_path / "out")]) != 0
