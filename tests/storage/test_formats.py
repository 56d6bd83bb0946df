"""All small formats together.

Every such file that a broker left is read and written back byte for byte, and no bytes, however hostile, do more than
raise the error that is meant for them.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood import java_properties
from cordwood.errors import BadNameError, CorruptFileError
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
from cordwood.storage.formats.filenames import FileKind
from tests.fixtures import NAMES, fixture
from tests.storage.encoders import encode_partition_metadata

BASE = 100


@dataclass(frozen=True)
class Format:
    """How a kind of file is read and written back; `sample` is one that is good."""

    again: Callable[[bytes, int], bytes]
    faults: Callable[[bytes, int], list[CorruptFileError]]
    sample: bytes


def none(data: bytes, offset: int) -> list[CorruptFileError]:
    """The faults of a format that raises all of them."""
    return []


FORMATS: dict[str, Format] = {
    FileKind.OFFSET_INDEX: Format(
        lambda data, base: offset_index.encode(offset_index.decode(data, base)),
        lambda data, base: list(offset_index.faults(offset_index.decode(data, base))),
        bytes.fromhex("0000000500000000 0000003200001068"),
    ),
    FileKind.TIME_INDEX: Format(
        lambda data, base: time_index.encode(time_index.decode(data, base)),
        lambda data, base: list(time_index.faults(time_index.decode(data, base))),
        bytes.fromhex("00000000000003e800000005 00000000000007d000000032"),
    ),
    FileKind.TRANSACTION_INDEX: Format(
        lambda data, base: transaction_index.encode(transaction_index.decode(data)),
        lambda data, base: list(transaction_index.faults(transaction_index.decode(data), base)),
        bytes.fromhex("0000 0000000000000007 0000000000000065 000000000000006e 000000000000006c"),
    ),
    FileKind.PRODUCER_SNAPSHOT: Format(
        lambda data, _: producer_state.encode(producer_state.decode(data)),
        none,
        producer_state.encode([producer_state.ProducerEntry(7, 2, 7, 102, 2, 1005, -1, 100)]),
    ),
    FileKind.LEADER_EPOCHS: Format(
        lambda data, _: leader_epochs.encode(leader_epochs.history(leader_epochs.decode(data)).entries),
        none,
        b"0\n2\n0 0\n5 1187\n",
    ),
    FileKind.PARTITION_METADATA: Format(
        lambda data, _: encode_partition_metadata(properties.decode_partition_metadata(data)),
        none,
        b"version: 0\ntopic_id: kh0ERQ6WToCnIzrMNpUr_A",
    ),
    FileKind.QUORUM_STATE: Format(
        lambda data, _: quorum_state.encode(quorum_state.decode(data)),
        none,
        b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
    ),
    "offset checkpoint": Format(
        lambda data, _: checkpoints.encode(checkpoints.decode(data)), none, b"0\n2\nfoo 0 17\nbar 3 4\n"
    ),
    filenames.META_PROPERTIES: Format(
        lambda data, _: java_properties.encode(properties.decode_properties(data)),
        none,
        b"#\n#now\nnode.id=1\nversion=1\ncluster.id=a\\u0041\n",
    ),
    filenames.CLEAN_SHUTDOWN: Format(
        lambda data, _: properties.encode_clean_shutdown(properties.decode_clean_shutdown(data)),
        none,
        b'{"version":0,"brokerEpoch":128}',
    ),
}

#: What was broken by hand in `kraft-crashed-torn`.
DAMAGE = {
    ("kraft-crashed-torn", "full-index-0/00000000000000000000.index"): "offset -1 is below",
    ("kraft-crashed-torn", "trans-0/00000000000000000203.txnindex"): "24 bytes after the last whole entry",
    ("kraft-crashed-torn", "short-0/00000000000000000553.snapshot"): "CRC-32C mismatch",
}


@functools.cache
def files(name: str) -> tuple[tuple[str, int, Path], ...]:
    """The files of a fixture that have one of the formats: (format, offset, path)."""
    return tuple(_files(fixture(name)))


def _files(root: Path) -> Iterator[tuple[str, int, Path]]:
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        if path.name in filenames.OFFSET_CHECKPOINTS:
            yield "offset checkpoint", 0, path
        elif path.name in FORMATS:
            yield path.name, 0, path
        file = filenames.parse_file(path.name)
        assert file is not None, path
        if file.kind is not FileKind.FOREIGN:
            assert file.name == path.name
            if file.kind in FORMATS and path.name not in FORMATS:
                yield file.kind, file.offset, path


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.strip("."))
def test_every_file_of_a_broker_is_written_back_byte_for_byte(
    kind: str, record_property: Callable[[str, object], None]
) -> None:
    form = FORMATS[kind]
    seen: Counter[str] = Counter()
    found: dict[tuple[str, str], str] = {}
    for name in NAMES:
        for path_kind, offset, path in files(name):
            if path_kind != kind:
                continue
            data = path.read_bytes()
            seen["files"] += 1
            seen["never written"] += kind == "offset checkpoint" and not data
            place = (name, str(path.relative_to(fixture(name))))
            try:
                for fault in form.faults(data, offset):
                    found[place] = fault.what
                assert form.again(data, offset) in (data, data or b"0\n0\n"), place
            except CorruptFileError as error:
                found[place] = error.what
    for what, count in seen.items():
        record_property(f"{kind} {what}", count)
    print(f"{kind}: {dict(seen)}, damaged {len(found)}")
    assert seen["files"] > 0
    expected = {place: what for place, what in DAMAGE.items() if place[1].endswith(kind)}
    assert found.keys() == expected.keys()
    assert all(what in found[place] for place, what in expected.items())


def test_every_directory_of_a_broker_is_a_partition_with_its_own_name() -> None:
    states: Counter[str] = Counter()
    for name in NAMES:
        for parent in {path.parent for _, _, path in files(name) if path.name.endswith((".log", ".timeindex"))}:
            directory = filenames.parse_directory(parent.name)
            assert directory.name == parent.name
            assert directory.topic_partition.topic and filenames.topic_fault(directory.topic_partition.topic) is None
            states[directory.state] += 1
    print({state or "current": count for state, count in states.items()})
    assert states.keys() == set(filenames.DirectoryState)


HOSTILE = st.binary(max_size=200) | st.text(st.sampled_from('0129 -+:\n\r\\u#={}[]",ab'), max_size=60).map(str.encode)


def survives(kind: str, data: bytes) -> None:
    with contextlib.suppress(CorruptFileError, BadNameError):
        FORMATS[kind].again(data, BASE)
        FORMATS[kind].faults(data, BASE)
        if kind == filenames.META_PROPERTIES:
            properties.meta_properties(properties.decode_properties(data))


@pytest.mark.parametrize("kind", FORMATS)
def test_random_bytes_raise_nothing_but_corrupt_file(kind: str) -> None:
    @given(HOSTILE)
    def run(data: bytes) -> None:
        survives(kind, data)

    run()


@pytest.mark.parametrize("kind", FORMATS)
def test_good_files_with_damage_raise_nothing_but_corrupt_file(kind: str) -> None:
    @given(st.data())
    def run(draw: st.DataObject) -> None:
        data = FORMATS[kind].sample
        start = draw.draw(st.integers(0, len(data)))
        end = draw.draw(st.integers(start, min(start + 4, len(data))))
        survives(kind, data[:start] + draw.draw(st.binary(max_size=4) | HOSTILE) + data[end:])

    run()


@pytest.mark.parametrize("kind", FORMATS)
def test_samples_are_good(kind: str) -> None:
    assert FORMATS[kind].again(FORMATS[kind].sample, BASE) == FORMATS[kind].sample
    assert FORMATS[kind].faults(FORMATS[kind].sample, BASE) == []
