"""Encoders of files that Cordwood reads and never writes."""

from __future__ import annotations

from cordwood.storage.formats.properties import PartitionMetadata, encode_id


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """The contents of `partition.metadata`."""
    return f"version: {metadata.version}\ntopic_id: {encode_id(metadata.topic_id)}".encode()
