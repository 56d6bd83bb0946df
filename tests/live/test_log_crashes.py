"""Power cuts at each file operation of a live log, with any subset of the unsynced changes lost.

After the next load every record below the recovery point exists, and every record was appended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from cordwood.fs.base import LocalFileSystem
from cordwood.live.log import Log
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.files import write_file
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import Change
from tests.crashes import Cuts, durable
from tests.live.live_logs import PATH, World, batch, read_all

pytestmark = pytest.mark.more

CONFIG = {"segment.bytes": "200", "segment.index.bytes": "64", "index.interval.bytes": "0", "retention.bytes": "150"}


@dataclass
class Known:
    """The test's record of the log at the power cut.

    Attributes:
        safe: every record below this offset is on disk.
        start: records below this offset may be deleted.
        values: appended values by offset; several after a truncation.
    """

    safe: int = 0
    start: int = 0
    values: dict[int, set[str]] = field(default_factory=dict)

    def note(self, log: Log) -> None:
        self.safe = log.recovery_point
        self.start = max(self.start, log.log_start_offset)


def append(log: Log, known: Known, *values: str) -> None:
    for at, value in enumerate(values, log.log_end_offset):
        known.values.setdefault(at, set()).add(value)
    log.append_as_leader(batch(*values), 0)
    log.update_high_watermark(log.log_end_offset)
    known.note(log)


def rolls(log: Log, known: Known) -> None:
    for number in range(4):
        append(log, known, f"a{number}", f"b{number}")
    log.flush()
    known.note(log)


def truncates(log: Log, known: Known) -> None:
    append(log, known, "a0", "b0")
    append(log, known, "c0")
    log.flush()
    known.note(log)
    known.safe = 2
    log.truncate_to(2)
    append(log, known, "d1")
    append(log, known, "e1")
    log.flush()
    known.note(log)


def retains(log: Log, known: Known) -> None:
    for number in range(4):
        append(log, known, f"a{number}", f"b{number}")
    log.flush()
    known.note(log)
    known.start = 6
    log.delete_old_segments()
    known.note(log)


def closes(log: Log, known: Known) -> None:
    append(log, known, "a0", "b0")
    append(log, known, "c0", "d0")
    log.flush(force_active_segment=True)
    log.close()
    known.note(log)


@pytest.mark.parametrize("act", [rolls, truncates, retains, closes])
def test_what_was_flushed_is_there_after_a_power_cut(
    act: Callable[[Log, Known], None], record_property: Callable[[str, object], None]
) -> None:
    start = World()
    assert isinstance(start.fs, MemoryFileSystem)
    known = Known()

    def run(fs: LocalFileSystem) -> None:
        known.__init__()  # type: ignore[misc]
        act(World(fs).load(CONFIG), known)

    cuts = Cuts(durable(start.fs), run, sampled=12, subsets_max=4, known=lambda: known.safe)
    for after in cuts:
        world = World(after)
        log = world.load(CONFIG, clean_shutdown=False, recovery_point=known.safe)
        found = read_all(log)
        for offset in range(max(known.start, log.log_start_offset), known.safe):
            assert found.get(offset) in known.values[offset], f"offset {offset} was flushed"
        for offset, value in found.items():
            assert value in known.values[offset], "nothing is there that was never appended"
        # The log continues from there.
        log.append_as_leader(batch("z9"), 0)
        assert read_all(log)[log.log_end_offset - 1] == "z9"
    cuts.tell(record_property, f"a live log that {act.__name__}")
    assert cuts.different > 20


def test_a_segment_whose_offsets_span_too_much_is_split_whenever_the_power_is_cut() -> None:
    fs = World().fs
    assert isinstance(fs, MemoryFileSystem)
    far = 3 << 31
    fs.make_directory(PATH)
    kept = {0: "a0", 1: "b1", far: "a2", far + 1: "b3"}
    write_file(fs, f"{PATH}/{offset_name(0, FileKind.LOG)}", b"".join(batch(v, base_offset=o) for o, v in kept.items()))
    cuts = Cuts(durable(fs), lambda fs: World(fs).load(CONFIG, clean_shutdown=False), sampled=8, subsets_max=4)
    for after in cuts:
        assert read_all(World(after).load(CONFIG, clean_shutdown=False)) == kept
        assert [segment.base_offset for segment in LogView(PATH, fs=after).segments] == [0, far]


def names_of_aborts_are_lost(change: Change) -> int:
    """All changes but that the file of a transaction index was made."""
    return 0 if "create" in change.text and ".txnindex" in change.text else change.parts


@pytest.mark.parametrize("ends", ["flush", "close"])
def test_what_was_aborted_stays_so_when_names_that_were_not_synced_are_lost(
    ends: str,
) -> None:
    fs = MemoryFileSystem(lambda: 0)
    log = World(fs).load()
    log.append({"a": "1"})
    log.flush()
    with contextlib.suppress(KeyError), log.transaction(7) as transaction:
        transaction.append({"b": "ABORTED"})
        raise KeyError
    getattr(log, ends)()
    after = World(fs.crash(names_of_aborts_are_lost))
    loaded = after.load(clean_shutdown=ends == "close", recovery_point=log.recovery_point)
    loaded.update_high_watermark(loaded.log_end_offset)
    assert [record.value for record in loaded.records()] == [b"1"]
