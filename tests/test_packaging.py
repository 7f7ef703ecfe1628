"""The wheel: what is in it, what it installs beside, and that a kernel is certified with it from an empty folder."""

import email
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import installations
from tests.installations import oldest

ROOT = Path(__file__).parent.parent
FOLDERS = ("attn_spec", "properties", "implementations", "reports")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of what git tracks."""
    copy, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in tracked():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    copy.joinpath("attn_spec", "scratch.log").write_text("not for shipping")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def tracked():
    """Return the paths that git tracks, or would once they are added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def test_the_wheel_holds_the_four_folders_and_nothing_else(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    wanted = []
    for name in tracked():
        folder = name.partition("/")[0]
        if folder in FOLDERS and name.endswith((".py", ".jinja", ".toml", "py.typed")):
            wanted.append(name if folder == "attn_spec" else f"attn_spec/{name}")

    assert sorted(names) == sorted(wanted)


def test_the_wheel_has_one_top_level_name(wheel):
    done = subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", "--config", str(ROOT / "pyproject.toml"), str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


#: Requires-Dist of the wheels of PyTorch on PyPI, without those of NVIDIA's libraries and of extras.
OF_TORCH = {
    "2.5.1": """
        filelock
        typing-extensions (>=4.8.0)
        networkx
        jinja2
        fsspec
        triton (==3.1.0) ; platform_system == "Linux" and platform_machine == "x86_64" and python_version < "3.13"
        sympy (==1.12.1) ; python_version == "3.8"
        setuptools ; python_version >= "3.12"
        sympy (==1.13.1) ; python_version >= "3.9"
    """,
    "2.9.1": """
        filelock
        typing-extensions>=4.10.0
        setuptools; python_version >= "3.12"
        sympy>=1.13.3
        networkx>=2.5.1
        jinja2
        fsspec>=0.8.5
        triton==3.5.1; platform_system == "Linux" and platform_machine == "x86_64"
    """,
}
LINUX = {"platform_system": "Linux", "platform_machine": "x86_64", "sys_platform": "linux", "python_version": "3.11"}


def pins(release):
    """Return the versions that a release of PyTorch pins on Linux, its own among them."""
    listed = [Requirement(line) for line in OF_TORCH[release].split("\n") if line.strip()]
    pinned = [each for each in listed if "==" in str(each.specifier) and applies(each)]
    return {"torch": release, **{each.name: str(each.specifier).removeprefix("==") for each in pinned}}


def applies(requirement, extra=""):
    return requirement.marker is None or requirement.marker.evaluate({**LINUX, "extra": extra})


def refused(requirements, pinned, extra=""):
    """Return the requirements that exclude a pinned version."""
    active = [Requirement(each) for each in requirements]
    return [
        str(each)
        for each in active
        if applies(each, extra) and each.name in pinned and not each.specifier.contains(pinned[each.name])
    ]


@pytest.fixture(scope="module")
def metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(archive.read(name))


@pytest.mark.parametrize("release", OF_TORCH)
@pytest.mark.parametrize("extra", ["", "torch", "triton", "jax", "mlx", "onnx", "report", "dask"])
def test_the_wheel_installs_beside_a_torch_that_pins_what_it_needs(metadata, release, extra):
    assert refused(metadata.get_all("Requires-Dist"), pins(release), extra) == []


def test_a_bound_that_fights_a_pin_would_be_seen():
    assert pins("2.9.1") == {"torch": "2.9.1", "triton": "3.5.1"}
    assert refused(["triton>=3.9; sys_platform == 'linux'", "numpy>=1.26"], pins("2.9.1")) == [
        'triton>=3.9; sys_platform == "linux"'
    ]


def test_no_library_of_tensors_is_needed(metadata):
    needed = {each.name for each in map(Requirement, metadata.get_all("Requires-Dist")) if applies(each)}

    assert needed.isdisjoint({"torch", "triton", "jax", "mlx", "onnxruntime"})
    assert set(metadata.get_all("Provides-Extra")) == {"dask", "jax", "mlx", "onnx", "report", "torch", "triton"}


def test_the_wheel_says_how_it_is_licensed_and_for_which_python(wheel, metadata):
    named = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/licenses/LICENSE")]

    assert len(named) == 1
    assert metadata["License-Expression"] == "Apache-2.0"
    assert zipfile.ZipFile(wheel).read(named[0]) == (ROOT / "LICENSE").read_bytes()
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Programming Language :: Python :: 3.11" in metadata.get_all("Classifier")


def test_the_readme_names_the_versions_that_the_tests_run_with():
    pinned = dict(re.findall(r"^(\w+)==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")

    assert (
        f"with Python {python}, PyTorch {pinned['torch']}, JAX {pinned['jax']}, MLX {pinned['mlx']}, "
        f"Triton {pinned['triton']} and NumPy {pinned['numpy']}, as `constraints.txt` pins them" in said
    )


KERNEL = """
from attn_spec import kernel
import numpy as np

@kernel(framework="numpy", dtypes=("float32",), contract="fused")
def attention(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v
"""


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return Python of a fresh environment with the wheel; dependencies come from this one, by a path file."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    zipfile.ZipFile(wheel).extractall(site)
    # Appended to the path, and without its .pth files, so that the editable attn-spec there is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def run(python, folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [str(python), *arguments], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (("--property", "accuracy", "--property", "softmax"), r", \d+ properties alone"),
        pytest.param((), "", marks=pytest.mark.exhaustive),
    ],
)
def test_the_installed_wheel_certifies_a_kernel_from_an_empty_folder(python, folder, asked, part):
    folder.joinpath("mine.py").write_text(KERNEL)
    where = run(
        python, folder, "-c", "import attn_spec, attn_spec.properties as p; print(attn_spec.__file__, *p.__path__)"
    )
    assert str(ROOT) not in where.stdout, where.stdout

    done = run(python, folder, "-m", "attn_spec", "certify", "mine.py:attention", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"PASSED \(smoke: 10 problems a property{part}\)\n$", done.stdout)
    assert {path.name for path in folder.iterdir()} - {".attn-spec"} == {"mine.py", "certificate.json", "__pycache__"}


