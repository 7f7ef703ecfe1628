"""Plain sound kernels are accused of nothing, and would be if they did less than they say."""

from dataclasses import fields, replace

import pytest
import torch
from attn_spec.reports.proof.plain import examination
from attn_spec.reports.proof.plain.examination import PLAIN, examine, main
from attn_spec.reports.proof.plain.products import cut_to_tf32, in_float16, in_pieces, nearest_bfloat16, on_unit
from attn_spec.reports.proof.plain.references import cubic_exp2
from attn_spec.reports.proof.plain.softmax import rational_tanh

from attn_spec.contract.contract import Contract
from attn_spec.judgement import measure
from attn_spec.kernels.resolve import kernels_of
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTIES = load_all()
OUTPUT = "accuracy.output_is_within_its_bound"
DV = "gradients.value_gradients_are_within_their_bounds"
#: Tests that the subjects are dealt to, and properties of which each sees one; together they see all.
SHARES, EVERY = 13, 40
SUBJECTS = [(name, dtype) for name, one in PLAIN.items() for dtype in one.dtypes]
WORK_UNIT = 2.0**-24


def test_kernels_have_names_of_their_own():
    assert len(PLAIN) == sum(len(kernels_of(module)) for module in examination.MODULES)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def worse(kernel):
    """Return the kernel with outputs and gradients an eighth too large."""

    def too_large(x):
        return x * x.dtype.type(1.125) if kernel.framework == "numpy" else x * 1.125

    def forward(*tensors, **options):
        returned = kernel.function(*tensors, **options)
        return (too_large(returned[0]), *returned[1:]) if isinstance(returned, tuple) else too_large(returned)

    def backward(*tensors, **options):
        found = kernel.backward_function(*tensors, **options)
        if isinstance(found, dict):
            return {name: too_large(x) for name, x in found.items()}
        return tuple(map(too_large, found))

    return replace(kernel, function=forward, backward_function=kernel.backward_function and backward)


def verdict(property_id, kernel, dtype):
    profile = Profile(name="test", examples=8, floor=1, seconds=60, shrink_seconds=0, seed=0)
    return search(PROPERTIES[property_id], Subject(kernel, dtype), profile, seed=0)[0].verdict


@pytest.mark.one_in(6)
@pytest.mark.parametrize("place", range(SHARES))
def test_plain_kernels_are_accused_of_nothing(place):
    """A sample: each kernel, at each of its dtypes, with some of the properties; another with others."""
    properties = list(PROPERTIES.values())

    for number, (name, dtype) in enumerate(SUBJECTS):
        if number % SHARES == place:
            sample = [
                *properties[number % EVERY :: EVERY],
                PROPERTIES[OUTPUT],
            ]  # few concern a kernel that takes little
            found = examine(name, dtype, problems=2, seed=number, properties=sample)
            assert found.refuted == [], "\n".join(map(str, found.refuted))
            assert found.examples > 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "dtype"), SUBJECTS)
def test_no_contract_is_vacuous(name, dtype):
    """An output that is an eighth too large is refuted under each of them, and so are such gradients."""
    wrong = worse(PLAIN[name])

    assert verdict(OUTPUT, wrong, dtype) is Verdict.REFUTED
    if wrong.backward_function is not None or "backward" in wrong.supports:
        assert verdict(DV, wrong, dtype) is Verdict.REFUTED


def test_they_are_many_and_declare_every_arithmetic_that_hardware_at_hand_lacks():
    """No field of a contract is left at its default by all of them, except where nothing plain does otherwise."""
    contracts = [one.contract_declared(dtype) for name, dtype in SUBJECTS for one in (PLAIN[name],)]
    same = {item.name for item in fields(Contract) if len({getattr(c, item.name) for c in contracts}) == 1}

    assert len(PLAIN) >= 24
    assert sum("backward" in one.supports for one in PLAIN.values()) >= 12
    assert same <= {"rounding", "summation_depth", "log_error", "alternatives"}
    assert {c.reference for c in contracts} == {"maximum", "zero", "upper_bound"}
    assert {c.normalize for c in contracts} == {"after_product", "before_product", "every_tile", "by_lse"}
    assert {one.framework for one in PLAIN.values()} == {"numpy", "torch"}


