"""All read-only commands work on a store with only the verbs of `Store`, without a local disk."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

import pytest

import cordwood
from cordwood.cleaning.proof.compare import compare_range
from cordwood.cleaning.proof.keys import KeyRules
from cordwood.cleaning.proof.pairs import Facts, Pair, Side
from cordwood.cleaning.proof.prove import look_at
from cordwood.cleaning.proof.reading import joined, ranges_of
from cordwood.cleaning.proof.scratch import Scratch
from cordwood.cli.dumping import Choice, Dump
from cordwood.cli.formats import JsonPrinter
from cordwood.cli.values import ValueFormat
from cordwood.commands import ls
from cordwood.fs.base import LocalFileSystem, Store
from cordwood.storage.check import Finding
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import Node
from cordwood.testing.memory import MemoryFileSystem
from tests.commands.in_memory import CONFIG, FIRST, LATER_MS, PATHS, ROOT, SECOND, crashed, directory, session
from tests.fs.disks import VERBS, ReadOnlyStore

OPTIONS: dict[str, Any] = {"now_ms": LATER_MS, "single_copy": True, "ignore_ratio": True, "overrides": CONFIG}


@pytest.fixture(params=["clean shutdown", "crashed"])
def stores(request: pytest.FixtureRequest) -> tuple[MemoryFileSystem, ReadOnlyStore]:
    """A broker's directory in memory, and the same files in a store that can only be read."""
    local = crashed() if request.param == "crashed" else directory(FIRST, SECOND)
    return local, ReadOnlyStore.copy_of(local, ROOT)


def cleaned() -> tuple[MemoryFileSystem, ReadOnlyStore]:
    """A directory and its cleaned copy, `/new`."""
    local = directory(FIRST, SECOND)
    cordwood.clean(ROOT, output="/new", fs=local, spark=session(), **OPTIONS)
    return local, ReadOnlyStore.copy_of(local, ROOT, "/new")


def test_the_store_is_no_local_file_system() -> None:
    store: Store = ReadOnlyStore({})
    # Strict mypy refuses an ignore that it does not need.
    local: LocalFileSystem = ReadOnlyStore({})  # type: ignore[assignment]
    verbs = {name for name in dir(Store) if not name.startswith("_")}
    assert all(hasattr(store, verb) for verb in verbs)
    assert not any(hasattr(local, verb) for verb in VERBS - verbs)
    for change in (lambda: store.put("f", b""), lambda: store.delete("f")):
        with pytest.raises(OSError) as raised:
            change()
        assert raised.value.errno == errno.EROFS


def test_a_log_is_read_and_its_recovery_planned(stores: tuple[MemoryFileSystem, ReadOnlyStore]) -> None:
    for path in PATHS:
        local, remote = (LogView(path, fs=store, log_start_offset=0) for store in stores)
        assert list(remote.records()) == list(local.records()) != []
        assert remote.next_offset == local.next_offset
        assert remote.transactions().last_stable_offset == local.transactions().last_stable_offset
        assert remote.recovery.actions == local.recovery.actions


def test_a_node_lists_its_partitions(stores: tuple[MemoryFileSystem, ReadOnlyStore]) -> None:
    local, remote = (Node.open(store, [ROOT]) for store in stores)
    assert [place.path for place in remote.places] == [place.path for place in local.places] == list(PATHS)
    assert [one.crashed for one in remote.directories] == [one.crashed for one in local.directories]
    shown = ["\n".join(ls.lines(cordwood.ls(ROOT, index_entries=True, fs=s), segments=True)) for s in stores]
    assert shown[1] == shown[0]


def test_check_finds_the_same(stores: tuple[MemoryFileSystem, ReadOnlyStore]) -> None:
    def told(findings: Iterable[Finding]) -> list[tuple[object, ...]]:
        return [(one.path, one.kind, one.severity, one.offset, one.what) for one in findings]

    local, remote = (told(cordwood.check(ROOT, fs=store)) for store in stores)
    assert remote == local


def test_dump_shows_the_same(stores: tuple[MemoryFileSystem, ReadOnlyStore]) -> None:
    def dumped(store: Store) -> bytes:
        written: list[bytes] = []
        printer = JsonPrinter(ValueFormat.UTF8, ValueFormat.UTF8)
        files = [f"{PATHS[1]}/{info.name}" for info in store.list(PATHS[1]) if not info.is_directory]
        Dump(Choice(), printer, written.append, fs=store).run([ROOT, *files])
        return b"".join(written)

    local, remote = map(dumped, stores)
    assert remote == local != b""


def test_plan_decides_the_same(stores: tuple[MemoryFileSystem, ReadOnlyStore]) -> None:
    local, remote = (cordwood.plan(ROOT, fs=store, **OPTIONS) for store in stores)
    assert remote == local
    assert remote.text() == local.text()


def test_a_proof_reads_the_same_facts() -> None:
    def facts(store: Store) -> list[Facts]:
        found = []
        for number, path in enumerate(PATHS):
            pair = Pair(None, Side(path, 0), Side(f"/new/{path.rpartition('/')[2]}", 0), now_ms=LATER_MS)
            assert look_at(number, pair, store).faults == look_at(number, pair, local).faults
            for part in joined(ranges_of(number, pair, store), range_bytes=1 << 20):
                result = compare_range(part, pair, store, KeyRules((3, 5), 1), scratch, here_bytes=1 << 20)
                found.append(result.facts)
                keys = [chunk.here.tolist() for chunk in result.keys if chunk.here is not None]
                found.append(Facts({str(keys): len(keys), str(result.seen.tolist()): 1}))
        return found

    local, remote = cleaned()
    scratch = Scratch(local.location(), "/nowhere")
    assert facts(remote) == facts(local) != []
