"""Quantisers that no kernel can have are refused, and so are contracts and declarations that contradict them."""

import json
from dataclasses import replace

import pytest

from attn_spec import Contract, Quantiser, kernel
from attn_spec.contract.contract import ContractError
from attn_spec.contract.coverage import says_nothing, silences
from attn_spec.contract.quantisers import QuantiserError
from attn_spec.evidence.provenance import contract_fields
from attn_spec.isolation.declared import declaration, told
from attn_spec.kernels.kernel import KernelError
from attn_spec.search.drawing.regimes import Recipe

KEYS = Quantiser(of="k", block=64)
SMOOTH = replace(KEYS, subtracts="mean_of_keys")
E4M3 = {"scale_dtype": "float8_e4m3fn"}
ROTATED = Quantiser(of="k", format="int4", rotates="hadamard", signs=(1, 1, -1))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"of": "o"}, "quantiser field of must be one of ('q', 'k', 'v'), not 'o'"),
        ({"format": "int2"}, "quantiser field format must be one of ('int8', 'int4', "),
        ({"format": "float8_e8m0fnu"}, "format must be one of ('int8', "),
        ({"rounding": "add_half", "format": "float4_e2m1fn"}, "makes integers, and none of float4_e2m1fn"),
        ({"largest": 8, "format": "int4"}, "largest must be at most 7, the largest code of int4, not 8"),
        ({"block": 0}, 'block must be a number of tokens, 1 or more, "head" or "tensor", not 0'),
        ({"block": True}, "block must be a number of tokens"),
        ({"lanes": 1.5}, "lanes must be an integer, 1 or more, not 1.5"),
        ({"lanes": 4}, "lanes divides blocks of a number of tokens; declare block="),
        (
            {"rounding": "random"},
            "rounding must be one of ('nearest_even', 'nearest', 'add_half', 'toward_zero', 'either')",
        ),
        ({"rounding": "add_half", "format": "float8_e5m2"}, "makes integers, and none of float8_e5m2"),
        ({"largest": 128}, "largest must be at most 127, the largest code of int8, not 128"),
        ({"scale": 0.0}, "scale must be finite, above 0, or None, not 0.0"),
        ({"division_error": -1.0}, "division_error must be finite, 0 or more, not -1.0"),
        ({"epsilon": float("nan")}, "epsilon must be finite, 0 or more, not nan"),
        ({"columns": 0}, "columns must be an integer, 1 or more, not 0"),
        ({"second_level": "tensor"}, "second_level is one of blocks of columns; declare columns="),
        ({"second_level": "head", "columns": 8}, "into the range of float8_e4m3fn; declare scale_dtype="),
        ({"scale": 0.1, "columns": 8}, "fields scale and columns exclude each other"),
        ({"scale_dtype": "float4_e2m1fn"}, "scale_dtype must be one of ('float32', "),
        ({"scale_rounding": "nearest"}, "scale_rounding must be one of ('nearest_even', 'up', 'down')"),
        ({"of": "v", "rotates": "hadamard"}, "rotates is one of q and k: an output of rotated values is rotated too"),
        ({"signs": (1, -1)}, 'signs is one of a rotation; declare rotates="hadamard"'),
        ({"rotates": "hadamard", "signs": [1, -1]}, "signs must be a tuple of 1 and -1, not [1, -1]"),
        ({"rotates": "hadamard", "signs": (1, 0)}, "signs must be a tuple of 1 and -1, not (1, 0)"),
        ({"of": "q", "subtracts": "mean_of_keys"}, 'subtracts="mean_of_keys" is one of k, not of q'),
    ],
)
def test_a_field_that_no_kernel_can_have_is_refused(fields, text):
    with pytest.raises(QuantiserError) as refused:
        Quantiser(**{"of": "k"} | fields)

    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"quantisers": KEYS}, "must be a tuple of quantisers, at most one of each of q, k and v"),
        ({"quantisers": (KEYS, SMOOTH)}, "at most one of each of q, k and v"),
        ({"quantisers": ("k",)}, "must be a tuple of quantisers"),
        ({"quantisers": (ROTATED,)}, "must rotate q and k alike, with the same signs"),
        ({"quantisers": (ROTATED, replace(ROTATED, of="q", signs=(1, -1)))}, "must rotate q and k alike"),
        ({"quantisers": (KEYS,), "reference": "upper_bound", "reference_range": 9.0}, "exclude each other"),
        ({"quantisers": (KEYS,), "alternatives": (Contract(),)}, "all of them must have the same"),
        ({"quantisation_within": -0.1}, "quantisation_within must be finite, 0 or more, not -0.1"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(fields, text):
    with pytest.raises(ContractError, match="contract field") as refused:
        Contract(**fields)

    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("quantiser", "supports", "text"),
    [
        (KEYS, ("rotary", "rotary_base", "rotary_dim"), "says nothing of operands that are rotated (rotary)"),
        (KEYS, ("k_descale",), "a quantiser's scales are the descales"),
        (SMOOTH, ("sinks",), "what is subtracted from keys moves their scores and not the sink's"),
        (SMOOTH, ("softcap",), "before the softcap bends them"),
        (KEYS, ("backward",), "a contract with quantisers says nothing of gradients"),
    ],
)
def test_a_kernel_that_declares_what_no_theorem_knows_is_refused(quantiser, supports, text):
    declared = kernel(framework="torch", dtypes=("float32",), contract=Contract(quantisers=(quantiser,)))

    with pytest.raises(KernelError) as refused:
        kernel(framework="torch", dtypes=("float32",), contract=Contract(quantisers=(quantiser,)), supports=supports)(
            lambda q, k, v, **options: q
        )
    assert text in str(refused.value)
    assert declared(lambda q, k, v: q).contract_declared("float32").quantisers == (quantiser,)


