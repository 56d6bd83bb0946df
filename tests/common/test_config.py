"""The tables against Kafka 4.3.1's own (`tests/data/kafka-defaults.jsonl`), then parsing, then layers."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cordwood.common.config import (
    BROKER_CONFIGS,
    HOUR_MS,
    INTERNAL_CONFIGS,
    LONG_MAX,
    TOPIC_CONFIGS,
    Layer,
    Source,
    SourceKind,
    Type,
    Value,
    internal_layers,
    overrides,
    resolve,
    resolve_broker,
    server_properties,
    show,
)
from cordwood.common.errors import ConfigError
from tests.kafka_tools import Oracle

KAFKA = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data" / "kafka-defaults.jsonl").read_text().splitlines()
]
#: Values of each numeric config that Kafka accepts and refuses: `oracle edges`.
EDGES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data" / "kafka-edges.jsonl").read_text().splitlines()
]
#: Taken by Kafka, and refused here: Kafka's cleaner waits forever; Kafka fails when it makes the first segment.
REFUSED_HERE = {
    "log.cleaner.io.max.bytes.per.second": {"0"},
    "internal.segment.bytes": {"0", "-1", "-2", "-2147483648"},
}
#: Broker configs that Kafka counts among those for logs, and Cordwood has no use for.
NOT_OURS = {
    "alter.config.policy.class.name",
    "auto.create.topics.enable",
    "create.topic.policy.class.name",
    "log.dir",
    "log.dirs",
    "num.partitions",
}


def in_kafkas_words(value: Value) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, tuple) else show(value)


def metadata(topic: str = "orders", /, **texts: str) -> Layer:
    """A topic's configs in the metadata log; underscores replace dots."""
    return Layer(
        Source(SourceKind.TOPIC, "__cluster_metadata-0", topic),
        {name.replace("_", "."): text for name, text in texts.items()},
    )


# ---- the tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", KAFKA, ids=lambda line: f"{line['level']}: {line['name']}")
def test_names_types_defaults_and_ranges_are_those_of_kafka(line: dict[str, str]) -> None:
    if line["name"] in NOT_OURS:
        assert line["name"] not in BROKER_CONFIGS
        return
    ours = (TOPIC_CONFIGS if line["level"] == "topic" else BROKER_CONFIGS)[line["name"]]
    valid = None if ours.valid is None else str(ours.valid)
    if line["name"] == "cordoned.log.dirs":  # checked by code, without words for it
        valid = ""
    default = in_kafkas_words(ours.default).replace("e+308", "E308")
    assert (ours.type.name, default, valid) == (line["type"], line["default"], line["valid"])


def is_taken(level: str, name: str, text: str) -> bool:
    """Whether a config of a topic, or of a broker, may be set to this."""
    source = Source(SourceKind.TOPIC_OVERRIDE, subject="t") if level == "topic" else Source(SourceKind.OVERRIDE)
    layers = [Layer(source, {name: text})]
    try:
        resolve("t", layers)
        resolve_broker(layers)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("line", EDGES, ids=lambda line: f"{line['level']}: {line['name']}")
def test_each_number_at_the_edges_of_its_range_is_taken_or_refused_as_by_kafka(line: dict[str, Any]) -> None:
    level, name = line["level"], line["name"]
    texts = [*line["taken"], *line["refused"]]
    expected = set(line["taken"]) - REFUSED_HERE.get(name, set())
    assert {text for text in texts if is_taken(level, name, text)} == expected


def test_the_recorded_edges_are_those_of_kafka(kafka_oracle: Oracle) -> None:
    numeric = (Type.INT, Type.LONG, Type.DOUBLE)
    names = [name for name, definition in BROKER_CONFIGS.items() if definition.type in numeric]
    assert kafka_oracle("edges", *names) == EDGES


