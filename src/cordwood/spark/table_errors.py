"""What went wrong in a task of a table, found in what Spark says of it."""

from __future__ import annotations

import re

from cordwood import errors
from cordwood.errors import DataError, NotFoundError

#: How the traceback of a task ends: the class and its message, in one line.
_LAST_LINE = re.compile(r"^cordwood\.errors\.(\w+): (.+)$", re.MULTILINE)


def raise_data_error(error: Exception) -> None:
    """Raise the error of the task that made a job fail, if it is about the data. Spark has nothing but its words."""
    found = _LAST_LINE.search(f"{error}")
    if found is None:
        return
    kind = getattr(errors, found[1], None)
    if isinstance(kind, type) and issubclass(kind, DataError | NotFoundError):
        raise kind(found[2]) from error