def test_a_silence_of_quantisers_stands_before_one_beside_descales():
    """Rotary operands beside descales of operands have a silence of their own, which no call without descales meets."""
    contract = Contract(quantisers=(KEYS,), descale_on="operands")

    assert {each.option: each.field for each in silences(contract)}["rotary"] == "quantisers"
    with pytest.raises(KernelError, match=r"says nothing of operands that are rotated \(rotary\)"):
        kernel(
            framework="torch", dtypes=("float32",), contract=contract, supports=("rotary", "rotary_base", "rotary_dim")
        )(lambda q, k, v, **options: q)


def test_sinks_and_a_softcap_are_said_beside_keys_as_they_are():
    problem = Recipe(sinks="normal@1H11", softcap=3.0).problem()

    assert not says_nothing(Contract(quantisers=(KEYS,)), problem)
    assert says_nothing(Contract(quantisers=(SMOOTH,)), problem)


def test_an_isolated_kernel_keeps_its_quantisers():
    @kernel(framework="torch", dtypes=("float32",), contract=Contract(quantisers=(SMOOTH,)))
    def one(q, k, v):
        return q

    assert declaration(told(one, "one")).contract.quantisers == (SMOOTH,)


def test_an_isolated_kernel_keeps_the_signs_of_a_rotation():
    quantisers = (ROTATED, replace(ROTATED, of="q"))

    @kernel(framework="torch", dtypes=("float32",), contract=Contract(quantisers=quantisers))
    def one(q, k, v):
        return q

    sent = json.loads(json.dumps(told(one, "one")))
    assert declaration(sent).contract.quantisers == quantisers
    assert hash(declaration(sent).contract.quantisers) == hash(quantisers)


def test_a_contract_whose_codes_are_open_is_weak():
    contract = Contract(quantisers=(replace(KEYS, rounding="either"), Quantiser(of="v")))

    assert contract.weakness == "each code of k may be either of two"
    assert contract_fields(contract, "float32")["weakness"] == contract.weakness
    assert Contract(quantisers=(KEYS,)).weakness == ""
    assert "weakness" not in contract_fields(Contract(quantisers=(KEYS,)), "float32")


def test_a_quantiser_is_described_in_words():
    assert str(SMOOTH) == "k without the mean of keys in int8, a scale for 64 tokens"
    assert str(Quantiser(of="q", block=32, lanes=8)) == "q in int8, a scale for 32 tokens in 8 lanes"
    assert str(ROTATED) == "k, rotated, in int4, a scale for a head"
    two = Quantiser(of="q", block=1, columns=16, second_level="tensor", format="float4_e2m1fn", **E4M3)
    assert str(two) == "q in float4_e2m1fn, a scale for 1 token and 16 columns, and one for a tensor"
    assert str(Quantiser(of="v", format="float8_e4m3fn")) == "v in float8_e4m3fn, a scale for a head"


def test_queries_and_keys_may_have_equal_quantisers():
    assert Quantiser.of_both(block=4) == (Quantiser(of="q", block=4), Quantiser(of="k", block=4))
    with pytest.raises(TypeError, match="of"):
        Quantiser.of_both(of="v")
