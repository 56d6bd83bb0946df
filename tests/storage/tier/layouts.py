"""A tier in another layout: brokers have LocalTieredStorage here, and live logs have the layout of Aiven's plugin."""

from __future__ import annotations

from pathlib import Path

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.local import FOLDER, Layout, LocalLayout
from cordwood.storage.tier.segments import CopyState
from cordwood.storage.tier.store import Tier, TierStore

FS = PosixFileSystem()


def to_aiven(logs: Path, tier: Path, root: Path) -> None:
    """Make a tier in the layout of Aiven's plugin from the tier of a broker's log directory."""
    root.mkdir()
    _convert(logs, LocalLayout(FS, str(tier)), AivenLayout(FS, f"{root}/"))


def to_local(logs: Path, root: Path, tier: Path) -> None:
    """Make a tier in the layout of LocalTieredStorage; `logs` have the records of a broker."""
    (tier / FOLDER).mkdir(parents=True)
    _convert(logs, AivenLayout(FS, f"{root}/"), LocalLayout(FS, str(tier)))


def _convert(logs: Path, source: Layout, target: Layout) -> None:
    scratch = logs.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    for log in TierStore(FS, Tier(""), source).remote_logs(str(logs)).values():
        for segment in log.segments.values():
            if segment.state is not CopyState.COPY_FINISHED:
                continue
            files = {}
            for kind in source.kinds(segment):
                with source.open(segment, kind) as file:
                    files[kind] = f"{scratch}/{kind.lstrip('.')}"
                    Path(files[kind]).write_bytes(file.read(0, file.size()))
            for path in target.object_paths(segment):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            target.write(segment, files, None)
