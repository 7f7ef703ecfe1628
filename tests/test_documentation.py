"""README and the pages of docs/ do what they say: each block runs, each link has a target, and the site builds."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from attn_spec.reports.reference import pages

from attn_spec.cli.command import main

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "docs" / "reference"
#: Every page that is written by hand, by its path from the root.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if GENERATED not in path.parents and "_build" not in path.parts
}
FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
#: Languages of blocks that a test writes or runs, and of those that it checks without running them.
RUN, CHECKED = {"python", "c", "toml", "yaml", "sh", "text"}, {"console"}
#: Sentences about exit codes, and the tests that show them.
SENTENCES = {
    "exits with 1 if a property is refuted": "cli/test_cli.py::test_a_refuted_kernel_is_shown_with_its_smallest_case",
    "the run ends there, with 2": "cli/test_cli.py::test_a_known_misfit_ends_the_run_with_its_cause_and_remedy",
    "ends with exit code 2, and no certificate": "isolation/test_sources.py::"
    "test_a_kernel_that_writes_over_its_own_file_gets_no_certificate",
    "without a GPU it says so and ends with 2": "reports/gpu/test_command.py::"
    "test_without_a_gpu_it_says_so_and_exits_with_2",
    "the command exits with 1, and with 3": "reports/statistics/test_page.py::test_too_few_draws_are_inconclusive",
}


def blocks(text):
    """Return the language and the text of each block of a page, without directives of the site."""
    return [(language, block) for language, block in FENCED.findall(text) if not language.startswith("{")]


def commands(text):
    """Return the lines of the blocks of a page that are checked and not run."""
    lines = (line for language, block in blocks(text) if language in CHECKED for line in block.splitlines())
    return [line.partition("  #")[0].strip() for line in lines]


#: Families of many properties, and the property that a page examines in their place.
SHORT = {
    "lengths": "lengths.each_sequence_is_solved",
    "appending": "appending.new_keys_are_in_the_cache",
    "states": "states.an_empty_state",
}


def shortened(command):
    """Return a command that certifies less: accuracy for all properties, one property for a family of many."""
    if not command.startswith("attn-spec certify"):
        return command
    if "--property" not in command:
        return f"{command} --property accuracy"
    words = command.split()
    named = [place for place, word in enumerate(words) if word == "--property"]
    return " ".join(SHORT.get(word, word) if place - 1 in named else word for place, word in enumerate(words))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if {each for each, _ in blocks(text)} & RUN])
def test_the_blocks_of_a_page_run(page, folder, whole):
    """The commands of a page run in its order, unchanged or :func:`shortened`."""
    if "c" in {language for language, _ in blocks(PAGES[page])} and shutil.which("cc") is None:
        pytest.skip("there is no C compiler cc")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    said = ""
    for language, block in blocks(PAGES[page]):
        match language:
            case "python" | "c" | "toml" | "yaml":
                name = block.splitlines()[0].partition(" ")[2]
                folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
                folder.joinpath(name).write_text(block)
            case "sh":
                for line in block.splitlines():
                    command, _, comment = line.partition("  #")
                    command = command if whole else shortened(command)
                    done = subprocess.run(
                        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
                    )
                    said = done.stdout
                    exits = re.search(r"exits with (\d)", comment)
                    code = int(exits[1]) if exits else 0
                    assert done.returncode == code, f"{line}\n{said}{done.stderr}"
            case "text":
                assert block in said, said


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language_that_is_tested(page):
    assert {language for language, _ in blocks(PAGES[page])} <= RUN | CHECKED
    assert len(re.findall("^```", PAGES[page], flags=re.MULTILINE)) == 2 * len(FENCED.findall(PAGES[page]))


@pytest.mark.parametrize("line", sorted({line for text in PAGES.values() for line in commands(text)}))
def test_a_command_that_is_not_run_names_what_exists(line):
    # Running these would install packages, take hours, or need a GPU or a cluster.
    program, *arguments = line.split()
    match program:
        case "make":
            done = subprocess.run(
                ["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        case "python":
            assert arguments[0] == "-m"
            assert importlib.util.find_spec(arguments[1]) is not None
        case "attn-spec":
            options = {option for parameter in main.commands[arguments[0]].params for option in parameter.opts}
            assert {each for each in arguments if each.startswith("--")} <= options
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            named = re.search(r"\[(.*)\]", line)
            assert set(named[1].split(",") if named else ()) <= extras.keys()
        case _:
            pytest.fail(f"no check for {program}")


def test_the_workflow_of_the_page_on_ci_runs_its_command():
    text = PAGES["docs/how-to/ci.md"]
    (workflow,) = (yaml.safe_load(block) for language, block in blocks(text) if language == "yaml")
    steps = [step.get("run", "") for step in workflow["jobs"]["attention"]["steps"]]

    assert "attn-spec certify" in steps
    assert ("sh", "attn-spec certify\n") in blocks(text)


def test_every_sentence_about_an_exit_code_is_shown_by_a_test():
    prose = " ".join(" ".join(FENCED.sub("", text) for text in PAGES.values()).split())
    told = re.findall(r"(?:exits?|ends?)(?: there,)? with (?:exit code )?\d|exit code is \d", prose)

    for sentence, shown in SENTENCES.items():
        assert prose.count(sentence) == 1
        file, name = shown.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert len(told) == len(SENTENCES)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_outside_the_site_have_targets(page):
    # Sphinx checks those of the site.
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))

    assert [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()] == []


def test_readme_is_a_screen():
    text = PAGES["README.md"]

    assert len(text.splitlines()) <= 120
    assert len(text.encode()) <= 6_500


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_prose_keeps_the_line_length_and_names_its_links(page):
    prose = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))

    assert "[](" not in prose
    assert [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")] == []


def test_sentences_are_short_enough_to_be_read_once():
    others = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
    texts = PAGES | others

    assert {page: found for page, text in texts.items() if (found := long_sentences(text))} == {}


def long_sentences(text, most=25):
    """Return the sentences of a page that have more words than a reader keeps in mind."""
    prose = re.sub(r"\$\$.*?\$\$", "x", FENCED.sub("\n\n", text), flags=re.DOTALL)
    prose = re.sub(r"^(#|\||!|\d+\. ).*$", "", re.sub(r"\$[^$]+\$", "x", prose), flags=re.MULTILINE)
    paragraphs = re.split(r"\n\s*\n|\n(?=- |  - )", prose)
    sentences = (sentence for part in paragraphs for sentence in re.split(r"(?<=[.?])\s", " ".join(part.split())))
    return [sentence for sentence in sentences if len(re.sub(r"`[^`]*`|\]\([^)]*\)", "x", sentence).split()) > most]


def test_the_site_builds_without_a_warning_and_loads_nothing_from_outside(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-d", str(tmp_path / "read")]
    site = tmp_path / "site"
    done = subprocess.run([*command, "docs", str(site)], cwd=ROOT, capture_output=True, text=True, check=False)
    loading = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?//[^>]*>")
    found = {page.name: loading.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}

    assert done.returncode == 0, done.stderr
    assert {name: links for name, links in found.items() if links} == {}
    assert {f"{name}.html" for name in pages.pages()} <= {page.name for page in (site / "reference").iterdir()}


@pytest.mark.parametrize(
    "template", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda it: it.stem
)
def test_an_issue_asks_for_evidence(template):
    form = yaml.safe_load(template.read_text(encoding="utf-8"))
    asked = " ".join(str(part["attributes"]) for part in form["body"])

    assert {"name", "description", "body"} <= form.keys()
    assert "certificate.json" in asked
    assert ".attn-spec/cases/ID.json" in asked
