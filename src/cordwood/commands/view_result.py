"""`view --result`: a result from a file with the JSON that a command printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cordwood.errors import NotFoundError, RequestError
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.presentable import Paged
from cordwood.report import clean_given, erasure_given, outcomes_given
from cordwood.report.given import Given
from cordwood.text import bytes_text

#: A result of 100,000 partitions takes about half of that.
_BYTES_MAX = 256 << 20
#: By command: a field that only its result has, and what reads that.
_READERS: Mapping[str, tuple[str, Callable[[Given], Paged]]] = {
    "clean": ("in_place", clean_given.result_of),
    "erase-check": ("values_searched", erasure_given.result_of),
    "simulate": ("workload", outcomes_given.simulation_of),
    "explain": ("at_once", outcomes_given.explained_of),
}


def read_result(path: str, *, fs: Store | None = None) -> Paged:
    """The result in a file.

    Raises:
        NotFoundError: there is no such file.
        RequestError: it is too large, or not what a command prints with --json; with the place of what is wrong.
    """
    fs = fs or file_system_for([path])
    if not fs.exists(path):
        raise NotFoundError(f"{path} does not exist")
    if fs.stat(path).is_directory:
        raise RequestError(f"{path} is a directory; give a file with what a command printed with --json")
    with fs.open(path) as file:
        size = file.size()
        if size > _BYTES_MAX:
            raise RequestError(f"{path} has {bytes_text(size)}; results have at most {bytes_text(_BYTES_MAX)}")
        data = file.read(0, size)
    *others, last = _READERS
    command = f"{', '.join(others)} or {last}"
    try:
        given = Given.parse(data)
        command = command_of(given)
        return _read(given, command)
    except RequestError as error:
        raise RequestError(f"{path} is not what cordwood {command} --json prints: {error}") from None


def command_of(given: Given) -> str:
    """The command that printed a document.

    Raises:
        RequestError: none of those whose results have a page.
    """
    names = given.names()
    for command, (field, _) in _READERS.items():
        if field in names:
            return command
    raise RequestError(f"it has no field {' and no '.join(field for field, _ in _READERS.values())}")


def result_of(given: Given) -> Paged:
    """The result that a document is of.

    Raises:
        RequestError: it is of none; with the place.
    """
    return _read(given, command_of(given))


def _read(given: Given, command: str) -> Paged:
    _, read = _READERS[command]
    return read(given)
