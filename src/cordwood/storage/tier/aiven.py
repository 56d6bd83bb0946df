"""The layout of Aiven's plugin for object stores: three objects per segment.

    PREFIX orders-tqTXryP4TGyVbT77P-TwlA/0/00000000000000000400-NnrzoxQmSeO9cOTo6MCn3Q.log
                                                                                       .indexes
                                                                                       .rsm-manifest
           topic, topic id             / partition / start offset, segment id

The prefix is as configured: no slash is added to it. The manifest is uploaded last, so a segment with one is complete.
It is JSON:

    chunkIndex                 how `.log` is divided: original sizes, and the sizes of the chunks in the object
    segmentIndexes             position and size in `.indexes` of each index; null without aborted transactions
    compression                whether each chunk of `.log` is a zstd frame; indexes never are
    encryption                 data key (key id, ":", encrypted key in base64) and associated data; absent if plain
    remoteLogSegmentMetadata   the segment itself, as in the brokers' metadata

Manifests are not trusted: every number is checked before it is used, and against the size of its object.
"""

from __future__ import annotations

import errno
import json
import posixpath
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import BadNameError, CorruptFileError, CorruptMessageError, RequestError
from cordwood.common.types import NONE, override
from cordwood.fs.base import ReadableFile, Store, TargetStore
from cordwood.fs.manifest import TIER_FOLDER
from cordwood.fs.wrapped import WrappedReadableFile
from cordwood.record.record import write_varint
from cordwood.storage.formats.filenames import FileKind, parse_tier_key_index, tier_key_index_name, topic_fault
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.messages.schema import encode_uvarint, read_uvarint
from cordwood.storage.formats.text import parse_integer, shown
from cordwood.storage.log.files import read_file
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.tier.chunks import (
    CHUNK_BYTES_MAX,
    CIPHER_BYTES,
    ChunkedFile,
    ChunkIndex,
    Cipher,
    TierKey,
    count_chunks,
    decode_chunk_sizes,
    decrypt_data_key,
)
from cordwood.storage.tier.json_fields import Fields
from cordwood.storage.tier.local import (
    ID_LENGTH,
    Layout,
    StoredObjects,
    check_names,
    check_partition,
    grouped,
    object_stem,
    upload,
)
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition

MANIFEST_BYTES_MAX = 64 << 20
#: `.log`, `.indexes` and the manifest.
OBJECTS_OF_A_SEGMENT = 3
_INT32_MAX = (1 << 31) - 1
_VERSION = "1"
_LOG, _INDEXES, _MANIFEST = ".log", ".indexes", ".rsm-manifest"
_MANIFEST_NAME = re.compile(rf"([0-9]{{20}})-([A-Za-z0-9_-]{{{ID_LENGTH}}}){re.escape(_MANIFEST)}")
_OBJECT_NAME = re.compile(
    rf"([0-9]{{20}}-[A-Za-z0-9_-]{{{ID_LENGTH}}})(?:{'|'.join(map(re.escape, (_LOG, _INDEXES, _MANIFEST)))})"
)
_TOPIC_FOLDER = re.compile(rf"(.+)-([A-Za-z0-9_-]{{{ID_LENGTH}}})")
#: The bucket in a URL.
_BUCKET = re.compile(r"[a-z0-9]+://[^/]+")
#: The indexes of a segment, by their names in a manifest.
_INDEX_NAMES = {
    "offset": FileKind.OFFSET_INDEX,
    "timestamp": FileKind.TIME_INDEX,
    "producerSnapshot": FileKind.PRODUCER_SNAPSHOT,
    "leaderEpoch": FileKind.LEADER_EPOCHS,
    "transaction": FileKind.TRANSACTION_INDEX,
}
#: The offset of a batch that would begin with the magic number of zstd.
_ZSTD_OFFSET = 0x28B52FFD << 32
#: Size of a chunk of a segment that replaces no other.
_CHUNK_BYTES = 4 << 20
#: Number of objects with indexes that stay open.
_INDEXES_SHARED = 16
#: Number of objects of a partition that are opened before its folder is listed.
_OPENED_UNLISTED = 6
#: Maximum number of cached manifests, and of chunks in them.
_MANIFESTS_CACHED, _CHUNKS_CACHED = 1024, 1 << 20


