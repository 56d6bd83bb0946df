"""The caches of this user: what is in them, and removing them."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from cordwood.cache import cache_folder
from cordwood.text import bytes_text

#: What this program writes there: patterns of names, and what they are.
_KINDS = {
    "kernels-*": "compiled kernels",
    "java-*.jsa": "class archives for Java",
    "java-*.failed": "notes that Java cannot make one",
    "java.lock": "the lock of what makes one",
}


@dataclass(frozen=True, slots=True)
class Cached:
    """What one kind of cache takes."""

    what: str
    paths: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Caches:
    """What is in a folder of caches."""

    folder: str
    cached: tuple[Cached, ...]
    dropped: bool

    def text(self) -> str:
        """A line per kind."""
        if not self.cached:
            return f"{self.folder}: nothing is cached"
        lines = [f"  {bytes_text(one.size_bytes):>8}  {one.what}" for one in self.cached]
        return "\n".join([f"{self.folder}{': removed' if self.dropped else ''}", *lines])


def caches(*, drop: bool = False) -> Caches:
    """What is cached; with `drop`, it is removed, which costs time, and nothing else."""
    folder = cache_folder()
    found = []
    for pattern, what in _KINDS.items():
        paths = sorted(folder.glob(pattern)) if folder.is_dir() else []
        if paths:
            found.append(Cached(what, tuple(map(str, paths)), sum(map(_size_of, paths))))
            if drop:
                for path in paths:
                    _remove(path)
    return Caches(str(folder), tuple(found), drop)


def _size_of(path: Path) -> int:
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    return sum(_size_of_file(one) for one in files)


def _size_of_file(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
