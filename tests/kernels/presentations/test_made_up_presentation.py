"""A presentation that nobody has heard of: one row makes it known to the probe, the first look and the search."""

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.first_look.first_look import first_look
from attn_spec.first_look.misfit import MisfitError
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.presentations.layout import Layout
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.probe.presentations import presentation
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search

PROFILE = Profile(name="test", examples=8, floor=1, seconds=60, shrink_seconds=0, seed=0)


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    """Add the row."""
    row = Presentation(says="dimension, length, batch, heads", layout=Layout(("D", "S", "B", "H")))
    monkeypatch.setitem(PRESENTATIONS, "DSBH", row)


def declared(function, **facts):
    return kernel(framework="numpy", dtypes=("float32",), contract="eager", **facts)(function)


def bhsd(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def dsbh(q, k, v):
    return bhsd(*(x.transpose(2, 3, 1, 0) for x in (q, k, v))).transpose(3, 2, 0, 1)


def looked_at(own):
    """Return what a first look says of a kernel; empty if it finds no misfit."""
    try:
        first_look([Subject(own, "float32")])
    except MisfitError as error:
        return str(error)
    return ""


def test_a_kernel_in_it_holds():
    subject = Subject(declared(dsbh, presentation="DSBH"), "float32")

    assert looked_at(subject.kernel) == ""
    for name in ("accuracy.output_is_within_its_bound", "permutation.keys_may_come_in_any_order"):
        assert str(search(load_all()[name], subject, PROFILE, seed=0)[0].verdict) == "held"


def test_a_probe_finds_it():
    assert presentation(from_callable(dsbh), "float32").value == "DSBH"


@pytest.mark.parametrize(("function", "given", "own"), [(dsbh, "BHSD", "DSBH"), (bhsd, "DSBH", "BHSD")])
def test_a_first_look_names_it(function, given, own):
    assert f"Add presentation={own!r} to its @kernel(...)" in looked_at(declared(function, presentation=given))


def test_a_first_look_names_it_for_the_output_alone():
    found = looked_at(declared(lambda q, k, v: bhsd(q, k, v).transpose(3, 2, 0, 1)))

    assert "its output has its axes in another order: it is right as DSBH, and must be [B, H, S, D] as q is" in found
    assert "eturn out with its axes in the order (2, 3, 1, 0)" in found