@dataclass(frozen=True, slots=True)
class Encryption:
    """The encryption of a segment.

    Attributes:
        key_id: the key pair that encrypts the data key.
        associated_data: bytes that every piece is authenticated with.
    """

    key_id: str
    encrypted_data_key: bytes
    associated_data: bytes


@dataclass(frozen=True, slots=True, eq=False)
class AivenManifest:
    """A decoded manifest.

    Attributes:
        indexes: position and size of each index in `.indexes`.
    """

    segment: RemoteSegment
    chunks: ChunkIndex
    indexes: Mapping[FileKind, tuple[int, int]]
    is_compressed: bool
    encryption: Encryption | None

    @property
    def sizes(self) -> Mapping[FileKind, int]:
        """Plain size of each file of the segment."""
        added = CIPHER_BYTES if self.encryption else 0
        return {FileKind.LOG: self.chunks.size_bytes} | {
            kind: size - added if size else 0 for kind, (_, size) in self.indexes.items()
        }


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """Fields that the plugin adds to the brokers' metadata of a segment; None for a field that is not configured.

    Attributes:
        prefix: the key prefix when the segment was uploaded.
        key: key of its objects, without prefix and ending.
        stored_bytes: size of its three objects.
    """

    prefix: str | None = None
    key: str | None = None
    stored_bytes: int | None = None


def decode_custom_metadata(data: bytes) -> CustomMetadata:
    """Decode custom metadata: a count, and for each field tag, size and value. Other tags are skipped.

    Raises:
        CorruptMessageError: the bytes do not have this form.
    """
    values: dict[int, bytes] = {}
    try:
        count, at = read_uvarint(data, 0, len(data))
        for _ in range(count):
            tag, at = read_uvarint(data, at, len(data))
            size, at = read_uvarint(data, at, len(data))
            if size > len(data) - at:
                raise ValueError("a value is longer than the rest")
            values[tag] = data[at : at + size]
            at += size
        if at != len(data):
            raise ValueError("bytes follow the last field")
        return CustomMetadata(_compact_string(values.get(1)), _compact_string(values.get(2)), _varlong(values.get(0)))
    except (ValueError, IndexError) as error:
        raise CorruptMessageError(f"custom metadata of a remote segment is invalid: {error}") from None


def _varlong(value: bytes | None) -> int | None:
    """Decode a zigzag varint of up to 64 bits; None for other bytes, as nothing depends on it."""
    if value is None or not 0 < len(value) <= 10 or value[-1] >= 0x80:
        return None
    number = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(value))
    return (number >> 1) ^ -(number & 1)


def encode_custom_metadata(size_bytes: int, prefix: str, key: str, like: CustomMetadata) -> bytes:
    """Encode custom metadata with the fields that `like` has."""
    values = [
        (0, write_varint(size_bytes), like.stored_bytes is not None),
        (1, encode_uvarint(len(prefix.encode()) + 1) + prefix.encode(), like.prefix is not None),
        (2, encode_uvarint(len(key.encode()) + 1) + key.encode(), like.key is not None),
    ]
    fields = [bytes([tag]) + encode_uvarint(len(value)) + value for tag, value, is_there in values if is_there]
    return encode_uvarint(len(fields)) + b"".join(fields)


def _compact_string(value: bytes | None) -> str | None:
    if value is None:
        return None
    length, at = read_uvarint(value, 0, len(value))
    if length != len(value) - at + 1:
        raise ValueError("a text has another length than its field")
    return value[at:].decode()


# ---- manifest --------------------------------------------------------------------------------------------------------


