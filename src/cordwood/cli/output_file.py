"""A file that a command writes its result to, besides what it prints."""

from __future__ import annotations

from cordwood.errors import NotFoundError, RequestError
from cordwood.fs.by_url import file_system_for


def check_output(path: str, what: str) -> None:
    """Refuse a file that could not be written after all has been done.

    Args:
        what: is to be in it, for the message.
    """
    fs = file_system_for([path])
    folder = path.rpartition("/")[0] or "."
    if fs.path_on_disk(path) is not None and not fs.exists(folder):
        raise NotFoundError(f"{folder} does not exist, so {path} cannot be written")
    if fs.exists(path) and fs.stat(path).is_directory:
        raise RequestError(f"{path} is a directory; give a file for {what}")


def write_output(path: str, text: str) -> None:
    """Write the file, in the place of one that may be there."""
    file_system_for([path]).put(path, text.encode("utf-8", "backslashreplace"))
