"""The options of the data source: the options of Kafka's own source, and additional ones.

Values are text, and names are Kafka's, in any case. Each option is a field here, and its `metavar` selects the function
that parses it. A job that reads from a broker sets other options, too. Options about connecting to a broker and
fetching from it have no effect here and are ignored. Options that Kafka's source rejects are rejected, and so are
unknown names, which are probably misspelt.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from cordwood.common.arguments import Option, OptionField, named_path, option_fields
from cordwood.common.errors import RequestError
from cordwood.common.types import Isolation, TopicPartition
from cordwood.tables.source.offsets import (
    EARLIEST,
    LATEST,
    Everywhere,
    Limit,
    SinceTime,
    check_limits,
    parse_offsets,
    parse_partitions,
    parse_times,
)

#: `load` passes several paths as `paths`, and a catalog passes a table's path as `location`.
_SAME = {"paths": "path", "location": "path"}
#: The format of keys and values that are not decoded.
BYTES = "bytes"
#: The prefix of consumer settings.
_KAFKA = "kafka."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed options of a reader."""

    path: Annotated[
        tuple[str, ...],
        Option("Log directories of one or more brokers, or partition directories; `load` gives it.", metavar="PATHS"),
    ] = ()
    brokers: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "Also these directories, of the [brokers with these names](several-brokers.md): "
            '`["1=/backup/a","2=/backup/b"]`.',
            metavar="BROKERS",
        ),
    ] = ()
    replica: Annotated[
        str | None,
        Option(
            "Of several brokers, read the replicas of the broker with this name. Default: the "
            "[newest replica](several-brokers.md#the-newest-replica) of each partition. A stream needs it.",
            metavar="NAME",
        ),
    ] = None
    heal: Annotated[
        bool,
        Option(
            "A batch: read [damaged batches](several-brokers.md#damaged-batches) from another replica that has the "
            "same bytes there, and count them. Default: `false`.",
            metavar="FLAG",
        ),
    ] = False
    assign: Annotated[
        frozenset[TopicPartition] | None,
        Option('Only these partitions: `{"orders":[0,1]}`.', metavar="PARTITIONS"),
    ] = None
    subscribe: Annotated[tuple[str, ...] | None, Option("Only these topics: `orders,payments`.", metavar="NAMES")] = (
        None
    )
    subscribe_pattern: Annotated[
        re.Pattern[str] | None,
        Option("Only topics in whose names this regular expression is found.", metavar="PATTERN"),
    ] = None
    starting_offsets: Annotated[
        Limit | None,
        Option(
            "Where to begin: `earliest`, `latest`, or an offset for each partition, as in "
            '`{"orders":{"0":23,"1":-2}}`, where -2 is the earliest and -1 the latest. Default: `earliest`; of a '
            "stream `latest`.",
            metavar="OFFSETS",
        ),
    ] = None
    ending_offsets: Annotated[
        Limit | None, Option("Where a batch ends, in the same forms. Default: `latest`.", metavar="OFFSETS")
    ] = None
    starting_timestamp: Annotated[
        Limit | None,
        Option(
            "Begin with the first record at or after this time, in milliseconds. Overrides the other start options.",
            metavar="TIME",
        ),
    ] = None
    ending_timestamp: Annotated[
        Limit | None, Option("End a batch before the first record at or after this time.", metavar="TIME")
    ] = None
    starting_offsets_by_timestamp: Annotated[
        Limit | None,
        Option(
            'A time for each partition: `{"orders":{"0":1700000000000}}`. Overrides `startingOffsets`.',
            metavar="TIMES",
        ),
    ] = None
    ending_offsets_by_timestamp: Annotated[Limit | None, Option("The same for the end.", metavar="TIMES")] = None
    starting_offsets_by_timestamp_strategy: Annotated[
        Literal["error", "latest"],
        Option(
            "If no record is at or after the time: `error`, or begin at the `latest` offset. Default: `error`.",
            metavar="STRATEGY",
        ),
    ] = "error"
    isolation_level: Annotated[
        Isolation,
        Option(
            "`read_uncommitted`, or `read_committed`, without records of open and aborted transactions. Default: "
            "`read_uncommitted`.",
            flag=_KAFKA + "isolation.level",
            metavar="LEVEL",
        ),
    ] = Isolation.READ_UNCOMMITTED
    include_headers: Annotated[bool, Option("With a column `headers`. Default: `false`.", metavar="FLAG")] = False
    columns: Annotated[
        tuple[str, ...] | None,
        Option("Exactly these columns, of the two tables above; `*` means all of the first.", metavar="NAMES"),
    ] = None
    key_format: Annotated[
        str,
        Option(
            "Format of the keys: a [decoder](table.md#decoders) of tables, such as `utf8`, `long` or `avro:DIR`. "
            "Default: `bytes`.",
            metavar="DECODER",
        ),
    ] = BYTES
    value_format: Annotated[
        str, Option("Format of the values: the same choice, such as `json`. Default: `bytes`.", metavar="DECODER")
    ] = BYTES
    undecodable: Annotated[
        Literal["fail", "null"],
        Option(
            "A key or value that cannot be decoded: `fail`, with its place; or `null`, with a column `undecodable`. "
            "Default: `fail`.",
            metavar="CHOICE",
        ),
    ] = "fail"
    min_partitions: Annotated[
        int | None, Option("Approximate minimum number of Spark partitions.", metavar="POSITIVE")
    ] = None
    max_records_per_partition: Annotated[
        int | None, Option("Maximum number of offsets in a Spark partition.", metavar="POSITIVE")
    ] = None
    max_bytes_per_partition: Annotated[
        int, Option("Approximate bytes of log in a Spark partition. Default: 64 MiB.", metavar="POSITIVE")
    ] = 64 << 20
    fail_on_data_loss: Annotated[
        bool,
        Option(
            "Fail if requested offsets or partitions are missing or deleted; `false`: continue without them. "
            "Default: `true`.",
            metavar="FLAG",
        ),
    ] = True
    fail_on_damage: Annotated[
        bool,
        Option(
            "Fail at damage, with its place; `false`: continue behind it, and count it. Default: `true`.",
            metavar="FLAG",
        ),
    ] = True
    high_watermark: Annotated[
        Literal["end"] | None,
        Option(
            "`end`: read to the end of the log, even records that other replicas may lack. Default: [see below]"
            "(#where-reading-ends).",
            metavar="END",
        ),
    ] = None
    metadata: Annotated[
        str | None,
        Option("The directory that contains `__cluster_metadata-0`. Default: one of the given ones.", metavar="PATH"),
    ] = None
    tier: Annotated[
        str | None,
        Option("Where the closed segments of [tiered topics](tiered.md) are.", metavar="PATH"),
    ] = None
    tier_key: Annotated[str | None, Option("A file with the private key of encrypted segments.", metavar="PATH")] = None
    use_indexes: Annotated[
        bool,
        Option(
            "`false`: use no index; read all headers instead, to find transactions. Default: `true`.",
            metavar="FLAG",
        ),
    ] = True
    index_dir: Annotated[
        str | None,
        Option("Folder for key indexes, with a folder for each partition. Default: in each partition.", metavar="PATH"),
    ] = None
    push_filters: Annotated[
        bool | None,
        Option(
            "`true`: decide conditions of the query here, see [filters](#filters). Default: `push_filters` of "
            "`register`.",
            metavar="FLAG",
        ),
    ] = None
    max_offsets_per_trigger: Annotated[
        int | None, Option("A stream: maximum number of offsets in a batch, of all partitions.", metavar="POSITIVE")
    ] = None
    min_offsets_per_trigger: Annotated[
        int | None, Option("A stream: wait for at least this number of new offsets.", metavar="POSITIVE")
    ] = None
    max_trigger_delay: Annotated[
        int, Option("A stream: maximum wait for `minOffsetsPerTrigger`. Default: `15m`.", metavar="DURATION")
    ] = 900_000

    @property
    def starting(self) -> Limit | None:
        """Where reading begins; None if no option sets it."""
        return self.starting_timestamp or self.starting_offsets_by_timestamp or self.starting_offsets

    @property
    def starting_name(self) -> str:
        """Name of the option that sets where reading begins."""
        return self._name_of("starting")

    @property
    def ending_name(self) -> str:
        """Name of the option that sets where a batch ends."""
        return self._name_of("ending")

    def _name_of(self, limit: str) -> str:
        fields = (f"{limit}_timestamp", f"{limit}_offsets_by_timestamp", f"{limit}_offsets")
        chosen = next((name for name in fields if getattr(self, name) is not None), fields[-1])
        return next(option.option.flag for option in known_options().values() if option.name == chosen)

    @property
    def ending(self) -> Limit | None:
        """Where reading ends; None if no option sets it."""
        return self.ending_timestamp or self.ending_offsets_by_timestamp or self.ending_offsets

    def batch_limits(self) -> tuple[Limit, Limit]:
        """Return where a batch begins and ends."""
        limits = self.starting or Everywhere(EARLIEST), self.ending or Everywhere(LATEST)
        check_limits(*limits)
        return limits

    @property
    def all_paths(self) -> tuple[str, ...]:
        """The paths of all directories, those of `brokers` included."""
        return (*self.path, *(path for _, path in self.brokers))

    def stream_start(self) -> Limit:
        """Return where a stream begins."""
        if self.heal:
            raise RequestError("heal is for batches: a stream follows the log of one replica, to whose end it waits")
        if self.ending is not None:
            raise RequestError("A stream has no end: endingOffsets and its like are for batches")
        return self.starting or Everywhere(LATEST)


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a reader.

    Raises:
        RequestError: an option or its value is invalid, or options contradict each other.
    """
    values: dict[str, Any] = {}
    # A catalog passes a table's location in addition to its path, as a URL.
    given = {name.lower(): text for name, text in options.items()}
    if "path" in given:
        given.pop("location", None)
    for name, text in given.items():
        field = known_options().get(_SAME.get(name, name))
        if field is not None:
            try:
                values[field.name] = _READERS[field.option.metavar](text)
            except (ValueError, RequestError) as error:
                raise RequestError(f"{field.option.flag}: {error}") from None
        else:
            _pass_over_or_refuse(name)
    read = ReadOptions(**values)
    _check(read)
    return read


@cache
def known_options() -> Mapping[str, OptionField]:
    """Return all options by lower-case name, each with its name as users write it."""
    found = {}
    for one in option_fields(ReadOptions):
        first, *others = one.name.split("_")
        name = one.option.flag or first + "".join(word.title() for word in others)
        option = Option(one.option.help, name, one.option.metavar)
        found[name.lower()] = OptionField(one.name, one.type, one.type_text, one.default, option)
    return found


def comment_of(options: Mapping[str, str]) -> str | None:
    """Encode the options of a catalog's table as a comment on a column; None if they are not from a catalog.

    Spark stores the options in the catalog, but passes a reader only those of the query. It does pass the columns.
    """
    given = {name.lower(): text for name, text in options.items()}
    if not given.keys() & (_OF_A_TABLE | {"location"}):
        return None
    kept = {name: text for name, text in given.items() if name not in _OF_A_TABLE and not name.startswith(_AGAIN)}
    for name in kept.keys() & {"path", "location"}:
        # The catalog writes file URLs with one slash and without percent-encoding.
        if kept[name].startswith("file:/") and not kept[name].startswith("file://"):
            kept[name] = kept[name].removeprefix("file:")
    return _COMMENT + json.dumps(kept)


def from_comments(comments: Iterable[str]) -> dict[str, str]:
    """Decode the options of a table from the comments of its columns."""
    found = (comment.removeprefix(_COMMENT) for comment in comments if comment.startswith(_COMMENT))
    return dict(json.loads(next(found, "{}")))


def _check(read: ReadOptions) -> None:
    chosen = [one for one in (read.assign, read.subscribe, read.subscribe_pattern) if one is not None]
    if len(chosen) > 1:
        raise RequestError("Give one of assign, subscribe and subscribePattern, not several")
    if not read.all_paths:
        raise RequestError(
            'Name a directory:  spark.read.format("cordwood").load("/var/kafka-logs"). A table in a catalog has its '
            "options in the comment of its last column: make it without columns, and leave that comment as it is"
        )
    least, most = read.min_offsets_per_trigger, read.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise RequestError(f"minOffsetsPerTrigger {least} is larger than maxOffsetsPerTrigger {most}")


#: Entries that Spark adds to the options of a catalog's table: properties, and each option again with a prefix.
_OF_A_TABLE = {
    "collation", "comment", "external", "is_managed_location", "owner", "provider", "serialization.format",
}  # fmt: skip
_AGAIN = "option."
_COMMENT = "Options of the table: "
#: Options of Kafka's source that have no effect without a broker.
_PASSED_OVER = {"groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"}
#: Settings of a consumer that Kafka's source refuses, and why.
_REFUSED = {
    "auto.offset.reset": "the option startingOffsets sets the start",
    "key.deserializer": "the option keyFormat decodes keys",
    "value.deserializer": "the option valueFormat decodes values",
    "enable.auto.commit": "Spark keeps the offsets of a query",
    "interceptor.classes": "nothing may change records",
}


#: Consumer settings of Kafka 4.3.1. Plug-ins define others, so an unknown setting is ignored unless it resembles one.
_CONSUMER_SETTINGS = """
allow.auto.create.topics auto.commit.interval.ms bootstrap.servers check.crcs client.dns.lookup client.id
client.rack connections.max.idle.ms default.api.timeout.ms enable.metrics.push exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism security.protocol security.providers
send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
ssl.truststore.type
"""
_OF_A_CONSUMER = frozenset(_CONSUMER_SETTINGS.split())
_OAUTH = "sasl.oauthbearer."
#: Minimum similarity of a name to a setting to count as misspelt.
_RESEMBLANCE = 0.8


def _pass_over_or_refuse(name: str) -> None:
    if name in _PASSED_OVER or name in _OF_A_TABLE or name.startswith(_AGAIN):
        return
    if name.startswith(_KAFKA):
        setting = name.removeprefix(_KAFKA)
        if why := _REFUSED.get(setting):
            raise RequestError(f"{name} cannot be set: {why}")
        close = difflib.get_close_matches(setting, _OF_A_CONSUMER | _REFUSED.keys(), 1, _RESEMBLANCE)
        if close and setting not in _OF_A_CONSUMER and not setting.startswith(_OAUTH):
            raise RequestError(f"A consumer has no setting {setting}. Is {_KAFKA}{close[0]} meant?")
        return
    names = {field.option.flag.lower(): field.option.flag for field in known_options().values()}
    close = difflib.get_close_matches(name, names, 1)
    hint = f" Is {names[close[0]]} meant?" if close else f" There are {', '.join(sorted(names.values()))}."
    raise RequestError(f"There is no option {name}.{hint}")


# ---- parsers of values -----------------------------------------------------------------------------------------------


def _paths(text: str) -> tuple[str, ...]:
    """Parse one path, or several as a JSON list."""
    if text.startswith("["):
        try:
            return tuple(map(str, json.loads(text)))
        except ValueError:
            pass
    return (text,)


def _brokers(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(named_path(one, "brokers") for one in _paths(text))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise RequestError("no name is given")
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.strip())
    except re.error as error:
        raise RequestError(f"{text!r} is no regular expression: {error}") from None


def _positive(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text) or int(text) < 1:
        raise RequestError(f"{text!r}: give a number, 1 or more")
    return int(text)


def _time(text: str) -> Limit:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text):
        raise RequestError(f"{text!r}: give milliseconds since 1970")
    return SinceTime(int(text))


def _flag(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise RequestError(f"{text!r}: give true or false")
    return found


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}


def _duration(text: str) -> int:
    """Parse a duration in the syntax of Spark's settings, in milliseconds."""
    found = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in _UNITS_MS:
        raise RequestError(f"{text!r}: give a time such as 500ms, 30s or 15m")
    return int(found[1]) * _UNITS_MS[found[2]]


def _level(text: str) -> Isolation:
    try:
        return Isolation(text.strip().lower())
    except ValueError:
        raise RequestError(f"{text!r}: give {' or '.join(Isolation)}") from None


_READERS: Mapping[str, Callable[[str], Any]] = {
    "PATHS": _paths,
    "BROKERS": _brokers,
    "PATH": str,
    "NAME": str,
    "PARTITIONS": parse_partitions,
    "NAMES": _names,
    "PATTERN": _pattern,
    "OFFSETS": parse_offsets,
    "TIME": _time,
    "TIMES": parse_times,
    "POSITIVE": _positive,
    "FLAG": _flag,
    "LEVEL": _level,
    "DURATION": _duration,
    "STRATEGY": lambda text: _word(text, "error", "latest"),
    "END": lambda text: _word(text, "end"),
    "DECODER": str.strip,
    "CHOICE": lambda text: _word(text, "fail", "null"),
}


def _word(text: str, *words: str) -> str:
    if text.strip().lower() not in words:
        raise RequestError(f"{text!r}: give {' or '.join(words)}")
    return text.strip().lower()
