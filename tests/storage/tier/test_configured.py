"""The tier in a server.properties."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.tier.configured import ConfiguredTier, LayoutKind, configured_tier
from tests.command import run
from tests.fixtures import fixture, tier_options

LOCAL = "remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
AIVEN = "remote.log.storage.manager.class.name=io.aiven.kafka.tieredstorage.RemoteStorageManager"
CLASS = "rsm.config.storage.backend.class=io.aiven.kafka.tieredstorage.storage"
S3 = f"{AIVEN}\n{CLASS}.s3.S3Storage\nrsm.config.storage.s3.bucket.name=logs"


def found(tmp_path: Path, text: str) -> ConfiguredTier | None:
    """The tier in a file; lines with a name in capitals are the environment."""
    (tmp_path / "server.properties").write_text(text)
    pairs = (line.partition("=") for line in text.splitlines())
    environment = {name: value for name, _, value in pairs if name.isupper()}
    return configured_tier(PosixFileSystem(), str(tmp_path / "server.properties"), environment)


@pytest.mark.parametrize(
    ("text", "root"),
    [
        (S3, "s3://logs"),
        (f"{S3}\nrsm.config.key.prefix=kafka/", "s3://logs/kafka/"),
        (f"{S3}\nrsm.config.key.prefix=prod-", "s3://logs/prod-"),
        (f"{S3}\nrsm.config.storage.s3.region=eu-1\nAWS_REGION=eu-1", "s3://logs"),
        (f"{S3}\nrsm.config.storage.s3.endpoint.url=http://minio:9000\nAWS_ENDPOINT_URL=http://minio:9000", "s3://logs"),
        (f"{AIVEN}\n{CLASS}.gcs.GcsStorage\nrsm.config.storage.gcs.bucket.name=logs", "gs://logs"),
        (
            f"{AIVEN}\n{CLASS}.azure.AzureBlobStorage\nrsm.config.storage.azure.container.name=logs\n"
            "AZURE_STORAGE_ACCOUNT_NAME=us", "az://logs",
        ),
        (
            f"{AIVEN}\nremote.log.storage.manager.impl.prefix=my.\nmy.storage.backend.class=x.FileSystemStorage\n"
            "my.storage.root=/tmp\nmy.key.prefix=a/b/", "/tmp/a/b/",
        ),
    ],
)  # fmt: skip
def test_the_place_of_a_tier_is_found(text: str, root: str, tmp_path: Path) -> None:
    assert found(tmp_path, text) == ConfiguredTier(LayoutKind.AIVEN, root)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{S3}\nrsm.config.storage.s3.region=eu-1", "set AWS_REGION=eu-1 in the environment"),
        (f"{S3}\nrsm.config.storage.s3.endpoint.url=http://minio", "set AWS_ENDPOINT_URL=http://minio"),
        (f"{S3}\nrsm.config.segment.format=iceberg", "tables of iceberg"),
        (f"{AIVEN}\n{CLASS}.s3.S3Storage", "storage.s3.bucket.name is not set"),
        (f"{AIVEN}\n{CLASS}.oci.OciStorage", "storage.backend.class is OciStorage, which Cordwood does not know"),
        (f"{AIVEN}\n{CLASS}.filesystem.FileSystemStorage\nrsm.config.storage.root=/none", "/none is not on"),
        (f"{AIVEN}\n{CLASS}.azure.AzureBlobStorage", "set AZURE_STORAGE_ACCOUNT_NAME=NAME"),
        (f"{AIVEN}\n{CLASS}.gcs.GcsStorage\nrsm.config.storage.gcs.endpoint.url=http://x", "it is at http://x"),
        (f"{LOCAL}\nrsm.config.dir=/none", "/none is not on this machine"),
        ("remote.log.storage.manager.class.name=com.example.Manager", "com.example.Manager, which"),
        ("log.dirs=/tmp", ""),
    ],
)  # fmt: skip
def test_a_tier_that_cannot_be_read_is_named_with_what_to_give(
    text: str, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert found(tmp_path, text) is None
    assert words in caplog.text
    assert ("Give --tier" in caplog.text) is bool(words)


def test_local_tiered_storage_is_found(tmp_path: Path) -> None:
    folder = fixture("local-tiered")
    assert found(tmp_path, f"{LOCAL}\nrsm.config.dir={folder}") == ConfiguredTier(LayoutKind.LOCAL, str(folder))


def test_keys_are_read_from_their_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = fixture("aiven-s3")
    text = f"{AIVEN}\n{CLASS}.filesystem.FileSystemStorage\nrsm.config.storage.root={root}/bucket\n"
    text += "rsm.config.key.prefix=kafka/\nrsm.config.encryption.enabled=true\n"
    text += "rsm.config.encryption.key.pairs=key1, key2\n"
    text += f"rsm.config.encryption.key.pairs.key1.private.key.file={root}/test-key.json\n"
    text += "rsm.config.encryption.key.pairs.key2.private.key.file=/none.pem\n"
    assert found(tmp_path, text) == ConfiguredTier(
        LayoutKind.AIVEN, f"{root}/bucket/kafka/", (f"{root}/test-key.json",)
    )
    assert "the private key of key2" in caplog.text
    assert "Give --tier-key" in caplog.text
    options = ["ls", root / "kafka-logs", "--json"]
    given = run(*options, "--server-properties", tmp_path / "server.properties").json
    expected = run(*options, *tier_options("aiven-s3")).json
    assert [one["remote"] for one in given["partitions"]] == [one["remote"] for one in expected["partitions"]]
    assert any(one["remote"] for one in given["partitions"])


def test_a_bucket_gets_no_request_for_logs_that_are_not_tiered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nothing answers there
    (tmp_path / "server.properties").write_text(S3)
    logs = fixture("local-tiered") / "kafka-logs" / "plain-0"
    text = run("ls", logs, "--server-properties", tmp_path / "server.properties", "--json").output
    assert json.loads(text)["partitions"][0]["remote"] is None
