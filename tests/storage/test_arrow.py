from __future__ import annotations

import datetime
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from cordwood.commands.opening import open_log
from cordwood.common.types import TopicPartition
from cordwood.record.columns import decode
from cordwood.record.record import Record
from cordwood.storage.log.arrow import SCHEMA, to_arrow
from cordwood.testing.strategies import logs
from tests.fixtures import fixture
from tests.logs import window

pytestmark = pytest.mark.more

UTC = datetime.UTC


def row(record: Record) -> dict[str, object]:
    time = (
        None
        if record.timestamp < 0
        else datetime.datetime.fromtimestamp(0, UTC) + datetime.timedelta(milliseconds=record.timestamp)
    )
    return {
        "topic": "t",
        "partition": 3,
        "offset": record.offset,
        "timestamp": time,
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in record.headers],
    }


@given(logs())
def test_a_table_holds_what_the_records_hold(log: tuple[bytes, list[Record]]) -> None:
    data, records = log
    batches = [to_arrow(part, TopicPartition("t", 3)) for part in decode(window(data))] if data else []
    table = pa.Table.from_batches(batches, SCHEMA)
    table.validate(full=True)
    assert table.to_pylist() == [row(record) for record in records]


def test_header_names_that_are_not_utf8_get_replacement_characters() -> None:
    log = open_log(str(fixture("kraft-before") / "orders-0"))
    named = next(part for part in log.columns() if part.rows["header_count"].any())
    at = int(named.rows["headers_start"][named.rows["header_count"] > 0][0])
    data = named.data.copy()
    assert data[at] > 2, "the first header has a name"
    data[at + 1] = 0xFF
    names = [name["key"] for name in to_arrow(type(named)(data, named.rows, named.batches))["headers"].to_pylist()[0]]
    assert names[0].startswith("�")


def test_a_fixture_becomes_one_table_with_its_topic_and_partition() -> None:
    log = open_log(str(fixture("kraft-before") / "odd-bytes-0"))
    table = log.to_arrow()
    assert table.schema == SCHEMA
    assert table["key"].to_pylist() == [record.key for record in log]
    assert set(table["topic"].to_pylist()) == {"odd-bytes"}
    assert table.slice(0, 0).to_pylist() == []


def test_filters_reach_the_table() -> None:
    log = open_log(str(fixture("kraft-before") / "orders-0"))
    assert log.to_arrow(start_offset=10, end_offset=13)["offset"].to_pylist() == [10, 11, 12]


def test_more_than_2_gib_in_one_array_is_refused() -> None:
    from cordwood.common.errors import BatchTooLargeError
    from cordwood.storage.log import arrow

    sizes = np.full(3, 2**30, np.int32)
    with pytest.raises(BatchTooLargeError):
        arrow.byte_strings(np.zeros(1, np.uint8), np.zeros(3, np.int32), sizes, pa.binary())


def test_pandas_is_not_imported_on_the_way(tmp_path) -> None:
    import subprocess

    path = fixture("kraft-before") / "odd-bytes-0"
    code = f"import cordwood, sys; cordwood.open_log({str(path)!r}).to_arrow(); sys.exit('pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
