"""The recipe of a term: one row of TERMS, and the option's field, make every arithmetic and judgement know it.

The term is a temperature, which divides the score. A copy of the package gets both. There each arithmetic agrees with
the definition, and that with a problem whose scale is divided instead. A kernel that ignores the option is refuted.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FIELD = """
    #: Temperature T of s / T; None is no temperature.
    temperature: float | None = option(
        says="takes T of s / T",
        kind=TERM,
        spellings=("temperature",),
        wanted="a positive number or None",
        accepts=lambda value: value is None or (is_number(value) and value > 0),
        draws=(2.0, 0.25, 0.3, 7.0),
        weight=20,
    )
"""
ROW = """
    "temperature": Term(
        formula="s / T",
        value=lambda A, s, p: s / p["temperature"],
        slope=lambda A, s, y, p: A.given(np.ones((1, 1))) / p["temperature"],
        divides=True,
        is_score=False,
        at_most=lambda h, p: h / p["temperature"],
    ),
"""
#: The line that the row is put in front of, so that it is applied before the softcap or after.
PLACES = {"before the softcap": '    "softcap": Term(', "after the softcap": '    "bias": Term('}

AGREE = """
import numpy as np
import test_every_option as every
from attn_spec.attention import definition, error_free, gradients
from attn_spec.attention.terms import known_to
from attn_spec.bounds.forward.score_bounds import BOUNDED
from attn_spec.judgement.long.glance import is_plain
from attn_spec.judgement.long.gradient_glance import is_glanced
from attn_spec.search.drawing.regimes import Recipe

ALL = {"softcap": 5.0, "bias": "normal@1H1K", "alibi_slopes": "geometric@1H11", "causal": True}
for options in ({}, {"scale": 0.3}, {"softcap": 1.0}, {"alibi_slopes": "steepest@1H11"}, ALL, {"dropout_keep": "half"}):
    for T in (0.3, 7.0):
        problem = Recipe(**every.SHAPE, **options, temperature=T, seed=7).problem()
        every.problem_of = lambda *_: problem
        every.test_every_arithmetic_gives_what_the_definition_does("temperature", T)
        every.test_gradients_are_those_of_the_definition("temperature", T)
        assert error_free.applies(problem)
        assert is_plain(problem) == ("dropout_keep" not in options)
        assert not is_glanced(problem)

# A temperature of 4 is a quarter of the scale.
hot = Recipe(**every.SHAPE, scale=1.0, temperature=4.0, seed=7).problem()
dO, BITS = every.cotangent(hot), 120
cold = hot.replace(scale=0.25, temperature=None)
assert (abs(definition.attention(hot, BITS) - definition.attention(cold, BITS)) < 2.0**-100).all()
for name, found in gradients.gradients(hot, dO, BITS).items():
    assert (abs(found - gradients.gradients(cold, dO, BITS)[name]) < 2.0**-100).all(), name
every.problem_of = lambda *_: None
every.test_an_answer_without_an_option_that_needs_code_is_refuted("temperature")
"""

CERTIFY = """
import json
import torch
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search

OPTIONS = "temperature", "scale", "backward"
DECLARED = {"framework": "torch", "dtypes": ("float32",), "contract": "fp32", "supports": OPTIONS}


def attention(q, k, v, scale, T):
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.softmax(s / T, dim=-1) @ v


@kernel(name="heats", **DECLARED)
def heats(q, k, v, *, scale=None, temperature=None):
    return attention(q, k, v, scale, 1.0 if temperature is None else temperature)


@kernel(name="folds", **DECLARED)
def folds(q, k, v, *, scale=None, temperature=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return attention(q, k, v, scale / (1.0 if temperature is None else temperature), 1.0)


@kernel(name="ignores", **DECLARED)
def ignores(q, k, v, *, scale=None, temperature=None):
    return attention(q, k, v, scale, 1.0)


class Cold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s, T):
        return s / T

    @staticmethod
    def backward(ctx, ds):
        return ds, None


@kernel(name="forgets", **DECLARED)
def forgets(q, k, v, *, scale=None, temperature=None):
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.softmax(Cold.apply(s, 1.0 if temperature is None else temperature), dim=-1) @ v


NAMES = "accuracy.output_is_within_its_bound", "gradients.query_and_key_gradients_are_within_their_bounds"
profile = Profile(name="test", examples=12, floor=1, seconds=60, shrink_seconds=0, seed=0)
verdicts = {}
for each in (heats, folds, ignores, forgets):
    subject = Subject(each, "float32")
    verdicts[each.name] = [str(search(load_all()[name], subject, profile, seed=0)[0].verdict) for name in NAMES]
print(json.dumps(verdicts))
"""


def copy(folder, place):
    """Make a copy of the package that knows the term, and of the test over the table of options."""
    shutil.copytree(ROOT / "attn_spec", folder / "attn_spec")
    shutil.copytree(ROOT / "properties", folder / "attn_spec" / "properties")
    shutil.copy(ROOT / "tests/judgement/test_every_option.py", folder)
    for file, start, text in (
        ("problem/options/terms.py", "    #: Factor on q.k; None is the real number", FIELD),
        ("attention/terms.py", place, ROW),
    ):
        path = folder / "attn_spec" / file
        before = path.read_text(encoding="utf-8")
        assert before.count(start) == 1
        path.write_text(before.replace(start, text.lstrip("\n") + start), encoding="utf-8")


def ran(folder, script):
    """Return the last line that a script prints there."""
    folder.joinpath("script.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1:]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_every_arithmetic_follows_the_row(tmp_path, place):
    copy(tmp_path, place)

    ran(tmp_path, AGREE)


def test_kernels_are_judged_by_the_row(tmp_path):
    copy(tmp_path, PLACES["before the softcap"])

    (verdicts,) = ran(tmp_path, CERTIFY)

    assert json.loads(verdicts) == {
        "heats": ["held", "held"],
        "folds": ["held", "held"],
        "ignores": ["refuted", "refuted"],
        "forgets": ["held", "refuted"],
    }
