"""The kernel that quantises to int8 blocks, and what a verdict tells of its quantisation error."""

from dataclasses import replace

import pytest
import torch
from attn_spec.implementations.torch_quantised import int8_blocks, quantised

from attn_spec.cli.screen import _line
from attn_spec.evidence.certificate import result_of
from attn_spec.evidence.provenance import catalogue_entry, contract_fields
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Row, Verdict

PROFILE = Profile(name="test", examples=5, floor=1, seconds=60, shrink_seconds=0, seed=0)
SHARE = "quantisers.the_quantisation_error_is_what_is_declared"
RELATED = "linearity.outputs_add_up"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def verdict(name, **changes):
    contract = replace(int8_blocks.contract, **changes)
    return search(load_all()[name], Subject(replace(int8_blocks, contract=contract), "float16"), PROFILE, seed=0)[0]


def test_codes_times_scales_lie_half_a_step_from_the_numbers():
    x = torch.randn(1, 2, 70, 8)

    codes, scale = quantised(x, 32)

    assert codes.abs().amax(-1).amax(-1).tolist() == [[127, 127]]
    assert (codes * scale - x).abs().le(0.5001 * scale).all()
    assert scale[0, 0, 31] != scale[0, 0, 32]


def test_the_quantisation_error_stands_beside_the_verdict():
    row = verdict(SHARE)

    result = result_of(catalogue_entry(load_all()[SHARE]), [row])
    (line,) = _line(result)
    assert row.verdict is Verdict.HELD
    assert 0 < row.quantisation < 0.2
    assert Row.from_json(row.to_json()).quantisation == row.quantisation
    assert result.dtypes["float16"].quantisation == row.quantisation
    assert f"quantisation error up to {100 * row.quantisation:.3g} % of the output" in line


def test_a_promise_that_is_not_kept_is_refuted():
    row = verdict(SHARE, quantisation_within=1e-4)

    assert row.verdict is Verdict.REFUTED
    assert "quantisation_within=0.0001 is declared" in row.message


def test_a_property_that_relates_calls_does_not_apply():
    row = verdict(RELATED)

    assert row.verdict is Verdict.NOT_DECLARED
    assert row.message.startswith("it relates calls whose quantised numbers differ")


def test_a_certificate_holds_the_contract():
    found = contract_fields(int8_blocks.contract, "float16")

    assert all(isinstance(value, str | float | int | bool | None) for value in found.values())
    assert "subtracts='mean_of_keys'" in found["quantisers"]
