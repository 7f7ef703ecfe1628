"""The validation of bounds: answers of sound kernels are searched for one outside, and a wrong kernel's are outside."""

from dataclasses import replace

import numpy as np
import pytest
from attn_spec.reports.proof.validation import bounds
from attn_spec.reports.proof.validation.bounds import PASSES, Tally, climb, main, searched

from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject


@pytest.fixture
def wrong(monkeypatch):
    """Validate one kernel alone, whose outputs are 1 % too large."""
    right = resolve("torch_eager")

    def too_large(q, k, v, **options):
        out, lse = right.function(q, k, v, **options)
        return 1.01 * out, lse

    kernel = replace(right, function=too_large, dtypes=("float32",), forward_only=())
    monkeypatch.setattr(bounds, "subjects", lambda: iter([("torch_eager", Subject(kernel, "float32"))]))
    monkeypatch.setattr(bounds, "kernel_of", lambda name: kernel)


@pytest.mark.parametrize("which", PASSES)
def test_a_sound_kernel_has_no_violation(which):
    found = searched(which, "torch_eager", "float32", 6, 0)

    assert found.problems > 6  # single elements are changed as well
    assert found.entries > 100
    assert found.violations == []
    assert 0 < found.hardest[0] <= 1


def test_values_stay_the_first_columns_of_keys_where_a_kernel_reads_both_from_one_cache():
    found = searched("forward", "torch_latent", "float32", 8, 0)

    assert found.problems > 8
    assert found.violations == []


def test_an_answer_outside_ends_with_1_and_is_printed(wrong, capsys):
    assert main(["--problems", "6"]) == 1
    printed = capsys.readouterr().out
    assert "VIOLATION output[" in printed


def test_elements_of_a_problem_that_cannot_be_found_are_not_changed():
    tally = Tally()

    climb(PASSES["forward"], Subject(resolve("torch_eager"), "float32"), tally, 5, np.random.default_rng(0))

    assert tally.problems == 0


def test_no_subject_is_an_error(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "no such kernel"])
    assert "no subject's name contains 'no such kernel'" in capsys.readouterr().err
