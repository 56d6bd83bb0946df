"""`erase-check` finds a planted trace of each kind, and reports none in clean directories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.commands.erase_check import TRACES, erase_check
from cordwood.commands.options import EraseCheckOptions
from cordwood.commands.why.found_keys import ErasureResult, ErasureVerdict, FoundTrace, Role
from cordwood.commands.why.next_step import NextStep, StepKind
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import is_control
from cordwood.record.batch import Marker, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.index.history import TransactionOutcome
from cordwood.storage.index.traces import TraceKind
from cordwood.storage.log.view import LogView
from tests.command import run
from tests.fixtures import STOPPED, copy_of, fixture
from tests.knobs import in_turns, scaled
from tests.storage.index_twins import all_keys, index_all, plain_history
from tests.tables.source.random_logs import PARTITIONS, ROOT, random_directory
from tests.view.web.view_client import check_harmless

pytestmark = pytest.mark.more

FS = PosixFileSystem()
ERASED = b"anna@example.com"
OTHER = b"emil@example.com"
SEGMENT = f"{0:020d}.log"


def record(offset: int, key: bytes = ERASED, value: bytes | None = b"value", **more: Any) -> Record:
    return Record(offset, 1000 + offset, key, value, **more)


def partition_of(root: Path, name: str = "a-0") -> Path:
    """A partition with a segment without the key, and an empty active segment."""
    partition = root / "logs" / name
    partition.mkdir(parents=True)
    (partition / SEGMENT).write_bytes(encode_batch([record(0, OTHER), record(1, b"anna", b"anna")]))
    (partition / f"{100:020d}.log").write_bytes(b"")
    return partition


def append(path: Path, data: bytes) -> None:
    path.write_bytes((path.read_bytes() if path.exists() else b"") + data)


def traces(*paths: Path, **options: Any) -> set[tuple[str, str]]:
    found = cordwood.erase_check(*map(str, paths), keys=[ERASED], **options)
    assert (found.verdict is ErasureVerdict.TRACES) == bool(found.traces) == any(found.counts.values())
    return {(one.role, one.kind) for one in found.traces}


RECORD = encode_batch([record(10)])


def test_a_log_without_a_trace_is_certified(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    FS.lock_directory(str(partition.parent)).release()
    index_all(FS, LogView(str(partition), fs=FS))
    found = run("erase-check", partition.parent, "--key", ERASED.decode(), "--values")
    assert found.stdout.endswith("\nNO TRACE\n"), found.output
    (tmp_path / "keys").write_text("anna@example.com\nnobody\n")
    run("erase-check", partition, "--keys", tmp_path / "keys")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        pytest.param(b"\xef\xbb\xbfKEY\n", 1, "TRACES REMAIN", id="a byte order mark"),
        pytest.param("KEY\n".encode("utf-16"), 2, "is in UTF-16", id="UTF-16"),
        pytest.param(b"KEY\rnobody\r", 2, "a CR alone", id="lines of an old Mac"),
    ],
)
def test_a_file_of_keys_that_an_editor_wrote_its_own_way_hides_no_key(
    tmp_path: Path, text: bytes, code: int, said: str
) -> None:
    partition = partition_of(tmp_path)
    (partition / SEGMENT).write_bytes(RECORD)
    key = ERASED.decode()
    encoded = key.encode("utf-16-le") if b"\0" in text else ERASED
    pattern = "KEY".encode("utf-16-le") if b"\0" in text else b"KEY"
    (tmp_path / "keys").write_bytes(text.replace(pattern, encoded))
    found = run("erase-check", partition, "--keys", tmp_path / "keys", exits=None)
    assert (found.exit_code, said in found.output) == (code, True), found.output


# ---- records ---------------------------------------------------------------------------------------------------------

IN_LOGS = {
    "the value of its key": (RECORD, {"record"}),
    "superseded": (encode_batch([record(10), record(11)]), {"record", "superseded record"}),
    "a tombstone": (encode_batch([record(10, value=None)]), {"tombstone"}),
    "deleted": (encode_batch([record(10), record(11, value=None)]), {"superseded record", "tombstone"}),
    "aborted": (
        encode_batch([record(10)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        + encode_marker(Marker(11, 1000, 7, 0, False)),
        {"superseded record"},
    ),
    "compressed": (encode_batch([record(10, value=b"v" * 500)], codec=Codec.ZSTD), {"record"}),
    "a message of magic 0": (encode_message_set(0, [record(10)]), {"record"}),
    "a wrapper of magic 1": (encode_message_set(1, [record(10)], codec=Codec.GZIP), {"record"}),
}


@pytest.mark.parametrize("name", IN_LOGS)
def test_a_record_of_the_key_is_found_and_named_for_what_it_is(name: str, tmp_path: Path) -> None:
    data, kinds = IN_LOGS[name]
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, data)
    assert traces(tmp_path / "logs") == {("log", kind) for kind in kinds}
    run("erase-check", partition, "--key", ERASED.decode(), exits=1)


@pytest.mark.parametrize("seed", range(scaled(20, 300)))
def test_the_traces_in_random_logs_are_the_records_that_a_full_scan_finds(seed: int) -> None:
    fs = random_directory(seed).fs
    logs = {str(partition): LogView(f"{ROOT}/{partition}", fs=fs, log_start_offset=0) for partition in PARTITIONS}
    keys = sorted({key for log in logs.values() for key in all_keys(log)})[seed % 3 :: 3]
    found = erase_check([ROOT], keys, EraseCheckOptions(), fs=fs)
    kinds = {}
    for name, log in logs.items():
        for one in plain_history(log, keys):
            is_old = one.superseded_by is not None or one.outcome is TransactionOutcome.ABORTED
            kind = TraceKind.SUPERSEDED if is_old else TraceKind.TOMBSTONE if one.is_tombstone else TraceKind.RECORD
            kinds[name, one.offset] = one.key, kind
    in_logs = [one for one in found.traces if one.role is Role.LOG and one.record is not None]
    assert {
        (one.path.split("/")[-2], one.record.offset): (str(one.key).encode(), one.kind) for one in in_logs if one.record
    } == kinds
    assert found.keys == len(keys)


@pytest.mark.parametrize("name", in_turns(STOPPED, "kraft-before"))
def test_the_traces_in_real_logs_are_the_records_that_a_full_scan_finds(name: str) -> None:
    root, expected, keys = fixture(name), set(), set()
    for path in sorted({log.parent for log in root.rglob("*.log")}):
        log = LogView(str(path), fs=FS, log_start_offset=0)
        known = all_keys(log)
        keys |= set(known[::5])
    for path in sorted({log.parent for log in root.rglob("*.log")}):
        found = plain_history(LogView(str(path), fs=FS, log_start_offset=0), keys)
        expected |= {(str(path), one.offset, one.key) for one in found}
    result = erase_check([str(root)], sorted(keys), EraseCheckOptions(key_as="bytes"))
    in_logs = {
        (one.path.rpartition("/")[0], one.record.offset, one.key)
        for one in result.traces
        if one.record is not None and one.path.endswith(".log")
    }
    assert in_logs == expected


# ---- leftovers -------------------------------------------------------------------------------------------------------


def write(path: str, data: bytes = RECORD) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return plant


def stale_index(root: Path) -> None:
    partition = root / "logs/a-0"
    before = (partition / SEGMENT).read_bytes()
    append(partition / SEGMENT, RECORD)
    index_all(FS, LogView(str(partition), fs=FS))
    (partition / SEGMENT).write_bytes(before)


TORN = encode_batch([record(10), record(11, OTHER)])[:-5]
FLIPPED = RECORD.replace(b"value", b"vblue")
PLANTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "deleted segment": (write(f"logs/a-0/{SEGMENT}.deleted"), "leftover", "record"),
    "cleaned segment": (write(f"logs/a-0/{SEGMENT}.cleaned"), "leftover", "record"),
    "segment to be swapped in": (write(f"logs/a-0/{SEGMENT}.swap"), "leftover", "record"),
    "deleted directory": (write(f"logs/a-1.{'0' * 32}-delete/{SEGMENT}"), "leftover", "record"),
    "stray directory": (write(f"logs/a-1.{'0' * 32}-stray/{SEGMENT}"), "leftover", "record"),
    "future directory": (write(f"logs/a-1.{'0' * 32}-future/{SEGMENT}"), "leftover", "record"),
    "work folder": (write(f"logs/a-0/.cordwood/17/{SEGMENT}"), "work file", "record"),
    "blob in the work folder": (write("logs/a-0/.cordwood/17/blob", b"x" * 99 + ERASED), "work file", "bytes"),
    "key index": (stale_index, "key index", "key index"),
    "torn key index": (
        write(f"logs/a-0/.cordwood/index/{0:020d}.keyhashes", b"CWKEYHSH" + ERASED),
        "key index",
        "bytes",
    ),
    "torn batch": (lambda root: append(root / f"logs/a-0/{SEGMENT}", TORN), "log", "bytes"),
    "batch with a wrong checksum": (lambda root: append(root / f"logs/a-0/{SEGMENT}", FLIPPED), "log", "record"),
    "behind damage": (lambda root: append(root / f"logs/a-0/{SEGMENT}", b"\x77" * 300 + RECORD), "log", "record"),
    "file of another name": (write("logs/a-0/notes.txt", b"remember " + ERASED), "other file", "bytes"),
    "log under another name": (write("logs/old", RECORD), "other file", "record"),
    "compressed log under another name": (
        write("logs/old", encode_batch([record(10, value=b"v" * 500)], codec=Codec.LZ4)),
        "other file",
        "record",
    ),
    "long file": (write("logs/dump", b"x" * ((4 << 20) - 7) + ERASED + b"y" * 99), "other file", "bytes"),
    "snapshot of the metadata": (
        write(f"logs/__cluster_metadata-0/{5:020d}-{1:010d}.checkpoint"),
        "other file",
        "record",
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_trace_is_found(name: str, tmp_path: Path) -> None:
    plant, role, kind = PLANTS[name]
    partition_of(tmp_path)
    assert traces(tmp_path / "logs", values=True) == set()
    plant(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert (role, kind) in traces(tmp_path / "logs")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


WITHIN = {
    "value": record(10, OTHER, b"to " + ERASED + b"!"),
    "header": record(10, OTHER, None, headers=(("user", ERASED),)),
    "another key": record(10, b"user:" + ERASED, None),
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("name", WITHIN)
def test_the_key_within_other_records_is_found_on_request(name: str, codec: Codec, tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    some = [record(8, b"x" * 20), WITHIN[name], record(11, b"y" * 20)]
    append(partition / SEGMENT, encode_batch(some, codec=codec))
    assert traces(partition) == set()
    found = cordwood.erase_check(str(partition), keys=[ERASED], values=True)
    (one,) = found.traces
    assert one.kind is TraceKind.VALUE and one.record is not None and one.record.offset == 10


def test_all_directories_are_looked_at_the_archive_and_kept_files_included(tmp_path: Path) -> None:
    copy = copy_of(fixture("kraft-before"), tmp_path / "logs")
    log = cordwood.open_log(str(copy / "orders-0"))
    after = copy_of(copy, tmp_path / "archive")
    key = next(
        one.key
        for one in plain_history(log, all_keys(log))
        if one.superseded_by is not None and one.offset < log.segments[-1].base_offset
    )
    run("clean", copy, "--in-place", "--keep-old", tmp_path / "kept", "--ignore-ratio", "--engine", "here")
    named = {
        path.name: {one.role for one in cordwood.erase_check(str(path), keys=[key], topics=["orders"]).traces}
        for path in (copy, after, tmp_path / "kept")
    }
    assert named["kept"] == {Role.KEPT} and Role.LOG in named["archive"]
    both = cordwood.erase_check(str(copy), str(after), str(tmp_path / "kept"), keys=[key], topics=["orders"])
    assert {path.split("/")[-3] for path in (one.path for one in both.traces)} >= {"archive", "kept-logs"} - {
        "kept-logs"
    }
    inside = next(path for path in (tmp_path / "kept").rglob("orders-0"))
    assert {one.role for one in cordwood.erase_check(str(inside), keys=[key]).traces} == {Role.KEPT}


def test_only_the_selected_topics_are_looked_at_and_cut_names_may_be_theirs(tmp_path: Path) -> None:
    long = "t" * 249
    for name in ("a-0", "b-0", f"{long[:213]}-0.{'0' * 32}-delete"):
        partition = partition_of(tmp_path, name)
        append(partition / SEGMENT, RECORD)
    found = cordwood.erase_check(str(tmp_path / "logs"), keys=[ERASED], topics=["b", long])
    assert {one.path.split("/")[-2][:1] for one in found.traces} == {"b", "t"}
    run("erase-check", tmp_path / "logs", "--key", "x", "--topic", "none", exits=2)
    run("erase-check", tmp_path / "none", "--key", "x", exits=2)


def test_a_link_to_a_partition_does_not_hide_it_whatever_its_name(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, RECORD)
    for name in ("A-first", "b", "z-0"):
        (partition.parent / name).symlink_to(partition)
        assert traces(partition.parent, topics=["a"]) == {("log", "record")}
    assert traces(partition.parent, topics=["z"]) == {("log", "record")}
    (partition / "around").symlink_to(partition.parent)
    assert ("log", "record") in traces(partition.parent, topics=["a"])


def test_a_link_whose_target_is_missing_is_a_file_that_was_not_looked_at(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, RECORD)
    for place in (partition, partition.parent):
        (place / "elsewhere").symlink_to(tmp_path / "not-mounted")
    result = cordwood.erase_check(str(partition.parent), keys=[ERASED])
    unread = {one.found.path for one in result.files if "target is missing" in str(one.found.problems)}
    assert unread == {f"{partition}/elsewhere", f"{partition.parent}/elsewhere"}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.NONE])
@pytest.mark.parametrize("first", [10, 3 << 31])
def test_a_copy_of_a_log_with_another_name_is_decoded_behind_damage_too(
    first: int, codec: Codec, tmp_path: Path
) -> None:
    batches = [encode_batch([record(first + at, key)], codec=codec) for at, key in enumerate((OTHER, ERASED))]
    data = bytearray(b"".join(batches))
    data[70] ^= 1
    copied = tmp_path / f"{first:020d}.log.bak"
    for damaged in (data, data[3:]):
        copied.write_bytes(damaged)
        assert ("other file", "record") in traces(tmp_path)


def test_a_snapshot_of_the_metadata_is_decoded_behind_damage(tmp_path: Path) -> None:
    # Its name is the end offset of the metadata in it; its own offsets begin at 0.
    data = b"".join(encode_batch([record(at, key)]) for at, key in enumerate((OTHER, ERASED)))
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "__cluster_metadata-0" / f"{50:020d}-{1:010d}.checkpoint").write_bytes(data[3:])
    assert "record" in {kind for _, kind in traces(tmp_path)}


def test_what_cannot_be_read_is_no_certificate(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, encode_batch([record(10, b"k" * 20)], codec=Codec.ZSTD)[:-3])
    found = cordwood.erase_check(str(partition), keys=[ERASED])
    assert found.verdict is ErasureVerdict.INCOMPLETE and found.traces == ()
    done = run("erase-check", partition, "--key", ERASED.decode(), exits=1)
    assert "are no batch" in done.stdout
    assert done.stdout.endswith("NO TRACE IN WHAT COULD BE READ\n")


def test_short_keys_are_found_as_keys_and_their_limit_is_told(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, encode_batch([record(10, b"ab"), record(11, b"")]))
    found = cordwood.erase_check(str(partition), keys=[b"ab", b"", b"an"], values=True)
    assert [(one.key, one.kind) for one in found.traces] == [("ab", TraceKind.RECORD), ("", TraceKind.RECORD)]
    assert any("3 keys of fewer than 4 bytes" in one for one in found.unknown)


# ---- steps until the key is erased -----------------------------------------------------------------------------------


def test_what_still_has_to_happen_is_told_with_the_configs_that_promise_it(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    horizon = encode_batch([record(20, b"b" * 16, None)], delete_horizon_ms=5_000)
    append(partition / SEGMENT, encode_batch([record(10), record(11, value=None)]) + horizon)
    (partition / f"{SEGMENT}.deleted").write_bytes(RECORD)
    found = run(
        *("erase-check", partition, "--key", ERASED.decode(), "--key", "b" * 16, "--json"),
        *("--config", "cleanup.policy=compact", "--config", "max.compaction.lag.ms=60000"),
        *("--config", "file.delete.delay.ms=1234", "--now", 4000),
        exits=1,
    ).json
    steps = {(one["kind"], one["offset"], one["role"]): one["next"] for one in found["traces"]}
    superseded = steps["superseded record", 10, "log"]
    assert (superseded["kind"], superseded["by_ms"]) == ("clean", 1011 + 60_000)
    assert "delete.retention.ms=86400000" in steps["tombstone", 11, "log"]["what"]
    assert steps["tombstone", 20, "log"]["from_ms"] == 5000
    assert "file.delete.delay.ms=1234" in steps["record", 10, "leftover"]["what"]


def test_after_a_tombstone_and_cleans_nothing_remains(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, encode_batch([record(10)]) + encode_batch([record(11, value=None)]))
    chosen = ("--config", "cleanup.policy=compact", "--config", "delete.retention.ms=0", "--ignore-ratio")
    ways = ("--single-copy", "--first-dirty", 0, "--engine", "here")
    assert traces(partition) == {("log", "superseded record"), ("log", "tombstone")}
    run("clean", partition, "--in-place", *chosen, *ways, "--now", 10_000)
    assert traces(partition) == {("log", "tombstone")}
    run("clean", partition, "--in-place", *chosen, *ways, "--now", 20_000)
    assert traces(partition) == set()


# ---- the certificate -------------------------------------------------------------------------------------------------


def test_the_certificate_lists_files_with_checksums_and_does_not_name_the_keys(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    written = [tmp_path / name for name in ("c.json", "c.html")]
    options = [word for path in written for word in ("--certificate", path)]
    run("erase-check", tmp_path / "logs", "--key", ERASED.decode(), *options)
    found = json.loads(written[0].read_text())
    listed = {one["path"]: one["sha256"] for one in found["files"]}
    assert listed == {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in partition.iterdir() if path.is_file()
    }
    assert found["verdict"] == "no trace" and found["keys"]["count"] == 1
    assert found["keys"]["sha256"] == hashlib.sha256(len(ERASED).to_bytes(4, "big") + ERASED).hexdigest()
    text = check_harmless(written[1].read_text()).text
    assert all(digest in text for digest in listed.values()) and "No trace of these keys was found" in text
    assert ERASED.decode() not in written[0].read_text() + written[1].read_text()
    run("erase-check", partition, "--key", "x", "--certificate", tmp_path / "no/c.json", exits=2)


HOSTILE = [
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(1)>',
    b"\x1b]0;x\x07\xe2\x80\xae",
    b"\xff\xfe\x00\x01",
]


def test_hostile_keys_and_names_are_escaped_everywhere(tmp_path: Path) -> None:
    partition = partition_of(tmp_path / "<i>\x1b[1m")
    append(partition / SEGMENT, encode_batch([record(10 + at, key) for at, key in enumerate(HOSTILE)]))
    (partition / "<b onclick=x>\x1b[1m.txt").write_bytes(HOSTILE[0])
    result = cordwood.erase_check(str(partition), keys=HOSTILE, values=True)
    assert len(result.traces) == len(HOSTILE) + 1
    page = check_harmless(result.page())
    assert "<script>alert(1)</script>" in page.texts
    html = result._repr_html_()
    assert "<script" not in html and "&lt;script" in html
    for text in (result.page(), result.text(), html, json.dumps(result.document())):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_files_that_appear_meanwhile_are_looked_at(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    late = partition / f"{50:020d}.log"

    def plant(_done: int, _all: int) -> None:
        if not late.exists():
            late.write_bytes(encode_batch([record(50)]))

    found: ErasureResult = erase_check([str(partition)], [ERASED], EraseCheckOptions(), on_progress=plant)
    assert [one.path for one in found.traces] == [str(late)]


def test_control_records_are_no_traces(tmp_path: Path) -> None:
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, encode_marker(Marker(10, 1000, 7, 0, True)))
    (window,) = [item for _, item in LogView(str(partition), fs=FS).windows()]
    assert is_control(window.batches).any()  # type: ignore[union-attr]
    assert cordwood.erase_check(str(partition), keys=[b"\0\0\0\1"]).traces == ()


def test_what_supersedes_too_many_records_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.storage.index.traces.DESCRIBED_MAX", 3)
    partition = partition_of(tmp_path)
    append(partition / SEGMENT, encode_batch([record(10 + at) for at in range(5)]))
    found = cordwood.erase_check(str(partition), keys=[ERASED])
    assert found.counts[TraceKind.RECORD] == 5 and len(found.traces) == 3
    assert {one.next_step.what for one in found.traces} == {"not known: its log could not be followed"}
    assert any("there are too many" in one for one in found.unknown)


@pytest.mark.parametrize(
    ("from_ms", "by_ms", "said"),
    [
        (None, None, "-"),
        (0, None, "from 1970-01-01 00:00:00 UTC"),
        (None, 0, "by 1970-01-01 00:00:00 UTC"),
        (0, 60_000, "from 1970-01-01 00:00:00 UTC, by 1970-01-01 00:01:00 UTC"),
        (0, 0, "1970-01-01 00:00:00 UTC"),
    ],
)
def test_the_time_at_which_a_trace_goes_is_said_once(from_ms: int | None, by_ms: int | None, said: str) -> None:
    step = NextStep(StepKind.WAITS, "a clean removes it", from_ms, by_ms)
    (due,) = [text for column, text in TRACES if column.title.startswith("DUE")]
    assert due(FoundTrace("t-0", Role.LOG, TraceKind.RECORD, "k", 0, None, step)) == said
