"""`topics`, `configs` and `brokers`: a broker's metadata log as of its end, an offset or a time."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.record.record import Record
from cordwood.storage.formats.cluster_metadata import NAME, apply
from tests.command import run
from tests.commands.made_broker import MadeBroker
from tests.fixtures import fixture
from tests.logs import T0, batch
from tests.storage.messages import internal_record
from tests.storage.metadata_facts import DELETED, INTERNAL, facts_of_topics

pytestmark = pytest.mark.more


def records_of(name: str) -> list[Record]:
    return list(cordwood.open_log(f"{fixture(name)}/{NAME}").records())


@pytest.mark.parametrize("name", ["kraft-before", "kraft-after", "kraft-jbod-before"])
def test_topics_and_configs_are_those_that_the_broker_had(name: str) -> None:
    found = cordwood.topics(str(fixture(name)))
    expected = {topic: (count, texts) for topic, count, texts in facts_of_topics(name) if not DELETED.fullmatch(topic)}
    known = {topic.name: (len(topic.partitions), dict(found.configs[topic.name])) for topic in found.topics}
    assert {topic: facts for topic, facts in known.items() if topic not in INTERNAL} == expected
    entries = cordwood.configs(str(fixture(name))).configs
    of_topics = {(one.subject, one.name): one.value for one in entries if one.scope == "topic"}
    said = {(topic, key): text for topic, (_, texts) in expected.items() for key, text in texts.items()}
    assert {pair: text for pair, text in of_topics.items() if pair[0] not in INTERNAL} == said


def test_any_offset_shows_what_the_records_below_it_say() -> None:
    path, records = str(fixture("kraft-before")), records_of("kraft-before")
    for at in range(0, len(records), 97):
        end = records[at].offset
        metadata = apply((one.offset, one.value) for one in records[:at])
        found = cordwood.topics(path, at=str(end))
        assert {topic.name: topic for topic in found.topics} == dict(metadata.topics)
        assert {broker.broker_id: broker for broker in cordwood.brokers(path, at=str(end)).brokers} == metadata.brokers
        assert found.as_of.next_offset == (records[at - 1].offset + 1 if at else 0)


def test_a_time_shows_what_was_written_until_then() -> None:
    path, records = str(fixture("kraft-before")), records_of("kraft-before")
    for record in records[:: len(records) // 7]:
        time = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
        until = [one for one in records if one.timestamp <= record.timestamp]
        found = cordwood.configs(path, at=time)
        assert found.as_of.timestamp_ms == record.timestamp
        expected = apply((one.offset, one.value) for one in until)
        sums = sum(map(len, (*expected.topic_configs.values(), *expected.broker_configs.values())))
        assert len(found.configs) == sums
    assert not cordwood.topics(path, at="2020-01-01").topics


def test_a_snapshot_and_the_log_behind_it_reach_back_to_the_snapshot(tmp_path: Path) -> None:
    broker = tmp_path / "broker"
    shutil.copytree(fixture("kraft-before") / NAME, broker / NAME)
    (broker / "meta.properties").write_text("version=1\nnode.id=1\n")
    (log,) = (broker / NAME).glob("*.log")
    batches = list(cordwood.open_log(str(broker / NAME)).batches())
    middle = batches[len(batches) // 2]
    data = log.read_bytes()
    for file in (broker / NAME).glob("0*"):
        file.unlink()
    (broker / NAME / f"{middle.base_offset:020d}-{1:010d}.checkpoint").write_bytes(data[: middle.position])
    (broker / NAME / f"{middle.base_offset:020d}.log").write_bytes(data[middle.position :])
    whole = str(fixture("kraft-before"))
    for at in (str(middle.base_offset), str(middle.base_offset + 40), None):
        assert cordwood.topics(str(broker), at=at).topics == cordwood.topics(whole, at=at).topics
    with pytest.raises(RequestError, match=f"begins at offset {middle.base_offset}, and has no snapshot"):
        cordwood.topics(str(broker), at=str(middle.base_offset - 1))
    with pytest.raises(RequestError, match="it does not reach back to 2020-01-01"):
        cordwood.topics(str(broker), at="2020-01-01")


def made(tmp_path: Path) -> MadeBroker:
    broker = MadeBroker(tmp_path / "broker")
    broker.topic("t", partitions=2, replicas=(1, 2), cleanup_policy="compact")
    end_points = ({"name": "PLAINTEXT", "host": "h", "port": 9092, "security_protocol": 0},)
    for number in (1, 2):
        registered = {"broker_id": number, "broker_epoch": 5, "end_points": end_points, "rack": f"r{number}"}
        broker.metadata.append(internal_record("RegisterBrokerRecord", registered))
    change = {"broker_id": 1, "broker_epoch": 5, "fenced": -1}
    broker.metadata.append(internal_record("BrokerRegistrationChangeRecord", change))
    for name, value in (("ssl.keystore.password", "hunter2"), ("log.retention.ms", "5")):
        values = {"resource_type": 4, "resource_name": "1", "name": name, "value": value}
        broker.metadata.append(internal_record("ConfigRecord", values))
    return broker


def test_brokers_are_told_with_state_listeners_and_what_they_lead(tmp_path: Path) -> None:
    found = cordwood.brokers(str(made(tmp_path).finish()))
    assert [(one.broker_id, one.fenced, one.rack) for one in found.brokers] == [(1, False, "r1"), (2, True, "r2")]
    text = " ".join(found.text().split())
    assert "1 - r1 PLAINTEXT://h:9092 2 2 -" in text
    assert "2 fenced r2 PLAINTEXT://h:9092 0 2 -" in text


def test_what_may_be_a_secret_is_not_shown(tmp_path: Path) -> None:
    found = cordwood.configs(str(made(tmp_path).finish()))
    values = {one.name: one.value for one in found.configs if one.scope == "broker"}
    assert values == {"ssl.keystore.password": "(hidden)", "log.retention.ms": "5"}
    assert "hunter2" not in found.text() + json.dumps(found.document())


def test_a_partition_without_leader_or_with_replicas_behind_is_named(tmp_path: Path) -> None:
    broker = made(tmp_path)
    topic_id = next(iter(cordwood.topics(str(made(tmp_path / "other").finish())).topics)).topic_id
    change = {"partition_id": 1, "topic_id": topic_id, "isr": (1,), "leader": -1}
    broker.metadata.append(internal_record("PartitionChangeRecord", change, version=0))
    path = str(broker.finish())
    printed = run("topics", path, "--by-partition").output
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "t-0 1 0 1,2 1,2 -" in lines
    assert "t-1 -1 1 1,2 1 no leader, 2 not in sync" in lines
    assert "t 2 2 1 " in " ".join(run("topics", path).output.split())


@pytest.mark.parametrize("verb", ["topics", "configs", "brokers"])
def test_json_is_what_the_function_returns(verb: str) -> None:
    path = str(fixture("kraft-before"))
    done = run(verb, path, "--json")
    result: Any = getattr(cordwood, verb)(path)
    assert json.loads(done.output) == json.loads(json.dumps(result.document()))
    assert run(verb, path).output == result.text() + "\n"


def test_damage_and_a_missing_log_are_told(tmp_path: Path) -> None:
    broker = made(tmp_path)
    path = broker.finish()
    (log,) = (path / NAME).glob("*.log")
    log.write_bytes(log.read_bytes() + b"\xff" * 100 + batch(100, (None, b"x"), time=T0))
    done = run("topics", path, exits=1)
    assert "damaged, so that this may not be all" in done.output
    shutil.rmtree(path / NAME)
    with pytest.raises(NotFoundError, match="holds no __cluster_metadata-0; give metadata=DIR"):
        cordwood.topics(str(path))
    with pytest.raises(NotFoundError, match=r"No topic in .* matches nothing"):
        cordwood.topics(str(fixture("kraft-before")), topics=["nothing"])
