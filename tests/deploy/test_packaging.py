"""The wheel and the sdist are complete, and the wheel works in an environment with only its dependencies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from cordwood.cli.main import VERBS
from tests.deploy.packages import ROOT, SECONDS_MAX, built
from tests.fixtures import copy_of, fixture

pytestmark = pytest.mark.slow


def locked_versions() -> str:
    """The versions of requirements.lock as constraints: a wheel of our own has no hash there."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return "".join(f"{line.rstrip(' ' + chr(92))}\n" for line in lines if re.match(r"[\w.\[\]-]+==", line))


class Environment:
    """A bare virtual environment outside the project, with one wheel and its dependencies."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.python = folder / "bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=SECONDS_MAX)
        constraints = folder / "constraints.txt"
        constraints.write_text(locked_versions())
        # pip's configured index applies.
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-input"]
        subprocess.run([*command, "-c", str(constraints), str(wheel)], check=True, timeout=SECONDS_MAX)

    def run(self, *words: str, code: int = 0) -> str:
        """The output of one of its programs, started in its folder, which has no file of the project."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("CORDWOOD_", "PYTHONPATH"))
        }
        done = subprocess.run(
            [self.folder / "bin" / words[0], *words[1:]],
            cwd=self.folder,
            env=inherited | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


BROKER = "kraft-classic-before"
PACKAGE = ROOT / "src/cordwood"
#: A user's program, with a mistake in its last line.
PROGRAM = """\
import cordwood
log = cordwood.open_log("orders-0")
wrong: int = next(iter(log.records())).key
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    return Environment(tmp_path_factory.mktemp("bare") / "venv", wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {f"cordwood/{path.relative_to(PACKAGE)}": path.read_bytes() for path in files}
    found = contents(wheel)
    metadata = {name for name in found if ".dist-info/" in name}
    assert {name: data for name, data in found.items() if name not in metadata} == wanted
    assert {"cordwood/py.typed", "cordwood/view/pages/style.css", "cordwood/data/demo.tar.gz"} <= found.keys()
    assert any(name.endswith("licenses/LICENSE") for name in metadata)


def test_the_sdist_has_what_git_has_and_makes_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for path in ("docs/run.md", "deploy/Containerfile", "tests/test_docs.py", "requirements.lock", "Makefile"):
        assert (source / path).read_bytes() == (ROOT / path).read_bytes()
    (tmp_path / "wheel").mkdir()
    assert contents(built("wheel", tmp_path / "wheel", source)) == contents(wheel)


def test_every_command_says_how_it_is_used(bare: Environment) -> None:
    assert "Usage: cordwood [OPTIONS] COMMAND" in bare.run("cordwood", "--help")
    for verb in VERBS:
        assert f"cordwood {verb}" in bare.run("cordwood", verb, "--help"), verb


def test_a_log_is_listed_checked_planned_cleaned_and_verified(bare: Environment, tmp_path: Path) -> None:
    before, after = copy_of(fixture(BROKER), tmp_path / "before"), tmp_path / "after"
    assert "orders-0" in bare.run("cordwood", "ls", str(before))
    assert json.loads(bare.run("cordwood", "check", str(before), "--json"))
    assert "orders-0" in bare.run("cordwood", "plan", str(before), "--single-copy")
    compacted = ["--config", "cleanup.policy=compact"]
    assert "orders-0" in bare.run("cordwood", "clean", str(before), "--output", str(after), *compacted, "--single-copy")
    assert "All guarantees hold" in bare.run("cordwood", "verify", str(before), str(after), *compacted)


def test_it_is_the_installed_package_that_runs_and_spark_is_not_there(bare: Environment) -> None:
    where = bare.run("python", "-c", "import cordwood; print(cordwood.__file__)")
    assert where.startswith(str(bare.folder))
    assert bare.run("python", "-c", "import pyspark", code=1) == ""


def test_a_users_program_is_checked_by_the_packages_own_types(bare: Environment, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(bare.python), str(program)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    (line,) = [line for line in done.stdout.splitlines() if "error:" in line]
    assert line.startswith("program.py:3:") and 'variable has type "int"' in line, done.stdout + done.stderr
