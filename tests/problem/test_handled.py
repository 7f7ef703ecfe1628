"""An arithmetic refuses an option that it does not evaluate, whatever kind of option that is."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attn_spec.attention import definition
from attn_spec.problem.handled import CODED, NotHandledError, check_handled, not_handled
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import PARAMETER
from attn_spec.search.drawing.regimes import Recipe

ROOT = Path(__file__).parents[2]
#: Options that nobody has heard of, by what their rows say; each is a plain number.
MADE_UP = {
    "term": "kind='term'",
    "addend": "kind='addend'",
    "weight": "kind='weight'",
    "unseen": "kind='mask'",
    "of_weight": "kind='parameter', of='dropout_keep', optional=True",
    "of_sum": "kind='parameter', of='rotary', optional=True, adds_to_row_sum=True",
    "of_linear": "kind='parameter', of='feature_map', optional=True, adds_to_row_sum=True",
}
ROW = """
    #: Made up.
    {name}: float | None = option(
        says="is made up",
        {facts},
        spellings=("{name}",),
        wanted="a number or None",
        accepts=lambda value: value is None or is_number(value),
        draws=(2.0,),
    )
"""
EXAMINE = """
import contextlib
import json
from unittest.mock import patch
import numpy as np
from attn_spec.attention import definition, error_free, gradients
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.emulation import PRECISE, emulate_both
from attn_spec.emulation.kernels import SUPPORTS
from attn_spec.bounds.forward import bounds
from attn_spec.bounds import intermediates as of_float64
from attn_spec.bounds import theorems
from attn_spec.chance.error_statistics import valid_rows
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.presets import FP32
from attn_spec.judgement.long.glance import is_plain
from attn_spec.judgement.long.gradient_glance import is_glanced
from attn_spec.kernels.misbehaviour import CallFailed
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.handled import NotHandledError
from attn_spec.search.drawing.ranges import _is_surely_inside
from attn_spec.search.drawing.regimes import Recipe

OWNERS = {
    "of_weight": {"dropout_keep": "half"}, "of_sum": {"rotary": "half"}, "of_linear": {"feature_map": "relu"}
}
C = FP32.at("float32")


def unguarded(*modules):
    # Let these arithmetics pass, so that the guard of what rests on them shows.
    stack = contextlib.ExitStack()
    for module in modules:
        stack.enter_context(patch.object(module, "check_handled", lambda *_: None))
    return stack


def bound(problem):
    with unguarded(of_float64):
        return theorems.forward_bound(intermediates(problem), C)


def gradient_bound(problem):
    with unguarded(of_float64, bounds):
        x = intermediates(problem)
        return theorems.gradient_bound(x, gradient_intermediates(x, np.ones(problem.output_shape)), C)


def float64_gradients(problem):
    with unguarded(of_float64):
        x = intermediates(problem)
    return gradient_intermediates(x, np.ones(problem.output_shape))


def is_valid(problem):
    with unguarded(of_float64, bounds):
        return valid_rows(intermediates(problem), C).any()


def is_in_range(problem):
    with unguarded(of_float64, bounds):
        return _is_surely_inside(Subject(resolve("numpy_naive"), "float32"), problem, backward=False)


found = {}
for name in %r:
    options = {name: 2.0, **OWNERS.get(name, {})}
    problem = Recipe(query_length=3, key_length=4, head_dim=4, **options).problem()
    long = Recipe(query_length=3, key_length=80, head_dim=4, **options).problem()
    dO = np.ones(problem.output_shape)
    kernel = emulate_both("every", PRECISE, supports=(*SUPPORTS, *options))
    arithmetics = {
        "definition": lambda: definition.attention(problem, 53),
        "definition of gradients": lambda: gradients.gradients(problem, dO, 53),
        "balls": lambda: enclose(problem),
        "balls of gradients": lambda: enclose_gradients(problem, dO),
        "float64": lambda: intermediates(problem),
        "gradients in float64": lambda: float64_gradients(problem),
        "bound": lambda: bound(problem),
        "bound of gradients": lambda: gradient_bound(problem),
        "emulation": lambda: Subject(kernel, "float32")(problem),
    }
    asked = {"error-free": error_free.applies, "glance": is_plain, "glance of gradients": is_glanced}
    asked |= {"statistics": lambda _: is_valid(long), "ranges": is_in_range}
    silent = [what for what, applies in asked.items() if applies(problem)]
    for what, run in arithmetics.items():
        try:
            run()
            silent.append(what)
        except NotHandledError:
            pass
        except CallFailed as error:
            silent += [] if f"does not evaluate {name}" in str(error) else [what]
    found[name] = silent
print(json.dumps(found))
"""


def test_every_kind_of_option_is_refused_by_every_arithmetic(tmp_path):
    shutil.copytree(ROOT / "attn_spec", tmp_path / "attn_spec")
    options = tmp_path / "attn_spec/problem/options/terms.py"
    text, place = options.read_text(encoding="utf-8"), "    #: Factor on q.k; None is the real number"
    assert text.count(place) == 1
    rows = "".join(ROW.format(name=name, facts=facts).lstrip("\n") for name, facts in MADE_UP.items())
    options.write_text(text.replace(place, rows + place), encoding="utf-8")
    tmp_path.joinpath("examine.py").write_text(EXAMINE % list(MADE_UP), encoding="utf-8")
    command = [sys.executable, "examine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {name: [] for name in MADE_UP}


def test_options_that_need_code_are_terms_and_what_changes_weights():
    terms = {"scale", "q_descale", "k_descale", "softcap", "bias", "alibi_slopes"}
    weights = {"dropout_keep", "dropout_p", "v_descale"}
    assert set(CODED) == terms | weights | {"sinks", "feature_epsilon", "o_scale"}
    assert not {name for name in CODED if OPTIONS[name].kind == PARAMETER} - {"dropout_p", "feature_epsilon"}


def test_a_refusal_names_the_arithmetic_and_the_options():
    problem = Recipe(query_length=2, key_length=3, softcap=2.0, scale=0.5, causal=True).problem()

    assert not_handled(problem, definition.HANDLES) == []
    check_handled(problem, definition.HANDLES, "the definition")
    assert not_handled(problem, ("scale",)) == ["softcap"]
    text = "this arithmetic does not evaluate softcap, scale: write its formula there, then name it in HANDLES"
    with pytest.raises(NotHandledError, match=re.escape(text)):
        check_handled(problem, (), "this arithmetic")