def test_the_oldest_versions_are_those_of_the_lower_bounds():
    assert oldest(["numpy>=1.26", "rich>=13", "ml-dtypes>=0.5.1"]) == [
        "numpy==1.26.*",
        "rich==13.0.*",
        "ml-dtypes==0.5.1.*",
    ]
    assert len(oldest(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])) > 5
    with pytest.raises(ValueError, match="'numpy<3' has no lower bound alone; write name>=version"):
        oldest(["numpy<3"])


def test_an_environment_in_which_nothing_installs_is_told(monkeypatch, capsys):
    monkeypatch.setattr(installations, "certifies", lambda python, constraints: "no" if constraints else "")

    assert installations.main(["python3"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "python3, newest versions: a right kernel passes, a wrong one is refuted",
        "python3, oldest versions: no",
    ]


def test_a_python_that_does_not_start_is_told():
    assert "exit status 1, not 0" in installations.certifies("false", [])


def test_a_hostile_folder_does_no_harm(python, folder):
    folder.joinpath("mine.py").write_text(KERNEL)
    folder.joinpath("pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    folder.joinpath("conftest.py").write_text("raise SystemExit('not me')\n")
    folder.joinpath("properties").mkdir()
    folder.joinpath("properties", "__init__.py").write_text("raise SystemExit('nor me')\n")
    done = run(python, folder, "-m", "attn_spec", "certify", "mine:attention", "--property", "accuracy.output")

    assert done.returncode == 0, done.stdout + done.stderr
    assert " 1 held, 0 refuted" in done.stdout


def test_the_properties_run_under_the_users_own_pytest(python, folder):
    folder.joinpath("mine.py").write_text(KERNEL)
    options = (
        "--pyargs",
        "attn_spec.properties",
        "--attn-kernel",
        "mine:attention",
        "--attn-property",
        "accuracy.output",
    )
    done = run(python, folder, "-m", "pytest", "-p", "attn_spec.pytest_plugin", *options)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " 1 held, 0 refuted" in done.stdout


def test_nothing_in_the_tree_imports_the_mapped_folders_by_their_bare_names():
    for name in tracked():
        if name.endswith(".py") and name.split("/")[0] in FOLDERS:
            for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
                bare = line.lstrip().startswith(
                    tuple(f"{verb} {folder}" for verb in ("import", "from") for folder in FOLDERS[1:])
                )
                assert not bare, f"{name}: {line}"