def decode_manifest(data: bytes, path: str) -> AivenManifest:
    """Decode a manifest.

    Raises:
        CorruptFileError: it is not a manifest of version 1, or its numbers contradict each other.
    """
    fields = Fields.of_file(data, path)
    if fields.text("version") != _VERSION:
        raise fields.refused("version", f"{_VERSION!r}, the only version that is known,")
    is_compressed = fields.boolean("compression")
    encryption = None
    if (encrypted := fields.optional("encryption")) is not None:
        key_id = encrypted.text("dataKey").rpartition(":")[0]
        encryption = Encryption(key_id, encrypted.decoded("dataKey"), encrypted.decoded("aad"))
    chunks = _chunk_index(fields.fields("chunkIndex"))
    smallest = CIPHER_BYTES if encryption else 0
    if not is_compressed:
        _check_plain_sizes(chunks, smallest, path)
    places = {}
    for name, kind in _INDEX_NAMES.items():
        if (index := fields.fields("segmentIndexes").optional(name)) is not None:
            position, size = index.integer("position", 0, _INT32_MAX), index.integer("size", 0, _INT32_MAX)
            if 0 < size < smallest:
                raise index.refused("size", f"0 or at least {smallest}, as it is encrypted,")
            places[kind] = (position, size)
    segment = _segment(fields.fields("remoteLogSegmentMetadata"), chunks.size_bytes)
    return AivenManifest(segment, chunks, places, is_compressed, encryption)


def encode_manifest(manifest: AivenManifest) -> bytes:
    """Encode the manifest of a segment that is neither compressed nor encrypted, as the plugin does."""
    assert manifest.chunks.ends is None and not manifest.is_compressed and manifest.encryption is None
    chunks, one = manifest.chunks, manifest.segment
    last = chunks.count - 1
    content = {
        "version": _VERSION,
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": chunks.chunk_bytes,
            "originalFileSize": chunks.size_bytes,
            "transformedChunkSize": chunks.stored_chunk_bytes,
            "finalTransformedChunkSize": chunks.plain_bytes(last),
        },
        "segmentIndexes": {
            name: dict(zip(("position", "size"), manifest.indexes[kind], strict=True))
            if kind in manifest.indexes
            else None
            for name, kind in _INDEX_NAMES.items()
        },
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": one.topic_id,
                    "topicPartition": {"topic": one.topic, "partition": one.partition},
                },
                "id": one.id,
            },
            "startOffset": one.start_offset,
            "endOffset": one.end_offset,
            "maxTimestampMs": one.max_timestamp_ms,
            "brokerId": one.broker,
            "eventTimestampMs": one.event_time_ms,
            "segmentLeaderEpochs": {str(entry.epoch): entry.start_offset for entry in one.epochs},
            "txnIdxEmpty": one.transaction_index_empty,
        },
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _chunk_index(fields: Fields) -> ChunkIndex:
    size_bytes = fields.integer("originalFileSize", 1, _INT32_MAX)
    chunk_bytes = fields.integer("originalChunkSize", 1, CHUNK_BYTES_MAX)
    count = count_chunks(chunk_bytes, size_bytes)
    if fields.text("type") == "fixed":
        each = fields.integer("transformedChunkSize", 1, _INT32_MAX)
        last = fields.integer("finalTransformedChunkSize", 1, _INT32_MAX)
        return ChunkIndex(chunk_bytes, size_bytes, each, (count - 1) * each + last)
    if fields.text("type") == "variable":
        sizes = decode_chunk_sizes(fields.text("transformedChunks"), count, fields.path)
        ends = np.cumsum(sizes)
        return ChunkIndex(chunk_bytes, size_bytes, 0, int(ends[-1]), ends)
    raise fields.refused("type", "fixed or variable")


def _check_plain_sizes(chunks: ChunkIndex, added_bytes: int, path: str) -> None:
    """Raise CorruptFileError unless uncompressed chunks have their plain sizes, with the bytes of encryption."""
    for chunk in range(chunks.count) if chunks.ends is not None else {0, chunks.count - 1}:
        start, end = chunks.stored_range(chunk)
        if end - start != chunks.plain_bytes(chunk) + added_bytes:
            what = (
                f"chunk {chunk} has {end - start} bytes in the chunk index, and {chunks.plain_bytes(chunk)} of the file"
            )
            raise CorruptFileError(f"{what}, although it is not compressed", path=path)


