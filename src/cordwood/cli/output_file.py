"""Files that a command writes besides its standard output, such as a result as an HTML page."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.presentable import Paged
from cordwood.fs.by_url import file_system_for

Report = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Also write the result to this HTML file, which needs no network."),
]


def check_output(path: str, what: str) -> None:
    """Raise RequestError now if a file could not be written after the work is done.

    Args:
        what: the file's content, for the message.
    """
    fs = file_system_for([path])
    folder = path.rpartition("/")[0] or "."
    if fs.path_on_disk(path) is not None and not fs.exists(folder):
        raise NotFoundError(f"{folder} does not exist, so {path} cannot be written")
    if fs.exists(path) and fs.stat(path).is_directory:
        raise RequestError(f"{path} is a directory; give a file for {what}")


def write_output(path: str, text: str) -> None:
    """Write the file, replacing an existing one."""
    file_system_for([path]).put(path, text.encode("utf-8", "backslashreplace"))


def check_report(path: str | None) -> None:
    """Raise RequestError now if the report could not be written after the work; see `check_output`."""
    if path is not None:
        check_output(path, "the report")


def write_report(path: str | None, result: Paged) -> None:
    """Write a result as an HTML page if `--report` names a file."""
    if path is not None:
        write_output(path, result.page())