@pytest.mark.parametrize("name", ["log.cleaner.io.max.bytes.per.second", "log.cleaner.threads"])
def test_a_cleaner_that_would_never_clean_is_refused_with_what_to_set(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=0.* \(--config\): .*set log.cleaner.enable=false"):
        resolve_broker(overrides([f"{name}=0"]))


def test_the_tables_have_no_topic_or_cleaner_config_that_kafka_lacks() -> None:
    names = {level: {line["name"] for line in KAFKA if line["level"] == level} for level in ("topic", "cleaner")}
    assert set(TOPIC_CONFIGS) == names["topic"]
    assert {name for name in BROKER_CONFIGS if name.startswith("log.cleaner.")} == names["cleaner"]


def test_each_default_is_what_the_broker_synonyms_give_by_default() -> None:
    for definition in TOPIC_CONFIGS.values():
        for synonym in definition.synonyms:
            default = BROKER_CONFIGS[synonym.name].default
            if default is not None:
                given = default * synonym.scale if isinstance(default, int) else default
                assert given == definition.default, synonym.name


# ---- One value: Kafka 4.3.1's answer to each -------------------------------------------------------------------------

TAKEN: list[tuple[str, str, Value]] = [
    ("cleanup.policy", "", ()),
    ("cleanup.policy", " ", ()),
    ("cleanup.policy", "compact", ("compact",)),
    ("cleanup.policy", " compact , delete ", ("compact", "delete")),
    ("cleanup.policy", "delete,compact", ("delete", "compact")),
    ("cleanup.policy", "compact,compact", ("compact",)),
    ("retention.ms", "-1", -1),
    ("retention.ms", " 5 ", 5),
    ("retention.ms", "+5", 5),
    ("retention.ms", "٣", 3),
    ("retention.ms", str(LONG_MAX), LONG_MAX),
    ("retention.bytes", "-77", -77),
    ("segment.bytes", "1048576", 1048576),
    ("internal.segment.bytes", "1", 1),
    ("min.cleanable.dirty.ratio", "1", 1.0),
    ("min.cleanable.dirty.ratio", "1e-1", 0.1),
    ("min.cleanable.dirty.ratio", "0.5d", 0.5),
    ("min.cleanable.dirty.ratio", ".5f", 0.5),
    ("min.cleanable.dirty.ratio", "-0.0", 0.0),
    ("preallocate", "TRUE", True),
    ("preallocate", " false ", False),
    ("compression.type", " zstd ", "zstd"),
    ("compression.gzip.level", "-1", -1),
    ("compression.gzip.level", "9", 9),
    ("leader.replication.throttled.replicas", "*", ("*",)),
    ("leader.replication.throttled.replicas", "0:1, 2:3", ("0:1", "2:3")),
    ("leader.replication.throttled.replicas", "0:1,0:1", ("0:1", "0:1")),
    ("leader.replication.throttled.replicas", "0:1,", ("0:1", "")),
]

REFUSED = [
    ("cleanup.policy", "COMPACT"),
    ("cleanup.policy", "compact,"),
    ("cleanup.policy", ","),
    ("cleanup.policy", "none"),
    ("cleanup.policy", "compact delete"),
    ("retention.ms", "-2"),
    ("retention.ms", "5.0"),
    ("retention.ms", ""),
    ("retention.ms", "9223372036854775808"),
    ("retention.ms", "1_000"),
    ("segment.bytes", "2500"),
    ("segment.bytes", "2147483648"),
    ("internal.segment.bytes", ""),
    ("min.cleanable.dirty.ratio", "1.1"),
    ("min.cleanable.dirty.ratio", "Infinity"),
    ("min.cleanable.dirty.ratio", "inf"),
    ("min.cleanable.dirty.ratio", "1_0"),
    ("min.cleanable.dirty.ratio", ""),
    ("preallocate", "1"),
    ("preallocate", ""),
    ("compression.type", "ZSTD"),
    ("compression.type", "none"),
    ("compression.gzip.level", "0"),
    ("compression.zstd.level", "-131073"),
    ("message.timestamp.type", "createtime"),
    ("leader.replication.throttled.replicas", "x"),
    ("leader.replication.throttled.replicas", "*,0:1"),
    ("leader.replication.throttled.replicas", "-1:2"),
    # Kafka accepts these two; here a ratio is a number that can be compared and written as JSON.
    ("min.cleanable.dirty.ratio", "NaN"),
    ("min.cleanable.dirty.ratio", "0x1p-1"),
]


@pytest.mark.parametrize(("name", "text", "value"), TAKEN)
def test_what_kafka_takes_is_read_as_kafka_reads_it(name: str, text: str, value: Value) -> None:
    assert TOPIC_CONFIGS[name].parse(text) == value


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_what_kafka_refuses_is_refused_with_the_name_the_value_and_what_is_allowed(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TOPIC_CONFIGS[name].parse(text)
    assert str(raised.value).startswith(f"{name}={text} is not a value that Kafka accepts. Allowed: ")


def test_a_refusal_says_where_the_value_was_read() -> None:
    with pytest.raises(ConfigError) as raised:
        resolve("orders", [metadata(retention_ms="soon")])
    assert str(raised.value) == (
        "retention.ms=soon (topic orders in __cluster_metadata-0) is not a value that Kafka accepts. "
        "Allowed: a whole number of 64 bits, at least -1."
    )


# ---- layers ----------------------------------------------------------------------------------------------------------

EVERY_SOURCE = [
    Layer(Source(SourceKind.SERVER_PROPERTIES, "/x/server.properties"), {"log.retention.ms": "1"}),
    Layer(Source(SourceKind.CLUSTER, "__cluster_metadata-0"), {"log.retention.ms": "2"}),
    Layer(Source(SourceKind.BROKER, "__cluster_metadata-0", "1"), {"log.retention.ms": "3"}),
    metadata(retention_ms="4"),
    *overrides(["retention.ms=5"]),
    *overrides(["orders:retention.ms=6"]),
]


@pytest.mark.parametrize(
    ("count", "printed"),
    [
        (0, "604800000 (default)"),
        (1, "1 (server.properties: /x/server.properties)"),
        (2, "2 (cluster default (dynamic) in __cluster_metadata-0)"),
        (3, "3 (broker 1 (dynamic) in __cluster_metadata-0)"),
        (4, "4 (topic orders in __cluster_metadata-0)"),
        (5, "5 (--config)"),
        (6, "6 (--config orders:)"),
    ],
)
def test_the_later_source_wins_in_whatever_order_layers_come(count: int, printed: str) -> None:
    value = resolve("orders", EVERY_SOURCE[:count])["retention.ms"]
    assert str(value) == printed
    assert value.explicit == (count > 0)
    assert resolve("orders", EVERY_SOURCE[:count][::-1])["retention.ms"] == value


def test_layers_of_other_topics_say_nothing() -> None:
    assert str(resolve("sales", EVERY_SOURCE)["retention.ms"]) == "5 (--config)"


def test_a_topic_config_wins_over_a_broker_config_of_a_later_source() -> None:
    config = resolve("orders", [metadata(cleanup_policy="compact"), *overrides(["log.cleanup.policy=delete"])])
    assert config.policy == {"compact"}
    config = resolve("sales", [metadata(cleanup_policy="compact"), *overrides(["log.cleanup.policy=delete"])])
    assert str(config["cleanup.policy"]) == "delete (--config)"


def test_a_name_of_both_levels_in_server_properties_is_only_the_default_of_topics() -> None:
    file = server_properties(b"compression.type=gzip\n", "f")
    assert resolve("orders", [file])["compression.type"].value == "gzip"
    dynamic = Layer(Source(SourceKind.CLUSTER, "m"), {"compression.type": "lz4"})
    assert resolve("orders", [file, dynamic])["compression.type"].value == "lz4"
    assert resolve("orders", [file, dynamic, metadata(compression_type="zstd")])["compression.type"].value == "zstd"


SYNONYMS = [
    ({"log.retention.minutes": "5", "log.retention.hours": "2"}, "retention.ms", 300_000, "log.retention.minutes"),
    ({"log.retention.ms": "7", "log.retention.minutes": "5"}, "retention.ms", 7, "log.retention.ms"),
    ({"log.retention.hours": "2147483647"}, "retention.ms", 7730941129200000, "log.retention.hours"),
    ({"log.retention.hours": "-3"}, "retention.ms", -1, "log.retention.hours"),
    ({"log.retention.ms": "-5"}, "retention.ms", -1, "log.retention.ms"),
    ({"log.retention.bytes": "-50"}, "retention.bytes", -50, "log.retention.bytes"),
    ({"log.roll.hours": "2"}, "segment.ms", 2 * HOUR_MS, "log.roll.hours"),
    ({"log.roll.hours": "2", "log.roll.ms": "5"}, "segment.ms", 5, "log.roll.ms"),
    ({"log.roll.jitter.hours": "1"}, "segment.jitter.ms", HOUR_MS, "log.roll.jitter.hours"),
    ({"log.flush.scheduler.interval.ms": "77"}, "flush.ms", 77, "log.flush.scheduler.interval.ms"),
    ({"log.cleanup.policy": ""}, "cleanup.policy", (), "log.cleanup.policy"),
    ({"message.max.bytes": "9"}, "max.message.bytes", 9, "message.max.bytes"),
]


@pytest.mark.parametrize(("texts", "name", "value", "said_as"), SYNONYMS)
def test_broker_synonyms_count_in_kafkas_order_and_units(
    texts: dict[str, str], name: str, value: Value, said_as: str
) -> None:
    found = resolve("t", [Layer(Source(SourceKind.SERVER_PROPERTIES, "f"), texts)])[name]
    assert (found.value, found.set_as) == (value, said_as)


def test_a_dynamic_retention_ms_hides_the_minutes_of_the_file() -> None:
    layers = [
        Layer(Source(SourceKind.SERVER_PROPERTIES, "f"), {"log.retention.minutes": "5"}),
        Layer(Source(SourceKind.CLUSTER, "m"), {"log.retention.ms": "9"}),
    ]
    assert resolve("t", layers)["retention.ms"].value == 9


@pytest.mark.parametrize(
    "texts",
    [{"log.retention.ms": "0"}, {"log.roll.ms": "0"}, {"log.roll.jitter.ms": "-1"}, {"log.flush.interval.ms": "-1"}],
)
def test_broker_times_that_kafka_does_not_start_with_are_refused(texts: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"\(server\.properties: f\)"):
        resolve("t", [Layer(Source(SourceKind.SERVER_PROPERTIES, "f"), texts)])


def test_minimum_lag_may_equal_but_not_exceed_maximum_lag() -> None:
    resolve("orders", [metadata(min_compaction_lag_ms="5", max_compaction_lag_ms="5")])
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=6 \(topic orders.*max\.compaction\.lag\.ms=5"):
        resolve("orders", [metadata(min_compaction_lag_ms="6", max_compaction_lag_ms="5")])


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_tiered_topic_cannot_be_compacted(policy: str) -> None:
    resolve("orders", [metadata(remote_storage_enable="true", cleanup_policy="")])
    with pytest.raises(ConfigError, match=r"remote\.storage\.enable=true .* does not go with cleanup\.policy=compact"):
        resolve("orders", [metadata(remote_storage_enable="true"), *overrides([f"cleanup.policy={policy}"])])


@pytest.mark.parametrize("topic", INTERNAL_CONFIGS)
def test_what_is_said_for_all_topics_deletes_nothing_of_kafkas_own(topic: str) -> None:
    said = ["cleanup.policy=delete", "retention.ms=1000", "retention.bytes=1000", "segment.bytes=2000000"]
    own = resolve(topic, internal_layers(topic))
    for layers in (internal_layers(topic), (metadata(topic, cleanup_policy="compact"),)):
        alone, config = resolve(topic, layers), resolve(topic, [*layers, *overrides(said)])
        for name in ("cleanup.policy", "retention.ms", "retention.bytes"):
            assert config[name] == alone[name]
        assert config.integer("segment.bytes") == 2_000_000
    assert own.compact or own.integer("retention.ms") == -1
    named = resolve(topic, [*internal_layers(topic), *overrides([f"{topic}:retention.ms=1000"])])
    assert named.integer("retention.ms") == 1000


def test_internal_segment_bytes_wins_over_segment_bytes() -> None:
    config = resolve("orders", [metadata(internal_segment_bytes="2500"), *overrides(["segment.bytes=2000000"])])
    assert str(config[config.segment_bytes_name]) == "2500 (topic orders in __cluster_metadata-0)"
    assert resolve("orders", [metadata(segment_bytes="2000000")]).segment_bytes == 2_000_000
    with pytest.raises(ConfigError, match="leaves no room"):
        resolve("orders", [metadata(internal_segment_bytes="0")])


SMALL = {"log.segment.bytes": "2500"}


def test_small_segments_that_an_older_broker_allowed_are_read_from_its_files_only() -> None:
    assert resolve("orders", [metadata(segment_bytes="2500")]).segment_bytes == 2500
    for file in (server_properties(b"log.segment.bytes=2500", "f"), Layer(Source(SourceKind.CLUSTER, "m"), SMALL)):
        assert resolve("orders", [file]).segment_bytes == 2500
        assert resolve_broker([file])["log.segment.bytes"].value == 2500
    with pytest.raises(ConfigError):
        server_properties(b"log.segment.bytes=13", "f")
    with pytest.raises(ConfigError):
        overrides(["log.segment.bytes=2500"])
    with pytest.raises(ConfigError):
        resolve("orders", [metadata(segment_bytes="13")])
    with pytest.raises(ConfigError):
        overrides(["segment.bytes=2500"])


def test_topic_configs_of_another_kafka_are_kept_as_text() -> None:
    config = resolve("orders", [metadata(message_format_version="2.8", cleanup_policy="compact")])
    assert str(config["message.format.version"]) == "2.8 (topic orders in __cluster_metadata-0)"
    assert set(config) == {*TOPIC_CONFIGS, "message.format.version"}


def test_a_policy_that_only_the_default_gives_is_not_known() -> None:
    assert not resolve("orders").policy_known
    assert not resolve("orders", [metadata(retention_ms="5")]).policy_known
    assert resolve("orders", [metadata(cleanup_policy="")]).policy_known
    assert resolve("orders", [server_properties(b"log.cleanup.policy=compact", "f")]).compact


def test_typed_getters_and_policy() -> None:
    config = resolve("orders", [metadata(cleanup_policy="delete,compact")])
    assert (config.compact, config.delete) == (True, True)
    assert config.integer("segment.index.bytes") == 10485760
    assert config.real("min.cleanable.dirty.ratio") == 0.5
    assert config.flag("preallocate") is False
    assert config.word("compression.type") == "producer"


def test_a_config_can_be_pickled_and_compared() -> None:
    config = resolve("orders", EVERY_SOURCE)
    assert pickle.loads(pickle.dumps(config)) == config != resolve("orders")


# ---- the broker ------------------------------------------------------------------------------------------------------


def test_broker_configs_come_from_defaults_file_metadata_and_command_line() -> None:
    config = resolve_broker(
        [
            *overrides(["log.cleaner.threads=3", "cleanup.policy=compact"]),
            server_properties(b"log.cleaner.threads=2\nlog.cleaner.backoff.ms=1\nprocess.roles=broker\n", "f"),
        ]
    )
    assert str(config["log.cleaner.threads"]) == "3 (--config)"
    assert str(config["log.cleaner.backoff.ms"]) == "1 (server.properties: f)"
    assert str(config["log.cleaner.dedupe.buffer.size"]) == "134217728 (default)"
    assert set(config) == set(BROKER_CONFIGS)


def test_each_cleaner_thread_needs_more_than_a_mebibyte_of_map() -> None:
    arguments = ["log.cleaner.threads=2", "log.cleaner.dedupe.buffer.size="]
    resolve_broker(overrides([arguments[0], arguments[1] + "2097154"]))
    with pytest.raises(ConfigError, match=r"2097153 \(--config\) must be more than 1 MiB for each"):
        resolve_broker(overrides([arguments[0], arguments[1] + "2097153"]))


# ---- reading sources -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("retention.mss=1", "retention.mss is not a config of Kafka 4.3.1, or not one that Cordwood uses. "
         "Did you mean retention.ms?"),
        ("log.cleaner.treads=4", "log.cleaner.treads is not a config of Kafka 4.3.1, or not one that Cordwood uses. "
         "Did you mean log.cleaner.threads?"),
        ("xyzzy=1", "xyzzy is not a config of Kafka 4.3.1, or not one that Cordwood uses."),
        ("orders:log.retention.ms=1", "log.retention.ms is a broker config. For a topic write orders:retention.ms=…"),
        ("orders:log.cleaner.threads=1", "log.cleaner.threads is not a config of Kafka 4.3.1, or not one that "
         "Cordwood uses."),
        ("retention.ms", "--config retention.ms: write key=value, or topic:key=value for one topic."),
        (":retention.ms=1", "--config :retention.ms=1: write key=value, or topic:key=value for one topic."),
        ("a:b:retention.ms=1", "--config a:b:retention.ms=1: write key=value, or topic:key=value for one topic."),
        ("cleanup.policy=Compact", "cleanup.policy=Compact (--config) is not a value that Kafka accepts. "
         "Allowed: a list with commas, may be empty, of compact, delete."),
    ],
)  # fmt: skip
def test_a_wrong_override_is_refused_in_words(argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        overrides(["retention.ms=1", argument])
    assert str(raised.value) == message


def test_override_value_may_hold_colons_and_the_last_override_counts() -> None:
    layers = overrides(["orders:leader.replication.throttled.replicas=0:1", "retention.ms=1", "retention.ms=2"])
    assert [(str(layer.source), layer.texts) for layer in layers] == [
        ("--config orders:", {"leader.replication.throttled.replicas": "0:1"}),
        ("--config", {"retention.ms": "2"}),
    ]


def test_server_properties_are_read_as_java_reads_them() -> None:
    # In Java an empty line with a continuation has not begun an entry, so a comment may follow; and comments have no
    # continuation.
    layer = server_properties(b"\\\n# \\\nlog.roll.ms=3\nlog.retention.ms = \\\n  1\\u0030", "/x/f")
    assert dict(layer.texts) == {"log.roll.ms": "3", "log.retention.ms": "10"}


def test_a_server_properties_file_is_checked_at_once_and_only_for_what_concerns_logs() -> None:
    layer = server_properties(b"listeners=PLAINTEXT://:9092\nlog.retention.hours=1\ncleanup.policy=?\n", "/x/f")
    assert dict(layer.texts) == {"log.retention.hours": "1"}
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes=13 \(server\.properties: /x/f\)"):
        server_properties(b"log.segment.bytes=13\n", "/x/f")
    with pytest.raises(ConfigError, match="not in the properties format"):
        server_properties(b"log.roll.ms=\\u12\n", "/x/f")


def test_importing_config_loads_no_heavy_library() -> None:
    program = (
        "import sys, cordwood.common.config; print(sorted({'numpy', 'numba', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
