"""Kernels that cheat the judge are refuted, and none is certified, where they have a process of their own."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from attn_spec.isolation.foreign import isolated
from attn_spec.search.preflight import preflight
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

FILE = Path(__file__).with_name("cheats.py")
NAMES = [
    one.name
    for one in ast.parse(FILE.read_text()).body
    if isinstance(one, ast.FunctionDef) and any(ast.unparse(mark) == "cheat" for mark in one.decorator_list)
]
#: Properties that refute the cheats: the first refutes all but OF_THE_SECOND, the second those.
PROPERTY_IDS = ("accuracy.output_is_within_its_bound", "online_rescaling.negating_v_negates_the_output")
#: Cheats that the first property does not refute.
OF_THE_SECOND = ("caches_by_content", "caches_by_shape")
#: Cheats that attack the process that starts the judge.
BY_COMMAND = ("ends_the_judge", "forges_the_report")
QUICK = replace(PROFILES["smoke"], shrink_seconds=0.2)


def test_there_are_as_many_as_it_takes():
    assert len(NAMES) >= 20


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in BY_COMMAND])
def test_a_cheat_is_refuted(name, folder):
    kernel = isolated(f"{FILE}:{name}")
    (subject,) = preflight(kernel, call_limit=5.0).subjects
    properties = load_all()
    verdicts = [
        search(properties[property_id], subject, QUICK, seed=0)[0].verdict
        for property_id in PROPERTY_IDS[: 1 + (name in OF_THE_SECOND)]
    ]
    kernel.host.end()
    assert Verdict.REFUTED in verdicts


@pytest.mark.parametrize("name", BY_COMMAND)
def test_a_cheat_is_not_certified(name, attn_spec, folder):
    done = attn_spec("certify", f"{FILE}:{name}", "--property", PROPERTY_IDS[0])
    result = json.loads((folder / "certificate.json").read_text())
    held = [one["id"] for one in result["properties"] if one["verdict"] == "held"]
    assert (done.returncode in (1, 3), held) == (True, [])
    assert result["configuration"]["isolated"]
    assert "cheats.py" in result["subject"]["imported_sha256"]


def test_a_cheat_is_certified_where_it_shares_a_process_with_the_judge(attn_spec, folder):
    done = attn_spec("certify", f"{FILE}:rebinds_a_record", "--property", PROPERTY_IDS[0], "--no-isolate")
    assert done.returncode == 0  # so that the others show something
    assert done.stdout.splitlines()[-1].startswith("PASSED")
