"""Lists and removes the caches of this user."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from cordwood.common.cache import cache_folder
from cordwood.common.text import bytes_text

#: Patterns of the file names in the cache folder, with descriptions.
_KINDS = {
    "kernels-*": "compiled kernels",
    "java-*.jsa": "class archives for Java",
    "java-*.failed": "notes that Java cannot make one",
    "java.lock": "the lock of what makes one",
}


@dataclass(frozen=True, slots=True)
class Cached:
    """The files and size of one kind of cache."""

    what: str
    paths: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Caches:
    """The contents of the cache folder."""

    folder: str
    cached: tuple[Cached, ...]
    dropped: bool

    def text(self) -> str:
        """Return a line per kind."""
        if not self.cached:
            return f"{self.folder}: nothing is cached"
        lines = [f"  {bytes_text(one.size_bytes):>8}  {one.what}" for one in self.cached]
        return "\n".join([f"{self.folder}{': removed' if self.dropped else ''}", *lines])


def caches(*, drop: bool = False) -> Caches:
    """List the caches; `drop` removes them, which costs only the time to make them again."""
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
