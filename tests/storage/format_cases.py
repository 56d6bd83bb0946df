"""The file formats as data: golden bytes, and damage to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cordwood.common import java_properties
from cordwood.common.errors import CorruptFileError
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


@dataclass(frozen=True)
class Format:
    """Functions that read a kind of file and write it back; `sample` is a valid file."""

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
        lambda data, _: properties.encode_partition_metadata(properties.decode_partition_metadata(data)),
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
#: Damage made by hand in `kraft-crashed-torn`.
DAMAGE = {
    ("kraft-crashed-torn", "full-index-0/00000000000000000000.index"): "offset -1 is below",
    ("kraft-crashed-torn", "trans-0/00000000000000000203.txnindex"): "24 bytes after the last whole entry",
    ("kraft-crashed-torn", "short-0/00000000000000000553.snapshot"): "CRC-32C mismatch",
}