def _segment(fields: Fields, size_bytes: int) -> RemoteSegment:
    ids = fields.fields("remoteLogSegmentId")
    topic_id = ids.fields("topicIdPartition")
    partition = topic_id.fields("topicPartition")
    if fault := topic_fault(partition.text("topic")):
        raise partition.refused("topic", f"the name of a topic ({fault})")
    start = fields.integer("startOffset", 0, MAX_OFFSET)
    return RemoteSegment(
        topic=partition.text("topic"),
        topic_id=topic_id.id("topicId"),
        partition=partition.integer("partition", 0, _INT32_MAX),
        id=ids.id("id"),
        start_offset=start,
        end_offset=fields.integer("endOffset", start, MAX_OFFSET),
        size_bytes=size_bytes,
        max_timestamp_ms=fields.integer("maxTimestampMs", -MAX_OFFSET - 1, MAX_OFFSET),
        event_time_ms=fields.integer("eventTimestampMs", -MAX_OFFSET - 1, MAX_OFFSET),
        broker=fields.integer("brokerId", -_INT32_MAX - 1, _INT32_MAX),
        epochs=fields.epochs("segmentLeaderEpochs"),
        custom_metadata=None,
        state=CopyState.COPY_FINISHED,
        transaction_index_empty=fields.boolean("txnIdxEmpty"),
    )


# ---- layout ----------------------------------------------------------------------------------------------------------


