"""The objects of tiers that brokers filled: LocalTieredStorage; Aiven's plugin, plain, compressed and encrypted."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import tracemalloc
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.common.errors import BadNameError, CorruptFileError, CorruptMessageError, RequestError
from cordwood.common.types import Codec
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.compression import compress
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.tier.aiven import (
    AivenLayout,
    decode_custom_metadata,
    decode_manifest,
    encode_custom_metadata,
    encode_manifest,
)
from cordwood.storage.tier.chunks import TierKey, decode_chunk_sizes, read_key
from cordwood.storage.tier.local import Layout, LocalLayout
from cordwood.storage.tier.segments import CopyState, RemoteSegment
from tests.fixtures import copy_of, facts, fixture

FS = PosixFileSystem()


def remote(name: str) -> dict[str, dict[str, Any]]:
    """Facts of all finished remote segments of a fixture, by id."""
    return {
        segment["id"]: segment
        for partition in facts(name)["partitions"].values()
        for segment in partition.get("remote", ())
        if segment["state"] == "COPY_SEGMENT_FINISHED"
    }


def content(layout: Layout, segment: RemoteSegment, kind: FileKind = FileKind.LOG) -> bytes:
    with layout.open(segment, kind) as file:
        return file.read(0, file.size())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# ── LocalTieredStorage ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def local() -> LocalLayout:
    return LocalLayout(FS, str(fixture("local-tiered")))


def test_the_names_and_files_of_local_tiered_storage_describe_its_segments(local: LocalLayout) -> None:
    expected = remote("local-tiered")
    found = list(local.segments())
    assert {segment.id for segment in found} == expected.keys()
    for segment in found:
        facts_of = expected[segment.id]
        assert (segment.start_offset, segment.end_offset, segment.size_bytes, segment.max_timestamp_ms) == (
            facts_of["start"], facts_of["end"], facts_of["size"], facts_of["max_timestamp_ms"],
        )  # fmt: skip
        assert segment.epochs == tuple(EpochEntry(int(e), start) for e, start in facts_of["epochs"].items())
        assert segment.transaction_index_empty == facts_of["txn_index_empty"]
        assert digest(content(local, segment)) == facts_of["log_sha256"]


def test_local_segments_are_the_same_bytes_as_remote_ones(local: LocalLayout) -> None:
    folder = fixture("local-tiered") / "kafka-logs" / "kept-local-0"
    segments = list(local.segments("kept-local"))
    assert [segment.start_offset for segment in segments] == [0, 175, 350, 515]
    for segment in segments:
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            assert content(local, segment, kind) == (folder / f"{segment.start_offset:020d}{kind}").read_bytes()
    assert content(local, segments[0], FileKind.PRODUCER_SNAPSHOT) == (folder / f"{175:020d}.snapshot").read_bytes()
    assert content(local, segments[2], FileKind.LEADER_EPOCHS) == b"0\n2\n0 0\n2 400\n"


def test_the_index_that_a_broker_cached_is_the_remote_one(local: LocalLayout) -> None:
    (segment,) = [one for one in local.segments("orders") if one.id == "x8XOsuT1SV2jRD44LazHyA"]
    cache = fixture("local-tiered") / "kafka-logs" / "remote-log-index-cache"
    assert content(local, segment, FileKind.OFFSET_INDEX) == (cache / f"0_{segment.id}.index").read_bytes()
    assert FileKind.TRANSACTION_INDEX not in local.kinds(segment)
    with pytest.raises(FileNotFoundError):
        local.open(segment, FileKind.TRANSACTION_INDEX)


def test_sizes_are_known_without_opening_a_file(local: LocalLayout) -> None:
    segments = list(local.segments("payments"))
    sizes = [{kind: len(content(local, segment, kind)) for kind in local.kinds(segment)} for segment in segments]
    assert [dict(local.kinds(segment)) for segment in segments] == sizes
    assert sum(FileKind.TRANSACTION_INDEX in kinds for kinds in sizes) == 7
    assert sum(not kinds[FileKind.OFFSET_INDEX] for kinds in sizes) == 6


def test_the_folder_of_the_partitions_may_itself_be_the_root(local: LocalLayout) -> None:
    below = LocalLayout(FS, str(fixture("local-tiered") / "kafka-tiered-storage") + "/")
    assert list(below.segments()) == list(local.segments())


def test_a_segment_whose_copy_was_cut_off_is_not_complete(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered") / "kafka-tiered-storage", tmp_path / "kafka-tiered-storage")
    layout = LocalLayout(FS, str(tmp_path))
    first, second, *_ = layout.segments("trimmed")
    for snapshot in root.glob(f"*/*{first.id}.snapshot"):
        snapshot.unlink()
    assert next(layout.segments("trimmed")) == second
    assert FileKind.PRODUCER_SNAPSHOT not in layout.kinds(first)


def test_a_segment_that_was_copied_after_a_listing_is_found(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered") / "kafka-tiered-storage", tmp_path / "kafka-tiered-storage")
    layout = LocalLayout(FS, str(tmp_path))
    segment, *_ = layout.segments("trimmed")
    newer = replace(segment, id=encode_id(uuid.UUID(int=52)))
    assert not layout.kinds(newer)
    for path in root.glob(f"*/*{segment.id}.*"):
        path.rename(path.with_name(path.name.replace(segment.id, newer.id)))
    assert layout.kinds(newer)[FileKind.LOG] == segment.size_bytes


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../../../../etc/passwd"},
        {"id": "a" * 21 + "/"},
        {"topic_id": ".." + "a" * 20},
        {"topic": ".."},
        {"topic": "a/b"},
        {"partition": -1},
        {"start_offset": -1},
    ],
)
def test_names_that_lead_elsewhere_are_refused(local: LocalLayout, wrong: dict[str, Any]) -> None:
    segment = replace(next(local.segments()), **wrong)
    with pytest.raises(BadNameError):
        local.open(segment, FileKind.LOG)
    with pytest.raises(BadNameError):
        local.kinds(segment)


# ── Aiven's plugin ───────────────────────────────────────────────────────────────────────────────────────────────────

AIVEN = "aiven-s3"
#: A segment of payments in one chunk, and one of several, both compressed and encrypted; a plain one; compressed ones.
ENCRYPTED, PLAIN, COMPRESSED, ONE_CHUNK = 450, 10, 230, 220


@pytest.fixture(scope="module")
def bucket() -> Path:
    return fixture(AIVEN) / "bucket" / "kafka"


@pytest.fixture(scope="module")
def key() -> TierKey:
    return read_key(FS, str(fixture(AIVEN) / "test-key.json"))


@pytest.fixture(scope="module")
def aiven(bucket: Path, key: TierKey) -> AivenLayout:
    return AivenLayout(FS, str(bucket), [key])


def segment_at(layout: AivenLayout, topic: str, start: int, partition: int = 0) -> RemoteSegment:
    found = [one for one in layout.segments(topic) if (one.partition, one.start_offset) == (partition, start)]
    return found[0]


def test_the_manifests_of_a_bucket_describe_its_segments(aiven: AivenLayout) -> None:
    expected = remote(AIVEN)
    found = list(aiven.segments())
    assert len(found) == len(expected) == 29
    for segment in found:
        facts_of = expected[segment.id]
        assert (segment.start_offset, segment.end_offset, segment.size_bytes, segment.max_timestamp_ms) == (
            facts_of["start"], facts_of["end"], facts_of["size"], facts_of["max_timestamp_ms"],
        )  # fmt: skip
        assert segment.epochs == tuple(EpochEntry(int(e), start) for e, start in facts_of["epochs"].items())
        assert segment.transaction_index_empty == facts_of["txn_index_empty"]
        assert segment.state is CopyState.COPY_FINISHED


def test_each_log_of_a_bucket_is_the_file_that_kafka_wrote(aiven: AivenLayout) -> None:
    expected = remote(AIVEN)
    forms = set()
    for segment in aiven.segments():
        assert digest(content(aiven, segment)) == expected[segment.id]["log_sha256"]
        manifest = aiven.manifest(segment)
        forms.add((manifest.is_compressed, manifest.encryption is not None, manifest.chunks.count > 1))
    assert len(forms) == 8  # with and without zstd, AES, several chunks


def test_indexes_are_cut_out_of_their_object(aiven: AivenLayout) -> None:
    plain = segment_at(aiven, "payments", 10)
    sizes = {kind: len(content(aiven, plain, kind)) for kind in aiven.kinds(plain)}
    assert (
        sizes
        == dict(aiven.kinds(plain))
        == {
            FileKind.LOG: 15_517,
            FileKind.OFFSET_INDEX: 80,
            FileKind.TIME_INDEX: 120,
            FileKind.PRODUCER_SNAPSHOT: 56,
            FileKind.LEADER_EPOCHS: 8,
            FileKind.TRANSACTION_INDEX: 68,
        }
    )
    encrypted = segment_at(aiven, "payments", 450)
    assert content(aiven, encrypted, FileKind.LEADER_EPOCHS) == b"0\n3\n0 0\n2 220\n4 440\n"
    one_batch = segment_at(aiven, "payments", 220)
    assert content(aiven, one_batch, FileKind.OFFSET_INDEX) == b""
    with pytest.raises(FileNotFoundError):
        aiven.open(one_batch, FileKind.TRANSACTION_INDEX)


@pytest.mark.more
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_range_is_that_of_the_whole_file(aiven: AivenLayout, data: st.DataObject) -> None:
    start = data.draw(st.sampled_from([PLAIN, COMPRESSED, ENCRYPTED]))
    kind = data.draw(st.sampled_from([FileKind.LOG, FileKind.TIME_INDEX]))
    with aiven.open(segment_at(aiven, "payments", start), kind) as file:
        whole = file.read(0, file.size())
        for _ in range(3):
            position, size = data.draw(st.integers(0, len(whole) + 9)), data.draw(st.integers(0, len(whole) + 9))
            assert file.read(position, size) == whole[position : position + size]
            target = bytearray(size)
            count = file.read_into(position, memoryview(target))
            assert target[:count] == whole[position : position + size]
            assert not any(target[count:])


def test_a_file_of_one_size_of_chunks_ends_with_a_shorter_one(aiven: AivenLayout) -> None:
    segment = segment_at(aiven, "orders", 850, partition=1)
    manifest = aiven.manifest(segment)
    assert not manifest.is_compressed
    assert [end - start for start, end in map(manifest.chunks.stored_range, range(manifest.chunks.count))] == [
        *[4_096 + 28] * (manifest.chunks.count - 1), 3_706,
    ]  # fmt: skip
    assert len(content(aiven, segment)) == segment.size_bytes


def test_the_sizes_of_compressed_chunks_are_those_of_the_plugin() -> None:
    sizes = decode_chunk_sizes("KLUv/SAQgQAAAAAABAAABUgBCAAbAAADxQ==", 4, "manifest")
    assert sizes.tolist() == [1_360, 1_352, 1_379, 965]


@given(st.lists(st.integers(1, (1 << 31) - 1), min_size=1, max_size=9))
def test_sizes_of_chunks_are_read_in_every_width(sizes: list[int]) -> None:
    assert decode_chunk_sizes(chunk_sizes(sizes), len(sizes), "manifest").tolist() == sizes


def chunk_sizes(sizes: list[int]) -> str:
    """Encode chunk sizes as the plugin does."""
    packed = len(sizes).to_bytes(4, "big")
    if len(sizes) > 1:
        base = min(sizes[:-1])
        width = max(1, -(-(max(sizes[:-1]) - base).bit_length() // 8))
        packed += base.to_bytes(4, "big") + bytes([width])
        packed += b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return base64.b64encode(compress(Codec.ZSTD, packed + sizes[-1].to_bytes(4, "big"))).decode()


# ── other places, other keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_prefix_may_be_the_beginning_of_a_name(bucket: Path, tmp_path: Path, key: TierKey) -> None:
    for folder in bucket.iterdir():
        copy_of(folder, tmp_path / f"prod-{folder.name}")
    layout = AivenLayout(FS, str(tmp_path / "prod-"), [key])
    assert [segment.id for segment in layout.segments()] == [one.id for one in AivenLayout(FS, str(bucket)).segments()]
    assert content(layout, segment_at(layout, "payments", PLAIN))


def test_custom_metadata_names_the_objects_of_a_segment(aiven: AivenLayout) -> None:
    for facts_of in remote(AIVEN).values():
        found = decode_custom_metadata(bytes.fromhex(facts_of["custom_metadata_hex"]))
        assert (found.prefix, found.key) == ("kafka/", facts_of["custom_metadata"]["object_key"])
        assert found.stored_bytes == facts_of["custom_metadata"]["remote_size"]
    for wrong in (b"", b"\1", b"\1\1\7", b"\1\1\1\5", b"\0\0", b"\1\1\2\2\xff"):
        with pytest.raises(CorruptMessageError):
            decode_custom_metadata(wrong)


def test_manifests_and_custom_metadata_are_encoded_as_by_the_plugin() -> None:
    plain = 0
    for path in (fixture(AIVEN) / "bucket" / "kafka").rglob("*.rsm-manifest"):
        data = path.read_bytes()
        manifest = decode_manifest(data, str(path))
        if not manifest.is_compressed and manifest.encryption is None:
            assert encode_manifest(manifest) == data
            plain += 1
    assert plain > 3
    for segment_id, facts_of in remote(AIVEN).items():
        custom = bytes.fromhex(facts_of["custom_metadata_hex"])
        found = decode_custom_metadata(custom)
        assert found.prefix is not None and found.key is not None and found.key.endswith(segment_id)
        sizes = [path.stat().st_size for path in (fixture(AIVEN) / "bucket" / "kafka").rglob(f"*{segment_id}.*")]
        assert encode_custom_metadata(sum(sizes), found.prefix, found.key, found) == custom


def test_a_segment_that_replaces_no_other_is_written_in_chunks_of_4_mib(aiven: AivenLayout, tmp_path: Path) -> None:
    plain = segment_at(aiven, "payments", PLAIN)
    files = {}
    for kind in aiven.kinds(plain):
        files[kind] = str(tmp_path / kind.lstrip("."))
        Path(files[kind]).write_bytes(content(aiven, plain, kind))
    layout = AivenLayout(FS, f"{tmp_path}/tier/")
    folder = Path(layout.folder(plain.topic_id_partition))
    (folder / ".cordwood-tier").mkdir(parents=True)
    assert layout.write(plain, files, None) is None
    assert list(layout.segments()) == [plain]
    assert layout.manifest(plain).chunks.chunk_bytes == 4 << 20
    assert {kind: content(layout, plain, kind) for kind in files} == {
        kind: content(aiven, plain, kind) for kind in files
    }
    # The folder of a live log's manifests is no object.
    assert [(found.segment_id, found.count) for found in layout.objects()] == [(plain.id, 3)]


def test_a_bucket_is_read_by_ranges_also_where_a_segment_has_an_older_prefix(bucket: Path, key: TierKey) -> None:
    store, root = ObjectTargetStore(), "memory://tier"
    for path in bucket.glob("payments-*/0/*"):
        prefix = "kafka" if path.suffix == ".rsm-manifest" else "before"
        store.put(f"{root}/{prefix}/{path.relative_to(bucket)}", path.read_bytes())
    layout = AivenLayout(store, f"{root}/kafka", [key])
    expected = remote(AIVEN)
    for segment in layout.segments():
        with pytest.raises(FileNotFoundError):
            layout.open(segment, FileKind.LOG)
        custom = bytes.fromhex(expected[segment.id]["custom_metadata_hex"]).replace(
            b"\x07\x07kafka/", b"\x08\x08before/"
        )
        moved = replace(segment, custom_metadata=custom)
        assert digest(content(layout, moved)) == expected[segment.id]["log_sha256"]
        elsewhere = replace(segment, custom_metadata=custom.replace(b"before/", b"../../a"))
        with pytest.raises(BadNameError, match="leads to another folder"):
            layout.open(elsewhere, FileKind.LOG)


def test_a_key_may_be_a_pem_file_whatever_its_name(bucket: Path, tmp_path: Path, key: TierKey) -> None:
    private = serialization.load_der_private_key(key.pkcs8, None)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (tmp_path / "from-the-vault.pem").write_bytes(pem)
    other = TierKey("key1", new_key())
    layout = AivenLayout(FS, str(bucket), [other, read_key(FS, str(tmp_path / "from-the-vault.pem"))])
    segment = segment_at(layout, "payments", ENCRYPTED)
    assert digest(content(layout, segment)) == remote(AIVEN)[segment.id]["log_sha256"]


def new_key() -> bytes:
    return rsa.generate_private_key(65_537, 2_048).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def test_a_segment_without_its_key_is_refused_in_words(bucket: Path) -> None:
    layout = AivenLayout(FS, str(bucket))
    segment = segment_at(layout, "payments", ENCRYPTED)
    with pytest.raises(RequestError, match=r"encrypted for the key pair 'key1', and no key is given.*--tier-key"):
        layout.open(segment, FileKind.LOG)
    other = AivenLayout(FS, str(bucket), [TierKey("key1", new_key()), TierKey("key2", new_key())])
    with pytest.raises(RequestError, match=r"none of the given keys \(key1, key2\) opens it"):
        other.open(segment, FileKind.LEADER_EPOCHS)


def test_other_files_than_private_keys_are_refused(tmp_path: Path, key: TierKey) -> None:
    private = serialization.load_der_private_key(key.pkcs8, None)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    contents = {
        b"": "is not a private key",
        b'{"key_id": "key1"': "is not a private key",
        b'{"key_id": "key1", "hex": "00"}': "is not a private key",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n": "is not a private key",
        private.private_bytes(*form, serialization.BestAvailableEncryption(b"x")): "protected by a password",
        ec.generate_private_key(ec.SECP256R1()).private_bytes(*form, serialization.NoEncryption()): "not a key of RSA",
    }
    for data, words in contents.items():
        (tmp_path / "key.pem").write_bytes(data)
        with pytest.raises(RequestError, match=words):
            read_key(FS, str(tmp_path / "key.pem"))
    with pytest.raises(RequestError, match="cannot be read"):
        read_key(FS, str(tmp_path / "missing.pem"))


def test_without_cryptography_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(RequestError, match=r"pip install 'cordwood\[encryption\]'"):
        read_key(FS, str(fixture(AIVEN) / "test-key.json"))


# ── hostile tiers ────────────────────────────────────────────────────────────────────────────────────────────────────


class Objects:
    """The three objects of one segment in a bucket of its own."""

    def __init__(self, source: Path, root: Path, start: int) -> None:
        (manifest,) = source.glob(f"payments-*/0/{start:020d}-*.rsm-manifest")
        folder = root / manifest.parent.relative_to(source)
        folder.mkdir(parents=True)
        for path in manifest.parent.glob(f"{manifest.stem}.*"):
            shutil.copyfile(path, folder / path.name)
        self.root = root
        self.manifest, self.log, self.indexes = (
            folder / f"{manifest.stem}{ending}" for ending in (".rsm-manifest", ".log", ".indexes")
        )

    def change(self, *names: str, value: object) -> None:
        """Set a field of the manifest."""
        content = json.loads(self.manifest.read_bytes())
        fields = content
        for name in names[:-1]:
            fields = fields[name]
        fields[names[-1]] = value
        self.manifest.write_text(json.dumps(content))

    def read(self, *keys: TierKey) -> bytes:
        """Read the whole log, and the epochs."""
        layout = AivenLayout(FS, str(self.root), keys)
        (segment,) = layout.segments()
        return content(layout, segment, FileKind.LEADER_EPOCHS) + content(layout, segment)


LIES = [
    (["version"], "2", "version in the manifest"),
    (["chunkIndex"], None, "chunkIndex in the manifest is not an object"),
    (["chunkIndex", "type"], "magic", "not fixed or variable"),
    (["chunkIndex", "originalFileSize"], 1 << 40, "not a number from 1 to"),
    (["chunkIndex", "originalFileSize"], 15_073.5, "not a number from 1 to"),
    (["chunkIndex", "originalFileSize"], True, "not a number from 1 to"),
    (["chunkIndex", "originalFileSize"], 15_072, "decodes|unpacks"),
    (["chunkIndex", "originalFileSize"], 16_384, "decodes to"),
    (["chunkIndex", "originalFileSize"], 16_385, "it has 4 chunks, and the file has 5 by its size"),
    (["chunkIndex", "originalFileSize"], (1 << 31) - 1, "it has 4 chunks, and the file has 524288"),
    (["chunkIndex", "originalChunkSize"], 0, "not a number from 1 to"),
    (["chunkIndex", "originalChunkSize"], 1, "it has 4 chunks, and the file has 15073"),
    (["chunkIndex", "originalChunkSize"], 4_095, "unpacks to more than its 4095 bytes"),
    (["chunkIndex", "transformedChunks"], "=", "not base64"),
    (["chunkIndex", "transformedChunks"], "AAAA", "chunk index is invalid"),
    (["chunkIndex", "transformedChunks"], chunk_sizes([1, 2, 3, 4]), "the object has .* in its manifest"),
    (["chunkIndex", "transformedChunks"], chunk_sizes([1, 0, 3, 4]), "a chunk of no bytes"),
    (["compression"], 1, "not true or false"),
    (["compression"], False, "although it is not compressed"),
    (["segmentIndexes", "leaderEpoch", "position"], -1, "not a number from 0"),
    (["segmentIndexes", "leaderEpoch", "size"], 1 << 30, "ends at byte"),
    (["segmentIndexes", "leaderEpoch"], "x", "not an object"),
    (["remoteLogSegmentMetadata", "endOffset"], 0, "endOffset in the manifest is not a number from 230"),
    (["remoteLogSegmentMetadata", "startOffset"], 231, "of another segment"),
    (["remoteLogSegmentMetadata", "segmentLeaderEpochs"], {}, "not offsets by leader epoch"),
    (["remoteLogSegmentMetadata", "segmentLeaderEpochs"], {"-2": 1}, "not offsets by leader epoch"),
    (["remoteLogSegmentMetadata", "remoteLogSegmentId", "id"], "../../../../../etc/pass", "not an id"),
    (
        ["remoteLogSegmentMetadata", "remoteLogSegmentId", "topicIdPartition", "topicPartition", "topic"],
        "../x",
        "topic",
    ),
]


@pytest.mark.parametrize(("names", "value", "words"), LIES)
def test_a_manifest_that_lies_is_refused_in_words(
    bucket: Path, tmp_path: Path, names: list[str], value: object, words: str
) -> None:
    objects = Objects(bucket, tmp_path, COMPRESSED)
    assert objects.read()
    objects.change(*names, value=value)
    with pytest.raises(CorruptFileError, match=words):
        objects.read()


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"version": ', b'{"version": NaN}'])
def test_bytes_that_are_no_manifest_are_refused(bucket: Path, tmp_path: Path, data: bytes) -> None:
    objects = Objects(bucket, tmp_path, PLAIN)
    objects.manifest.write_bytes(data)
    with pytest.raises(CorruptFileError, match="manifest"):
        objects.read()


def test_a_manifest_of_a_gigabyte_is_not_read(bucket: Path, tmp_path: Path) -> None:
    objects = Objects(bucket, tmp_path, PLAIN)
    os.truncate(objects.manifest, 1 << 30)
    with pytest.raises(CorruptFileError, match="the manifest has 1073741824 bytes"):
        objects.read()


@pytest.mark.parametrize("start", [PLAIN, COMPRESSED, ENCRYPTED])
def test_cut_objects_are_refused(bucket: Path, tmp_path: Path, key: TierKey, start: int) -> None:
    for name, words in (("log", "the object has"), ("indexes", "ends at byte")):
        objects = Objects(bucket, tmp_path / name, start)
        path: Path = getattr(objects, name)
        os.truncate(path, path.stat().st_size - (1 if name == "log" else 200))
        with pytest.raises(CorruptFileError, match=words):
            objects.read(key)


def test_changed_bytes_fail_their_authentication(bucket: Path, tmp_path: Path, key: TierKey) -> None:
    objects = Objects(bucket, tmp_path, ENCRYPTED)
    data = bytearray(objects.log.read_bytes())
    data[2_000] ^= 1
    objects.log.write_bytes(data)
    with pytest.raises(CorruptFileError, match="chunk 1 fails its authentication"):
        objects.read(key)
    objects.change("encryption", "aad", value="AAAA")
    with pytest.raises(CorruptFileError, match="chunk 0 fails its authentication"):
        objects.read(key)


def test_a_bomb_unpacks_to_no_more_than_a_chunk(bucket: Path, tmp_path: Path) -> None:
    objects = Objects(bucket, tmp_path, ONE_CHUNK)
    bomb = compress(Codec.ZSTD, bytes(256 << 20))
    tracemalloc.start()
    objects.log.write_bytes(bomb)
    objects.change("chunkIndex", "transformedChunks", value=chunk_sizes([len(bomb)]))
    with pytest.raises(CorruptFileError, match="chunk 0 unpacks to more than its"):
        objects.read()
    objects.change("chunkIndex", "transformedChunks", value=base64.b64encode(bomb).decode())
    with pytest.raises(CorruptFileError, match="unpack to more than 1 chunks need"):
        objects.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_segment_that_the_metadata_describes_otherwise_is_refused(aiven: AivenLayout) -> None:
    segment = segment_at(aiven, "payments", PLAIN)
    with pytest.raises(CorruptFileError, match="size bytes 15517 in the manifest, and 15518 in the metadata"):
        aiven.open(replace(segment, size_bytes=15_518), FileKind.LOG)
