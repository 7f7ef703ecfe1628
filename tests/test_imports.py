"""Modules that starting pytest or the command must not import: an unrelated run pays for nothing heavy."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attn_spec


def test_an_unrelated_pytest_run_imports_nothing_heavy(tmp_path):
    tmp_path.joinpath("test_other.py").write_text("def test_nothing(): pass\n")
    code = (
        "import sys, pytest\n"
        "assert pytest.main(['-q', '-p', 'attn_spec.pytest_plugin', '-p', 'no:cacheprovider']) == 0\n"
        "print(sorted({'torch', 'hypothesis', 'numpy', 'pydantic', 'click'} & set(sys.modules)))\n"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)

    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_the_command_imports_nothing_heavy():
    heavy = "{'torch', 'hypothesis', 'numpy', 'pydantic'}"
    code = f"import sys, attn_spec.cli.command; print(sorted({heavy} & set(sys.modules)))"
    # What waits for the processes that examine reads their documents, which pydantic does.
    certifying = f"; import attn_spec.cli.certification; print(sorted({heavy} - {{'pydantic'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code + certifying], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n[]\n"


@pytest.mark.parametrize("kernel", ["numpy_naive", "numpy_tiled"])
def test_a_numpy_kernel_imports_no_other_framework(kernel):
    code = (
        f"import sys; from attn_spec.kernels.resolve import resolve; resolve({kernel!r}); "
        "print(sorted({'torch', 'jax', 'mlx', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_the_package_lists_its_public_names():
    import attn_spec

    assert set(attn_spec.__all__) <= set(dir(attn_spec))


#: The package loads its names when they are asked for; properties lie above those who search.
BY_NAME = {"__init__.py", "search/property.py"}


def test_no_module_looks_another_up_by_a_string_past_the_layers():
    package = Path(attn_spec.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
                said = ast.unparse(node.args[0]).lstrip("f").strip("'")
                found |= {path.relative_to(package).as_posix()} if said.startswith("attn_spec") else set()

    assert found == BY_NAME
