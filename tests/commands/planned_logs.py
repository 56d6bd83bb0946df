"""Small logs to be planned, and the times of the fixtures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import (
    FileKind,
    offset_name,
)

T0 = 1_700_000_000_000
HOUR = 3_600_000
#: In the kraft fixtures' second round; by the later one all lags have passed.
TIMES = (1_795_253_410_181, 1_795_253_410_181 + 40 * HOUR)


def make_log(directory: Path, *segments: Sequence[bytes]) -> Path:
    """A partition's directory of segments, each with its indexes empty."""
    directory.mkdir(parents=True)
    base = 0
    for number, batches in enumerate(segments):
        base = int.from_bytes(batches[0][:8], "big") if batches else base + number
        (directory / offset_name(base, FileKind.LOG)).write_bytes(b"".join(batches))
        (directory / offset_name(base, FileKind.OFFSET_INDEX)).write_bytes(b"")
    return directory


def batch(offset: int, **choice: Any) -> bytes:
    return encode_batch([Record(offset, T0, b"k", b"v")], **choice)
