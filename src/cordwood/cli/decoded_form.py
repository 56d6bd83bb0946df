"""How `dump` shows records of internal topics. The decoders are in another module, loaded for such topics only."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

#: Decodes a record's key, its value and the type of a control record. Returns the decoded record or None, and the text
#: that the line shows of a problem.
Decode = Callable[[memoryview | None, memoryview | None, str | None], tuple[str | None, str]]


class DecodedForm(Enum):
    """Shortened for people, in full for people, or JSON."""

    START = "start"
    FULL = "full"
    JSON = "json"
