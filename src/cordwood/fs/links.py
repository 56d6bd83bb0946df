"""Links instead of copies, where a file system supports them."""

from __future__ import annotations

from enum import Enum

from cordwood.fs.base import LocalFileSystem, is_unsupported


class Link(Enum):
    """Kinds of links: another name for a file, which takes no space for its bytes."""

    HARD = "hard"  #: a second name of the same file, on the same disk; the original's link count changes
    SYMBOLIC = "symbolic"  #: a file that names another one, on any disk; the original does not change at all


def try_link(fs: LocalFileSystem, link: Link, source: str, target: str) -> bool:
    """Make a link; return False if the file system does not support it for these paths."""
    try:
        (fs.link if link is Link.HARD else fs.symlink)(source, target)
    except OSError as error:
        if not is_unsupported(error):
            raise
        return False
    return True
