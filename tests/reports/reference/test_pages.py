"""Pages of the reference hold every word, field, command and exit code of the code as it is now."""

import json
import re

import click
import pytest
from attn_spec.reports.proof.zoo.mutants import load_all
from attn_spec.reports.reference import api, certificate, commands, markdown, pages, words

import attn_spec
from attn_spec import pytest_plugin
from attn_spec.cli import exit_codes
from attn_spec.cli.command import main
from attn_spec.evidence.certificate import schema
from attn_spec.kernels.kernel import DECLARABLE
from attn_spec.vocabulary.kinds import kinds


@pytest.fixture(scope="module")
def written():
    return pages.pages()


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_the_page_of_a_kind_has_a_section_for_each_of_its_words(kind, written):
    sections = re.findall(r"^##+ `(.+)`$", written[kind.plural], flags=re.MULTILINE)

    assert sections == [word.name for word in kind.words()]


def test_the_tables_of_options_and_abilities_name_all_that_a_kernel_may_declare(written):
    names = re.findall(r"^\| `(\w+)` \|", written["options"] + written["abilities"], flags=re.MULTILINE)

    assert [name for name in names if name != "supports"] == list(DECLARABLE)


@pytest.mark.parametrize("name", words.CHOOSERS)
def test_a_table_has_as_many_cells_in_every_line(name):
    (kind,) = (kind for kind in kinds() if kind.name == name)
    lines = [line for line in words.CHOOSERS[name](kind.words()).splitlines() if line.startswith("|")]

    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_the_first_value_of_a_convention_is_its_default():
    lines = words.conventions().splitlines()[2:]

    for line in lines:
        name, first = re.match(r"\| `(\w+)` \| .* \| `([^`]+)`: ", line).groups()
        assert first == repr(getattr(attn_spec.Conventions(), name))


def test_a_library_without_a_convention_has_an_empty_cell():
    (line,) = (line for line in words.libraries().splitlines() if "Triton tutorial 06" in line)

    assert line == "| `Triton tutorial 06` | BHSD | top\\_left |  | 2 |  |  |  |  |"


def test_the_command_line_has_every_command_with_its_options():
    text = commands.command_line()

    assert text.count("  -h, --help") == len(main.commands) + 1
    for name, command in main.commands.items():
        section = text.partition(f"## attn-spec {name}\n")[2].partition("\n## ")[0]
        for option in (each for each in command.params if isinstance(each, click.Option)):
            assert option.opts[-1] in section


def test_the_options_of_pytest_are_those_of_the_plugin():
    found = re.findall(r"^\| `--attn-([\w-]+)` \| \S", commands.pytest_options(), flags=re.MULTILINE)

    assert found == list(pytest_plugin.OPTIONS)


def test_each_exit_code_has_a_meaning():
    known = {*exit_codes.CODES.values(), exit_codes.COULD_NOT_RUN, exit_codes.NOT_SEEN}

    assert exit_codes.MEANINGS.keys() == known | {exit_codes.INTERRUPTED, exit_codes.UNREAD}
    assert all(f"\n| {code} | " in commands.exit_codes() for code in exit_codes.MEANINGS)


def test_the_page_on_the_certificate_has_every_field_and_the_schema():
    text = certificate.page()
    (shown,) = re.findall(r"^```json\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)

    assert json.loads(shown) == schema()
    for name, part in schema()["$defs"].items():
        if "properties" not in part:  # an enumeration
            continue
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == list(part["properties"])


def test_the_api_is_what_the_package_exports():
    found = re.findall(r"^\.\. auto(?:class|function):: attn_spec\.(\w+)$", api.page(), flags=re.MULTILINE)

    assert found == sorted(attn_spec.__all__)


def test_each_mutant_has_a_line_with_the_property_that_names_its_bug(written):
    found = re.findall(r"^\| `(\w+)` \| .* \| `([\w.]+)` \|$", written["mutants"], flags=re.MULTILINE)

    assert dict(found) == {mutant.id: mutant.named_by for mutant in load_all()[0].values()}


def test_a_text_is_shown_as_it_is():
    assert markdown.escaped("|a| * b_c <= [d] `e`") == r"\|a\| \* b\_c \<= \[d\] \`e\`"


def test_pages_that_are_gone_are_deleted_and_those_that_stay_are_not_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "pages", lambda: {"a": "# A", "b": "# B"})
    pages.write(tmp_path)
    before = (tmp_path / "a.md").stat().st_mtime_ns
    monkeypatch.setattr(pages, "pages", lambda: {"a": "# A"})
    pages.write(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.md", "index.md"]
    assert (tmp_path / "a.md").stat().st_mtime_ns == before
    assert "b" not in (tmp_path / "index.md").read_text().split()
