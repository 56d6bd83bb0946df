"""Key indexes of segments in a tier: with them a clean reads only the segments in which records die."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from cordwood.fs.base import ReadableFile
from cordwood.storage.formats import key_index
from cordwood.storage.formats.filenames import FileKind, parse_tier_key_index, tier_key_index_name
from cordwood.storage.index.history import KeyHistory
from cordwood.storage.index.identity import TICK_NS
from cordwood.storage.index.keyed_log import KeyedLog
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.segments import RemoteSegment
from cordwood.storage.tier.store import with_tier
from tests.command import run
from tests.live.tiered_nodes import FS, NOW, Node, values

CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "60000",
    "index.interval.bytes": "4000",
    "local.retention.bytes": "1",
    "local.retention.ms": "-1",
}


@contextmanager
def started(root: Path, name: str = "logs", ms: int = 0, *, index: bool = True) -> Iterator[Node]:
    node = Node(root, name, NOW + ms, configs=CONFIGS)
    node.manager.startup(index=index)
    try:
        yield node
    finally:
        node.manager.shutdown()


def put(node: Node, *keys: int) -> None:
    """Append a record of 2 kB per key."""
    for key in keys:
        node.log.append({f"key-{key}": f"{node.log.log_end_offset}".rjust(2000)}, timestamp_ms=node.now_ms)


def clean(node: Node) -> None:
    node.log.roll()
    # The index of a file that has just changed is not trusted, so it would not be copied to the tier.
    time.sleep(2 * TICK_NS / 1e9)
    node.step()


def on_disk(node: Node) -> set[tuple[int, str]]:
    """The segments whose index is on the disk."""
    folder = Path(node.log.directory, ".cordwood/index")
    found = map(parse_tier_key_index, (path.name for path in folder.iterdir()))
    return {one for one in found if one is not None}


def in_tier(node: Node) -> set[tuple[int, str]]:
    """The segments whose index is beside their objects."""
    paths = Path(node.tiering.root).rglob("*.keyhashes")
    return {one for path in paths if (one := parse_tier_key_index(path.name)) is not None}


def named(node: Node) -> set[tuple[int, str]]:
    return {(one.segment.start_offset, one.segment.id) for one in node.state.segments}


@contextmanager
def reads() -> Iterator[list[tuple[int, FileKind]]]:
    """Note the files of segments in the tier that are opened: start offset and kind."""
    found, open_file = [], AivenLayout.open

    def opened(layout: AivenLayout, segment: RemoteSegment, kind: FileKind) -> ReadableFile:
        found.append((segment.start_offset, kind))
        return open_file(layout, segment, kind)

    with mock.patch.object(AivenLayout, "open", opened):
        yield found


def test_a_clean_reads_and_writes_only_segments_in_which_records_die(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        put(node, *range(308))
        clean(node)
        before = named(node)
        assert len(before) > 10 and on_disk(node) == in_tier(node) == before
        put(node, 100, *range(1000, 1020))
        with reads() as opened:
            clean(node)
        changed = sorted(before - named(node))
        assert len(changed) == 1
        assert {start for start, _ in opened} == {changed[0][0]}
        assert on_disk(node) == named(node)
        node.step()  # deletes the objects of the old segment
        assert in_tier(node) == named(node)
        assert len(values(node.log)) == 328


def test_an_index_of_a_segment_on_the_disk_counts_in_the_tier(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        node.manager.update_topic_config("orders", {**node.texts, "local.retention.bytes": "-1"})
        put(node, *range(308))
        clean(node)
        assert on_disk(node) == in_tier(node) == named(node)
        node.manager.update_topic_config("orders", node.texts)
        node.step()
        assert len(node.log.log_segments) == 2
        put(node, 100, *range(1000, 1020))
        with reads() as opened:
            clean(node)
        assert len({start for start, _ in opened}) == 1
        assert len(values(node.log)) == 328


def test_a_new_disk_gets_the_indexes_from_the_tier(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        put(node, *range(308))
        clean(node)
    with started(tmp_path, "other", 1_000_000, index=False) as node:
        put(node, 100, *range(1000, 1020))
        with reads() as opened:
            clean(node)
        assert len({start for start, kind in opened if kind is FileKind.LOG}) == 1
        assert on_disk(node) == named(node)
        assert len(values(node.log)) == 328


@pytest.mark.more
def test_an_old_disk_uses_no_index_of_a_replaced_segment(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        put(node, *range(308))
        clean(node)
    shutil.copytree(tmp_path / "logs", tmp_path / "old")
    with started(tmp_path, ms=1_000_000) as node:
        put(node, *range(100, 110), *range(1000, 1020))
        clean(node)
        expected, after = values(node.log), named(node)
    with started(tmp_path, "old", 2_000_000) as node:
        assert values(node.log) == expected
        assert on_disk(node) < after
        put(node, 5, 100, *range(2000, 2020))
        clean(node)
        assert on_disk(node) == named(node)
        assert len(values(node.log)) == len(expected) + 20


def test_opening_deletes_the_index_of_an_upload_that_was_not_committed(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        put(node, *range(308))
        clean(node)
        folder = Path(node.tiering.root).glob("*/0")
        orphan = next(folder) / f"{5:020d}-AAAAAAAAAAAAAAAAAAAAAA.keyhashes"
        orphan.write_bytes(b"of a zombie")
    with started(tmp_path, ms=1_000_000) as node:
        assert not orphan.exists()
        assert in_tier(node) == named(node)


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(88, len(data), 97):
        data[at] ^= 1
    path.write_bytes(data)


def take_others(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def take_others_keys(path: Path, other: Path, *, with_identity: bool = False) -> None:
    """The keys of another segment, with the base offset of this one."""
    index, mine = (key_index.decode(one.read_bytes()) for one in (other, path))
    header = replace(index.header, base_offset=mine.header.base_offset, next_offset=mine.header.next_offset)
    index = key_index.with_identity(replace(index, header=header), index.identity if with_identity else None)
    path.write_bytes(b"".join(key_index.encode(index)))


def take_others_identity(path: Path, other: Path) -> None:
    """Those keys with the identity of their segment, which has the same sizes and times."""
    take_others_keys(path, other, with_identity=True)


def remove(path: Path, other: Path) -> None:
    path.unlink()


@pytest.mark.more
@pytest.mark.parametrize("damage", [cut, flip, take_others, take_others_keys, take_others_identity, remove])
@pytest.mark.parametrize("where", ["disk", "tier"])
def test_a_segment_with_a_bad_index_is_read(tmp_path: Path, damage: Callable[[Path, Path], None], where: str) -> None:
    with started(tmp_path) as node:
        put(node, *range(308))
        clean(node)
        one, other = sorted(on_disk(node))[5:7]
        folder = Path(node.log.directory, ".cordwood/index")
        if where == "tier":
            folder = next(Path(node.tiering.root).glob("*/0"))
        paths = [folder / tier_key_index_name(*each) for each in (one, other)]
    damage(*paths)
    with started(tmp_path, "logs" if where == "disk" else "other", 1_000_000) as node:
        put(node, one[0] + 1, *range(1000, 1020))
        with reads() as opened:
            clean(node)
        assert {start for start, kind in opened if kind is FileKind.LOG} == {one[0]}
        assert one not in named(node)
        assert len(values(node.log)) == 328
        assert on_disk(node) == named(node)
        put(node, one[0] + 2, *range(2000, 2020))
        with reads() as opened:
            clean(node)
        assert {start for start, kind in opened if kind is FileKind.LOG} == {one[0]}


def test_a_search_in_the_tier_uses_the_indexes_there(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        put(node, *range(308))
        clean(node)
    shutil.rmtree(tmp_path / "logs/orders-0/.cordwood")
    history = KeyHistory([b"key-100"])
    (record,) = history.of(KeyedLog(f"{tmp_path}/logs/orders-0", fs=with_tier(FS, f"{tmp_path}/tier")))
    assert record.offset == 100
    assert (history.indexed, history.scanned) == (10, 1)  # the last one is on the disk, too, and is read there


def test_a_check_names_only_indexes_without_a_segment(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        put(node, *range(308))
        clean(node)
        orphan = Path(node.tiering.root, f"orders-{node.state.partition.topic_id}/0", f"{5:020d}-{'A' * 22}.keyhashes")
    assert not in_tier_found(tmp_path)
    orphan.write_bytes(b"of a zombie")
    ((path, what),) = in_tier_found(tmp_path)
    assert path == str(orphan)
    assert "which the manifest does not name" in what


def in_tier_found(root: Path) -> list[tuple[str, str]]:
    """Paths and descriptions of the findings about the tier."""
    lines = run("check", root / "logs", "--tier", root / "tier", "--json").lines
    return [(one["file"], one["what"]) for one in lines if str(one.get("kind", "")).startswith("tier")]
