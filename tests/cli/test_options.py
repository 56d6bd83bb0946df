from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cordwood.cli.options import Json, parse_count, parse_size, with_options, write_output
from cordwood.common.arguments import Option
from cordwood.common.errors import RequestError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("240", 240),
        ("1k", 1024),
        ("512m", 512 << 20),
        ("4G", 4 << 30),
        ("2gb", 2 << 30),
        ("3MiB", 3 << 20),
        (" 1t ", 1 << 40),
    ],
)
def test_a_size_is_a_number_of_bytes_or_of_larger_units(text: str, size: int) -> None:
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5g", "m", "4x", "4 g", "nan", "1" * 30])
def test_invalid_size_error_shows_an_example(text: str) -> None:
    with pytest.raises(RequestError, match=r"--memory .*: give a number of bytes, or a size such as 512m or 4g"):
        parse_size(text, "--memory")


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("500k", 500_000), ("10m", 10_000_000), ("2G", 2_000_000_000)])
def test_a_count_is_a_number_or_one_of_thousands_or_millions(text: str, count: int) -> None:
    assert parse_count(text, "--keys") == count


@pytest.mark.parametrize("text", ["", "-1", "1.5m", "k", "10x", "10 m"])
def test_invalid_count_error_shows_an_example(text: str) -> None:
    with pytest.raises(RequestError, match=r"--keys .*: give a number, or a count such as 500k or 10m"):
        parse_count(text, "--keys")


@dataclass(frozen=True, kw_only=True)
class _Inner:
    limits: Annotated[Sequence[str], Option("Limits.", flag="--limit")] = ()
    proved: Annotated[bool, Option("Prove it.", flag="--no-proof", flag_help="Do not prove it.")] = True


@dataclass(frozen=True, kw_only=True)
class _Outer:
    inner: _Inner = field(default_factory=_Inner)
    room_bytes: Annotated[int | None, Option("Room.", metavar="BYTES")] = None
    at: Annotated[int | None, Option("Offset.", metavar="OFFSET")] = None


def test_a_command_takes_an_option_for_each_field_of_its_options_value() -> None:
    seen = []

    @with_options
    def main(options: _Outer, as_json: Json = False) -> int:
        seen.append((options, as_json))
        return 0

    app = typer.Typer()
    app.command()(main)
    for arguments in ([], ["--limit", "a", "--limit", "b", "--no-proof", "--room-bytes", "1k", "--at", "7", "--json"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    assert seen == [
        (_Outer(), False),
        (_Outer(inner=_Inner(limits=("a", "b"), proved=False), room_bytes=1024, at=7), True),
    ]
    text = CliRunner().invoke(app, ["--help"]).output
    assert "Limits. Repeatable." in text and "Do not prove it." in text and "--room-bytes" in text


def test_a_pipe_gets_the_page_and_a_link_still_leads_to_its_file(tmp_path: Path) -> None:
    pipe, file, link = (tmp_path / name for name in ("pipe", "file", "link"))
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        write_output(str(pipe), "a page")
        assert read.result() == "a page"
    assert pipe.is_fifo()
    file.write_text("old")
    link.symlink_to(file)
    write_output(str(link), "new")
    assert link.is_symlink() and file.read_text() == "new"
