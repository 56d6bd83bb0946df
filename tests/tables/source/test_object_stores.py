"""Logs in a bucket as DataFrames, streams and tables: equal to the same logs on a disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cordwood
from cordwood.commands.options import TableOptions
from cordwood.commands.table import shown_table
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.fs.manifest import MANIFEST
from tests.command import ENVIRONMENT
from tests.fixtures import fixture
from tests.fs.object_server import BUCKET, Server, environment, running_server
from tests.live.tiered_nodes import node, numbers
from tests.logs import append

pytestmark = pytest.mark.more

#: Reads each pair of places in a session of its own, whose workers have the server's address.
_READ = """
import json, sys
import cordwood
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
counter = cordwood.register(spark)
counts = []
for place, other in json.loads(sys.argv[1]):
    found = []
    for path in (place, other):
        options = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}
        rows = spark.read.format("cordwood").options(**options).load(path)
        found.append(sorted(rows.collect(), key=lambda row: (row.topic, row.partition, row.offset)))
    assert found[0] == found[1], place
    counts.append(len(found[0]))
options = {"kafka.isolation.level": "read_committed", "startingOffsets": "earliest"}
stream = spark.readStream.format("cordwood").options(**options).load(other)
stream.writeStream.format("memory").queryName("found").trigger(availableNow=True).start().awaitTermination()
assert spark.table("found").count() == counts[-1]
print(json.dumps(counts))
"""

#: Reads the values of a live log, whose closed segments are in a tier, and counts those of a key through key indexes.
_READ_TIER = """
import json, sys
import cordwood
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
cordwood.register(spark)
rows = spark.read.format("cordwood").options(tier=sys.argv[2], pushFilters="true").load(sys.argv[1])
values = [bytes(row.value).decode() for row in rows.sort("offset").collect()]
print(json.dumps([values, rows.filter("key = 'key-3'").count()]))
"""


def run(*words: str, server: Server, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env={**ENVIRONMENT, **environment(server.address), "PYSPARK_PYTHON": sys.executable},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """A partition of a topic."""
    append(tmp_path / "users-0", (b"anna", b"Rome"), (b"ben", b"Oslo"), (b"anna", b"Kyiv"), (b"cleo", None))
    return tmp_path / "users-0"


@pytest.mark.slow
def test_a_bucket_is_read_by_spark_as_the_directory_is(server: Server, tmp_path: Path) -> None:
    names = ("kraft-after-2", "kraft-jbod-before", "other-clients-before")
    pairs = [(str(fixture(name)), server.upload(fixture(name), name)) for name in names]
    counts = json.loads(run("-c", _READ, json.dumps(pairs), server=server, folder=tmp_path).splitlines()[-1])
    assert len(counts) == len(names) and min(counts) > 100


@pytest.mark.slow
def test_a_live_log_whose_tier_is_in_a_bucket_is_read_by_spark(server: Server, tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        assert one.log.log_segments[0].base_offset > 80
    url = server.upload(tmp_path / "tier", "live-tier")
    printed = run("-c", _READ_TIER, str(tmp_path / "logs"), url, server=server, folder=tmp_path)
    values, count = json.loads(printed.splitlines()[-1])
    assert [value.encode() for value in values] == numbers(100)
    assert count == 14


@pytest.mark.slow
def test_a_table_in_a_bucket_and_its_changes_are_those_of_a_disk(server: Server, users: Path, tmp_path: Path) -> None:
    def table(output: str, *words: str) -> dict[str, dict[str, object]]:
        place = server.upload(users, "to-table/users-0") if output.startswith("s3:") else str(users)
        words = ("-m", "cordwood", "table", place, "--output", output, "--format", "json", *words)
        shown = run(*words, server=server, folder=tmp_path)
        assert f"written to {output}" in shown or output in shown
        if output.startswith("s3:"):
            files = server.objects(output.removeprefix(f"s3://{BUCKET}/"))
            assert MANIFEST in files and not any(name.endswith(".crc") for name in files)
        else:
            files = {path.name: path.read_bytes() for path in Path(output).iterdir()}
        facts = json.loads(files["_cordwood.json"])
        assert facts["partitions"][0]["end_offset"] > 0
        rows = b"".join(data for name, data in files.items() if name.startswith("part-")).splitlines()
        return {one["key"]: one for one in map(json.loads, rows)}

    first = f"s3://{BUCKET}/tables/first", str(tmp_path / "first")
    there, here = map(table, first)
    assert there == here and there.keys() == {"anna", "ben"}
    append(users, (b"ben", None), (b"dora", b"Bonn"))
    then = f"s3://{BUCKET}/tables/then", str(tmp_path / "then")
    there, here = (table(output, "--since", since) for output, since in zip(then, first, strict=True))
    assert there == here and there.keys() == {"ben", "dora"}


def test_a_table_of_a_bucket_is_shown_as_that_of_a_disk(server: Server, users: Path) -> None:
    url = server.upload(users, "to-show/users-0")
    found = []
    for place in (str(users), url):
        with shown_table([place], TableOptions(deletes=True)) as shown:
            found.append(list(shown.rows))
    assert found[0] == found[1] and len(found[0]) == 3
    assert cordwood.table_offsets(url) == {0: 4}


def test_what_cannot_be_written_to_a_bucket_is_refused_in_words(server: Server, users: Path) -> None:
    url = server.upload(users, "to-refuse/users-0")
    with pytest.raises(RequestError, match=r"Spark has to run on it \(master='local\[\*\]'\). On a cluster"):
        cordwood.write_table(str(users), output=f"s3://{BUCKET}/new", master="spark://127.0.0.1:7077")
    with pytest.raises(RequestError, match="Name a place beside it"):
        cordwood.write_table(url, output=f"{url}/table")
    with pytest.raises(RequestError, match="exists and is not empty"):
        cordwood.write_table(str(users), output=url)
    with pytest.raises(NotFoundError, match=r"holds no _cordwood\.json"):
        cordwood.write_table(str(users), output=f"s3://{BUCKET}/new", since=url)
    assert server.objects("new") == {}
