"""The proof of `verify`, and its failures on every forbidden change, each planted in real files."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.cleaning.proof import prove
from cordwood.cleaning.proof.pairs import Count, Pair, Side, ViolationKind
from cordwood.cleaning.proof.violations import MEANINGS, Verdict
from cordwood.common.types import Codec, ControlType, TimestampType, TopicPartition
from cordwood.record import plain
from cordwood.record.batch import encode_batch, encode_message_set
from cordwood.record.plain import read_batch
from cordwood.record.record import Record
from cordwood.storage.formats import checkpoints, filenames, leader_epochs, properties
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.storage.formats.properties import PartitionMetadata
from cordwood.storage.formats.transaction_index import AbortedTransaction
from tests.cleaning.proof.planting import NOW, State, Stored, cleaned_example, copy_tree, data, example, marker
from tests.cleaning.proof.proving import verify_pairs
from tests.commands.growing_logs import PAIRS
from tests.commands.growing_logs import Pair as KafkasPair
from tests.fixtures import facts, fixture
from tests.logs import T0, batch, make_log

pytestmark = pytest.mark.more

HORIZON = NOW + 86_400_000


@dataclass(frozen=True)
class Plant:
    """A forbidden change.

    Attributes:
        what: description.
        do: changes the state after.
        found: violations; at least one of them has to be reported.
        cleaned: whether to change a clean's output, or the unchanged log, which is also a valid result.
    """

    what: str
    do: Callable[[State], object]
    found: set[ViolationKind]
    cleaned: bool = True


def header(offset: int, **changes: Any) -> Callable[[State], None]:
    """Changes a field of a batch."""
    return lambda state: state.batch(offset, lambda one: one.rebuilt(**changes))


def without(offset: int) -> Callable[[State], None]:
    """Removes a batch."""
    return lambda state: state.batch(offset, lambda _: None)


def record(offset: int, **changes: object) -> Callable[[State], None]:
    """Changes a record."""
    return lambda state: state.record(offset, **changes)


def drop(offset: int) -> Callable[[State], None]:
    """Removes a record."""
    return lambda state: state.drop(offset)


def index(base: int, *entries: AbortedTransaction) -> Callable[[State], None]:
    """Another transaction index."""
    return lambda state: state.aborted.update({base: list(entries)})


def swapped(state: State) -> None:
    entries, at = state.find(44)
    entries[at], entries[at + 1] = entries[at + 1], entries[at]


def twice(state: State) -> None:
    entries, at = state.find(44)
    entries.insert(at, entries[at])


def twice_in_segments(state: State) -> None:
    entries, at = state.find(44)
    state.segments[60].insert(0, entries[at])


def records_swapped(state: State) -> None:
    def change(one: Stored) -> Stored:
        first, second, *rest = one.records
        pair = [replace(second, offset=first.offset), replace(first, offset=second.offset)]
        return one.rebuilt([*pair, *rest])

    state.batch(40, change)


def invented(state: State) -> None:
    state.segments[40].append(data(55, "a=9", leader_epoch=1))


def offset_twice(state: State) -> None:
    state.batch(0, lambda one: one.rebuilt([replace(one.records[0], key=b"new"), *one.records]))


def aborted_instead(state: State) -> None:
    state.drop(2)
    state.record(8, key=b"c")


def known_above_only(state: State) -> None:
    state.drop(40)
    state.drop(0)


def cut(state: State) -> None:
    state.segments[60].pop()


def damaged(state: State, offset: int = 44) -> None:
    entries, at = state.find(offset)
    whole = entries[at]
    entries[at] = Stored(whole.data[:-1] + bytes([whole.data[-1] ^ 1]), whole.header, whole.records)


B = ViolationKind
ENTRY = AbortedTransaction(1, 8, 10, 9)

PLANTS = (
    # every record after is one before, in order, once
    Plant("a value is another", record(40, value=b"9"), {B.VALUE}),
    Plant("a value is longer", record(40, value=b"22"), {B.VALUE}),
    Plant("a value becomes null", record(40, value=None), {B.VALUE}),
    Plant("a tombstone becomes a value", record(6, value=b""), {B.VALUE}),
    Plant("a key is another", record(40, key=b"A"), {B.KEY}),
    Plant("a key becomes null", record(40, key=None), {B.KEY}),
    Plant("a key becomes empty", record(40, key=b""), {B.KEY}),
    Plant("a header's value is another", record(41, headers=(("h", b"2"), ("n", None))), {B.HEADERS}),
    Plant("a header's value becomes empty", record(41, headers=(("h", b"1"), ("n", b""))), {B.HEADERS}),
    Plant("a header's name is another", record(41, headers=(("i", b"1"), ("n", None))), {B.HEADERS}),
    Plant("headers are gone", record(41, headers=()), {B.HEADERS}),
    Plant("a header is added", record(40, headers=(("new", b""),)), {B.HEADERS}),
    Plant("headers change places", record(41, headers=(("n", None), ("h", b"1"))), {B.HEADERS}),
    Plant("a timestamp is another", record(40, timestamp=NOW - 6000), {B.TIMESTAMP}),
    Plant("an old message's timestamp is another", record(21, timestamp=NOW - 6000), {B.TIMESTAMP}),
    Plant("an old wrapper's value is another", record(22, value=b"9"), {B.VALUE}),
    Plant("two records change places", records_swapped, {B.KEY}),
    Plant("two batches change places", swapped, {B.ORDER}),
    Plant("a batch is there twice", twice, {B.ORDER}),
    Plant("a batch is in two segments", twice_in_segments, {B.ORDER}),
    Plant("a batch is there that never was", invented, {B.INVENTED, B.BATCH_INVENTED}),
    Plant("an offset is there twice", offset_twice, {B.TWICE}, cleaned=False),
    # batch headers
    Plant("another leader epoch", header(44, leader_epoch=0), {B.BATCH_EPOCH}),
    Plant("another producer", header(16, producer_id=8), {B.BATCH_PRODUCER}),
    Plant("another producer epoch", header(16, producer_epoch=4), {B.BATCH_PRODUCER}),
    Plant("another sequence", header(16, base_sequence=6), {B.BATCH_PRODUCER}),
    Plant("an old message gets a producer", header(21, producer_id=1), {B.BATCH_PRODUCER}),
    Plant("another codec", header(25, codec=Codec.GZIP), {B.BATCH_ATTRIBUTES}),
    Plant("an old wrapper's codec is another", header(22, codec=Codec.NONE), {B.BATCH_ATTRIBUTES}),
    Plant(
        "another timestamp type",
        header(29, timestamp_type=TimestampType.CREATE_TIME),
        {B.BATCH_ATTRIBUTES},
    ),
    Plant("a transaction's batch is of none", header(11, transactional=False), {B.BATCH_ATTRIBUTES}),
    Plant("data becomes control", header(11, control=True), {B.BATCH_ATTRIBUTES}),
    Plant("another largest timestamp", header(44, max_timestamp=NOW), {B.BATCH_TIME}),
    Plant("another append time", header(29, max_timestamp=NOW - 101), {B.BATCH_TIME}),
    Plant("a batch starts elsewhere", header(6, base_offset=5), {B.BATCH_OFFSETS}),
    Plant("a batch ends elsewhere", header(40, last_offset=42), {B.BATCH_OFFSETS, B.BATCH_INVENTED}),
    # last values
    Plant("the last value of a key is gone", drop(41), {B.VALUE_LOST}),
    Plant("a batch of last values is gone", without(48), {B.VALUE_LOST}),
    Plant("the last value of an old message is gone", without(21), {B.VALUE_LOST}),
    Plant("a committed transaction's value is gone", without(11), {B.VALUE_LOST}),
    Plant(
        "a value is superseded by an aborted one",
        aborted_instead,
        {B.KEY},
        cleaned=False,
    ),
    Plant("a segment is gone", lambda state: state.segments.pop(40), {B.VALUE_LOST}),
    Plant(
        "a key is known only above what may be cleaned",
        known_above_only,
        {B.VALUE_LOST},
        cleaned=False,
    ),
    # tombstones
    Plant("a tombstone is gone before its time", drop(6), {B.TOMBSTONE_LOST}),
    Plant("a tombstone is gone that was never given a time", drop(30), {B.TOMBSTONE_LOST}),
    Plant("a deleted key has its old value again", drop(4), {B.CAME_BACK}, cleaned=False),
    Plant("a horizon is later", header(6, delete_horizon_ms=HORIZON + 9), {B.HORIZON}),
    Plant("a horizon is gone", header(6, delete_horizon_ms=None), {B.HORIZON}),
    Plant("a new horizon is too early", header(30, delete_horizon_ms=NOW), {B.HORIZON}),
    # transactions
    Plant("a marker is gone before its time", without(14), {B.MARKER}),
    Plant("a marker is emptied before its time", lambda state: state.batch(14, lambda m: m.rebuilt([])), {B.MARKER}),
    Plant("a marker is gone whose data is there", without(13), {B.MARKER, B.COMMITTED_HIDDEN}),
    Plant("an aborted transaction is in no index", index(0), {B.ABORTED_VISIBLE}, cleaned=False),
    Plant(
        "an aborted transaction begins later in the index",
        index(0, AbortedTransaction(1, 9, 10, 9)),
        {B.ABORTED_VISIBLE},
        cleaned=False,
    ),
    Plant(
        "an aborted transaction is of another producer in the index",
        index(0, AbortedTransaction(4, 8, 10, 9)),
        {B.ABORTED_VISIBLE},
        cleaned=False,
    ),
    Plant(
        "a committed transaction is in the index",
        index(0, ENTRY, AbortedTransaction(2, 9, 13, 14)),
        {B.COMMITTED_HIDDEN},
    ),
    Plant(
        "an aborted transaction takes the next one with it",
        index(0, AbortedTransaction(1, 8, 12, 9)),
        {B.COMMITTED_HIDDEN},
        cleaned=False,
    ),
    Plant("an ABORT marker is gone, its data and entry there", without(10), {B.ABORTED_VISIBLE}, cleaned=False),
    Plant(
        "a COMMIT marker becomes an ABORT",
        record(12, key=b"\0\0\0\0"),
        {B.COMMITTED_HIDDEN},
    ),
    # data outside the cleaned range
    Plant("a value above is another", record(60, value=b"9"), {B.UNTOUCHED}),
    Plant("a record above is gone", drop(60), {B.UNTOUCHED}),
    Plant(
        "an open transaction's batch is emptied", lambda state: state.batch(62, lambda o: o.rebuilt([])), {B.UNTOUCHED}
    ),
    Plant("a batch above is compressed", header(60, codec=Codec.LZ4), {B.UNTOUCHED}),
    Plant("a batch above has another epoch", header(60, leader_epoch=1), {B.UNTOUCHED}),
    Plant("the tail is cut off", cut, {B.END_OFFSET}),
    Plant("something is appended", lambda s: s.segments[60].append(data(63, "a=9", leader_epoch=2)), {B.END_OFFSET}),
    Plant("the first segment is gone", lambda state: state.segments.pop(0), {B.LOG_START}),
    # state
    Plant("a leader epoch is gone", lambda state: state.epochs.pop(1), {B.LEADER_EPOCHS}),
    Plant("a leader epoch begins elsewhere", lambda s: s.epochs.__setitem__(1, EpochEntry(1, 28)), {B.LEADER_EPOCHS}),
    Plant("the last leader epoch is gone", lambda state: state.epochs.pop(), {B.LEADER_EPOCHS}),
    Plant("a producer is not in the snapshot", lambda state: state.producers.pop(2), {B.PRODUCER_STATE}),
    Plant(
        "a producer's sequence is another in the snapshot",
        lambda s: s.producers.__setitem__(3, replace(s.producers[3], last_sequence=9)),
        {B.PRODUCER_STATE},
    ),
    Plant(
        "an open transaction is not in the snapshot",
        lambda s: s.producers.__setitem__(4, replace(s.producers[4], current_transaction_first_offset=-1)),
        {B.PRODUCER_STATE},
    ),
    Plant("an active producer's last batch is gone", without(46), {B.PRODUCER_LOST}),
    Plant("the bytes of a batch are damaged", damaged, {B.DAMAGE_AFTER}),
)


@dataclass(frozen=True)
class Scene:
    """The example before and after a clean."""

    before: Path
    cleaned: Path
    folder: Path

    def pair(self, after: Path, **changes: object) -> Pair:
        one = Pair(
            TopicPartition("t", 0),
            Side(str(self.before), 0),
            Side(str(after), min(int(log.stem) for log in after.glob("*.log"))),
            now_ms=NOW,
            new_horizon_ms=HORIZON,
        )
        return replace(one, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scene(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("verified")
    before, result = cleaned_example(folder, spark)
    assert result.counts.records_read > result.counts.records_kept
    return Scene(before, folder / "after" / "t-0", folder)


@pytest.fixture(scope="module")
def verdicts(spark: SparkSession, scene: Scene) -> dict[str, Verdict]:
    """The verdict on each plant, all in one run."""
    states = {cleaned: State.read(scene.cleaned if cleaned else scene.before, 63) for cleaned in (False, True)}
    pairs = []
    for number, plant in enumerate(PLANTS):
        state = states[plant.cleaned].copy()
        plant.do(state)
        pairs.append(scene.pair(state.write(scene.folder / "planted" / str(number) / "t-0")))
    return dict(zip((plant.what for plant in PLANTS), verify_pairs(pairs), strict=True))


def test_a_clean_and_a_log_that_nobody_touched_are_proved(spark: SparkSession, scene: Scene) -> None:
    moved = copy_tree(scene.before, scene.folder / "copied" / "t-0")
    cleaned, copied, same = verify_pairs(
        [
            scene.pair(scene.cleaned),
            scene.pair(moved),
            scene.pair(scene.before),
        ],
    )
    for one in (cleaned, copied, same):
        assert one.totals == {} and one.holds
    assert cleaned.counts[Count.RECORDS_SAME] == cleaned.counts[Count.RECORDS_AFTER]
    assert cleaned.counts[Count.RECORDS_BEFORE] == copied.counts[Count.RECORDS_SAME]
    assert cleaned.counts[Count.KEYS_DELETED] == 1 and cleaned.counts[Count.KEYS_KEPT] == 8
    assert cleaned.counts[Count.SAMPLED] > 0 and cleaned.counts[Count.BATCHES_ABOVE] == 2
    assert same.counts[Count.UNCHANGED_BYTES] == same_bytes(scene.before)


def test_there_are_enough_plants_of_enough_kinds() -> None:
    assert len(PLANTS) >= 60 and len({plant.what for plant in PLANTS}) == len(PLANTS)
    found = set().union(*(plant.found for plant in PLANTS))
    elsewhere = {B.READERS, B.DAMAGE_BEFORE, B.INDEX, B.CHECKPOINT, B.PARTITION, B.TOPIC_ID}
    assert found | elsewhere == set(MEANINGS)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.what)
def test_what_a_clean_must_not_do_is_noticed(plant: Plant, verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[plant.what]
    assert plant.found & set(verdict.totals), verdict.totals
    for one in verdict.violations:
        assert one.path.startswith(str(Path(verdict.pair.before.path).parent.parent)) and one.what


def test_the_table_of_what_was_noticed(verdicts: dict[str, Verdict], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for what, verdict in verdicts.items():
            print(f"  {what:<60} {', '.join(f'{kind} {count}' for kind, count in verdict.totals.items()) or 'MISSED'}")
        print(f"  noticed: {sum(not one.holds for one in verdicts.values())} of {len(verdicts)}")
    assert all(verdict.totals for verdict in verdicts.values())


def test_a_violation_names_key_offset_and_file(scene: Scene, verdicts: dict[str, Verdict]) -> None:
    (lost,) = [one for one in verdicts["the last value of a key is gone"].violations if one.kind is B.VALUE_LOST]
    assert (lost.key, lost.offset) == (b"b", 41)
    assert lost.path == str(scene.before / offset_name(40, FileKind.LOG))
    (changed,) = [one for one in verdicts["a value is another"].violations if one.kind is B.VALUE]
    assert (changed.key, changed.offset) == (b"a", 40)
    assert changed.path.endswith(f"t-0/{offset_name(int(Path(changed.path).stem), FileKind.LOG)}")


def test_many_violations_are_counted_and_some_are_named(spark: SparkSession, tmp_path: Path) -> None:
    before = State(
        {0: [data(at * 100, " ".join(f"k{at * 100 + i}=1" for i in range(100))) for at in range(9)], 900: []}
    )
    after = State({0: before.segments[0][:1], 900: []})
    for state in (before, after):
        state.segments[900] = [data(900, "end=1")]
    sides = [Side(str(one.write(tmp_path / name / "t-0")), 0) for one, name in ((before, "b"), (after, "a"))]
    (verdict,) = verify_pairs([Pair(None, sides[0], sides[1], now_ms=NOW)])
    assert verdict.totals == {B.VALUE_LOST: 800} and 10 < len(verdict.violations) <= 20


def test_the_epoch_of_a_marker_that_was_emptied_may_be_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    # Since transactions of version 2 each ends with a marker of a new epoch. A clean leaves only its header, from which
    # a broker that loads the log without a snapshot there cannot restore the epoch.
    expired = marker(1, 1, ControlType.ABORT, producer_epoch=3, delete_horizon_ms=NOW - 1000)
    first = data(0, "a=1", producer_id=1, producer_epoch=2, base_sequence=0)
    before = State({0: [first, expired], 2: [data(2, "end=1")]})
    emptied, without = before.copy(), before.copy()
    emptied.batch(1, lambda one: one.rebuilt([]))
    without.batch(1, lambda one: None)
    sides = [Side(str(one.write(tmp_path / str(at) / "t-0")), 0) for at, one in enumerate((before, emptied, without))]
    verdicts = verify_pairs([Pair(None, sides[0], side, now_ms=NOW) for side in sides[1:]])
    assert [verdict.totals for verdict in verdicts] == [{}, {B.PRODUCER_LOST: 1}]


def test_the_last_batch_of_a_producer_that_the_broker_did_not_know_may_go(spark: SparkSession, tmp_path: Path) -> None:
    # Kafka keeps it because of its producer state, not because of the log; and that state is the last snapshot's.
    batches = [data(at, f"a={at}", producer_id=at, producer_epoch=0, base_sequence=0) for at in range(4)]
    before = State({0: [*batches, data(4, "a=4")], 5: [data(5, "end=1")]}, end=6)
    before.producers = [ProducerEntry(3, 0, 0, 3, 0, NOW, -1, -1)]
    after = before.copy()
    for offset in range(3):
        after.batch(offset, lambda one: None)
    without = after.copy()
    without.batch(3, lambda one: None)
    sides = [Side(str(one.write(tmp_path / str(at) / "t-0")), 0) for at, one in enumerate((before, after, without))]
    verdicts = verify_pairs([Pair(None, sides[0], side, now_ms=NOW) for side in sides[1:]])
    assert [verdict.totals for verdict in verdicts] == [{}, {B.PRODUCER_LOST: 1}]


def test_with_what_retention_took_a_broker_forgets_producers(spark: SparkSession, tmp_path: Path) -> None:
    # It passes over a snapshot at the start of the log that it loads, as Kafka does when retention has emptied it.
    first = [data(at, f"a={at}", producer_id=at, producer_epoch=0, base_sequence=0) for at in range(2)]
    before = State({0: first, 2: [data(2, "end=1")]}, end=3)
    before.producers = [ProducerEntry(0, 0, 0, 0, 0, NOW, -1, -1), ProducerEntry(1, 0, 0, 1, 0, NOW, -1, -1)]
    emptied = replace(before, segments={3: []})
    shortened = replace(before, segments={2: before.segments[2]}, producers=before.producers[:1])
    logs = [one.write(tmp_path / str(at) / "t-0") for at, one in enumerate((before, emptied, shortened))]
    sides = [Side(str(log), start) for log, start in zip(logs, (0, 3, 2), strict=True)]
    pairs = [Pair(None, sides[0], side, now_ms=NOW, retention=True) for side in sides[1:]]
    assert [verdict.totals for verdict in verify_pairs(pairs)] == [{}, {B.PRODUCER_STATE: 1}]


@pytest.mark.parametrize(
    ("horizon_ms", "delete_retention_ms", "violations"),
    [
        # Segments were last written to at NOW - 1,000,000 ms; no earlier clean can have set a horizon.
        (NOW - 1_000_001, 0, {B.HORIZON: 1}),
        (NOW - 1_000_000, 0, {}),
        (NOW - 1_000_000 + 999, 1000, {B.HORIZON: 1}),
        (NOW - 1_000_000 + 1000, 1000, {}),
    ],
)
def test_new_horizon_no_clean_can_have_set_is_a_violation(
    spark: SparkSession,
    scene: Scene,
    tmp_path: Path,
    horizon_ms: int,
    delete_retention_ms: int,
    violations: dict[ViolationKind, int],
) -> None:
    after = State.read(scene.cleaned, 63)
    header(30, delete_horizon_ms=horizon_ms)(after)
    pair = scene.pair(after.write(tmp_path / "t-0"), new_horizon_ms=None, delete_retention_ms=delete_retention_ms)
    assert verify_pairs([pair])[0].totals == violations


def test_new_horizon_is_not_judged_by_times_that_a_copy_has_lost(
    spark: SparkSession, scene: Scene, tmp_path: Path
) -> None:
    after = State.read(scene.cleaned, 63)
    header(30, delete_horizon_ms=NOW - 1_000_001)(after)
    pair = scene.pair(after.write(tmp_path / "t-0"), new_horizon_ms=None, times_known=False)
    verdict = verify_pairs([pair])[0]
    assert (verdict.totals, verdict.counts[Count.NOT_JUDGED]) == ({}, 1)


def test_changed_topic_id_is_a_violation(spark: SparkSession, tmp_path: Path) -> None:
    folders = [example().write(tmp_path / name / "t-0") for name in ("before", "same", "other", "gone")]
    ids = {"before": 1, "same": 1, "other": 2}
    for folder in folders[:3]:
        metadata = PartitionMetadata(uuid.UUID(int=ids[folder.parent.name]))
        (folder / FileKind.PARTITION_METADATA).write_bytes(properties.encode_partition_metadata(metadata))
    sides = [Side(str(folder), 0) for folder in folders]
    verdicts = verify_pairs([Pair(None, sides[0], side, now_ms=NOW) for side in sides[1:]])
    assert [verdict.totals for verdict in verdicts] == [{}, {B.TOPIC_ID: 1}, {B.TOPIC_ID: 1}]
    assert verdicts[1].violations[0].path == str(folders[2] / FileKind.PARTITION_METADATA)


def test_an_overlay_of_new_segments_is_judged_before_they_are_swapped_in(spark: SparkSession, scene: Scene) -> None:
    def files(**others: Path) -> dict[str, str]:
        names = {path.name: str(path) for path in scene.before.iterdir() if not path.name.startswith(f"{0:020d}.")}
        first = scene.cleaned if not others else others["first"]
        return names | {path.name: str(path) for path in first.iterdir() if path.name.startswith(f"{0:020d}.")}

    bad = State.read(scene.cleaned, 63)
    bad.record(17, value=b"9")
    good_pair, bad_pair = (
        replace(scene.pair(scene.before), after=Side(str(scene.before), 0, names))
        for names in (files(), files(first=bad.write(scene.folder / "wave" / "t-0")))
    )
    good, wrong = verify_pairs([good_pair, bad_pair])
    assert good.totals == {} and wrong.totals == {B.VALUE: 1}
    assert 0 < good.counts[Count.UNCHANGED_BYTES] < same_bytes(scene.before)
    assert wrong.violations[0].path == str(scene.folder / "wave" / "t-0" / offset_name(0, FileKind.LOG))


def wave() -> tuple[State, State]:
    """A log before and after its first segment was cleaned; keys a and b are superseded in the second."""
    before = State({0: [data(0, "a=1 b=1 c=1")], 3: [data(3, "a=2"), data(4, "b=2")], 5: [data(5, "z=1")]}, end=6)
    after = before.copy()
    after.drop(0)
    after.drop(1)
    return before, after


def proved_as_wave(spark: SparkSession, folder: Path, states: tuple[State, State], **changes: Any) -> Verdict:
    logs = [str(state.write(folder / name / "t-0")) for state, name in zip(states, ("before", "after"), strict=True)]
    before, after = (Side(log, 0) for log in logs)
    return verify_pairs([Pair(None, before, after, first_uncleanable=3, now_ms=NOW, **changes)])[0]


def test_wave_may_drop_records_that_later_waves_supersede(spark: SparkSession, tmp_path: Path) -> None:
    assert proved_as_wave(spark, tmp_path / "1", wave()).totals == {B.VALUE_LOST: 2}
    assert proved_as_wave(spark, tmp_path / "2", wave(), superseding_end=5).totals == {}
    # A record above the dirty section does not supersede.
    assert proved_as_wave(spark, tmp_path / "3", wave(), superseding_end=4).totals == {B.VALUE_LOST: 1}


def test_violations_within_and_above_a_wave_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    before, after = wave()
    lost, touched = after.copy(), after.copy()
    lost.drop(2)
    touched.batch(3, lambda _: None)
    assert proved_as_wave(spark, tmp_path / "1", (before, lost), superseding_end=5).totals == {B.VALUE_LOST: 1}
    totals = proved_as_wave(spark, tmp_path / "2", (before, touched), superseding_end=5).totals
    assert totals == {B.UNTOUCHED: 1, B.VALUE_LOST: 1}


def same_bytes(folder: Path) -> int:
    return sum(log.stat().st_size for log in folder.glob("*.log"))


def test_a_sample_is_read_by_an_unrelated_reader_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = scene.pair(scene.cleaned)
    monkeypatch.setattr(plain, "read_batch", lambda entry: [replace(one, key=b"?") for one in read_batch(entry)])
    (verdict,) = verify_pairs([pair])
    assert verdict.totals.keys() == {B.READERS}


# ---- whole directories -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kafkas", PAIRS, ids=lambda pair: pair.after)
def test_what_kafka_cleaned_is_proved(kafkas: KafkasPair, spark: SparkSession, tmp_path: Path) -> None:
    pair = kafkas
    settings = tmp_path / "server.properties"
    settings.write_text(pair.server_properties)
    # A broker continues to write the metadata log, and to move a partition to another directory.
    moving = facts(pair.family).get("moving", "").rpartition("-")[0]
    topics = {
        one.topic_partition.topic for one in cordwood.ls(str(fixture(pair.after))).partitions if one.topic_partition
    }
    result = cordwood.verify(
        str(fixture(pair.before)),
        str(fixture(pair.after)),
        spark=spark,
        topics=sorted(topics - {"__cluster_metadata", moving}),
        now_ms=pair.now_ms,
        retention=True,
        server_properties=str(settings),
        overrides=pair.overrides,
    )
    assert result.totals == {}
    assert result.counts["records_same"] == result.counts["records_after"] > 0


def in_directory(do: Callable[[Path], object], found: ViolationKind) -> object:
    return pytest.param(do, found, id=do.__name__)


def an_offset_index_is_wrong(folder: Path) -> None:
    path = next(one for one in sorted((folder / "t-0").glob("*.index")) if one.stat().st_size >= 8)
    path.write_bytes(path.read_bytes()[:7] + bytes([path.read_bytes()[7] ^ 1]) + path.read_bytes()[8:])


def a_time_index_is_wrong(folder: Path) -> None:
    path = next(one for one in sorted((folder / "t-0").glob("*.timeindex")) if one.stat().st_size >= 12)
    path.write_bytes(path.read_bytes()[:7] + bytes([path.read_bytes()[7] ^ 1]) + path.read_bytes()[8:])


def a_transaction_index_cannot_be_read(folder: Path) -> None:
    (folder / "t-0" / offset_name(40, FileKind.TRANSACTION_INDEX)).write_bytes(b"\x01" * 34)


def the_cleaners_checkpoint_is_too_far(folder: Path) -> None:
    (folder / filenames.CLEANER_OFFSETS).write_bytes(checkpoints.encode({TopicPartition("t", 0): 63}))


def the_high_watermark_is_lower(folder: Path) -> None:
    (folder / filenames.HIGH_WATERMARKS).write_bytes(checkpoints.encode({TopicPartition("t", 0): 9}))


def the_log_start_is_higher(folder: Path) -> None:
    (folder / filenames.LOG_START_OFFSETS).write_bytes(checkpoints.encode({TopicPartition("t", 0): 5}))


def a_partition_is_missing(folder: Path) -> None:
    os.rename(folder / "u-0", folder.parent / f"{folder.name}-u-0")


def a_partition_is_new(folder: Path) -> None:
    copy_tree(folder / "u-0", folder / "u-1")


def a_partition_that_is_not_compacted_lost_a_superseded_record(folder: Path) -> None:
    state = State.read(folder / "u-0", 63)
    state.drop(0)
    os.rename(folder / "u-0", folder.parent / f"{folder.name}-u-0")
    state.write(folder / "u-0")


def a_leader_epoch_file_is_another(folder: Path) -> None:
    (folder / "u-0" / FileKind.LEADER_EPOCHS).write_bytes(leader_epochs.encode([EpochEntry(0, 0)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "found"),
    [
        in_directory(an_offset_index_is_wrong, B.INDEX),
        in_directory(a_time_index_is_wrong, B.INDEX),
        in_directory(a_transaction_index_cannot_be_read, B.INDEX),
        in_directory(the_cleaners_checkpoint_is_too_far, B.CHECKPOINT),
        in_directory(the_high_watermark_is_lower, B.CHECKPOINT),
        in_directory(the_log_start_is_higher, B.LOG_START),
        in_directory(a_partition_is_missing, B.PARTITION),
        in_directory(a_partition_is_new, B.PARTITION),
        in_directory(a_partition_that_is_not_compacted_lost_a_superseded_record, B.UNTOUCHED),
        in_directory(a_leader_epoch_file_is_another, B.LEADER_EPOCHS),
    ],
)
def test_what_is_wrong_around_a_log_is_noticed(
    do: Callable[[Path], object], found: ViolationKind, spark: SparkSession, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    for name in ("t-0", "u-0"):
        example().write(before / name)
    marks = {TopicPartition(name, 0): 60 for name in "tu"}
    (before / filenames.HIGH_WATERMARKS).write_bytes(checkpoints.encode(marks))
    (before / filenames.CLEANER_OFFSETS).write_bytes(checkpoints.encode({TopicPartition("t", 0): 0}))
    # Without this file a broker rebuilds the indexes, and their contents do not matter.
    (before / filenames.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
    after = copy_tree(before, tmp_path / "after")
    settings: dict[str, Any] = {
        "now_ms": NOW,
        "overrides": ["t:cleanup.policy=compact", "u:cleanup.policy=delete"],
        "spark": spark,
    }
    if do is the_log_start_is_higher:
        assert cordwood.verify(str(before), str(after), **settings).totals == {}
    do(after)
    result = cordwood.verify(str(before), str(after), **settings)
    assert found in result.totals and not result.holds
    assert "a correct clean cannot leave this" in result.text()


def test_retention_is_excused_only_when_it_is_said(spark: SparkSession, tmp_path: Path) -> None:
    before, after = example(), example()
    del after.segments[0]
    after.epochs[0] = EpochEntry(0, 20)
    folders = [str(one.write(tmp_path / name / "t-0")) for one, name in ((before, "b"), (after, "a"))]
    assert B.LOG_START in cordwood.verify(*folders, spark=spark, now_ms=NOW).totals
    excused = cordwood.verify(*folders, spark=spark, now_ms=NOW, retention=True)
    assert excused.totals == {} and excused.excused == ("t-0 started at 0, and starts at 20",)


@pytest.mark.parametrize(
    ("epochs", "holds"),
    [
        pytest.param([], True, id="dropped, as a broker that loads the log does"),
        pytest.param([5], True, id="left as it was"),
        pytest.param([6], True, id="replaced by that of a later leader"),
        pytest.param([4], False, id="replaced by an older one"),
    ],
)
def test_a_leader_epoch_without_records_may_go(
    spark: SparkSession, tmp_path: Path, epochs: list[int], holds: bool
) -> None:
    before, after = example(), example()
    before.epochs.append(EpochEntry(5, 63))
    after.epochs.extend(EpochEntry(one, 63) for one in epochs)
    folders = [str(one.write(tmp_path / name / "t-0")) for one, name in ((before, "b"), (after, "a"))]
    assert cordwood.verify(*folders, spark=spark, now_ms=NOW).holds is holds


def test_what_a_clean_must_not_do_is_noticed_by_many_tasks_too(
    scene: Scene, verdicts: dict[str, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "WHOLE_BYTES", -1)
    monkeypatch.setattr(prove, "RANGE_BYTES", 1)
    right, *wrong = verify_pairs([scene.pair(scene.cleaned), *(verdict.pair for verdict in verdicts.values())])
    assert right.totals == {}
    monkeypatch.undo()
    whole = verify_pairs([scene.pair(scene.cleaned)])[0].counts
    # Each task also samples the first batch that it reads.
    assert {name for name in Count if right.counts[name] != whole[name]} <= {Count.SAMPLED}
    missed = [plant.what for plant, verdict in zip(PLANTS, wrong, strict=True) if not plant.found & set(verdict.totals)]
    assert missed == []


@pytest.mark.parametrize("tasks", ["one task", "many tasks"])
def test_what_is_known_of_a_damaged_state_before_is_compared_and_nothing_else(
    tasks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tasks == "many tasks":
        monkeypatch.setattr(prove, "WHOLE_BYTES", -1)
        monkeypatch.setattr(prove, "RANGE_BYTES", 1)
    whole = example()
    after = whole.write(tmp_path / "after" / "t-0")
    headers = [one.header for entries in whole.segments.values() for one in entries]
    offsets = [header.base_offset for header in headers if header.base_offset >= 0]
    assert len(offsets) > 20
    pairs = []
    for offset in offsets:
        state = example()
        damaged(state, offset)
        before = state.write(tmp_path / "before" / str(offset) / "t-0")
        pairs.append(Pair(TopicPartition("t", 0), Side(str(before), 0), Side(str(after), 0), now_ms=NOW))
    for offset, one in zip(offsets, verify_pairs(pairs), strict=True):
        assert one.totals == {B.DAMAGE_BEFORE: 1}, offset
        assert [violation.offset for violation in one.violations] == [offset]
        assert one.counts[Count.RECORDS_SAME] == one.counts[Count.RECORDS_BEFORE]


@pytest.mark.parametrize("flip", [1, 16, 1 << 20])
def test_batch_of_the_state_before_that_is_not_where_it_belongs_is_damage_there(flip: int, tmp_path: Path) -> None:
    after = example().write(tmp_path / "after" / "t-0")
    pairs, offsets = [], [40, 44]
    for offset in offsets:
        state = example()
        entries, at = state.find(offset)
        data = bytearray(entries[at].data)
        data[:8] = (offset ^ flip).to_bytes(8, "big")  # no checksum covers it
        entries[at] = Stored(bytes(data), entries[at].header, entries[at].records)
        before = state.write(tmp_path / "before" / str(offset) / "t-0")
        pairs.append(Pair(TopicPartition("t", 0), Side(str(before), 0), Side(str(after), 0), now_ms=NOW))
    for offset, one in zip(offsets, verify_pairs(pairs), strict=True):
        assert B.DAMAGE_BEFORE in one.totals, (offset, flip)
        assert not {B.INVENTED, B.ORDER, B.TWICE, B.KEY} & set(one.totals), (offset, flip, one.totals)


@pytest.mark.parametrize("gone", ["before", "after", "both"])
def test_a_state_without_segments_gets_a_verdict(gone: str, tmp_path: Path) -> None:
    sides = {state: example().write(tmp_path / state / "t-0") for state in ("before", "after")}
    for state, partition in sides.items():
        if gone in (state, "both"):
            for path in partition.iterdir():
                path.unlink()
    verdict = cordwood.verify(
        str(tmp_path / "before"), str(tmp_path / "after"), engine="here", overrides=["cleanup.policy=compact"]
    )
    kinds = {violation.kind for one in verdict.verdicts for violation in one.violations}
    if gone == "both":
        assert not kinds
    else:
        assert (ViolationKind.INVENTED if gone == "before" else ViolationKind.VALUE_LOST) in kinds


def test_a_converted_wrapper_may_begin_below_the_log_start(tmp_path: Path) -> None:
    records = [Record(offset, T0, f"k{offset}".encode(), b"v") for offset in range(3)]
    converted = encode_batch(records, codec=Codec.GZIP)
    before, after = (
        make_log(tmp_path / name, (0, [one]), [batch(3, "last")])
        for name, one in (("before", encode_message_set(1, records, codec=Codec.GZIP)), ("after", converted))
    )
    pair = Pair(None, Side(before.path, 1), Side(after.path, 1), now_ms=NOW)
    (verdict,) = verify_pairs([pair])
    assert verdict.holds, verdict.violations
    # At a log start of 0, the batch must begin with its first record.
    late = make_log(tmp_path / "late", [encode_batch(records[1:], codec=Codec.GZIP, base_offset=0)], [batch(3, "last")])
    (verdict,) = verify_pairs([Pair(None, Side(before.path, 0), Side(late.path, 0), now_ms=NOW)])
    assert ViolationKind.BATCH_OFFSETS in verdict.totals
