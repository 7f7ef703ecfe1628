"""Verdicts rest on what was measured: nothing measured is no verdict, and the share stands beside each."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel as declare
from attn_spec.contract.contract import Contract
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all, observe_measured
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict, measured

OUTPUT = "accuracy.output_is_within_its_bound"


def examined(check=None):
    def attention(q, k, v):
        s = (q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)).astype(np.float64)
        p = np.exp(s - s.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True) @ v).astype(q.dtype)

    property_ = load_all()[OUTPUT]
    kernel = declare(framework="numpy", dtypes=("float32",), contract="fp32")(attention)
    profile = replace(PROFILES["smoke"], examples=6)
    return search(replace(property_, check=check) if check else property_, Subject(kernel, "float32"), profile, seed=0)[
        0
    ]


def test_a_property_that_measures_nothing_is_not_exercised():
    row = examined(lambda *_: observe_measured(0, 8))

    assert row.verdict is Verdict.NOT_EXERCISED
    assert row.examples == 0
    assert row.discarded >= 6


def test_a_problem_of_which_nothing_is_measured_is_drawn_again():
    asked = []

    def check(*_):
        asked.append(len(asked))
        observe_measured(4 * (len(asked) % 2), 8)

    row = examined(check)

    assert row.verdict is Verdict.HELD
    assert row.examples == 6
    assert row.discarded >= 5
    assert row.measured == 0.5  # of those that count


def test_the_share_of_measured_elements_stands_beside_a_verdict():
    row = examined()

    assert row.verdict is Verdict.HELD
    assert row.measured > 0.97
    assert measured([row]).endswith("% of the elements were measured")


def test_a_share_below_the_least_says_so():
    row = replace(examined(), measured=0.4)

    assert measured([row]).startswith("40 % of the elements were measured")
    assert len(measured([row])) > len("40 % of the elements were measured")


@pytest.mark.parametrize(
    ("supports", "contract", "words"),
    [
        ("feature_map", Contract(lse_merges=1), "a contract with lse_merges=1 says nothing of linear attention"),
        ("feature_map", Contract(normalize="by_lse"), "a contract with normalize='by_lse' says nothing of linear"),
        (
            "score_vector",
            Contract(reference="upper_bound", reference_range=8.0),
            "a contract with reference='upper_bound' says nothing of additive scores",
        ),
    ],
)
def test_a_contract_without_a_theorem_of_what_is_declared_is_refused(supports, contract, words):
    def attention(q, k, v, **options):
        return v

    with pytest.raises(KernelError) as raised:
        declare(framework="numpy", dtypes=("float32",), contract=contract, supports=(supports,))(attention)

    assert words in str(raised.value)
