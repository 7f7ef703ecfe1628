"""A case holds every bit, is refused when damaged, and its script fails and passes with the kernel alone."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from attn_spec import Problem, Recipe
from attn_spec.judgement.worst import WorstElement
from attn_spec.search import cases
from attn_spec.search.cases import Case, CaseError, InFlight, find, load, save

WORST = WorstElement(
    quantity="output",
    index=(0, 0, 1, 0),
    got="nan",
    truth="0x1.8p+0",
    radius="0x1p-60",
    allowed="0x1p-20",
    ulps="inf",
    outside=1,
    elements=2,
    rows=1,
)


def case(**changes):
    problem = Recipe(query_length=2, key_length=3, causal=True).problem()
    return Case(
        **{"property_id": "p.one", "kernel": "a.py:f", "problem": problem, "message": "m", "worst": WORST, **changes}
    )


def same(a, b):
    return a.to_json() == b.to_json()


def test_a_stored_case_has_every_bit(tmp_path):
    odd = np.array([-0.0, 5e-324, np.inf, 1 / 3]).reshape(1, 1, 4, 1)
    stored = case(
        problem=Problem(q=odd, k=odd, v=odd, dtypes="float64", window=(None, 1)), declared={"contract": "fp64"}
    )
    path = save(stored, tmp_path)

    assert path == tmp_path / "cases" / f"{stored.id}.json"
    assert same(load(path), stored)
    assert load(path).problem.q.tobytes() == odd.tobytes()


def of_schema_3(document):
    """Return the document of a problem or recipe with its dtype as schema 3 has it."""
    others = {name: value for name, value in document.items() if name != "dtypes"}
    return {**others, "dtype": document["dtypes"], "option_dtypes": []}


@pytest.mark.parametrize("schema", [2, 3])
def test_a_case_of_an_earlier_schema_is_read(schema, tmp_path):
    path = save(case(), tmp_path)
    document = json.loads(path.read_text())
    document |= {name: of_schema_3(document[name]) for name in ("problem", "recipe")}
    if schema == 2:
        document["claim"] = document.pop("property_id")
    path.write_text(json.dumps({**document, "schema": schema}))

    assert same(load(path), case())
    assert repr(load(path).problem) == repr(case().problem)


def test_git_is_asked_to_leave_stored_cases_alone(tmp_path):
    save(case(), tmp_path)

    assert (tmp_path / ".gitignore").read_text() == "*\n"


def test_a_stored_case_keeps_the_recipe_while_it_still_gives_the_same_bits(tmp_path):
    path = save(case(), tmp_path)
    assert repr(load(path).problem) == "Recipe(query_length=2, key_length=3, causal=True).problem()"

    document = json.loads(path.read_text())
    document["recipe"]["seed"] = 99
    path.write_text(json.dumps(document))
    assert repr(load(path).problem).startswith("Problem(q=np.array([")
    assert load(path).problem.to_json() == case().problem.to_json()


def test_the_id_depends_on_property_kernel_and_problem_only():
    assert case().id == case(message="other", worst=None).id
    others = {case(property_id="p.two").id, case(kernel="b.py:f").id, case(problem=Recipe(seed=1).problem()).id}
    assert len({case().id, *others}) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is not a case: a case is a JSON object with a 'problem' or a 'recipe'"),
        ('{"problem": {}, "schema": 7}', "its schema is 7; this attn-spec reads schemas 2 to 4"),
        ('{"problem": {}, "recipe": null, "worst": null, "schema": 3}', "ProblemError: the problem document"),
        ('{"problem": null, "recipe": {"regime": "?"}, "worst": null, "schema": 3}', "RecipeError: unknown regime '?'"),
        (
            '{"recipe": {}, "problem": null, "worst": null, "star": 1, "schema": 3}',
            "unexpected keyword argument 'star'",
        ),
        ('{"problem": {}, "schema": 3}', "KeyError: "),
    ],
)
def test_a_malformed_case_is_refused_with_the_next_step(text, says, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)

    with pytest.raises(CaseError) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path} cannot be replayed: ")
    assert says in str(refused.value)
    assert str(refused.value).endswith("Delete the file, or run certify again to make a new one")


def test_cases_are_found_by_the_start_of_their_id(tmp_path):
    with pytest.raises(CaseError, match=r"no cases are stored in .*; `attn-spec certify KERNEL` stores what it finds"):
        find(None, tmp_path)
    one, two = save(case(), tmp_path), save(case(property_id="p.two"), tmp_path)

    assert find(None, tmp_path) == sorted([one, two])
    assert find(one.stem[:7], tmp_path) == [one]
    assert find(str(two), tmp_path) == [two]
    with pytest.raises(
        CaseError, match=r"no stored case is called 'zzz'\n`attn-spec replay --list` lists the 2 that are"
    ):
        find("zzz", tmp_path)
    with pytest.raises(CaseError, match=f"did you mean '{one.stem}'"):
        find(one.stem[:-1] + "x", tmp_path)
    with pytest.raises(CaseError, match="'' fits several cases"):
        find("", tmp_path)


def test_what_is_in_flight_is_on_disk_until_released(tmp_path):
    in_flight = InFlight(tmp_path, process=1)
    in_flight.hold(case())

    assert same(InFlight(tmp_path, process=1).take("crashed"), case(message="crashed"))
    assert InFlight(tmp_path, process=1).take("crashed") is None
    in_flight.hold(case())
    in_flight.release()
    assert not list((tmp_path / "in-flight").iterdir())


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(case(), tmp_path)
    before = path.read_text()
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        cases.save(replace(case(), message="new"), tmp_path)
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


KERNELS = """
import torch

def attention(q, k, v, *, causal=False):
    s = q @ k.transpose(-1, -2){scale}
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu({diagonal}), -torch.inf)
    return s.softmax(-1) @ v
"""
SOUND = {"scale": " / q.shape[-1] ** 0.5", "diagonal": 1}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("bug", "property_id"),
    [
        ({"scale": ""}, "accuracy.output_is_within_its_bound"),
        ({"diagonal": 2}, "causality.future_keys_change_nothing"),
    ],
    ids=["one measured call", "two calls compared"],
)
def test_the_script_needs_the_kernel_alone(bug, property_id, folder, attn_spec):
    path = folder / "mine.py"
    path.write_text(KERNELS.format(**{**SOUND, **bug}))
    done = attn_spec("certify", "mine.py:attention", "--property", property_id, "--dtype", "bfloat16")
    assert done.returncode == 1, done.stdout
    (script,) = folder.glob(".attn-spec/cases/*.py")

    def run():
        hidden = "import sys, runpy; sys.modules['attn_spec'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
        command = [sys.executable, "-c", hidden, str(script)]
        return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)

    failing = run()
    assert (failing.returncode, failing.stdout.splitlines()[-1]) == (1, "still fails"), failing.stderr
    path.write_text(KERNELS.format(**SOUND))
    fixed = run()
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr
    assert f"attn-spec replay {script.stem} checks the property itself" in fixed.stdout
