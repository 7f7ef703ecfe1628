"""The README holds its tables as the code writes them."""

import re
from pathlib import Path

import pytest
from attn_spec.reports import readme_tables
from attn_spec.reports.readme_tables import TABLES, ReadmeError, markers

from attn_spec.kernels.kernel import DECLARABLE

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_the_readme_holds_each_table_as_it_is_now(name):
    written = readme_tables.written(README, [name])

    assert written == README, "run: python -m attn_spec.reports.readme_tables README.md"


def test_the_table_of_options_names_all_that_a_kernel_may_declare():
    names = re.findall(r"^\| `(\w+)` \|", readme_tables.options(), flags=re.MULTILINE)

    assert names[1:] == list(DECLARABLE)


def test_a_table_has_as_many_cells_in_every_line():
    for name in TABLES.keys() - {"members"}:
        assert len({line.count("|") for line in TABLES[name]().splitlines()}) == 1, name


def test_a_readme_without_a_place_for_a_table_is_an_error_that_shows_the_lines():
    begin, end = markers("contracts")

    with pytest.raises(ReadmeError) as raised:
        readme_tables.written("# a readme\n", ["contracts"])
    assert str(raised.value) == (
        f"the README has no place for the table of contracts; put these lines into it:\n{begin}\n{end}"
    )


def test_the_command_replaces_what_stands_between_the_markers(tmp_path, monkeypatch):
    monkeypatch.setitem(TABLES, "members", lambda: "| member |")
    readme = tmp_path / "README.md"
    between = "".join(f"{markers(name)[0]}\nold\n{markers(name)[1]}\n" for name in TABLES)
    readme.write_text(f"before\n{between}after\n")
    readme_tables.main(str(readme))
    lines = readme.read_text().splitlines()

    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert readme_tables.contracts().splitlines()[2] in lines
