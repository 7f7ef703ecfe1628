"""Right twins of the mutants of packed descales hold the properties that refute these, at dtypes of 8 bits too."""

from dataclasses import replace

import pytest

from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.search import property as properties
from attn_spec.search.profiles import PROFILES
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from reports.proof.zoo import mutants
from reports.proof.zoo.descales import DESCALED

MUTANTS, _ = mutants.load_all()
PROPERTIES = properties.load_all()
SMOKE = replace(PROFILES["smoke"], shrink_seconds=0)
OF_CALLS = {name: row for name, row in MUTANTS.items() if row.family == "packed_descales"}
DTYPES = ("float16", "bfloat16", "q:bfloat16,kv:float8_e4m3fn", "q:float16,kv:float8_e5m2")
#: Presentations of the mutants, each with one dtype; together they have all.
TWINS = [
    (presentation, DTYPES[number % len(DTYPES)])
    for number, presentation in enumerate(sorted({row.kernel.presentation for row in OF_CALLS.values()}))
]


def test_the_mutants_read_calls_of_several_presentations():
    assert len(OF_CALLS) >= 9
    assert {dtype for _, dtype in TWINS} == set(DTYPES)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", sorted({row.named_by for row in OF_CALLS.values()}))
@pytest.mark.parametrize(("presentation", "dtype"), TWINS)
def test_a_right_twin_holds_the_property(presentation, dtype, name):
    shown = PRESENTATIONS[presentation]
    able = [each for each in ("scale", "causal", "gqa", "cross", "dv", "lse", *DESCALED) if shown.can_say(each)]
    declared = {"presentation": presentation, "supports": able, "conventions": {"unused": "unread"}}
    declared |= {"option_dtypes": dict.fromkeys(DESCALED[:3], "float32"), "contract": "fused"}
    made = emulate("twin", PRECISE, dtypes=(dtype,), **declared)
    row, _ = search(PROPERTIES[name], Subject(made, dtype), SMOKE, seed=1)
    assert row.verdict is Verdict.HELD, row.message


@pytest.mark.parametrize("name", OF_CALLS)
def test_a_smoke_examination_refutes_the_mutant(name):
    mutant = OF_CALLS[name]
    row, _ = search(PROPERTIES[mutant.named_by], Subject(mutant.kernel, mutant.dtype), SMOKE, seed=0)
    assert row.verdict is Verdict.REFUTED