def test_the_exponential_and_the_tanh_are_within_the_errors_that_are_declared():
    """On a grid: the polynomial over the 2^20 fractions of 20 bits and below, the tanh over where it changes."""
    x = -torch.arange(2**20, dtype=torch.float32) / 2**20 * 3
    exact = torch.exp2(x.double())
    y = torch.linspace(-8, 8, 2**20, dtype=torch.float32)

    cubic = ((cubic_exp2(x).double() - exact).abs() / exact).max().item()
    rational = (rational_tanh(y).double() - torch.tanh(y.double())).abs().max().item()

    assert cubic < PLAIN["flash4"].contract_declared("float16").exp_error * WORK_UNIT < 2 * cubic
    assert rational < PLAIN["rational_softcap"].contract_declared("float16").tanh_error * WORK_UNIT < 2 * rational
    assert cubic_exp2(torch.tensor([0.0, -torch.inf])).tolist() == [1.0, 0.0]


def test_products_round_as_they_say():
    """One product or sum each, worked out by hand."""
    one, tiny = torch.ones(1, 1), torch.full((1, 1), 2.0**-24)
    row = torch.tensor([[1.0, 2.0**-24, 2.0**-24]])
    third = torch.full((1, 1), 1 / 3)

    assert cut_to_tf32(one * (2 - 2.0**-23)).item() == 2 - 2.0**-10
    assert on_unit(4, 0, row, torch.ones(3, 1)).item() == 1
    assert on_unit(4, 1, row, torch.ones(3, 1)).item() == 1 + 2.0**-23
    assert on_unit(1, 0, tiny, one, one).item() == 1
    assert in_float16(torch.full((1, 2), 2048.0), torch.tensor([[1.0], [2.0**-11]])).item() == 2048
    assert abs(in_pieces(nearest_bfloat16, 2, third, one).item() * 3 - 1) < 2.0**-16
    assert abs(in_pieces(nearest_bfloat16, 3, third, one).item() * 3 - 1) < 2.0**-23


def test_a_refutation_is_printed_with_all_it_takes_to_repeat_it_and_is_the_exit_status(monkeypatch, capsys):
    monkeypatch.setitem(PLAIN, "flash2", worse(PLAIN["flash2"]))
    monkeypatch.setattr(examination, "load_all", lambda: {OUTPUT: PROPERTIES[OUTPUT]})

    status = main(["--problems", "8", "--only", "flash2"])

    printed = capsys.readouterr().out
    assert status == 1
    for text in ("REFUTED", OUTPUT, "flash2, float16", "partial_gradients='float16'", "Recipe(", "1 plain kernels"):
        assert text in printed


def test_only_the_chosen_kernels_are_examined(monkeypatch, capsys):
    monkeypatch.setattr(examination, "load_all", lambda: {OUTPUT: PROPERTIES[OUTPUT]})

    assert main(["--problems", "1", "--only", "naive", "--only", "volta"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["naive", "float64"],
        ["naive", "float32"],
        ["volta", "float16"],
    ]
    assert lines[3].startswith("3 problems on 2 plain kernels: 0 refuted; 3 held")
    with pytest.raises(SystemExit):
        main(["--only", "unknown"])


@pytest.mark.parametrize("keys", [15_665, 500])
def test_a_quotient_that_underflows_in_half_over_many_keys_is_within_its_bound_and_near_it(keys):
    """Autograd sums dP (w / N / N) over the keys; the summand of 15,665 keys is below the least number of float16."""
    subject = Subject(PLAIN["scores_in_half"], "float16")
    recipe = {"regime": "normal+v_waves", "dtypes": "float16", "query_heads": 2, "feature_map": "relu"}
    problem = Recipe(**recipe, key_length=keys, head_dim=3, value_dim=3).problem()
    dO = cotangent(subject, problem)

    found = measure.judge_gradients(problem, subject.contract, dO, subject.gradients(problem, dO))

    ratios = {one.name: one.ratio for one in found.measurements}
    assert max(ratios.values()) <= 1, f"{ratios}: the terms of delta / N underflow, for which theorem 17.2 has t_delta"
    assert (ratios["dk"] > 0.1) == (keys > 500)
