"""Small valid files of every format, and the meaning of each of their bytes.

A `Sample` is one file that can be damaged and read again: a `.log` inside a partition in memory, read through `Log`, or
a small file, read by its decoder. `fields` names every range of it, so that a test that flips a byte can name the
damaged field.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cordwood.common.errors import CorruptFileError, DataError
from cordwood.common.types import Codec, TimestampType
from cordwood.kernels.layout import MAGIC_END
from cordwood.record.batch import Marker, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.formats import (
    checkpoints,
    filenames,
    leader_epochs,
    offset_index,
    producer_state,
    properties,
    quorum_state,
    time_index,
    transaction_index,
)
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.fixtures import fixture
from tests.fs.trees import put

PARTITION = "/data/orders-0"
LEGACY_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


@dataclass(frozen=True)
class Field:
    """Bytes [start, end) of a file that mean one thing."""

    start: int
    end: int
    name: str


@dataclass
class Reading:
    """Result of reading a file.

    Attributes:
        facts: decoded contents, of the format's own type; for a log its batches and its records.
        damage: reported errors.
    """

    facts: Sequence[object]
    damage: list[DataError] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """A valid file.

    Attributes:
        name: readable name of the sample.
        group: the format, as the table of uncovered fields names it.
        file: its name.
        data: its bytes.
        fields: names of byte ranges, in order, without gaps.
        open: makes a function that reads other bytes in their place.
    """

    name: str
    group: str
    file: str
    data: bytes
    fields: Sequence[Field]
    open: Callable[[], Callable[[bytes], Reading]]

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def field_at(self, position: int) -> Field:
        """The field that a byte belongs to."""
        return next(one for one in self.fields if one.start <= position < one.end)


# ---- logs ------------------------------------------------------------------------------------------------------------

_MAGIC_2 = (
    ("base offset", 0, 8),
    ("batch length", 8, 12),
    ("leader epoch", 12, 16),
    ("magic", 16, 17),
    ("CRC", 17, 21),
    ("header under the CRC", 21, 61),
    ("records", 61, None),
)
_LEGACY = (
    ("offset", 0, 8),
    ("message size", 8, 12),
    ("CRC", 12, 16),
    ("magic", 16, 17),
    ("message under the CRC", 17, None),
)


def entries(log: bytes) -> Iterator[tuple[int, int, int]]:
    """(position, end, magic) of the entries of a good log."""
    position = 0
    while position + MAGIC_END < len(log):
        end = position + 12 + int.from_bytes(log[position + 8 : position + 12], "big")
        yield position, end, log[position + 16]
        position = end


def log_fields(log: bytes) -> list[Field]:
    return [
        Field(position + start, end if stop is None else position + stop, name)
        for position, end, magic in entries(log)
        for name, start, stop in (_MAGIC_2 if magic == 2 else _LEGACY)
        if stop is not None or position + start < end
    ]


def memory(files: dict[str, bytes]) -> MemoryFileSystem:
    """A file system with these files, by absolute path."""
    fs = MemoryFileSystem(lambda: 0)
    made: set[str] = set()
    for path, data in files.items():
        parts = path.split("/")[1:-1]
        for depth in range(1, len(parts) + 1):
            directory = "/" + "/".join(parts[:depth])
            if directory not in made:
                fs.make_directory(directory)
                made.add(directory)
        put(fs, path, data)
    return fs


def read_log(log: LogView) -> Reading:
    """All batches and records of a log. Of a damaged log only the records: its headers prove nothing."""
    damage: list[DataError] = []
    records = tuple(log.records(isolation=None, on_damage=damage.append))
    batches = () if damage else tuple(log.batches(on_damage=damage.append))
    return Reading((batches, records), damage)


def log_sample(name: str, data: bytes, *, base_offset: int = 0, followed_by: bytes = b"") -> Sample:
    """A log of one segment; with `followed_by` it has another behind it, so its end is no end of a log."""
    file = offset_name(base_offset, FileKind.LOG)

    def reader() -> Callable[[bytes], Reading]:
        files = {f"{PARTITION}/{file}": data}
        if followed_by:
            files[f"{PARTITION}/{offset_name(base_offset + 1000, FileKind.LOG)}"] = followed_by
        fs = memory(files)
        log = LogView(PARTITION, fs=fs)

        def read(other: bytes) -> Reading:
            with fs.open_for_update(f"{PARTITION}/{file}") as target:
                target.write(0, other)
                target.truncate(len(other))
            return read_log(log)

        return read

    group = "log, magic 2" if data[16] == 2 else "log, magic 0 and 1"
    if "mixed" in name:
        group = "log, mixed"
    return Sample(name, group, file, data, log_fields(data), reader)


def _records(first: int, count: int = 3, value: str = "value") -> list[Record]:
    return [
        Record(first + i, 1_000 + 7 * (first + i), b"key%d" % (i % 2), f"{value} {first + i}".encode())
        for i in range(count)
    ]


def _with_headers() -> list[Record]:
    return [
        Record(0, 1_000, b"k", None, (("a", b"1"), ("a", None))),
        Record(1, 998, None, b"", (("ünï", b""),)),
        Record(4, 1_005, b"", b"x", ()),
    ]


def _transactional() -> bytes:
    def data(first: int, producer: int, epoch: int, sequence: int) -> bytes:
        return encode_batch(
            _records(first, 2),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
            leader_epoch=3,
        )

    return b"".join(
        [
            data(0, 7, 0, 0),
            data(2, 8, 1, 0),
            encode_marker(Marker(4, 2_000, 7, 0, committed=True, coordinator_epoch=5), leader_epoch=3),
            encode_marker(Marker(5, 2_001, 8, 1, committed=False, coordinator_epoch=5), leader_epoch=3),
        ]
    )


def _emptied() -> bytes:
    nothing = {"producer_id": 7, "producer_epoch": 2, "transactional": True, "max_timestamp": 1_005, "leader_epoch": 3}
    return b"".join(
        [
            encode_batch([], base_offset=0, last_offset=2, base_sequence=5, **nothing),  # type: ignore[arg-type]
            encode_batch([], base_offset=3, last_offset=3, control=True, **nothing),  # type: ignore[arg-type]
            encode_batch(_records(4)),
        ]
    )


def _horizon() -> bytes:
    marker = [Record(3, 1_200, b"\0\0\0\1", b"\0\0\0\0\0\5")]
    return b"".join(
        [
            encode_batch(_with_headers()[1:], base_offset=0, last_offset=2, delete_horizon_ms=87_400_000),
            encode_batch(
                marker, delete_horizon_ms=87_400_000, producer_id=7, producer_epoch=0, transactional=True, control=True
            ),
            encode_batch(_records(4), codec=Codec.LZ4, delete_horizon_ms=87_400_000),
        ]
    )


def _legacy(magic: int, codec: Codec) -> bytes:
    sets = (_records(0), _records(3, 2), _records(5, 3, "another value"))
    return b"".join(encode_message_set(magic, records, codec=codec) for records in sets)


def _append_time(magic: int) -> bytes:
    late = TimestampType.LOG_APPEND_TIME
    if magic == 1:
        return b"".join(
            encode_message_set(1, _records(3 * i), codec=codec, timestamp_type=late, append_time=9_000 + i)
            for i, codec in enumerate((Codec.GZIP, Codec.NONE))
        )
    return b"".join(
        encode_batch(_records(3 * i), codec=codec, timestamp_type=late, max_timestamp=9_000 + i)
        for i, codec in enumerate((Codec.NONE, Codec.ZSTD))
    )


#: Segments of real brokers: other clients, KRaft's and Kafka's own topics, each under a kilobyte.
_OF_BROKERS = (
    ("other-clients-after", "rd-idempotent-lz4-0", 0),
    ("other-clients-after", "rd-idempotent-snappy-0", 0),
    ("kraft-after", "payments-0", 0),
    ("kraft-after-2", "__consumer_offsets-2", 297),
    ("legacy-v0-after", "v0-lz4-0", 204),
    ("legacy-v1-after", "v1-append-time-0", 165),
)


@functools.cache
def logs() -> tuple[Sample, ...]:
    """A small log of each format, and logs that real brokers wrote."""
    samples = [
        log_sample(
            f"magic 2 {codec.label}",
            b"".join(
                encode_batch(_records(first), codec=codec, leader_epoch=2, producer_id=9, base_sequence=first)
                for first in (0, 3, 6)
            ),
        )
        for codec in Codec
    ]
    samples += [
        log_sample("magic 2 headers", encode_batch(_with_headers()) + encode_batch(_records(5))),
        log_sample("magic 2 transactions", _transactional()),
        log_sample("magic 2 emptied batches", _emptied()),
        log_sample("magic 2 delete horizon", _horizon()),
        log_sample("magic 2 append time", _append_time(2)),
        log_sample(
            "magic 2 segment before another",
            encode_batch(_records(100)) + encode_batch(_records(103), codec=Codec.GZIP),
            base_offset=100,
            followed_by=encode_batch(_records(1100)),
        ),
    ]
    samples += [log_sample(f"magic {m} {codec.label}", _legacy(m, codec)) for m in (0, 1) for codec in LEGACY_CODECS]
    samples += [
        log_sample("magic 1 append time", _append_time(1)),
        log_sample(
            "mixed magics",
            encode_message_set(0, _records(0))
            + encode_message_set(1, _records(3), codec=Codec.SNAPPY)
            + encode_batch(_records(6), codec=Codec.ZSTD),
        ),
    ]
    for name, partition, base_offset in _OF_BROKERS:
        path = next(fixture(name).rglob(f"{partition}/{offset_name(base_offset, FileKind.LOG)}"))
        samples.append(log_sample(f"{name} {partition}", path.read_bytes(), base_offset=base_offset))
    return tuple(samples)


# ---- small files -----------------------------------------------------------------------------------------------------


def _repeated(*layout: tuple[str, int], start: int = 0) -> Callable[[bytes], list[Field]]:
    """The fields of equal entries that fill a file from `start`: (name, width) each."""

    def fields(data: bytes) -> list[Field]:
        found, position = [], start
        while position < len(data):
            for name, width in layout:
                found.append(Field(position, position + width, name))
                position += width
        return found

    return fields


def _words(*lines: Sequence[str]) -> Callable[[bytes], list[Field]]:
    """The words of a text file by line, and their separators; the last of `lines` applies to all further lines."""

    def fields(data: bytes) -> list[Field]:
        found = []
        line = word = 0
        for match in re.finditer(rb"[^ \n]+|[ \n]", data):
            name = {b" ": "space", b"\n": "line end"}.get(match[0]) or lines[min(line, len(lines) - 1)][word]
            found.append(Field(match.start(), match.end(), name))
            line, word = (line + 1, 0) if match[0] == b"\n" else (line, word + (match[0] != b" "))
        return found

    return fields


def _groups(pattern: str) -> Callable[[bytes], list[Field]]:
    """Fields by the named groups of a pattern; a group's name is the field's, with `_` for a space."""

    def fields(data: bytes) -> list[Field]:
        matches = re.finditer(pattern.encode(), data)
        return [Field(match.start(), match.end(), (match.lastgroup or "").replace("_", " ")) for match in matches]

    return fields


#: Group: the fields of such a file.
FIELDS: dict[str, Callable[[bytes], list[Field]]] = {
    "log, magic 2": log_fields,
    "offset index": _repeated(("entry's offset", 4), ("entry's position", 4)),
    "time index": _repeated(("entry's timestamp", 8), ("entry's offset", 4)),
    "transaction index": _repeated(
        ("version", 2), ("producer id", 8), ("first offset", 8), ("last offset", 8), ("last stable offset", 8)
    ),
    "producer snapshot": lambda data: [Field(0, 2, "version"), Field(2, 6, "CRC"), Field(6, len(data), "entries")],
    "leader-epoch-checkpoint": _words(("version",), ("count",), ("epoch", "start offset")),
    "offset checkpoint": _words(("version",), ("count",), ("topic", "partition", "offset")),
    "partition.metadata": _words(("name", "version"), ("name", "topic id")),
    "meta.properties": _groups(
        r"(?P<comment>#.*\n)|(?P<key>[a-z.]+=)|(?P<line_end>\n)"
        r"|(?<=node\.id=)(?P<node_id>.+)|(?<=directory\.id=)(?P<directory_id>.+)"
        r"|(?<=version=)(?P<version>.+)|(?<=cluster\.id=)(?P<cluster_id>.+)"
    ),
    ".kafka_cleanshutdown": _groups(r'(?P<version>"version":0)|(?<="brokerEpoch":)(?P<broker_epoch>\d+)|(?P<frame>.)'),
    "quorum-state": _groups(
        r'(?<="leaderId":)(?P<leader_id>\d+)|(?<="leaderEpoch":)(?P<leader_epoch>\d+)|(?<="votedId":)(?P<voted_id>-?\d+)'
        r'|(?<="votedDirectoryId":)(?P<voted_directory_id>"[^"]*")|(?<="data_version":)(?P<version>\d+)'
        r'|(?P<key>"[A-Za-z_]+":)|(?P<frame>.)'
    ),
}


def _read_offset_index(data: bytes, base_offset: int) -> tuple[object, list[DataError]]:
    index = offset_index.decode(data, base_offset)
    facts = index.offsets.tolist(), index.positions.tolist(), index.max_entries, index.rest
    return facts, list(offset_index.faults(index))


def _read_time_index(data: bytes, base_offset: int) -> tuple[object, list[DataError]]:
    index = time_index.decode(data, base_offset)
    facts = index.timestamps.tolist(), index.offsets.tolist(), index.max_entries, index.rest
    return facts, list(time_index.faults(index))


def _read_transaction_index(data: bytes, base_offset: int) -> tuple[object, list[DataError]]:
    index = transaction_index.decode(data)
    return (tuple(index.transactions()), index.rest), list(transaction_index.faults(index, base_offset))


def _read_leader_epochs(data: bytes, base_offset: int) -> tuple[object, list[DataError]]:
    found = leader_epochs.decode(data)
    # Kafka drops entries that do not increase; the finding reports the dropped entry.
    kept = leader_epochs.history(found).entries
    return kept, [CorruptFileError("entries do not increase")] if kept != found else []


#: Group: the reader of a small file by itself; (bytes, base offset) to its contents and its errors.
_READERS: dict[str, Callable[[bytes, int], tuple[object, list[DataError]]]] = {
    "offset index": _read_offset_index,
    "time index": _read_time_index,
    "transaction index": _read_transaction_index,
    "producer snapshot": lambda data, _: (producer_state.decode(data), []),
    "leader-epoch-checkpoint": _read_leader_epochs,
    "offset checkpoint": lambda data, _: (checkpoints.decode(data), []),
    "partition.metadata": lambda data, _: (properties.decode_partition_metadata(data), []),
    "meta.properties": lambda data, _: (properties.meta_properties(properties.decode_properties(data)), []),
    ".kafka_cleanshutdown": lambda data, _: (properties.decode_clean_shutdown(data), []),
    "quorum-state": lambda data, _: (quorum_state.decode(data), []),
}


def read_small(group: str, data: bytes, base_offset: int = 0) -> Reading:
    """Read a small file by itself."""
    try:
        facts, damage = _READERS[group](data, base_offset)
    except CorruptFileError as error:
        return Reading((), [error])
    return Reading((facts,), damage)


PARTITION_METADATA = b"version: 0\ntopic_id: kh0ERQ6WToCnIzrMNpUr_A"
META_PROPERTIES = (
    b"#\n#Sat Nov 21 09:25:45 UTC 2026\nnode.id=1\ndirectory.id=onbF-9xXR-i1HI7Fph6dgA\n"
    b"version=1\ncluster.id=FHD6uL-kSAK43AXeV00NKw\n"
)
CLEAN_SHUTDOWN = b'{"version":0,"brokerEpoch":128}'

#: Group, name, base offset, bytes.
_SMALL: tuple[tuple[str, str, int, bytes], ...] = (
    (
        "offset index",
        offset_name(100, FileKind.OFFSET_INDEX),
        100,
        bytes.fromhex("0000000300000050 00000007000000a8 0000000b00000104"),
    ),
    (
        "time index",
        offset_name(100, FileKind.TIME_INDEX),
        100,
        bytes.fromhex("00000000000003e800000003 00000000000007d000000007 00000000000017480000000b"),
    ),
    (
        "transaction index",
        offset_name(100, FileKind.TRANSACTION_INDEX),
        100,
        transaction_index.encode(
            transaction_index.index_of(
                [
                    transaction_index.AbortedTransaction(7, 101, 110, 108),
                    transaction_index.AbortedTransaction(9, 108, 120, 121),
                ]
            )
        ),
    ),
    (
        "producer snapshot",
        offset_name(104, FileKind.PRODUCER_SNAPSHOT),
        104,
        producer_state.encode(
            [
                producer_state.ProducerEntry(7, 2, 7, 102, 2, 1_005, -1, 100),
                producer_state.ProducerEntry(9, 1, -1, -1, 0, 2_000, 3, -1),
            ]
        ),
    ),
    ("leader-epoch-checkpoint", FileKind.LEADER_EPOCHS, 0, b"0\n3\n0 0\n5 1187\n6 2000\n"),
    ("offset checkpoint", filenames.RECOVERY_POINTS, 0, b"0\n3\norders 0 17\norders 1 1187\npayments 12 4\n"),
    ("partition.metadata", FileKind.PARTITION_METADATA, 0, PARTITION_METADATA),
    ("meta.properties", filenames.META_PROPERTIES, 0, META_PROPERTIES),
    (".kafka_cleanshutdown", filenames.CLEAN_SHUTDOWN, 0, CLEAN_SHUTDOWN),
    (
        "quorum-state",
        FileKind.QUORUM_STATE,
        0,
        b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
    ),
)


@functools.cache
def small_files() -> tuple[Sample, ...]:
    """A sample of each format that is no log."""
    samples = []
    for group, file, base_offset, data in _SMALL:
        fields = FIELDS[group](data)
        assert fields[0].start == 0 and fields[-1].end == len(data)
        assert all(one.end == other.start for one, other in pairwise(fields))
        read = functools.partial(_reader_of, group, base_offset)
        samples.append(Sample(group, group, file, data, fields, read))
    return tuple(samples)


def _reader_of(group: str, base_offset: int) -> Callable[[bytes], Reading]:
    return lambda data: read_small(group, data, base_offset)


# ---- what no checksum covers -----------------------------------------------------------------------------------------


_BROKER = "set by the leader after the producer's CRC, so left out of it; caught by"
_PLAIN = "no checksum in the whole file; caught by"
#: Format and field: why the file itself does not reveal the flip, and which other file or neighbour does.
UNCOVERED = {
    "log, magic 2": {
        "base offset": f"{_BROKER} the order of batches and the segment's name, for readers, too;"
        " if both fit, by index entries, producer snapshots",
        "batch length": "only of a last batch, which then seems cut off; caught by how the log was closed",
        "leader epoch": f"{_BROKER} the order of epochs and leader-epoch-checkpoint",
    },
    "log, magic 0 and 1": {
        "offset": f"{_BROKER} the order of messages, the segment's name, index entries",
        "message size": "only of a last message, as in magic 2",
    },
    "log, mixed": {
        "base offset": "as in magic 2",
        "batch length": "as in magic 2",
        "leader epoch": "as in magic 2",
        "offset": "as in magic 0 and 1",
    },
    "offset index": {
        "entry's offset": f"{_PLAIN} the batch it points at",
        "entry's position": f"{_PLAIN} the batch it points at",
    },
    "time index": {
        "entry's timestamp": f"{_PLAIN} the batch it is about",
        "entry's offset": f"{_PLAIN} the batch it is about",
    },
    "transaction index": {
        "producer id": f"{_PLAIN} the marker",
        "first offset": f"{_PLAIN} the transaction's first batch",
        "last offset": f"{_PLAIN} the marker",
        "last stable offset": f"{_PLAIN} the transactions that were open",
    },
    "leader-epoch-checkpoint": {
        "epoch": f"{_PLAIN} the batches' epochs",
        "start offset": f"{_PLAIN} the batches' epochs",
    },
    "offset checkpoint": {
        "topic": f"{_PLAIN} nothing: an entry of another partition is normal, and a partition without its entry starts "
        "at 0",
        "partition": f"{_PLAIN} nothing, as the topic",
        "offset": f"{_PLAIN} the log's first and next offset",
    },
    "partition.metadata": {
        "version": f"{_PLAIN} nothing: Kafka takes any version that is not negative",
        "topic id": f"{_PLAIN} the cluster's metadata",
    },
    "meta.properties": {
        "key": f"{_PLAIN} nothing where the key may be missing",
        "line end": f"{_PLAIN} nothing: two lines become one",
        "node id": f"{_PLAIN} the other log directories",
        "directory id": f"{_PLAIN} the cluster's metadata",
        "version": f"{_PLAIN} the keys that the version needs",
        "cluster id": f"{_PLAIN} the other log directories",
    },
    ".kafka_cleanshutdown": {
        "version": "Kafka takes a file that it cannot parse for one without a broker epoch",
        "broker epoch": "as the version; compared by the controller, not on disk",
        "frame": "as the version",
    },
    "quorum-state": {
        "leader id": f"{_PLAIN} the next election",
        "leader epoch": f"{_PLAIN} the metadata log's epochs",
        "voted id": f"{_PLAIN} nothing",
        "voted directory id": f"{_PLAIN} nothing",
    },
}


def flipped(data: bytes, position: int, pattern: int) -> bytes:
    return data[:position] + bytes([data[position] ^ pattern]) + data[position + 1 :]
