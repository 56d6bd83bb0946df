"""The image is built and run where there is an engine for containers that can have its base image."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.packages import built
from tests.fixtures import fixture

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/Containerfile"
SECONDS_MAX = 600


def instructions() -> list[str]:
    lines = FILE.read_text().replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def test_it_does_not_run_as_root_and_starts_the_command() -> None:
    last_stage = instructions()[max(at for at, line in enumerate(instructions()) if line.startswith("FROM ")) :]
    assert "USER cordwood" in last_stage
    assert last_stage[-2:] == ['ENTRYPOINT ["cordwood"]', 'CMD ["--help"]']


def test_it_has_no_spark() -> None:
    (install,) = [line for line in instructions() if "pip install" in line]
    assert "[spark]" not in install and "cordwood-*.whl" in install


@pytest.fixture(scope="module")
def engine() -> str:
    for name in ("podman", "docker"):
        if shutil.which(name) is None:
            continue
        if subprocess.run([name, "info"], capture_output=True, check=False, timeout=60).returncode == 0:
            return name
    pytest.skip("there is no podman or docker that works")


@pytest.fixture(scope="module")
def image(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (base,) = re.findall(r"^ARG PYTHON=(.*)$", FILE.read_text(), re.MULTILINE)
    if subprocess.run([engine, "pull", base], capture_output=True, check=False, timeout=SECONDS_MAX).returncode:
        pytest.skip(f"{engine} cannot have {base}")
    folder = tmp_path_factory.mktemp("image")
    (folder / "dist").mkdir()
    built("wheel", folder / "dist")
    name = "cordwood-test"
    subprocess.run([engine, "build", "-f", FILE, "-t", name, folder], check=True, timeout=SECONDS_MAX)
    yield name
    subprocess.run([engine, "rmi", "--force", name], check=False, timeout=SECONDS_MAX)


@pytest.mark.slow
def test_it_lists_a_log_as_a_user_that_is_not_root(engine: str, image: str) -> None:
    mount = f"{fixture('kraft-classic-before')}:/logs:ro"
    words = [engine, "run", "--rm", "-v", mount, image, "ls", "/logs"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SECONDS_MAX)
    assert "orders-0" in done.stdout
    words = [engine, "run", "--rm", "--entrypoint", "id", image, "-u"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SECONDS_MAX)
    assert done.stdout.strip() == "10001"
