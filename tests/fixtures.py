"""Data directories that real brokers wrote, unpacked once per test run.

`tests/data/fixtures` holds them packed: per directory a tar and a consumer's records, and per family a JSON file with
the facts (topics, configs, sizes, time of the clean). Tests treat the result of `fixture` as read-only; `copy_of` gives
a directory that may be changed.
"""

from __future__ import annotations

import fcntl
import functools
import gzip
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Literal

PACKED = Path(__file__).parent / "data" / "fixtures"
#: Shared by the processes of one user: unpacking needs some seconds and 700 MB of mostly sparse index files.
UNPACKED = Path(tempfile.gettempdir()) / f"cordwood-fixtures-{os.getuid()}"

#: Times in the second round of the kraft fixtures; by the later one all lags have passed.
TIMES = (1_795_253_410_181, 1_795_253_410_181 + 40 * 3_600_000)

#: Directories whose logs are whole without a tier.
NAMES = sorted(
    archive.name.removesuffix(".tar.gz") for archive in PACKED.glob("*/*.tar.gz") if archive.parent.name != "tiered"
)
#: Fixtures of tiered topics, with the places of their tier and keys. Their log directory is `kafka-logs`.
TIERED: dict[str, tuple[str, ...]] = {
    "local-tiered": ("kafka-tiered-storage",),
    "local-tiered-pair": ("kafka-tiered-storage",),
    "aiven-s3": ("bucket/kafka", "test-key.json"),
}
#: Fixtures of brokers that were stopped cleanly.
STOPPED = [name for name in NAMES if not name.startswith("kraft-crashed") or name.endswith("-recovered")]
CRASHED = [name for name in NAMES if name not in STOPPED]

Isolation = Literal["read_uncommitted", "read_committed"]


def _packed(name: str, suffix: str) -> Path:
    (found,) = PACKED.glob(f"*/{name}{suffix}")
    return found


@functools.cache
def fixture(name: str) -> Path:
    """The unpacked directory of one fixture, with its modification times; not to be changed."""
    return unpacked(_packed(name, ".tar.gz")) / name


@functools.cache
def unpacked(archive: Path) -> Path:
    """The folder with the contents of a tar, with modification times; not to be changed."""
    stamp = f"{archive.stat().st_size}-{archive.stat().st_mtime_ns}"
    target = UNPACKED / stamp
    UNPACKED.mkdir(mode=0o700, exist_ok=True)
    with open(UNPACKED / f"{stamp}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            aside = Path(tempfile.mkdtemp(dir=UNPACKED))
            with tarfile.open(archive) as tar:
                # Set as an attribute, as Python 3.11 supports the argument only from its fourth release on.
                tar.extraction_filter = getattr(tarfile, "tar_filter", lambda member, path: member)
                tar.extractall(aside)
            aside.rename(target)
    return target


def tier_options(name: str) -> list[str]:
    """The options for the tier of a fixture."""
    return [
        argument
        for flag, place in zip(("--tier", "--tier-key"), TIERED[name], strict=False)
        for argument in (flag, f"{fixture(name)}/{place}")
    ]


def copy_of(path: Path, target: Path) -> Path:
    """A copy that a test may change, modification times kept."""
    shutil.copytree(path, target, copy_function=shutil.copy2)
    return target


def facts(family: str) -> dict[str, Any]:
    """Facts of a family of fixtures, such as `kraft`: its topics, their configs, its archives."""
    return dict(json.loads(_packed(family, ".json").read_text()))


def reads(name: str, isolation: Isolation) -> list[dict[str, Any]]:
    """The lines that a real consumer wrote while reading a fixture's broker."""
    with gzip.open(_packed(name, f".{isolation}.jsonl.gz"), "rt") as lines:
        return [json.loads(line) for line in lines]


def partitions(directory: Path) -> list[Path]:
    """All partition directories of a fixture, in each of its log directories."""
    return sorted({log.parent for log in directory.rglob("*.log*")})


#: Enough of a fixture's partitions to meet every rule, few enough to be quick.
TOPICS = ("orders", "payments", "producers", "codec-lz4", "short-tombstones", "trimmed-both")


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that a write could change: times, sizes, bytes."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.stat()
        found[str(path.relative_to(root))] = (
            status.st_mtime_ns, status.st_mode, path.read_bytes() if path.is_file() else b"",
        )  # fmt: skip
    return found
