"""The pages of the theory name what exists: functions, terms and theorems, and each term stands on one page."""

import importlib
import re
from itertools import pairwise
from pathlib import Path

import pytest
from attn_spec.reports.proof.witnesses.names import named

THEORY = Path(__file__).parent.parent / "docs" / "theory"
INDEX = (THEORY / "index.md").read_text(encoding="utf-8")
#: Every page of the theory, in the order of its table of contents.
LISTED = "\n".join(re.findall(r"^```\{toctree\}\n(.*?)^```", INDEX, re.MULTILINE | re.DOTALL)).split("\n")
PAGES = {
    name: (THEORY / f"{name}.md").read_text(encoding="utf-8") for name in LISTED if name and not name.startswith(":")
}
THEOREM = re.compile(r"^## Theorem (\d+)\.(\d+): .+$", re.MULTILINE)


def quoted(line):
    return re.findall(r"`([^`]+)`", line)


def lines_of(text, word):
    """Return the names in backquotes of each paragraph that begins with a word in italics."""
    return [quoted(found) for found in re.findall(rf"^\*{word}\*: (.*?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)]


def theorems(text):
    """Return the theorems of a page, each with its heading and its text."""
    return re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]


def terms(text):
    """Return the names of terms that the tables of a text list."""
    blocks = re.findall(r"^```\{terms\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.split(" | ")[0].strip() for block in blocks for line in block.splitlines()]


def modules(text):
    return [module for names in lines_of(text, "Modules") for module in names]


def resolved(name):
    """Return what a dotted name of the package means: a module, or what stands in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["attn_spec", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def test_every_page_is_in_the_table_of_contents():
    assert sorted(PAGES) == sorted(path.stem for path in THEORY.glob("*.md") if path.stem != "index")


def test_theorems_are_numbered_in_order():
    numbers = {name: [tuple(map(int, found)) for found in THEOREM.findall(text)] for name, text in PAGES.items()}
    chapters = [found[0][0] for found in numbers.values() if found]

    assert all(found == [(found[0][0], n + 1) for n in range(len(found))] for found in numbers.values())
    assert all(one < other for one, other in pairwise(chapters))


@pytest.mark.parametrize("page", PAGES)
def test_a_theorem_has_its_parts(page):
    for theorem in theorems(PAGES[page]):
        heading = theorem.splitlines()[0]
        if THEOREM.match(heading):
            for part in ("**Statement.**", "**Proof.**", "*Code*: "):
                assert theorem.count(part) == 1, f"{heading} has no or several {part}"


@pytest.mark.parametrize("page", PAGES)
def test_the_code_that_a_page_names_exists(page):
    names = [name for found in lines_of(PAGES[page], "Code") for name in found] + modules(PAGES[page])

    for name in names:
        resolved(name)


@pytest.mark.parametrize("page", PAGES)
def test_theorems_that_are_referred_to_exist(page):
    known = {found for text in PAGES.values() for found in THEOREM.findall(text)}

    assert set(re.findall(r"[Tt]heorems? (\d+)\.(\d+)", PAGES[page])) <= known


def test_every_term_of_a_covered_module_stands_on_one_page():
    covered = {module for text in PAGES.values() for module in modules(text)}
    stands = [name for text in PAGES.values() for name in terms(text)]
    needed = {name for name, where in named().items() if set(where) & covered}

    assert sorted(name for name in set(stands) if stands.count(name) > 1) == []
    assert sorted(set(stands) - named().keys()) == []
    assert sorted(needed - set(stands)) == []


def test_a_term_stands_on_the_page_of_its_module():
    misplaced = {
        (page, name) for page, text in PAGES.items() for name in terms(text) if not {*named()[name]} & {*modules(text)}
    }

    assert misplaced == set()


def test_every_module_with_terms_is_covered_once():
    covered = [module for text in PAGES.values() for module in modules(text)]
    have_terms = {module for where in named().values() for module in where}

    assert len(covered) == len(set(covered))
    assert have_terms <= set(covered)
