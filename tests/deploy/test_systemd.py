"""The unit for systemd, as far as it can be tested on a machine without a running systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cordwood.cli.main import EXIT_LOCKED, EXIT_REQUEST
from tests.kafka_tools import need_tools

UNIT = Path(__file__).parents[2] / "deploy/systemd/cordwood-run.service"
#: On a scale to 10; below 2 systemd calls a unit "OK".
EXPOSURE_MAX = 2.0


def settings(name: str) -> list[str]:
    """The values of a setting, in the order of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit as on a machine where its command is installed."""
    need_tools("systemd-analyze", packages="systemd")
    command = tmp_path / "cordwood"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/cordwood/bin/cordwood", str(command)))
    return unit


def analyze(*words: str) -> str:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong_with_the_unit(installed: Path) -> None:
    said = analyze("verify", "--man=no", str(installed))
    assert installed.name not in said


def test_the_unit_may_do_little(installed: Path) -> None:
    said = analyze("security", "--offline=true", str(installed))
    found = re.search(r"Overall exposure level for .*: ([\d.]+) ", said)
    assert found and float(found[1]) < EXPOSURE_MAX, said


def test_the_unit_waits_for_what_the_program_tells_it() -> None:
    assert settings("Type") == ["notify"]
    assert settings("ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert settings("RestartPreventExitStatus") == [f"{EXIT_REQUEST} {EXIT_LOCKED}"]


def test_a_brokers_unit_is_stopped_before_this_one_starts() -> None:
    (conflicts,), (after,) = settings("Conflicts"), settings("After")
    assert "kafka.service" in conflicts.split()
    assert set(conflicts.split()) <= set(after.split())


def test_the_directories_that_are_run_on_may_be_written_to() -> None:
    (paths,) = [one.partition("=")[2] for one in settings("Environment") if one.startswith("CORDWOOD_LOG_DIRS")]
    assert settings("ReadWritePaths") == [paths]


@pytest.mark.parametrize("setting", ["MemoryDenyWriteExecute", "PrivateUsers", "ProcSubset"])
def test_what_cordwood_could_not_live_with_is_not_set(setting: str) -> None:
    assert settings(setting) == [] and setting in UNIT.read_text(), "the unit says why"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_command_line_takes_several_directories_and_options() -> None:
    (command,) = settings("ExecStart")
    script = f"CORDWOOD_LOG_DIRS='/a /b'; CORDWOOD_OPTIONS='--port 0'; printf '%s\\n' {command}"
    words = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[1:] == ["run", "--port", "0", "/a", "/b"]
