"""Packaging: project file, lock file, make targets and install script."""

from __future__ import annotations

import ast
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.soaking import always, heavy

pytestmark = heavy

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
IMPORT_NAMES = {  # packages whose import name differs from the package name
    "grpcio": "grpc",
    "hydra-core": "hydra",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "protobuf": "google",
    "psycopg2-binary": "psycopg2",
    "python-dotenv": "dotenv",
    "pyyaml": "yaml",
}
STARTED_NOT_IMPORTED = {
    "fastapi": "a bound on what Prefect brings",
    "dvc": "its command runs the stages of dvc.yaml",
}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@functools.cache
def locked() -> dict[str, list[tuple[Requirement, int]]]:
    """Return the pins of each package with their number of hashes."""
    pins: dict[str, list[tuple[Requirement, int]]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text()):
        if entry.startswith("#"):
            continue
        pin = Requirement(entry.split("\\\n")[0].strip())
        pins.setdefault(canonicalize_name(pin.name), []).append((pin, entry.count("--hash=sha256:")))
    return pins


def pin_for(package: str, python: str) -> Requirement | None:
    environment = default_environment() | {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python if python.count(".") == 2 else f"{python}.4",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    fitting = [
        pin
        for pin, _ in locked().get(canonicalize_name(package), [])
        if not pin.marker or pin.marker.evaluate(environment)
    ]
    assert len(fitting) <= 1, f"{package} is pinned twice for Python {python}"
    return fitting[0] if fitting else None


def version_of(pin: Requirement) -> str:
    (exact,) = pin.specifier
    assert exact.operator == "=="
    return exact.version


NOT_LOCKED = {"all", "dashboard"}


def locked_extras() -> list[str]:
    """Return the requirements of the extras that the lock file contains."""
    extras = project()["optional-dependencies"].items()
    return [name for extra, names in extras if extra not in NOT_LOCKED for name in names]


def direct_requirements() -> list[Requirement]:
    return [Requirement(name) for name in project()["dependencies"] + locked_extras()]


@always
@pytest.mark.parametrize("python", PYTHONS)
def test_lock_pins_every_direct_requirement(python: str):
    for requirement in direct_requirements():
        if requirement.name == "torch":
            continue
        pin = pin_for(requirement.name, python)
        assert pin is not None, f"{requirement.name} is not in the lock for Python {python}"
        assert requirement.specifier.contains(version_of(pin)), (str(requirement), str(pin))


def test_every_locked_package_has_hash():
    assert all(hashes for pins in locked().values() for _, hashes in pins)


def test_lock_excludes_torch_and_cuda_packages():
    names = set(locked())
    assert not {name for name in names if re.match(r"(torch|triton)$|(nvidia|cuda)-", name)}
    assert {"sympy", "networkx", "jinja2", "filelock", "fsspec", "mpmath", "typing-extensions"} <= names


@always
def test_requirements_exclude_malicious_and_broken_releases():
    by_name = {requirement.name: requirement.specifier for requirement in direct_requirements()}
    assert not any(by_name["lightning-fabric"].contains(bad) for bad in ("2.6.2", "2.6.3"))
    assert not by_name["fastapi"].contains("0.165.0")
    assert not by_name["mujoco"].contains("4.0.0")


def imported_packages() -> set[str]:
    names: set[str] = set()
    for part in ("rlcore", "flows"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.split(".")[0])
    return names


@always
def test_declared_and_imported_packages_are_equal():
    required = {Requirement(name).name for name in project()["dependencies"]}
    extras = project()["optional-dependencies"]
    optional = {Requirement(name).name for extra in extras.keys() - {"all", "dev"} for name in extras[extra]}
    by_import = {IMPORT_NAMES.get(name, name.replace("-", "_")): name for name in required | optional}
    third_party = imported_packages() - set(sys.stdlib_module_names) - {"rlcore", "flows"}
    assert third_party <= set(by_import), "imported but not declared"
    unused = required - {by_import[name] for name in third_party & set(by_import)} - set(STARTED_NOT_IMPORTED)
    assert not unused, "declared but not imported"


def test_installed_packages_match_lock():
    if not (ROOT / ".venv" / ".installed").exists() or Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("not running in the .venv that `make install` makes")
    for name in locked():
        pin = pin_for(name, platform.python_version())
        if pin is not None:
            assert metadata.version(name) == version_of(pin)
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout


def test_wheel_contains_configs_and_command(tmp_path: Path):
    source = tmp_path / "source"
    for part in ("rlcore", "flows", "conf"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source / name)
    build = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "wheel", "zip")
    packed = {path.relative_to(tmp_path / "wheel") for path in (tmp_path / "wheel").rglob("*")}
    for part in ("rlcore", "flows", "conf"):
        wanted = [
            path.relative_to(source) for kind in ("*.py", "*.yaml", "py.typed") for path in (source / part).rglob(kind)
        ]
        assert wanted, part
        assert set(wanted) <= packed
    assert not {path.parts[0] for path in packed} & {"tests", "docs", "benchmarks"}
    (entry,) = (tmp_path / "wheel").glob("*.dist-info/entry_points.txt")
    assert "shepherd = flows.cli.main:main" in entry.read_text()


