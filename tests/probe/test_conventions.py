"""Known conventions against what a probe finds: nothing it says is wrong."""

import itertools

import numpy as np
import pytest

from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.subject import Subject
from attn_spec.probe.conventions import conventions, determinism
from attn_spec.probe.options import AS_SPECIFIED, uses
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.search.preflight import preflight
from tests.kernels.results import overwriting

#: Conventions that an answer of finite numbers shows, of a kernel that takes neither lengths nor sinks.
NAMES = [name for name, row in CONVENTIONS.items() if row.decides and not row.behind_lengths and not row.of]
TABLE = list(itertools.product(*(CONVENTIONS[name].telling for name in NAMES)))


def known(causal_alignment, empty_row, lse_base, empty_lse):
    """Return attention that follows these conventions."""

    def attention(q, k, v, *, is_causal=False):
        s = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / q.shape[-1] ** 0.5
        shift = k.shape[2] - q.shape[2] if causal_alignment == "bottom_right" else 0
        visible = np.tri(*s.shape[-2:], shift, dtype=bool) | (not is_causal)
        p = np.where(visible, np.exp(s), 0.0)
        total = p.sum(-1, keepdims=True)
        mean = {"zero": 0.0, "mean_of_v": v.mean(2, keepdims=True), "nan": np.nan}[empty_row]
        out = np.where(total > 0, p / np.where(total > 0, total, 1) @ v, mean)
        lse = np.where(total > 0, np.log(np.where(total > 0, total, 1)), float(empty_lse))[..., 0]
        return out.astype(q.dtype), (lse / (1 if lse_base == "e" else np.log(2))).astype(np.float32)

    return attention


def ready(function):
    return preflight(from_callable(function, framework="numpy"), ["float32"]).subjects[0]


@pytest.mark.parametrize("chosen", TABLE, ids=str)
def test_conventions_are_found(chosen):
    subject, found = conventions(ready(known(*chosen)))

    values = {finding.name: finding.value for finding in found}
    wanted = dict(zip(NAMES, chosen, strict=True))
    if chosen[0] == "top_left":  # where every query sees a key
        wanted = {name: wanted[name] for name in ("causal_alignment", "lse_base")}
    assert values == wanted, found
    for name, value in values.items():
        assert getattr(subject.conventions, name) == value


@pytest.mark.parametrize(("rest", "found"), [(0.0, "zero"), (7.0, None)])
def test_zeros_behind_a_sequence_are_found(rest, found):
    def attention(q, k, v, *, seqused_q=None):
        out, lse = known("top_left", "zero", "e", "-inf")(q, k, v)
        if seqused_q is not None:
            out = np.where(np.arange(q.shape[2])[:, None] < seqused_q, out, rest).astype(q.dtype)
        return out, lse

    _, findings = conventions(ready(attention))
    assert {one.name: one.value for one in findings}["unused_rows"] == found


@pytest.mark.parametrize(("fill", "by_mask", "by_bias"), [(-1e30, "mean_of_v", "nan"), (-np.inf, "nan", "same")])
def test_what_a_row_has_that_a_bias_empties_is_found_apart(fill, by_mask, by_bias):
    @np.errstate(invalid="ignore")
    def attention(q, k, v, *, mask=None, bias=None):
        s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
        s = s if bias is None else s + bias
        s = s if mask is None else np.where(mask, s, np.float32(fill))
        p = np.exp(s - s.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ v

    subject, found = conventions(ready(attention))
    assert {one.name: one.value for one in found} == {"empty_row": by_mask, "empty_row_by_bias": by_bias}
    assert subject.conventions.choice("empty_row_by_bias") == "nan"


def test_what_two_choices_explain_is_not_told_nor_what_none_does():
    def whole(q, k, v, *, is_causal=False):
        return known("top_left", "zero", "e", "-inf")(q, k, v)[0]

    _, found = conventions(ready(whole))
    assert [(one.name, one.value, one.evidence) for one in found] == [
        ("causal_alignment", None, "no choice explains 5 queries and 8 keys")
    ]


def test_equal_calls_that_differ_are_found():
    rng = np.random.default_rng(0)

    def shaken(q, k, v):
        return (v.mean(2, keepdims=True) + rng.normal(0, 1e-6, v.shape)).astype(q.dtype)

    subject = Subject(from_callable(shaken, framework="numpy"), "float32")
    assert determinism(subject).value == "False"
    assert ready(known(*TABLE[0])) is not None
    assert determinism(ready(known(*TABLE[0]))).value == "True"


def test_a_kernel_of_one_buffer_is_found_to_overwrite_its_results():
    found = {one.name: one for one in conventions(Subject(overwriting.one_buffer, "float32"))[1]}
    assert (found["overwrites_results"].value, found["overwrites_results"].evidence) == (
        "True",
        "an output is overwritten by the next call: 256 of 256 elements have other values then",
    )
    assert "overwrites_results" not in {one.name for one in conventions(Subject(overwriting.fresh, "float32"))[1]}


def test_an_option_that_does_nothing_is_told_with_what_explains_it():
    def attention(q, k, v, *, is_causal=False, scale=None):
        return known("top_left", "zero", "e", "-inf")(q, k, v, is_causal=is_causal)[0]

    found = {finding.name: finding for finding in uses(ready(attention))}

    assert (found["causal"].value, found["scale"].value) == (AS_SPECIFIED, None)
    assert found["scale"].evidence.startswith("right for the same problem without scale")


def test_a_call_that_fails_tells_nothing_but_why():
    def attention(q, k, v, *, is_causal=False):
        if is_causal and q.shape[2] == 5:
            raise IndexError("row 5")
        return known("top_left", "zero", "e", "-inf")(q, k, v, is_causal=is_causal)[0]

    _, found = conventions(ready(attention))
    (diagonal,) = [finding for finding in found if finding.name == "causal_alignment"]
    assert diagonal.value is None
    assert "IndexError: row 5" in diagonal.evidence
