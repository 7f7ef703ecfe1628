"""The table [tool.attn_spec]: what certify examines without arguments, and what is wrong with a table."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from attn_spec.cli import command as cli
from attn_spec.cli import configuration

TABLE = """
[tool.attn_spec]
kernels = ["mine.py:sound", "mine.py:zeros"]
property = ["accuracy.output"]
dtype = ["float32"]
seed = 5
workers = 1
output = "found.json"
"""


def read(table):
    """Return certify's kernels and defaults where a table stands in this folder and no kernel is named."""
    configuration.FILE.write_text(table)
    context = click.Context(cli.certify)
    kernels = configuration.kernels(context, cli.certify.params[0], ())
    return kernels, context.default_map


@pytest.fixture
def examined(monkeypatch):
    """Return what would be examined, with its options; the second kernel is refuted."""
    found = []

    def examine(kernel, output, report, **chosen):
        found.append((kernel, output, report, chosen))
        return len(found) - 1

    monkeypatch.setattr(cli, "_certify_one", examine)
    return found


def test_without_arguments_the_kernels_of_the_table_are_examined_by_its_options(folder, examined):
    folder.joinpath("pyproject.toml").write_text(TABLE)
    done = CliRunner().invoke(cli.main, ["certify", "--seed", "6"])

    assert done.exit_code == 1, done.output
    assert [one[:3] for one in examined] == [
        ("mine.py:sound", Path("found-mine_py_sound.json"), None),
        ("mine.py:zeros", Path("found-mine_py_zeros.json"), None),
    ]
    assert examined[0][3] == examined[1][3]
    assert {"only": ("accuracy.output",), "dtypes": ("float32",), "seed": 6, "workers": 1}.items() <= examined[0][
        3
    ].items()


def test_one_kernel_has_the_certificate_as_it_is_named(folder, examined):
    CliRunner().invoke(cli.main, ["certify", "mine.py:sound", "-o", "one.json", "--report", "page.html"])

    assert examined[0][:3] == ("mine.py:sound", Path("one.json"), Path("page.html"))


def test_a_kernel_that_is_named_is_examined_without_the_table(folder):
    configuration.FILE.write_text("[tool.attn_spec]\nno = such\n")
    context = click.Context(cli.certify)

    assert configuration.kernels(context, cli.certify.params[0], ("numpy_tiled",)) == ("numpy_tiled",)
    assert context.default_map is None


def test_options_are_named_as_the_command_names_them(folder):
    kernels, options = read(
        '[tool.attn_spec]\nkernels = ["a.py:f"]\nproperty = ["mask"]\ncall_limit = 5\nprofile = "ci"\n'
    )

    assert kernels == ("a.py:f",)
    assert options == {"only": ["mask"], "call_limit": 5, "profile": "ci"}


def test_known_defects_may_stand_in_the_table(folder):
    _, options = read('[tool.attn_spec]\nkernels = ["a.py:f"]\n[[tool.attn_spec.defect]]\nreason = "r"\n')

    assert options == {"known_defects": "pyproject.toml"}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            "",
            "no kernel is named, and pyproject.toml has no table [tool.attn_spec]; name a kernel, or list kernels in ",
        ),
        ("[tool", "pyproject.toml cannot be read: "),
        (
            "[tool.attn_spec]\n",
            "[tool.attn_spec] of pyproject.toml needs kernels, a list of names of kernels, not None",
        ),
        ('[tool.attn_spec]\nkernels = "a.py:f"\n', "needs kernels, a list of names of kernels, not 'a.py:f'"),
        (
            '[tool.attn_spec]\nkernels = ["a"]\nprofil = "ci"\n',
            "has unknown keys profil; known are call_limit, contract, ",
        ),
        (
            '[tool.attn_spec]\nkernels = ["a"]\ndtype = "float32"\n',
            "dtype in [tool.attn_spec] of pyproject.toml must be a ",
        ),
        (
            '[tool.attn_spec]\nkernels = ["a"]\nseed = [1]\n',
            "seed in [tool.attn_spec] of pyproject.toml must be one value",
        ),
        (
            '[tool.attn_spec]\nkernels = ["a"]\nknown_defects = "k.toml"\n[[tool.attn_spec.defect]]\nreason = "r"\n',
            "[tool.attn_spec] of pyproject.toml has known_defects and defect; keep all known defects in one of them",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_that_says_what_to_change(folder, table, said):
    with pytest.raises(configuration.ConfigurationError) as raised:
        read(table)

    assert said in str(raised.value)


def test_without_a_kernel_and_a_table_the_command_ends_with_two(folder):
    done = CliRunner().invoke(cli.main, ["certify"])

    assert done.exit_code == 2
    assert "has no pyproject.toml; name a kernel, or list kernels in [tool.attn_spec]" in done.output


def test_a_value_that_is_wrong_is_refused_as_on_the_command_line(folder):
    configuration.FILE.write_text('[tool.attn_spec]\nkernels = ["numpy_tiled"]\nprofile = "long"\n')
    done = CliRunner().invoke(cli.main, ["certify"])

    assert done.exit_code == 2
    assert "Invalid value for '--profile': 'long' is not one of 'smoke', 'ci', 'certify'." in done.output
