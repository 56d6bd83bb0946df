"""partition.metadata, meta.properties and the clean-shutdown file. Expectations were checked against Java and Kafka."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.common.java_properties import Properties
from cordwood.storage.formats import properties
from cordwood.storage.formats.properties import MetaProperties, PartitionMetadata, encode_partition_metadata

ID_TEXT = "kh0ERQ6WToCnIzrMNpUr_A"
ID = uuid.UUID("921d0445-0e96-4e80-a723-3acc36952bfc")


def test_an_id_is_22_characters_of_url_safe_base64() -> None:
    assert properties.encode_id(ID) == ID_TEXT
    assert properties.decode_id(ID_TEXT) == properties.decode_id(ID_TEXT + "==") == ID


@pytest.mark.parametrize("text", ["", ID_TEXT[:-1], ID_TEXT + "A", ID_TEXT + "=", "kh0ERQ6WToCnIzrMNpUr/A", "é" * 22])
def test_other_texts_are_no_ids(text: str) -> None:
    assert properties.decode_id(text) is None


@given(st.uuids())
def test_ids_turn_into_text_and_back(value: uuid.UUID) -> None:
    assert properties.decode_id(properties.encode_id(value)) == value


# ── partition.metadata ───────────────────────────────────────────────────────────────────────────────────────────────


def test_partition_metadata_has_no_line_end_at_its_end() -> None:
    data = f"version: 0\ntopic_id: {ID_TEXT}".encode()
    assert properties.decode_partition_metadata(data) == PartitionMetadata(ID)
    assert encode_partition_metadata(PartitionMetadata(ID)) == data


@pytest.mark.parametrize(
    "text",
    [f"version: 0\ntopic_id: {ID_TEXT}\n", f"x:\t0\r\ny:  {ID_TEXT}==\r\nz", f"version: 0: \ntopic_id: {ID_TEXT}"],
)
def test_partition_metadata_is_read_as_leniently_as_by_kafka(text: str) -> None:
    assert properties.decode_partition_metadata(text.encode()) == PartitionMetadata(ID)


def test_a_later_version_of_partition_metadata_is_accepted() -> None:
    assert properties.decode_partition_metadata(f"version: 9\ntopic_id: {ID_TEXT}".encode()).version == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0",
        f"version:0\ntopic_id: {ID_TEXT}",
        f"version: 0 \ntopic_id: {ID_TEXT}",
        f"version: -1\ntopic_id: {ID_TEXT}",
        f"version: x\ntopic_id: {ID_TEXT}",
        f"version: 0\ntopic_id: {ID_TEXT}x",
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        f"version: 0\ntopic_id: {ID_TEXT}: x",
        f"\nversion: 0\ntopic_id: {ID_TEXT}",
    ],
)
def test_malformed_partition_metadata_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        properties.decode_partition_metadata(text.encode(), "orders-0/partition.metadata")
    assert caught.value.path == "orders-0/partition.metadata"


# ── meta.properties ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("data", [b"x\na=\\u00g0", b"x\na=\\u", b"x\n\\u12"])
def test_a_malformed_escape_is_corrupt_where_its_entry_starts(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="without four hexadecimal digits") as caught:
        properties.decode_properties(data, "meta.properties")
    assert (caught.value.path, caught.value.position) == ("meta.properties", 2)


def meta(text: str) -> MetaProperties:
    return properties.meta_properties(properties.decode_properties(text.encode()), "meta.properties")


def test_both_versions_of_meta_properties_are_understood() -> None:
    assert meta("version=0\nbroker.id=7\n") == MetaProperties(0, 7, None, None)
    assert meta(f"version=1\nnode.id=1\ncluster.id=c\ndirectory.id={ID_TEXT}\n") == MetaProperties(1, 1, "c", ID)


def test_a_missing_version_is_version_0() -> None:
    assert meta("") == MetaProperties(0, None, None, None)
    assert properties.meta_properties(Properties()) == MetaProperties(0, None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "version=2\n",
        "version=x\n",
        "version=0\nbroker.id=x\n",
        "version=1\ncluster.id=c\n",
        "version=1\nnode.id=1\n",
        "version=0\ndirectory.id=short\n",
    ],
)
def test_meta_properties_that_kafka_would_not_start_on_are_corrupt(text: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        meta(text)
    assert caught.value.path == "meta.properties"


# ── .kafka_cleanshutdown ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("data", "epoch"), [(b"", None), (b'{"version":0,"brokerEpoch":128}', 128)])
def test_a_clean_shutdown_file_is_read_and_written(data: bytes, epoch: int | None) -> None:
    assert properties.decode_clean_shutdown(data) == epoch
    assert properties.encode_clean_shutdown(epoch) == data


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"brokerEpoch":null}',
        b'{"brokerEpoch":true}',
        b'{"brokerEpoch":9223372036854775808}',
    ],
)
def test_other_contents_have_no_broker_epoch(data: bytes) -> None:
    assert properties.decode_clean_shutdown(data) is None


def test_properties_of_many_empty_lines_are_refused_rather_than_kept() -> None:
    with pytest.raises(CorruptFileError, match="are not looked into"):
        properties.decode_properties(b"\n" * (1 << 20 | 1), "meta.properties")
