"""Directories for planted damage, and the findings of a check there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.check import Check, Finding, Kind, Severity
from cordwood.storage.check.sampling import Quick
from tests.fixtures import facts, fixture

Plant = Callable[[Path], object]
#: Name: (fixture, partition).
SITES = {
    "orders": ("kraft-before", "orders-0"),
    "payments": ("kraft-classic-before", "payments-1"),
    "wrappers": ("legacy-v1-before", "v1-gzip-0"),
}
FILES = (".kafka_cleanshutdown", "meta.properties")
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")


def small() -> Quick:
    """Return a quick check that also samples small segments."""
    return Quick(units=2, whole_bytes=0)


FIRST = "00000000000000000000"


def site(name: str, target: Path) -> Path:
    """A log directory with one partition of a fixture; returns the partition."""
    source, partition = SITES[name]
    directory = target / "data"
    shutil.copytree(fixture(source) / partition, directory / partition)
    for file in FILES:
        shutil.copy(fixture(source) / file, directory / file)
    topic, _, number = partition.rpartition("-")
    for file in CHECKPOINTS:
        lines = (fixture(source) / file).read_text().splitlines()
        kept = [line for line in lines[2:] if line.startswith(f"{topic} {number} ")]
        (directory / file).write_text("\n".join(["0", str(len(kept)), *kept, ""]))
    return directory / partition


def built(target: Path, *entries: bytes, base_offset: int = 0) -> Path:
    """A partition of one segment outside any log directory, made of these entries."""
    partition = target / "built-0"
    partition.mkdir(parents=True)
    stem = f"{base_offset:020d}"
    (partition / f"{stem}.log").write_bytes(b"".join(entries))
    (partition / f"{stem}.index").write_bytes(b"")
    (partition / f"{stem}.timeindex").write_bytes(b"")
    return partition


def check(*paths: Path, quick: Quick | None = None) -> list[Finding]:
    return list(Check(PosixFileSystem(), quick=quick).run([str(path) for path in paths]))


def places(findings: list[Finding]) -> set[tuple[object, ...]]:
    """Kind, severity and place of each finding; of wrong leader epochs, the first batch differs."""
    first = (Kind.LEADER_EPOCHS_MISMATCH, Kind.LEADER_EPOCHS_MISSING)
    return {(f.path, f.kind, f.severity, f.position, f.kind not in first and f.offset) for f in findings}


def damages(findings: list[Finding], partition: Path) -> list[tuple[str, str, int | None, int | None]]:
    """(kind, file, position, offset) of each damage; files relative to the partition."""

    def file(path: str) -> str:
        for base, prefix in ((partition, ""), (partition.parent, "../")):
            if path.startswith(f"{base}/"):
                return prefix + path.removeprefix(f"{base}/")
        return path

    return [(f.kind.value, file(f.path), f.position, f.offset) for f in findings if f.severity is Severity.DAMAGE]


def change(name: str, edit: Callable[[bytearray], bytes | bytearray | None]) -> Plant:
    def plant(partition: Path) -> None:
        data = bytearray((partition / name).read_bytes())
        (partition / name).write_bytes(edit(data) or data)

    return plant


def flip(name: str, position: int) -> Plant:
    return change(name, lambda data: data.__setitem__(position, data[position] ^ 1))


def records(first: int, count: int = 2, timestamp: int = 1000) -> list[Record]:
    return [Record(first + i, timestamp + i, b"k%d" % i, b"v") for i in range(count)]


def batch(first: int, **options: object) -> bytes:
    return encode_batch(records(first), **options)  # type: ignore[arg-type]


FAMILY = re.compile(r"(kraft-classic|kraft-crashed|kraft-jbod|kraft|other-clients|legacy-(?:v0|v1|mixed))-(.*)")


def facts_of(name: str) -> tuple[dict[str, Any], str]:
    """The facts of a fixture's family, and the name of the fixture's own facts."""
    found = FAMILY.fullmatch(name)
    assert found is not None
    return facts(found[1]), found[2].replace("4.3.1", "431").replace("-", "_")


def shape_of(name: str) -> dict[str, dict[str, int]]:
    """Bytes and `.log` files by directory, as the broker left them."""
    family, which = facts_of(name)
    if name.startswith("kraft-crashed"):
        state = family["states"][which.removesuffix("_recovered")]
        return dict(state["shape_recovered" if which.endswith("_recovered") else "shape"])
    shape = family[f"shape_{which}"]
    if name.startswith("kraft-jbod"):
        return {f"{disk}/{path}": one for disk, shapes in shape.items() for path, one in shapes.items()}
    return dict(shape)
