"""``attn-spec replay``: a case that cannot be run; with --list and --clean what is stored, and how it leaves."""

import pytest
from click.testing import CliRunner

from attn_spec import Recipe
from attn_spec.cli import command as cli
from attn_spec.search import cases
from attn_spec.search.cases import Case
from attn_spec.sessions.replay import Replay


@pytest.fixture
def stored(folder):
    """Store two cases, the first with its script."""
    made = [
        Case(property_id="p.one", kernel=f"mine.py:{name}", problem=Recipe(key_length=2).problem()) for name in "fg"
    ]
    paths = [cases.save(case) for case in made]
    paths[0].with_suffix(".py").write_text("")
    return paths


def invoke(*words):
    return CliRunner().invoke(cli.main, ["replay", *words])


def test_the_list_names_property_kernel_and_problem_and_runs_nothing(stored, monkeypatch):
    monkeypatch.setattr("attn_spec.sessions.replay.replays", lambda *given: pytest.fail("run"))
    stored[1].write_text("{")
    done = invoke("--list")

    assert done.exit_code == 0
    assert f"{stored[0].stem}  mine.py:f, float32, cpu  p.one\n          Recipe(key_length=2).problem()" in done.output
    assert f"{stored[1].stem}  {stored[1]} cannot be replayed: " in done.output


def test_a_long_problem_is_cut_in_the_list(folder):
    case = Case(property_id="p.one", kernel="k", problem=Recipe(key_length=99).problem().replace(scale=0.5))
    _, problem = cases.described(cases.save(case))

    assert problem.endswith(" ...")
    assert len(problem) <= 120


def test_what_is_fixed_is_deleted_with_its_script_and_nothing_else(stored, monkeypatch):
    found = {stored[0].stem: Replay(0, ""), stored[1].stem: Replay(1, "output[0, 0, 0, 0] is 0")}
    monkeypatch.setattr(
        "attn_spec.sessions.replay.replays", lambda paths, *_: [(path, found[path.stem]) for path in paths]
    )
    kept = invoke()
    done = invoke("--clean")

    assert "deleted" not in kept.output
    assert (kept.exit_code, done.exit_code) == (1, 1)
    assert f"{stored[0].stem}  fixed, deleted\n" in done.output
    assert f"{stored[1].stem}  still fails: output[0, 0, 0, 0] is 0\n" in done.output
    assert sorted(path.name for path in (cases.HOME / "cases").iterdir()) == [stored[1].name]


def test_replay_of_a_damaged_case_cannot_run(folder, attn_spec):
    folder.joinpath("case.json").write_text("{")
    done = attn_spec("replay", "case.json")

    assert done.returncode == 2
    assert "case  cannot run: case.json cannot be replayed: " in done.stdout
    assert "0 fixed, 0 still fails, 1 cannot run" in done.stdout


WRONG = """
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv", "cross"))
def first_value(q, k, v):
    return v[:, :, :1].repeat(q.shape[2], 2)
"""


def test_one_case_is_shown_on_a_page(folder, attn_spec):
    folder.joinpath("wrong.py").write_text(WRONG)
    attn_spec("certify", "wrong.py:first_value", "--property", "accuracy.output")
    (case,) = folder.glob(".attn-spec/cases/*.json")

    done = attn_spec("replay", "--html", "pages/one.html")
    page = folder.joinpath("pages/one.html").read_text()

    assert (done.returncode, "page: pages/one.html" in done.stdout) == (1, True)
    assert "wrong:first_value: accuracy.output_is_within_its_bound</title>" in page
    assert f"attn-spec replay {case.stem}" in page
    assert page.count("<svg") == 3


def test_what_cannot_be_shown_is_said(folder, stored, monkeypatch):
    several = invoke("--html", "page.html")
    assert (several.exit_code, several.output.splitlines()[-1]) == (
        2,
        f"Error: --html shows one case, and {len(stored)} are stored; name one: attn-spec replay CASE --html FILE",
    )
    folder.joinpath("taken").mkdir()
    assert "taken cannot be written: it is a folder" in invoke(stored[0].stem, "--html", "taken").output
    monkeypatch.setattr(
        "attn_spec.sessions.replay.replays", lambda paths, *_: [(path, Replay(0, "")) for path in paths]
    )
    assert "no page: no failing answer came" in invoke(stored[0].stem, "--html", "page.html").output


def test_a_case_that_ends_the_process_leaves_the_others_their_turn(folder, attn_spec):
    ends = WRONG.replace("    return v", "    if k.shape[2] == 3:\n        __import__('os')._exit(7)\n    return v")
    folder.joinpath("ends.py").write_text(ends)
    made = [
        Case(property_id="accuracy.output_is_within_its_bound", kernel="ends.py:first_value", problem=problem)
        for problem in (Recipe(key_length=n).problem() for n in (2, 3, 4))
    ]
    stems = [cases.save(case).stem for case in made]

    done = attn_spec("replay", "--no-isolate")
    said = dict(line.split("  ", 1) for line in done.stdout.splitlines()[:3])

    assert done.returncode == 1
    assert [said[stem].partition(":")[0] for stem in stems] == ["still fails"] * 3
    assert said[stems[1]] == "still fails: the kernel ended the process (exit code 7)"
    assert said[stems[2]].startswith("still fails: output[0, 0, 0, ")
