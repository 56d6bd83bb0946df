"""The end of every command: its message, its exit code, and no traceback, even if its streams fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OUR_FAULT, EXIT_REQUEST, GROUPS, VERBS
from tests.command import run, start
from tests.fixtures import fixture
from tests.logs import batch, write_log

pytestmark = pytest.mark.more

CORDWOOD = f"{sys.executable} -m cordwood"
DEMO = fixture("kraft-jbod-before")


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(  # noqa: PLW1510
        ["bash", "-c", line], capture_output=True, text=True, errors="surrogateescape", env=os.environ | environment
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--version", "ls --help", f"ls {DEMO}", f"dump {DEMO}", f"check {DEMO}"])
def test_output_that_cannot_be_written_is_said_in_one_line(words: str, unbuffered: str) -> None:
    said = shell(f"{CORDWOOD} {words} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert said == (2, "", "cordwood: No space left on device: the output\n")


def test_the_version_is_that_of_the_package() -> None:
    assert shell(f"{CORDWOOD} --version") == (0, f"cordwood {version('cordwood')}\n", "")


def test_closed_streams_are_no_obstacle() -> None:
    assert shell(f"{CORDWOOD} check {DEMO} <&- >&- 2>&-") == (0, "", "")


def test_a_locale_that_knows_only_ascii_gets_escapes(tmp_path: Path) -> None:
    (tmp_path / "größe-0").mkdir()
    code, out, _ = shell(f"{CORDWOOD} ls {tmp_path}", PYTHONIOENCODING="ascii")
    assert code == 0 and "gr\\xf6\\xdfe-0" in out


@pytest.mark.parametrize("verb", ["ls", "dump", "check"])
def test_messages_never_pass_on_what_a_terminal_would_obey(verb: str) -> None:
    assert shell(f"{CORDWOOD} {verb} $'x\\e[31m\\ny'") == (2, "", "cordwood: x\\x1b[31m\\ny does not exist\n")


@pytest.mark.parametrize("verb", ["ls", "dump", "check"])
def test_an_empty_path_is_not_taken_for_the_root_of_the_disk(verb: str) -> None:
    code, _, error = shell(f"{CORDWOOD} {verb} ''")
    assert code == 2 and "the path is empty" in error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_without_a_traceback(number: signal.Signals, code: int) -> None:
    # A full pipe without a reader blocks it.
    with start("dump", *[fixture("kraft-classic-before")] * 20) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.stderr.read() == ("cordwood: interrupted\n" if number is signal.SIGINT else "")


@pytest.mark.parametrize("words", [["help"], ["--help"]])
def test_help_lists_all_commands(words: list[str]) -> None:
    done = run(*words)
    assert all(f"\n  {verb} " in done.output for verb in VERBS)
    assert [title for title in GROUPS if f"\n{title}:\n" in done.output] == list(GROUPS)


def test_help_of_a_command_shows_its_options_in_groups() -> None:
    done = run("help", "clean")
    assert done.output == run("clean", "--help").output
    headings = [line for line in done.output.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Arguments:",
        "Options:",
        "Only with --output:",
        "Key indexes:",
        "Only with --in-place:",
        "Only with --in-tier:",
        "Which partitions, with which configs:",
        "Tiered topics:",
        "How partitions are cleaned:",
        "Several brokers:",
        "How it runs:",
    ]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["pln"], "There is no command pln. Did you mean plan? All commands: cordwood help"),
        (["xyzzy"], "There is no command xyzzy. All commands: cordwood help"),
        (["plan", "logs", "--topc", "a"], "No such option: --topc (Possible options: --topic)"),
    ],
)
def test_a_misspelt_word_is_answered_with_what_was_probably_meant(words: list[str], hint: str) -> None:
    done = run(*words, exits=EXIT_REQUEST)
    assert hint in done.output


def broken() -> int:
    """A verb with a defect."""
    raise StopIteration


@pytest.mark.parametrize("words", [["broken"], ["-v", "broken"], ["broken", "-v"]])
def test_a_defect_of_ours_is_said_with_what_to_do(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "broken", (__name__, "Fails."))
    monkeypatch.setattr(sys, "argv", ["cordwood", *words])
    done = run(*words, exits=EXIT_OUR_FAULT)
    assert "this is a defect in Cordwood: StopIteration" in done.stderr
    assert "report it" in done.stderr
    assert ("Traceback" in done.stderr) == ("-v" in words) != ("run it again with -v" in done.stderr)


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_pipe_that_is_closed_early_hides_no_damage(options: str, tmp_path: Path) -> None:
    write_log(tmp_path / "a-0", [batch(0)[:-1] + b"?", batch(1)])
    code, _, _ = shell(f"{CORDWOOD} check {tmp_path} {options} | true; exit ${{PIPESTATUS[0]}}")
    assert code == EXIT_DAMAGE
