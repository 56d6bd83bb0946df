"""`cordwood demo`: the commands on a small real log, with the story told in between.

The log comes with the package: five partitions that a Kafka 4.3.1 broker wrote, cleaned once and wrote on, with its
metadata log and checkpoints. It is unpacked for the demo and removed again.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cordwood.errors import RequestError

LOG = "kafka-logs"


def main(
    directory: Annotated[
        str | None, typer.Option("--dir", help="Unpack the log into this folder and leave it there to play with.")
    ] = None,
) -> None:
    """Show a small real log: list it, look into it, check it, and find the one bit that was flipped in it."""
    with _folder(directory) as folder:
        unpack(folder)
        with contextlib.chdir(folder):
            _say("A broker's log directory. Kafka's cleaner ran once; what it has not cleaned since is DIRTY.")
            _run("ls", LOG)
            _say("Keys of orders-0 whose older values are gone (count=1 of 13 offsets), as the cleaner left them.")
            _run("dump", f"{LOG}/orders-0", "--limit", "2", "--batches", "--records")
            _say("What a consumer gets that reads only committed transactions, as JSON for programs.")
            _run("dump", f"{LOG}/payments-1", "--isolation", "read_committed", "--limit", "2", "--json")
            _say("Is all of it whole?")
            _run("check", LOG)
            _say("Now one bit of one record is flipped …")
            _flip(Path(LOG) / "orders-0" / "00000000000000000000.log", 1000)
            _run("check", LOG)
    if directory is not None:
        print(f"\nThe log is in {directory}/{LOG}, flipped bit and all.")


@contextlib.contextmanager
def _folder(directory: str | None) -> Iterator[Path]:
    if directory is not None:
        if (Path(directory) / LOG).exists():
            raise RequestError(f"{directory}/{LOG} is there already; name another folder, or remove it first")
        Path(directory).mkdir(parents=True, exist_ok=True)
        yield Path(directory)
        return
    with tempfile.TemporaryDirectory(prefix="cordwood-demo-") as folder:
        yield Path(folder)


def unpack(folder: Path) -> None:
    """Unpack the log that comes with the package, as `LOG` in a folder."""
    packed = importlib.resources.files("cordwood").joinpath("data/demo.tar.gz")
    with packed.open("rb") as data, tarfile.open(fileobj=data) as tar:
        # Set, not given as an argument: Python 3.11 knows that only from its fourth release on.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        tar.extractall(folder)


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _say(text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"\n{bold}{text}{plain}")


def _run(*words: str) -> None:
    from cordwood.cli.main import app

    print(f"$ cordwood {shlex.join(words)}", flush=True)
    app(list(words), prog_name="cordwood", standalone_mode=False)