class AivenLayout(Layout):
    """The objects of Aiven's plugin.

    Attributes:
        store: contains the objects.

    Args:
        root: bucket and key prefix. A prefix that is a folder may be given with or without its slash.
        keys: private keys for encrypted segments.
        lists: list the folder of a partition once several of its objects are opened.
    """

    def __init__(self, store: TargetStore, root: str, keys: Sequence[TierKey] = (), *, lists: bool = True) -> None:
        self.store = store
        self._lists = lists
        self._root = root
        self._keys = tuple(keys)
        self._prefix: str | None = None
        self._lock = threading.Lock()
        #: Manifests by path; the one used last is at the end.
        self._manifests: OrderedDict[str, AivenManifest] = OrderedDict()
        #: Open objects with indexes by path; the one used last is at the end.
        self._indexes: OrderedDict[str, ReadableFile] = OrderedDict()
        #: Number of objects that were opened in the folder of each partition, up to its listing.
        self._opens: Counter[str] = Counter()

    @override
    def kinds(self, segment: RemoteSegment) -> Mapping[FileKind, int | None]:
        check_names(segment)
        with self._lock:
            known = self._manifests.get(self._path(segment, _MANIFEST))
        if known is not None:
            return known.sizes
        kinds = dict.fromkeys(_INDEX_NAMES.values()) | {FileKind.LOG: segment.size_bytes}
        if segment.transaction_index_empty:
            del kinds[FileKind.TRANSACTION_INDEX]
        return kinds

    @override
    def open(self, segment: RemoteSegment, kind: FileKind) -> ReadableFile:
        check_names(segment)
        if kind is FileKind.LOG and (plain := self._open_plain(segment)) is not None:
            return plain
        manifest = self.manifest(segment)
        if kind is not FileKind.LOG and kind not in manifest.indexes:
            path = self._path(segment, _INDEXES)
            raise FileNotFoundError(errno.ENOENT, f"the segment has no {kind} in it", path)
        path = self._path(segment, _LOG if kind is FileKind.LOG else _INDEXES)
        file = self._open(path) if kind is FileKind.LOG else self._open_indexes(path)
        try:
            return self._opened(file, manifest, kind)
        except BaseException:
            file.close()
            raise

    def manifest(self, segment: RemoteSegment) -> AivenManifest:
        """Read the manifest of a segment, and compare it with the segment.

        Raises:
            FileNotFoundError: it does not exist, so the segment is not complete, or was deleted.
            CorruptFileError: it is invalid, or of another segment.
        """
        path = self._path(segment, _MANIFEST)
        manifest = self._read_manifest(path)
        for name in ("topic", "topic_id", "partition", "id", "start_offset", "end_offset", "size_bytes"):
            here, expected = getattr(manifest.segment, name), getattr(segment, name)
            if here != expected:
                what = f"{name.replace('_', ' ')} {here} in the manifest, and {expected} in the metadata of the segment"
                raise CorruptFileError(what, path=path)
        return manifest

    @override
    def segments(self, topic: str | None = None, without: Container[TopicIdPartition] = ()) -> Iterator[RemoteSegment]:
        for path, partition in self.folders(topic):
            if partition not in without:
                yield from self._segments_in(path)

    @override
    def objects(self) -> Iterator[StoredObjects]:
        for path, partition in self.folders():
            infos = [info for info in self.store.list(path) if info.name != TIER_FOLDER]
            indexes = {info.name: found for info in infos if (found := parse_tier_key_index(info.name)) is not None}
            yield from grouped((info for info in infos if info.name not in indexes), path, _OBJECT_NAME, partition)
            for info in infos:
                if info.name in indexes:
                    start, segment_id = indexes[info.name]
                    yield StoredObjects(f"{path}/{info.name}", info.size_bytes, 1, partition, segment_id, start)

    @override
    def epochs(self, segment: RemoteSegment) -> Sequence[EpochEntry]:
        return self.manifest(segment).segment.epochs

    @override
    def check_replaceable(self, segment: RemoteSegment) -> None:
        if self.manifest(segment).encryption is not None:
            raise RequestError(
                f"{self._path(segment, _LOG)} is encrypted, and new segments are written without encryption. "
                "Write a cleaned copy instead: --output DIR2"
            )

    @override
    def write(self, segment: RemoteSegment, files: Mapping[FileKind, str], like: RemoteSegment | None) -> bytes | None:
        chunk_bytes = _CHUNK_BYTES if like is None else self.manifest(like).chunks.chunk_bytes
        log, indexes, manifest = self.object_paths(segment)
        upload(self.store, files[FileKind.LOG], log)
        pieces, places = [], {}
        for kind in _INDEX_NAMES.values():
            if kind in files:
                pieces.append(read_file(self.store, files[kind]))
                places[kind] = (sum(map(len, pieces[:-1])), len(pieces[-1]))
        self.store.put(indexes, b"".join(pieces))
        chunks = ChunkIndex(chunk_bytes, segment.size_bytes, chunk_bytes, segment.size_bytes)
        data = encode_manifest(AivenManifest(segment, chunks, places, is_compressed=False, encryption=None))
        self.store.put(manifest, data)
        if like is None or like.custom_metadata is None:
            return None
        custom, key = decode_custom_metadata(like.custom_metadata), log.removeprefix(self._key_prefix())
        # Below a folder that a bucket was copied to, it is not known where the bucket begins.
        bucket = _BUCKET.match(log)
        prefix = self._key_prefix()[bucket.end() + 1 :] if bucket else custom.prefix or ""
        size_bytes = segment.size_bytes + sum(map(len, pieces)) + len(data)
        return encode_custom_metadata(size_bytes, prefix, key.removesuffix(_LOG), custom)

    @override
    def object_paths(self, segment: RemoteSegment) -> list[str]:
        check_names(segment)
        return [self._path(segment, ending) for ending in (_LOG, _INDEXES, _MANIFEST)]

    def paths_to_delete(self, segment: RemoteSegment) -> list[str]:
        """Return the paths of all objects that a segment may have, in the order in which they are to be deleted."""
        return [self.key_index_path(segment), *reversed(self.object_paths(segment))]

    def key_index_path(self, segment: RemoteSegment) -> str:
        """Return the path of a segment's key index. Only Cordwood makes such objects, and few segments have one."""
        return f"{self.folder(segment.topic_id_partition)}/{tier_key_index_name(segment.start_offset, segment.id)}"

    def folder(self, partition: TopicIdPartition) -> str:
        """Return the folder with the objects of a partition.

        Raises:
            BadNameError: the topic or its id cannot be part of an object's name.
        """
        check_partition(partition)
        return f"{self._key_prefix()}{partition.topic}-{partition.topic_id}/{partition.partition}"

    def topics(self) -> frozenset[str]:
        """Return the names of the topics' folders, without the key prefix."""
        folder, beginning = posixpath.split(self._key_prefix())
        return frozenset(name.removeprefix(beginning) for name in self.names_in(folder) if name.startswith(beginning))

    def folders(self, topic: str | None = None) -> Iterator[tuple[str, TopicIdPartition]]:
        """Yield each partition that has a folder, after the folder's path.

        Args:
            topic: only partitions of this topic.
        """
        folder, beginning = posixpath.split(self._key_prefix())
        for name, is_directory in self.names_in(folder).items():
            match = _TOPIC_FOLDER.fullmatch(name.removeprefix(beginning))
            if match is None or not (is_directory and name.startswith(beginning)) or topic not in (None, match[1]):
                continue
            partitions = {
                number: below for below in self.names_in(f"{folder}/{name}") if (number := _number(below)) >= 0
            }
            for number, below in sorted(partitions.items()):
                yield f"{folder}/{name}/{below}", TopicIdPartition(match[2], match[1], number)

    def _segments_in(self, folder: str) -> Iterator[RemoteSegment]:
        for name in sorted(self.names_in(folder)):
            if not _MANIFEST_NAME.fullmatch(name):
                continue
            path = f"{folder}/{name}"
            try:
                segment = self._read_manifest(path).segment
            except FileNotFoundError:
                continue  # a broker has deleted the segment in the meantime
            if self._path(segment, _MANIFEST) != path:
                raise CorruptFileError(f"the manifest is of another segment, {object_stem(segment)}", path=path)
            yield segment

    def _opened(self, file: ReadableFile, manifest: AivenManifest, kind: FileKind) -> ReadableFile:
        """Return the plain file that an object, or a part of it, holds."""
        cipher = None
        if (encryption := manifest.encryption) is not None:
            data_key = decrypt_data_key(self._keys, encryption.key_id, encryption.encrypted_data_key, file.path)
            cipher = Cipher(data_key, encryption.associated_data)
        there = file.size()
        if kind is FileKind.LOG:
            if there != manifest.chunks.stored_bytes:
                what = f"the object has {there} bytes, and {manifest.chunks.stored_bytes} in its manifest"
                raise CorruptFileError(what, path=file.path)
            if cipher is None and not manifest.is_compressed:
                return file
            return ChunkedFile(file, manifest.chunks, is_compressed=manifest.is_compressed, cipher=cipher)
        position, size = manifest.indexes[kind]
        if position + size > there:
            what = f"{kind} ends at byte {position + size} in the manifest, and the object has {there} bytes"
            raise CorruptFileError(what, path=file.path)
        plain = manifest.sizes[kind]
        chunks = ChunkIndex(max(1, plain), plain, size, size, start=position)
        return ChunkedFile(file, chunks, is_compressed=False, cipher=cipher)

    def _open(self, path: str) -> ReadableFile:
        """Open an object.

        A listing of its folder spares a request for the size of each object, and the store then asks for small objects
        ahead. It takes a request for 1,000 names: too much for a read of one segment.
        """
        folder = posixpath.dirname(path)
        if self._lists and self._opens[folder] <= _OPENED_UNLISTED and self.store.reads_by_request(folder):
            self._opens[folder] += 1
            if self._opens[folder] > _OPENED_UNLISTED:
                self.names_in(folder)
        return self.store.open(path)

    def _open_plain(self, segment: RemoteSegment) -> ReadableFile | None:
        """Open a `.log` that is neither compressed nor encrypted, without a request for its manifest; else None.

        It has the size of the segment, as encryption adds bytes, and begins with an offset of the segment. Compressed,
        it would begin with the magic number of zstd, which is no such offset.
        """
        path = self._path(segment, _LOG)
        if not self.store.reads_by_request(path) or self._path(segment, _MANIFEST) in self._manifests:
            return None
        file = self._open(path)
        first = int.from_bytes(file.read(0, 8), "big") if file.size() == segment.size_bytes else NONE
        if segment.start_offset <= first <= segment.end_offset < _ZSTD_OFFSET:
            return file
        file.close()
        return None

    def _open_indexes(self, path: str) -> ReadableFile:
        """Open an object with indexes; in a store that is read by requests, readers of several of them share it."""
        if not self.store.reads_by_request(path):
            return self._open(path)
        with self._lock:
            file = self._indexes.get(path)
        if file is None:
            file = self._open(path)
        with self._lock:
            self._indexes[path] = file
            self._indexes.move_to_end(path)
            while len(self._indexes) > _INDEXES_SHARED:
                self._indexes.popitem(last=False)  # readers go on: it is no file of this machine
        return _SharedFile(file)

    def _read_manifest(self, path: str) -> AivenManifest:
        with self._lock:
            if (known := self._manifests.get(path)) is not None:
                self._manifests.move_to_end(path)
                return known
        with self._open(path) as file:
            if (size := file.size()) > MANIFEST_BYTES_MAX:
                raise CorruptFileError(f"the manifest has {size} bytes, more than {MANIFEST_BYTES_MAX}", path=path)
            manifest = decode_manifest(file.read(0, size), path)
        with self._lock:
            self._manifests[path] = manifest
            while len(self._manifests) > _MANIFESTS_CACHED or (
                len(self._manifests) > 1
                and sum(one.chunks.numbers for one in self._manifests.values()) > _CHUNKS_CACHED
            ):
                self._manifests.popitem(last=False)
        return manifest

    def _path(self, segment: RemoteSegment, ending: str) -> str:
        """Return the path of an object. That of a manifest needs no custom metadata, as in the plugin."""
        prefix = self._key_prefix()
        key = f"{segment.topic}-{segment.topic_id}/{segment.partition}/{object_stem(segment)}"
        if ending != _MANIFEST and segment.custom_metadata:
            custom = decode_custom_metadata(segment.custom_metadata)
            for text in (custom.prefix, custom.key):
                if text and not {".", ".."}.isdisjoint(text.split("/")):
                    raise BadNameError(f"{shown(text)} in the custom metadata of a segment leads to another folder")
            key = custom.key or key
            # Below a folder that a bucket was copied to, it is not known where the bucket begins.
            if custom.prefix is not None and (bucket := _BUCKET.match(prefix)):
                prefix = f"{bucket[0]}/{custom.prefix}"
        return f"{prefix}{key}{ending}"

    def _key_prefix(self) -> str:
        """Return the beginning of all paths: a folder with its slash, or a folder and the beginning of a name."""
        if self._prefix is None:
            root = self._root
            is_folder = root.endswith("/") or _BUCKET.fullmatch(root) or self.names_in(root)
            self._prefix = f"{root.rstrip('/')}/" if is_folder else root
        return self._prefix

    def names_in(self, folder: str) -> Mapping[str, bool]:
        """Return the names in a folder of the tier, each with whether it is a folder; empty if it does not exist."""
        try:
            return self.store.names_in(folder)
        except (FileNotFoundError, NotADirectoryError):
            return {}


class _SharedFile(WrappedReadableFile):
    """A file that stays open after its reader has closed it."""

    @override
    def close(self) -> None:
        pass


def key_prefix(store: Store, path: str) -> str | None:
    """Return the key prefix in which folders of topics begin, if a path is the beginning of their names.

    The plugin adds nothing to its prefix. A dash at its end may be left out, as no topic's name should begin with one.
    """
    folder, beginning = posixpath.split(path)
    try:
        names = store.names_in(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for end in ("", "-"):
        topics = (name.removeprefix(beginning + end) for name in names if name.startswith(beginning + end))
        if any(_TOPIC_FOLDER.fullmatch(topic) and topic[0] != "-" for topic in topics):
            return path + end
    return None


def _number(name: str) -> int:
    """Return the partition number in the name of a folder, or -1."""
    number = parse_integer(name, 32)
    return number if number is not None and str(number) == name else -1
