"""The contract: every field is checked, formats are resolved, and its presets say what their kinds of kernel do."""

import pickle
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from attn_spec.contract.contract import Contract, ContractError
from attn_spec.contract.presets import EAGER, FP32, FUSED, PRESETS, SPLIT_KV, TF32, UNDECLARED, as_contract, describe
from attn_spec.numbers.formats import FORMATS


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("softmax", "float31", "contract field softmax must be one of"),
        ("products", "exact", "contract field products must be one of"),
        ("inner_accumulation", "double", "contract field inner_accumulation must be one of"),
        ("entry_rounding", "up", "contract field entry_rounding must be one of ('nearest', 'toward_zero', None)"),
        ("matrix_rounding", "nearest", "contract field matrix_rounding must be one of ('toward_zero', None)"),
        ("reference", "minimum", "contract field reference must be one of ('maximum', 'zero', 'upper_bound')"),
        ("normalize", "later", "('after_product', 'before_product', 'every_tile', 'by_lse'), not 'later'"),
        ("merging", "sum", "contract field merging must be one of ('weighted', 'difference'), not 'sum'"),
        ("delta", "none", "contract field delta must be one of ('output', 'probabilities', 'either')"),
        ("score_gradients_of", True, "must be one of ('cast', 'uncast', 'either'), not True"),
        ("float16_subnormals", "lost", "must be one of ('kept', 'flushed_on_entry', 'flushed'), not 'lost'"),
        ("multiplicand_pieces", 0, "contract field multiplicand_pieces must be an integer, 1 or more, not 0"),
        ("matrix_block", 0, "contract field matrix_block must be an integer, 1 or more, not 0"),
        ("kv_tile", 0, "contract field kv_tile must be an integer, 1 or more, not 0"),
        ("kv_tile", 2.5, "contract field kv_tile must be an integer, 1 or more, not 2.5"),
        ("multiplicand_pieces", None, "contract field multiplicand_pieces must be an integer, 1 or more, not None"),
        ("matrix_extra_bits", -40, "contract field matrix_extra_bits must be an integer, -10 or more, not -40"),
        ("log_error", "4", "contract field log_error must be finite, 0 or more, not '4'"),
        ("alternatives", [FUSED], "contract field alternatives must be a tuple of contracts, not [Contract("),
        ("reference_range", -1.0, "contract field reference_range must be finite, 0 or more, not -1.0"),
        ("exp_error", float("nan"), "contract field exp_error must be finite, 0 or more, not nan"),
        (
            "exp_error",
            2.0**24,
            "contract field exp_error must be below 2**24, not 16777216.0: it counts units of 2**-24",
        ),
        ("lse_merges", -1, "contract field lse_merges must be an integer, 0 or more, not -1"),
    ],
)
def test_a_field_that_says_nothing_known_is_refused(field, value, text):
    with pytest.raises(ContractError) as raised:
        Contract(**{field: value})

    assert text in str(raised.value)


def test_numbers_of_numpy_are_numbers():
    assert Contract(kv_tile=np.int64(3), exp_error=np.float32(2)).tiles(7) == 3


def test_rounded_products_of_pieces_are_refused():
    with pytest.raises(ContractError, match="products and multiplicand_pieces exclude each other: products of pieces"):
        Contract(products="bfloat16", multiplicand_pieces=2)


def test_merges_of_a_row_that_is_normalized_by_its_own_lse_are_refused():
    with pytest.raises(ContractError, match='lse_merges and normalize="by_lse" exclude each other'):
        Contract(lse_merges=1, normalize="by_lse")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*PRESETS, "undeclared"])
def test_a_resolved_contract_names_formats_only(name, dtype):
    resolved = (PRESETS | {"undeclared": UNDECLARED})[name].at(dtype)

    for contract in (resolved, *resolved.alternatives):
        stages = [field.name for field in fields(Contract) if getattr(contract, field.name) in {"input", "work"}]
        assert stages == []
        assert contract.format("output") is FORMATS[dtype]


def test_words_stand_for_the_inputs_dtype_and_the_working_one():
    half, double = FUSED.at("bfloat16"), FUSED.at("float64")

    assert (half.multiplicands, half.softmax, half.lse) == ("bfloat16", "float32", "float32")
    assert (double.multiplicands, double.softmax, double.lse) == ("float64", "float64", "float64")


@pytest.mark.parametrize(("tile", "keys", "tiles"), [(16, 33, 3), (16, 16, 1), (1, 7, 7), (None, 10**6, 1), (16, 0, 1)])
def test_tiles_are_counted(tile, keys, tiles):
    assert Contract(kv_tile=tile).tiles(keys) == tiles


def test_the_reference_lies_as_far_from_the_maximum_as_its_kind_says():
    assert Contract(reference_slack=3.0, reference_range=9.0).reference_distance == 3
    assert Contract(reference="zero", reference_slack=3.0, reference_range=9.0).reference_distance == 9


def test_the_defaults_are_the_preset_fused():
    assert Contract() == FUSED == as_contract("fused")


def test_presets_scale_scores_and_sum_weights_before_their_cast():
    for preset in PRESETS.values():
        assert preset.scale_on == "scores"
        assert preset.row_sum_of == "uncast"


def test_presets_name_the_tiles_and_the_units_of_their_kind():
    assert (FUSED.kv_tile, FP32.kv_tile, SPLIT_KV.kv_tile, EAGER.kv_tile) == (16, 1, 1, None)
    assert FUSED.matrix_rounding == "toward_zero"
    assert TF32.entry_rounding == "toward_zero"


def test_a_preset_is_described_by_its_name_and_what_differs():
    assert describe(FUSED) == "fused"
    assert describe(replace(EAGER, lse_merges=2)) == "eager(lse_merges=2)"
    assert describe(UNDECLARED) == "undeclared"
    assert describe(EAGER.at("float16"), "float16") == "eager"


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ContractError) as raised:
        as_contract("fussed")

    assert str(raised.value) == (
        "unknown contract 'fussed'; known are fused, fp32, tf32, eager, split_kv, fp64, or pass a Contract(...)"
    )


def test_a_contract_that_another_process_made_is_found_in_a_dictionary():
    contract = FUSED.at("bfloat16")
    script = (
        "import pickle, sys; from attn_spec.contract.presets import FUSED;"
        "contract = FUSED.at('bfloat16'); hash(contract); sys.stdout.buffer.write(pickle.dumps(contract))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    other = pickle.loads(done.stdout)  # noqa: S301 -- of the line above

    assert other is not contract
    assert {contract: "found"}[other] == "found"
