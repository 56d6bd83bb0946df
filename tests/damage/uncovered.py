"""Which fields no checksum covers, and bytes with some bits flipped."""

from __future__ import annotations

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
        "topic": f"{_PLAIN} nothing: partitions that are not there are normal, one that is missing starts at 0",
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
