"""The kernels that quantise inside, and what a verdict tells of their quantisation error."""

from dataclasses import replace

import pytest
import torch
from attn_spec.implementations.torch_quantised import (
    SIGNS,
    in_mxfp8,
    in_nvfp4,
    int4_tokens,
    int8_blocks,
    mxfp8,
    mxfp8_values,
    nvfp4,
    quantised,
    rotated,
    rotated_fp8,
)

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
BLOCKS = "quantisers.each_block_has_the_scale_of_its_own_largest_number"
COLUMNS = "quantisers.each_block_of_columns_has_a_scale_of_its_own"
ROTATED = "quantisers.an_outlier_in_one_column_is_rotated_as_declared"
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


def test_mxfp8_has_a_power_of_2_for_32_columns():
    x = torch.randn(3, 5, 80) * torch.logspace(-4, 4, 80)
    x[0, 0, :32] = 0

    held = in_mxfp8(x)

    for start in (0, 32, 64):
        part, of_held = x[..., start : start + 32], held[..., start : start + 32]
        largest = part.abs().amax(-1, keepdim=True)
        assert ((of_held - part).abs() <= largest * 2.0**-4).all()
        # The largest code is above half of 448, so that no power of 2 below would do.
        scale = 2.0 ** torch.ceil(torch.log2((largest / 448).double()))
        codes = torch.where(largest == 0, 0.0, of_held / scale)
        assert codes.abs().amax(-1)[largest[..., 0] > 0].ge(208).all()
        assert torch.equal(codes.float().to(torch.float8_e4m3fn).double(), codes.double())


def test_nvfp4_has_codes_of_four_bits():
    x = torch.randn(2, 3, 40)

    held, whole = in_nvfp4(x)

    scale = held[..., :16].abs().amax(-1, keepdim=True) / 6
    codes = (held[..., :16] / scale).abs().unique()
    assert set(codes.tolist()) <= {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}
    assert whole == x.abs().amax() / 2688
    assert (held * whole - x).abs().amax() <= x.abs().amax() / 5


@pytest.mark.parametrize("D", [1, 6, 64])
def test_a_rotation_keeps_products_and_spreads_an_outlier(D):
    q, k = torch.randn(2, 3, D, dtype=torch.float64)

    assert torch.allclose(rotated(q.float()) @ rotated(k.float()).T, (q @ k.T).float(), atol=1e-5)
    one = torch.zeros(1, D)
    one[0, 1 % D] = 8.0
    n = D & -D
    assert rotated(one).abs().amax() == pytest.approx(8 / n**0.5)
    assert torch.sign(rotated(one)).unique().numel() >= min(n, 2)
    assert SIGNS.count(-1) > 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "kernel", [int4_tokens, mxfp8, mxfp8_values, nvfp4, rotated_fp8], ids=lambda kernel: kernel.name
)
@pytest.mark.parametrize(
    "name", [SHARE, "accuracy.output_is_within_its_bound", "accuracy.log_sum_exp_is_within_its_bound"]
)
def test_a_kernel_that_quantises_is_held(kernel, name):
    row, _ = search(load_all()[name], Subject(kernel, kernel.dtypes[-1]), PROFILE, seed=0)

    assert row.verdict is Verdict.HELD, row.message


@pytest.mark.parametrize(
    ("kernel", "name", "changes"),
    [
        (mxfp8, COLUMNS, {"scale_rounding": "down"}),
        (mxfp8_values, COLUMNS, {"format": "float8_e5m2"}),
        (mxfp8, COLUMNS, {"scale_dtype": "float32", "scale_rounding": "nearest_even"}),
        (nvfp4, COLUMNS, {"columns": 32}),
        (nvfp4, COLUMNS, {"second_level": "head"}),
        (rotated_fp8, ROTATED, {"signs": ()}),
        (rotated_fp8, BLOCKS, {"rotates": None, "signs": ()}),
        (int4_tokens, BLOCKS, {"format": "int8"}),
    ],
)
def test_another_declaration_than_the_kernels_is_refuted(kernel, name, changes):
    quantisers = tuple(replace(one, **changes) for one in kernel.contract.quantisers)
    declared = replace(kernel, contract=replace(kernel.contract, quantisers=quantisers))

    row, _ = search(load_all()[name], Subject(declared, "float16"), replace(PROFILE, examples=10), seed=0)

    assert row.verdict is Verdict.REFUTED


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
