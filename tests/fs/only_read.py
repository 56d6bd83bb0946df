"""A file system that refuses every verb which could change something in a folder, unless it is known only to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cordwood.fs.base import LocalFileSystem
from cordwood.fs.wrapped import WrappedFileSystem

#: All verbs, of the protocol itself: a new one is refused until it is named below.
VERBS = frozenset(name for name in dir(LocalFileSystem) if not name.startswith("_"))
#: These verbs change no file, in any folder.
READING = frozenset(
    {
        *(
            "list",
            "names_in",
            "stat",
            "exists",
            "open",
            "lock_holder",
            "absolute_path",
            "real_path",
            "free_bytes",
            "disk_size",
        ),
        *("network_kind", "location", "concurrency", "make_temporary_directory", "path_on_disk", "reads_by_request"),
    }
)
#: Verbs that only read the first of two paths.
READING_THE_FIRST = frozenset(["copy", "symlink"])


class OnlyRead(WrappedFileSystem):
    """A file system with one read-only folder.

    Attributes:
        allowed: verbs that are not refused in this test although they change something.
        seen: the allowed verbs that were used on the folder, with their paths.
    """

    def __init__(self, fs: LocalFileSystem, folder: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(fs)
        self._folder = folder.rstrip("/")
        self.allowed = allowed
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def check(self, verb: str, paths: tuple[str, ...]) -> None:
        if any(f"{path}/".startswith(f"{self._folder}/") for path in paths):
            assert verb in self.allowed, f"{verb} {' '.join(paths)}: {self._folder} is only to be read"
            self.seen.append((verb, paths))


def _checked(verb: str) -> Callable[..., Any]:
    def call(self: OnlyRead, *arguments: Any, **options: Any) -> Any:
        paths = tuple(value for value in (*arguments, *options.values()) if isinstance(value, str))
        self.check(verb, paths[1:] if verb in READING_THE_FIRST else paths)
        return getattr(WrappedFileSystem, verb)(self, *arguments, **options)

    return call


for _verb in VERBS - READING:
    setattr(OnlyRead, _verb, _checked(_verb))
