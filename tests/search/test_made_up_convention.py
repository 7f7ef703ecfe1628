"""A convention that nobody has heard of: one row makes it known to whoever deals with conventions.

In a copy of the package the output may have either sign. Beside the row there is what decides by it, in the judgement.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ROW = """
    sign: str = convention(
        says="Which sign the output has.",
        choices={"plus": "that of the mean of values", "minus": "the other sign"},
        default="plus",
        decides=("output",),
    )
"""

#: A kernel that returns the output negated, and what is made of it.
USES = """
import json
import numpy as np
from attn_spec.contract.presets import PRESETS
from attn_spec.evidence.provenance import declarations
from attn_spec.isolation.declared import declaration, told
from attn_spec.judgement import measure
from attn_spec.judgement.long.blocks import judge_parts, parts_of
from attn_spec.kernels.declarations.declaration import from_callable, kernel
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.probe.conventions import conventions
from attn_spec.problem.conventions import Conventions
from attn_spec.search.plain_calls import plain
from attn_spec.search.preflight import preflight
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.testing import CallError, NotAttention, assert_attention
from attn_spec.vocabulary import lookup

judge = measure._judge


def decided(known, contract, output, lse, conventions):
    turned = output is not None and conventions.sign == "minus"
    return judge(known, contract, -output if turned else output, lse, conventions)


measure._judge = decided


def negated(q, k, v):
    s = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / q.shape[-1] ** 0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return -(p / p.sum(-1, keepdims=True) @ v).astype(q.dtype)


def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)


declare = kernel(framework="numpy", dtypes=["float32"], contract="fp32", conventions={"sign": "minus"})
made = declare(negated)
tensors = [np.random.default_rng(n).standard_normal((1, 2, 8, 16)).astype(np.float32) for n in range(3)]
out = negated(*tensors)
problem = plain(made, "float32")
right = {"output": -Subject(made, "float32")(problem)["output"]}
profile = Profile(name="test", examples=8, floor=1, seconds=60, shrink_seconds=0, seed=0)


def verdict(one):
    accurate = load_all()["accuracy.output_is_within_its_bound"]
    return str(search(accurate, Subject(one, "float32"), profile, seed=0)[0].verdict)


def parts(**chosen):
    fp32 = PRESETS["fp32"].at("float32")
    tally = judge_parts(parts_of(problem, **right), fp32, conventions=Conventions(**chosen)).tallies["output"]
    return [tally.outside, tally.elements]


found = {
    "declared": made.conventions.sign,
    "refused": refused(lambda: kernel(framework="numpy", dtypes=["float32"], conventions={"sign": "mius"})(negated),
                       KernelError),
    "in a process": declaration(told(made, "negated")).conventions["sign"],
    "explained": lookup.explained("sign"),
    "by its choice": lookup.explained("minus"),
    "probed": {one.name: one.value for one in conventions(Subject(from_callable(negated), "float32"))[1]},
    "asserted": bool(assert_attention(out, *tensors, contract="fp32", sign="minus").exercised),
    "not asserted": refused(lambda: assert_attention(out, *tensors, contract="fp32"), NotAttention),
    "misspelled": refused(lambda: assert_attention(out, *tensors, sign="mius"), CallError),
    "certificate": declarations(preflight(made))["conventions"]["sign"],
    "verdicts": [verdict(made), verdict(from_callable(negated, dtypes=["float32"]))],
    "outside": [parts(), parts(sign="minus")],
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Collect what each of those who deal with conventions says of the one that was made up."""
    folder = tmp_path_factory.mktemp("made_up")
    package = folder / "attn_spec"
    shutil.copytree(ROOT / "attn_spec", package)
    shutil.copytree(ROOT / "properties", package / "properties")
    table = package / "problem" / "conventions.py"
    place = "    masked_nonfinite: str"
    text = table.read_text(encoding="utf-8")
    assert text.count(place) == 1
    table.write_text(text.replace(place, ROW.lstrip("\n") + place), encoding="utf-8")
    folder.joinpath("uses.py").write_text(USES, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "uses.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kernel_declares_it(found):
    assert found["declared"] == found["in a process"] == "minus"
    assert found["refused"] == "convention sign must be one of 'plus', 'minus', not 'mius'; did you mean 'minus'?"


def test_it_is_explained(found):
    assert found["explained"] == found["by its choice"]
    assert found["explained"][:2] == ["sign  (convention)", "    Which sign the output has."]
    facts = dict(line.split(None, 1) for line in found["explained"][2:])
    assert (facts["values"], facts["default"], facts["decides"]) == ("'plus', 'minus'", "'plus'", "output")
    assert facts["'plus'"].startswith("that of the mean of values")
    assert facts["'minus'"] == "the other sign"


def test_a_probe_finds_it(found):
    assert found["probed"] == {"sign": "minus"}


def test_a_test_of_one_answer_may_name_it(found):
    assert found["asserted"]
    assert "hint      this row is right for the same tensors with sign='minus'" in found["not asserted"]
    assert found["misspelled"] == "convention sign must be one of 'plus', 'minus', not 'mius'; did you mean 'minus'?"


def test_a_certificate_tells_it_and_verdicts_are_those_of_what_decides(found):
    assert found["certificate"] == "minus"
    assert found["verdicts"] == ["held", "refuted"]


def test_a_glance_that_has_not_heard_of_it_clears_no_answer(found):
    (none, elements), (outside, _) = found["outside"]
    assert (none, outside) == (0, elements)
