"""How `dump` shows records of internal topics; apart from what decodes them, which is loaded for such topics only."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

#: Makes of a record's key, its value and the type of a control record: the record by name, or None, and what its line
#: says of a problem.
Decode = Callable[[memoryview | None, memoryview | None, str | None], tuple[str | None, str]]


class DecodedForm(Enum):
    """To people the start of long records or all of them, or as JSON."""

    START = "start"
    FULL = "full"
    JSON = "json"
