"""The output folders of a log's cleans, in `.cordwood` in the partition's directory.

A clean creates a folder with a unique name, and removes only that folder: a slow clean that was aborted may still run
beside its successor. Leftovers of a dead process are removed when the log is loaded, before any clean can use the
directory. All other files in `.cordwood` have another owner and stay, mainly key indexes.
"""

from __future__ import annotations

import contextlib
import re
from uuid import uuid4

from cordwood.cleaning.engine.task import PROGRESS
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.workspace import remove_tree
from cordwood.storage.formats.filenames import WORK_FOLDER

#: Cleans in place name their folders in the same way, and have a folder for the counters of all tasks.
_OF_CLEANS = re.compile(f"[0-9a-f]{{32}}|{PROGRESS}")
#: Number of attempts to create a folder, as a clean that has just ended may remove the parent folder.
_ATTEMPTS = 10


def new_folder(directory: str) -> str:
    """Return a new path for the folder of one clean."""
    return f"{directory}/{WORK_FOLDER}/{uuid4().hex}"


def make(fs: LocalFileSystem, folder: str) -> None:
    """Create the folder of a clean."""
    for attempt in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            fs.make_directory(folder.rpartition("/")[0])
        try:
            fs.make_directory(folder)
            break
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise
    fs.make_directory(f"{folder}/{PROGRESS}")


def remove(fs: LocalFileSystem, folder: str) -> None:
    """Remove the folder of a clean, and its parent if that is empty now."""
    with contextlib.suppress(OSError):
        remove_tree(fs, folder)
    with contextlib.suppress(OSError):
        fs.remove_directory(folder.rpartition("/")[0])


def remove_leftovers(fs: LocalFileSystem, directory: str) -> None:
    """Remove the folders of cleans whose processes have died. No clean of the log may run."""
    parent = f"{directory}/{WORK_FOLDER}"
    if not fs.exists(parent) or not fs.stat(parent).is_directory or fs.is_link(parent):
        return
    for info in fs.list(parent):
        if info.is_directory and _OF_CLEANS.fullmatch(info.name):
            remove_tree(fs, f"{parent}/{info.name}")
    with contextlib.suppress(OSError):
        fs.remove_directory(parent)