def install_in(checkout: Path, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the install script in a separate checkout without lock file and network."""
    (checkout / ".ci").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / ".ci" / "install", checkout / ".ci" / "install")
    return subprocess.run(
        ["/bin/bash", str(checkout / ".ci" / "install")],
        env={"PATH": path, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def folder_with(folder: Path, *commands: str) -> str:
    """Return a PATH of one folder that contains only these commands."""
    folder.mkdir()
    for command in commands:
        where = shutil.which(command)
        assert where is not None, command
        (folder / command).symlink_to(where)
    return str(folder)


BASICS = ("uname", "dirname", "mkdir", "grep", "cat", "ls")


@pytest.mark.parametrize(
    ("present", "python", "sentence"),
    [
        ((*BASICS, "g++"), sys.executable, "git is missing"),
        ((*BASICS, "git"), sys.executable, "C++ compiler is missing"),
        ((*BASICS, "git", "g++"), "/nowhere/python9", "3.11, 3.12 or 3.13 is required, got PYTHON=/nowhere/python9"),
    ],
)
def test_install_names_missing_prerequisite_in_one_line(tmp_path: Path, present: tuple, python: str, sentence: str):
    done = install_in(tmp_path / "checkout", folder_with(tmp_path / "bin", *present), PYTHON=python)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "checkout" / ".venv").exists()


@pytest.mark.parametrize(
    ("fails", "sentence"), [("ensurepip", "cannot create virtual environments"), ("sysconfig", "C headers")]
)
def test_install_names_python_without_venv_or_headers(tmp_path: Path, fails: str, sentence: str):
    path = folder_with(tmp_path / "bin", *BASICS, "git", "g++")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\ncase "$*" in *{fails}*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = install_in(tmp_path / "checkout", path, PYTHON=str(python))
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_failed_install_leaves_no_environment_and_names_log(tmp_path: Path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text("")
    (checkout / "requirements.lock").write_text("")
    done = install_in(checkout, os.environ["PATH"], PYTHON=sys.executable, TORCH="torch==0.0.0", TORCH_INDEX="pip")
    assert done.returncode == 1
    assert ".shepherd/install.log" in done.stderr
    assert "torch==0.0.0" in (checkout / ".shepherd" / "install.log").read_text()  # the reason from pip
    assert not (checkout / ".venv").exists()  # no incomplete environment is left


BACKEND = """
import zipfile
def build_editable(folder, settings=None, metadata=None):
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("tiny.py", "def main(): print('tiny')")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.0.dist-info/entry_points.txt", "[console_scripts]\\ntiny = tiny:main\\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return name
"""


@pytest.mark.slow
def test_install_in_moved_checkout_replaces_environment(tmp_path: Path) -> None:
    checkout = tmp_path / "moved here"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/.installed").write_text("/another/place ...")
    worked = checkout / ".venv/bin/worked"
    worked.write_text("")
    (checkout / "requirements.lock").write_text("")
    (checkout / "backend.py").write_text(BACKEND)
    build = 'requires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (checkout / "pyproject.toml").write_text(f'[build-system]\n{build}[project]\nname = "tiny"\nversion = "1.0"\n')
    given = {"PYTHON": sys.executable, "TORCH_INDEX": "pip"}
    failed = install_in(checkout, os.environ["PATH"], TORCH="torch==0.0.0", **given)
    assert failed.returncode == 1
    assert worked.exists() and (checkout / ".venv/.installed").exists()
    done = install_in(checkout, os.environ["PATH"], TORCH="pip", **given)  # already installed: nothing to download
    assert done.returncode == 0, done.stderr + (checkout / ".shepherd/install.log").read_text()
    assert not worked.exists()
    output = subprocess.run([checkout / ".venv/bin/tiny"], capture_output=True, text=True, check=True).stdout
    assert output == "tiny\n"
    scripts = "".join(path.read_text() for path in (checkout / ".venv/bin").glob("[at]*"))
    assert f"{checkout}/.venv" in scripts and ".shepherd" not in scripts
    assert {path.name for path in (checkout / ".shepherd").iterdir()} == {"install.log", "install.lock", "last.txt"}
    assert install_in(checkout, os.environ["PATH"], TORCH="pip", **given).stdout == ""  # everything is installed


@always
@pytest.mark.parametrize(("arguments", "runs_left"), [([], True), (["CLEAN_RUNS=1"], False)])
def test_make_clean_keeps_runs_and_other_files(tmp_path: Path, arguments: list[str], runs_left: bool):
    shutil.copy(ROOT / "Makefile", tmp_path / "Makefile")
    for folder in (".venv", ".shepherd", "build", "runs/ppo", "rlcore/__pycache__", "mine/__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("flows", "conf", "tests"):  # no benchmarks/: a missing folder is no failure
        (tmp_path / folder).mkdir()
    (tmp_path / ".env").write_text("")
    subprocess.run(["make", "clean", *arguments], cwd=tmp_path, check=True, capture_output=True)
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"runs"} == {"Makefile", ".env", "rlcore", "flows", "conf", "tests", "mine"}
    assert ("runs" in left) is runs_left
    assert (tmp_path / "mine" / "__pycache__").exists()
    assert not (tmp_path / "rlcore" / "__pycache__").exists()


@always
def test_make_tests_runs_pytest_despite_folder() -> None:
    output = subprocess.run(["make", "--dry-run", "tests"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pytest --numprocesses 4" in output
