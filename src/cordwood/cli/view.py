"""`cordwood view`: show the pages of the directories of one or more brokers, in a browser or as one file."""

from __future__ import annotations

import gc
import os
import sys
import threading
import webbrowser
from collections.abc import Sequence
from typing import Annotated

import typer

from cordwood.cli import PYTHON_GC_THRESHOLD
from cordwood.cli.dumping import Choice, Dump
from cordwood.cli.formats import JsonPrinter
from cordwood.cli.main import EXIT_OK, named, tell
from cordwood.cli.options import ClusterDirectories, check_output, with_options, write_output
from cordwood.cli.progress import LogProgress
from cordwood.cli.values import ShownAs, ValueFormat
from cordwood.commands.options import WhyOptions
from cordwood.common.errors import RequestError
from cordwood.common.threads import in_background
from cordwood.fs.by_url import file_system_for
from cordwood.view.pages.report import view_html
from cordwood.view.web.http_server import HOST
from cordwood.view.web.site import ViewServer

#: Maximum bytes of JSON records in one response.
_LINES_BYTES_MAX = 16 << 20


@with_options
def view(
    directories: ClusterDirectories = None,
    *,
    options: WhyOptions,
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the pages to this HTML file, which needs no network, and end."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Listen on this address of this machine. Any but a loopback one needs a token."
        ),
    ] = HOST,
    port: Annotated[int, typer.Option(metavar="PORT", help="Listen on this port. Default: any free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open a browser; one is opened where there is a desktop.")
    ] = False,
) -> int:
    """Show brokers, disks, topics, removable data and its causes, damage, consumer groups and transactions as pages.

    In a browser, on 127.0.0.1, until interrupted; or with --output as one HTML file. Changes nothing; a broker may be
    running. The pages show the progress of the first scan; loading a page again scans the directories again.
    """
    paths = [named(directory) for directory in directories or ()]
    if output is not None:
        check_output(output, "the pages")
    if output is not None:
        return _write(paths, options, output)
    return _serve(ViewServer(paths, options, dump_lines, host=host, port=port), no_browser=no_browser)


def _serve(server: ViewServer, *, no_browser: bool) -> int:
    gc.set_threshold(PYTHON_GC_THRESHOLD)
    with server:
        print(server.url, flush=True)
        if sys.stderr.isatty():
            tell("Ctrl-C ends it")
        if not no_browser and _has_desktop():
            in_background(lambda: webbrowser.open(server.url), "browser")
        threading.Event().wait()
    return EXIT_OK


def dump_lines(path: str, *, batches: bool, offset: int, limit: int) -> bytes:
    """Return the lines of `cordwood dump --json`; see `view.web.site.DumpLines`."""
    lines = bytearray()

    def write(some: bytes) -> None:
        lines.extend(some)
        if len(lines) > _LINES_BYTES_MAX:
            raise RequestError(f"There is too much in these records. Print them:  cordwood dump {path} --json")

    choice = Choice(batches=batches, records=not batches, start_offset=offset, limit=limit)
    printer = JsonPrinter(ValueFormat.UTF8, ValueFormat.UTF8, decode=True, shown=ShownAs(None, None))
    Dump(choice, printer, write, fs=file_system_for([path])).run([path])
    return bytes(lines)


def _write(paths: Sequence[str], options: WhyOptions, output: str) -> int:
    with LogProgress() as progress:
        text = view_html(paths, options, on_progress=progress.update)
    write_output(output, text)
    return EXIT_OK


def _has_desktop() -> bool:
    """Whether a browser would open in its own window; otherwise it would occupy the terminal."""
    return sys.stdout.isatty() and (sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ)))
