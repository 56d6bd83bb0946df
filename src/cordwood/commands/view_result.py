"""`view --result`: the result of a clean, from a file with what `clean --json` printed."""

from __future__ import annotations

from cordwood.engine.results import CleanResult
from cordwood.errors import NotFoundError, RequestError
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.report.clean_given import result_of
from cordwood.report.given import Given
from cordwood.text import bytes_text

#: A result of 100,000 partitions takes about half of that.
_BYTES_MAX = 256 << 20


def read_result(path: str, *, fs: Store | None = None) -> CleanResult:
    """The result in a file.

    Raises:
        NotFoundError: there is no such file.
        RequestError: it is too large, or not what `clean --json` prints; with the place of what is wrong.
    """
    fs = fs or file_system_for([path])
    if not fs.exists(path):
        raise NotFoundError(f"{path} does not exist")
    if fs.stat(path).is_directory:
        raise RequestError(f"{path} is a directory; give the file that has what cordwood clean --json printed")
    with fs.open(path) as file:
        size = file.size()
        if size > _BYTES_MAX:
            raise RequestError(f"{path} has {bytes_text(size)}; results have at most {bytes_text(_BYTES_MAX)}")
        data = file.read(0, size)
    try:
        return result_of(Given.parse(data))
    except RequestError as error:
        raise RequestError(f"{path} is not what cordwood clean --json prints: {error}") from None
