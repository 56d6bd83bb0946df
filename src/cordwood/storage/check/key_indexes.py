"""Compares the key indexes of a partition with its segments.

A key index is Cordwood's own file and only saves time, so an error in it is never an error of the log: all findings
here are notes. An index is stale if its segment changed after the index was written. A clean does not use a stale
index, and writes a new one.

The check compares the batches in an index with all headers of the segment. It does not compute the hashes of keys
again: checksums cover them, and no record is dropped because of a hash in a file.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import ReadableFile, Store
from cordwood.kernels.layout import CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchRows
from cordwood.record.headers import has_flag
from cordwood.storage.check.findings import Findings, Kind, Severity
from cordwood.storage.formats import key_index
from cordwood.storage.formats.filenames import (
    Temporary,
    index_folder,
    key_index_path,
    parse_key_index,
)
from cordwood.storage.formats.key_index import NO_HORIZON, Flag, KeyIndex, crc_of_header
from cordwood.storage.log.files import read_file, why_unreadable

#: Flags that follow from the headers of batches.
_OF_HEADERS = Flag.CONTROL | Flag.TRANSACTIONAL | Flag.EMPTY_BATCHES | Flag.OLD_MAGIC


class KeyIndexCheck:
    """Compares each batch header of a segment with the index, and reports the first difference."""

    def __init__(self, index: KeyIndex, path: str, findings: Findings) -> None:
        self._index = index
        self._path = path
        self._findings = findings
        self._done = 0
        self._flags = Flag(0)
        self._horizon = NO_HORIZON
        self._ends = np.cumsum(index.lengths, dtype=np.int64)
        self._differs = ""

    def add(self, batches: BatchRows) -> None:
        """Compare the next batches of the segment."""
        index, done = self._index, self._done
        batches = batches[: index.header.batches - done]
        if self._differs or not batches.size:
            return
        end = done + batches.size
        lengths, counts = index.lengths[done:end], index.counts[done:end]
        same = (batches["position"] == self._ends[done:end] - lengths) & (batches["size_bytes"] == lengths)
        same &= batches["crc"] == index.crcs[done:end]
        # The header of a compressed message set does not contain the number of messages.
        same &= (batches["record_count"] == counts) | (batches["record_count"] < 0)
        if not same.all():
            position = int(batches["position"][np.flatnonzero(~same)[0]])
            self._differs = f"the batch at position {position} of the segment is not the one that was there"
            return
        self._done = end
        self._flags |= _flags(batches)
        horizons = batches["base_timestamp"][has_flag(batches, DELETE_HORIZON)]
        self._horizon = min(self._horizon, int(horizons.min(initial=NO_HORIZON)))

    def end(self, file: ReadableFile, base_offset: int, last_offset: int) -> None:
        """Compare the index header, after the whole segment was read; report the first difference.

        Args:
            file: the segment's `.log` file.
            base_offset: base offset of the segment.
            last_offset: last offset of the last batch in the segment.
        """
        header, last_bytes = self._index.header, int(self._index.lengths[-1])
        what = self._differs
        if header.base_offset != base_offset:
            what = f"it is the index of a segment at offset {header.base_offset}"
        elif not what and self._done < header.batches:
            what = f"it covers {header.batches} batches, and the segment has {self._done} of them"
        elif not what and header.next_offset > last_offset + 1:
            what = f"it covers offsets below {header.next_offset}, but the segment ends at {last_offset}"
        elif not what and header.last_header_crc != crc_of_header(file, header.covered_bytes - last_bytes, last_bytes):
            what = "the header of the last batch that it covers is another"
        elif not what and (header.flags & _OF_HEADERS != self._flags or header.delete_horizon_ms != self._horizon):
            what = "its header does not say what the headers of the batches say"
        if what:
            self._findings.add(Kind.KEY_INDEX_STALE, self._path, what)


def _flags(batches: BatchRows) -> Flag:
    present = {
        Flag.CONTROL: has_flag(batches, CONTROL),
        Flag.TRANSACTIONAL: has_flag(batches, TRANSACTIONAL),
        Flag.EMPTY_BATCHES: batches["record_count"] == 0,
        Flag.OLD_MAGIC: batches["magic"] < 2,
    }
    return Flag(sum(flag for flag, mask in present.items() if mask.any()))


class KeyIndexes:
    """Checks the key indexes of a partition."""

    def __init__(self, fs: Store, partition: str, findings: Findings) -> None:
        self._fs = fs
        self._partition = partition
        self._findings = findings
        folder = index_folder(partition)
        try:
            self._names = [info.name for info in fs.list(folder)]
        except FileNotFoundError:
            self._names = []
        except OSError as error:
            self._names = []
            findings.add(Kind.UNREADABLE, folder, why_unreadable(error), severity=Severity.NOTE, meaning=_UNUSED)

    def check_names(self, base_offsets: Collection[int]) -> None:
        """Report files that do not belong to a segment."""
        for name in self._names:
            path = f"{index_folder(self._partition)}/{name}"
            base_offset = parse_key_index(name)
            if base_offset is None and parse_key_index(name.removesuffix(Temporary.TMP)) is not None:
                meaning = "the next one that is written there replaces it"
                what = "an index that was being written"
                self._findings.add(Kind.LEFTOVER, path, what, severity=Severity.NOTE, meaning=meaning)
            elif base_offset is None:
                self._findings.add(Kind.FOREIGN_FILE, path, "not a key index")
            elif base_offset not in base_offsets:
                self._findings.add(Kind.KEY_INDEX_WITHOUT_LOG, path, "its segment is gone", offset=base_offset)

    def of(self, base_offset: int) -> KeyIndexCheck | None:
        """Return the check of a segment's index; None if it is missing or unreadable. Report an unreadable one."""
        path = key_index_path(self._partition, base_offset)
        if path.rpartition("/")[2] not in self._names:
            return None
        try:
            return KeyIndexCheck(key_index.decode(read_file(self._fs, path), path), path, self._findings)
        except CorruptFileError as error:
            self._findings.add(Kind.KEY_INDEX_UNREADABLE, path, error.what, position=error.position)
        except OSError as error:
            self._findings.add(Kind.UNREADABLE, path, why_unreadable(error), severity=Severity.NOTE, meaning=_UNUSED)
        return None


_UNUSED = "brokers ignore it; a clean reads the whole segment"
