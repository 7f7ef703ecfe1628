"""A rebuild that changes nothing is distinguished from one that changes a bound, a domain, a shape or a value."""

import re

import numpy as np
import pytest
from attn_spec.reports.proof.validation.equivalence import main


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("said")
    assert main(["draw", str(folder / "problems.json"), "--problems", "8"]) == 0
    assert main(["record", str(folder / "problems.json"), str(folder / "before.npz")]) == 0
    return folder / "before.npz"


def test_a_checkout_agrees_with_itself(said, capsys):
    assert main(["record", str(said.with_name("problems.json")), str(said.with_name("again.npz"))]) == 0
    assert main(["compare", str(said), str(said.with_name("again.npz"))]) == 0

    shown = capsys.readouterr().out
    assert "8 problems, " in shown
    assert re.search(r"^0 of \d+ kinds of arrays differ", shown, flags=re.MULTILINE)


def grown(x):
    return x * (1 + 1e-11)


def reshaped(x):
    return x[None]


@pytest.mark.parametrize(
    "difference",
    [
        (" output", grown, "1e-11"),
        (" in_domain", np.logical_not, "1"),
        (" q", reshaped, "inf"),
        (" gradients dk", None, "inf"),
    ],
)
def test_what_differs_is_named(said, capsys, tmp_path, difference):
    kind, change, apart = difference
    arrays = dict(np.load(said))
    name = next(
        name for name in arrays if name.endswith(kind) and np.isfinite(arrays[name]).any() and arrays[name].any()
    )
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    np.savez(tmp_path / "after.npz", **arrays)

    assert main(["compare", str(said), str(tmp_path / "after.npz")]) == 1

    assert f"{name.split(' ', 1)[1]}: apart by {apart} at '{name}'" in capsys.readouterr().out
