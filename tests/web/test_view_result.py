"""The pages of results from what commands printed with `--json`, which may come from anybody."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cordwood.cleaning.found_keys import ErasureResult
from cordwood.cli.main import app
from cordwood.commands.view_result import read_result, result_of
from cordwood.engine.results import CleanResult
from cordwood.errors import RequestError
from cordwood.pages.results import file_page
from cordwood.report.given import Given
from tests.cli.running import ENVIRONMENT
from tests.fixtures import fixture
from tests.web.hostile import NAMES
from tests.web.results import COMMANDS
from tests.web.view_client import Client, Parsed, check_harmless

BROKER = "kraft-classic-before"


@pytest.fixture(scope="module", params=COMMANDS)
def printed(request: pytest.FixtureRequest, printed_once: Callable[[str], Path]) -> Path:
    return printed_once(request.param)


@pytest.fixture(scope="module", params=["clean", "clean in place"])
def cleaned(request: pytest.FixtureRequest, printed_once: Callable[[str], Path]) -> Path:
    return printed_once(request.param)


@pytest.fixture(scope="module")
def checked(printed_once: Callable[[str], Path]) -> Path:
    return printed_once("erase-check")


def view(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["view", *map(str, words)])
    return done.exit_code, done.output


def test_the_page_is_the_one_that_the_command_wrote(printed: Path, tmp_path: Path) -> None:
    assert view("--result", printed, "--output", tmp_path / "page.html") == (0, "")
    page = check_harmless((tmp_path / "page.html").read_text())
    report = check_harmless((printed.parent / "report.html").read_text())
    # Times were rounded twice.
    assert _without_times(page) == _without_times(report)


def _without_times(page: Parsed) -> list[str]:
    return [text for text in page.texts if "s in total)" not in text]


def test_a_result_says_the_same_after_it_was_read(printed: Path) -> None:
    told = json.loads(printed.read_text())
    again = json.loads(json.dumps(read_result(str(printed)).document()))
    assert {**again, "bytes_per_second": 0} == {**told, "bytes_per_second": 0}


def test_the_command_serves_the_page_with_its_json(checked: Path) -> None:
    command = [sys.executable, "-m", "cordwood", "view", "--result", str(checked), "--no-browser"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            client = Client(process.stdout.readline().strip())
            page = check_harmless(client.get("/").text)
            assert "Traces of these keys remain" in page.text and "/result.json" in page.links()
            assert client.get("/result.json").document == json.loads(checked.read_text())
            assert client.get("/", Host="evil.example").status == 403
        finally:
            process.terminate()
        assert process.wait(60) == 143


# ---- what is wrong is said with its place ----------------------------------------------------------------------------


def spoiled(document: Any, change: Callable[[Any], Any]) -> str:
    """What is said of a document that was changed."""
    changed = copy.deepcopy(document)
    change(changed)
    with pytest.raises(RequestError) as raised:
        result_of(Given.parse(json.dumps(changed).encode()))
    return str(raised.value)


def put(value: Any, *where: str | int) -> Callable[[Any], None]:
    """A change of a value somewhere in a document."""

    def change(document: Any) -> None:
        for step in where[:-1]:
            document = document[step]
        document[where[-1]] = value

    return change


def test_what_is_wrong_is_said_with_its_place(cleaned: Path) -> None:
    told = json.loads(cleaned.read_text())
    at = next(number for number, one in enumerate(told["partitions"]) if one["segments"])
    first = f"partitions[{at}]"
    whole = "expected a whole number from 0 on, found"
    cases: list[tuple[Callable[[Any], Any], str]] = [
        (lambda document: document.pop("target"), "there is no 'target'"),
        (put(None, "target"), "target: expected a text, found null"),
        (put({}, "partitions"), "partitions: expected a list, found an object"),
        (put([7], "partitions"), "partitions[0]: expected an object, found 7"),
        (
            put(-1, "partitions", at, "bytes_before"),
            f"{first}.bytes_before: {whole} -1",
        ),
        (
            put(True, "partitions", at, "bytes_after"),
            f"{first}.bytes_after: {whole} true",
        ),
        (put(1.5, "now_ms"), f"now_ms: {whole} 1.5"),
        (put(2**63, "now_ms"), f"now_ms: {whole} {2**63}"),
        (put("x" * 999, "seconds"), 'seconds: expected a number from 0 on, found "' + "x" * 59 + "…"),
        (
            put("gone", "partitions", at, "result"),
            f"{first}.result: expected one of cleaned, copied, ",
        ),
        (put("damage", "partitions", at, "failure"), f"{first}.failure: the result is cleaned, so it must be null"),
        (put(None, "partitions", at, "topic"), f"{first}: topic and partition are both null, or neither"),
        (put([None], "partitions", at, "segments", 0, "outputs"), f"{first}.segments[0].outputs[0]: expected a whole "),
        (put(10**9, "partitions", at, "records_kept"), f"{first}.records_read: "),
        (put(10**9, "partitions", at, "batches_emptied"), f"{first}.batches_read: "),
        (put(10**9, "bytes_before"), "bytes_before: 1000000000 is not the sum of the partitions, "),
        (put(10**6, "failed"), "failed: 1000000 is not the sum of the partitions, "),
        (put("yes", "partitions", at, "probed"), f'{first}.probed: expected true or false, found "yes"'),
    ]
    for change, wanted in cases:
        assert spoiled(told, change).startswith(wanted)


def test_what_is_wrong_in_a_certificate_is_said_with_its_place(checked: Path) -> None:
    told = json.loads(checked.read_text())
    of_log = next(number for number, one in enumerate(told["files"]) if one["traces"])
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    cases: list[tuple[Callable[[Any], Any], str]] = [
        (
            put("no trace", "verdict"),
            'verdict: expected "traces remain", which follows from the rest, found "no trace"',
        ),
        (put({}, "files", of_log, "traces"), 'counts: expected {"record": '),
        (put({"soul": 1}, "files", of_log, "traces"), f"files[{of_log}].traces.soul: expected one of record, "),
        (put([], "absolute_paths"), "absolute_paths: there are 1 paths, and 0 absolute ones"),
        (put("2026-01-01", "ended"), 'ended: expected "'),
        (put("then", "traces", 0, "next", "kind"), "traces[0].next.kind: expected one of stays, clean, "),
        (put(deep, "traces", 0, "key"), "traces[0].key[0][0]"),
        (lambda document: document.update(traces=document["traces"] * 2), "traces: there are "),
    ]
    for change, wanted in cases:
        assert spoiled(told, change).startswith(wanted)
    with pytest.raises(RequestError, match="expected a number that JSON can have"):
        Given.parse(b"[1e999]").plain()


def test_what_is_wrong_in_a_simulation_is_said_with_its_place(printed_once: Callable[[str], Path]) -> None:
    simulated, explained = (json.loads(printed_once(name).read_text()) for name in ("simulate", "explain"))
    first = ("outcomes", 0)
    points = simulated["outcomes"][0]["history"]
    cases: list[tuple[Any, Callable[[Any], Any], str]] = [
        (simulated, put(0, "workload", "partitions"), "workload: --partitions 0: give 1 or more"),
        (simulated, put("much", "workload", "rate"), "workload: --rate much: give records per second"),
        (simulated, put(5, "workload", "bytes_per_second"), "workload.bytes_per_second: expected "),
        (simulated, put([], "outcomes"), "outcomes: expected one to 3, found 0"),
        (simulated, put(0, *first, "duration_ms"), "outcomes[0].duration_ms: it is 0"),
        (simulated, put(7, *first, "topic_mean_bytes"), "outcomes[0].topic_mean_bytes: expected "),
        (simulated, put(points[:3], *first, "history"), "outcomes[0].history: expected 5 to 10000 points, found 3"),
        (simulated, put(points[::-1], *first, "history"), "outcomes[0].history: its times do not ascend"),
        (simulated, put(points[:9], *first, "history"), "outcomes: their histories have different numbers of points"),
        (simulated, put(-1, *first, "contents", "values"), "outcomes[0].contents.values: expected a whole number from"),
        (simulated, put({"a": 1}, *first, "configs"), "outcomes[0].configs.a: expected a text, found 1"),
        (simulated, put("x", *first, "superseded"), 'outcomes[0].superseded: expected an object, found "x"'),
        (explained, put({}, "at_once"), "at_once: it does not have the labels of the outcomes"),
        (explained, put([7], "at_once", "now", "deleted_by"), "at_once.now.deleted_by[0]: expected a text, found 7"),
    ]
    for told, change, wanted in cases:
        assert spoiled(told, change).startswith(wanted)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "it is no JSON"),
        (b"\xff\xfe{", "it is no JSON"),
        (b"[" * 200_000, "it is nested too deeply"),
        (b'{"now_ms": ' + b"9" * 5_000 + b"}", "it is no JSON"),
        (b'{"target": NaN}', "it is no JSON: NaN is no number"),
        (b"[]", "expected an object, found a list"),
        (b'"x"', 'expected an object, found "x"'),
        (b"{}", "it has no field in_place and no values_searched and no workload and no at_once"),
    ],
)
def test_what_is_no_result_is_refused_by_the_command(data: bytes, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(data)
    code, output = view("--result", path, "--output", tmp_path / "page.html")
    commands = "clean, erase-check, simulate or explain"
    assert code == 2 and f"{path} is not what cordwood {commands} --json prints: {wanted}" in output
    assert os.listdir(tmp_path) == ["result.json"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def small(result: Any) -> Any:
    """A part of a result."""
    if isinstance(result, CleanResult):
        return replace(result, partitions=result.partitions[-3:])
    if not isinstance(result, ErasureResult):
        return result
    return replace(result, files=tuple(one for one in result.files if one.counts))


@given(st.data())
def test_a_value_anywhere_in_a_result_is_refused_or_shown(printed: Path, data: st.DataObject) -> None:
    document = json.loads(json.dumps(small(read_result(str(printed))).document()))
    value: Any = document
    while isinstance(value, dict | list) and value:
        step = data.draw(st.sampled_from(sorted(value)) if isinstance(value, dict) else st.integers(0, len(value) - 1))
        last, value = value, value[step]
        if not data.draw(st.booleans()):
            break
    last[step] = data.draw(JSON)
    try:
        result = result_of(Given(document))
    except RequestError:
        return
    check_harmless(file_page(result)).text.encode()


def test_names_in_a_result_do_not_break_out(cleaned: Path) -> None:
    document = json.loads(cleaned.read_text())
    for number, one in enumerate(document["partitions"]):
        name = NAMES[number % len(NAMES)]
        one |= {"path": f"/data/{name}", "why": name, "notes": [name]}
        one["topic"] = None if one["topic"] is None else name
    document |= {"notes": list(NAMES), "target": NAMES[0]}
    page = check_harmless(file_page(result_of(Given.parse(json.dumps(document).encode()))))
    assert "\x1b" not in page.text and "\u202e" not in page.text and NAMES[1] in page.text


def test_directories_and_a_result_are_not_shown_together(tmp_path: Path) -> None:
    for words in ([], [str(fixture(BROKER)), "--result", "x.json"]):
        code, output = view(*words)
        assert code == 2 and "either the directories to show, or --result FILE" in output
    code, output = view("--result", tmp_path / "none.json")
    assert code == 2 and "none.json does not exist" in output
    code, output = view("--result", tmp_path)
    assert code == 2 and "is a directory" in output
