"""The log of a partition with a search for keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.common.arguments import checked
from cordwood.storage.log.view import LogView

if TYPE_CHECKING:
    from cordwood.record.columns import Ranks
    from cordwood.storage.index.history import KeyRecord


class KeyedLog(LogView):
    """The log of one partition, as it was when it was opened; see `LogView`.

    Attributes:
        ranks: see `KeyHistory`.
    """

    ranks: Ranks | None = None

    def get(self, key: bytes | str, *, last: bool = False) -> list[KeyRecord]:
        """Return all records of a key from the log start offset on, in offset order.

        Searches each segment through its key index if it has a valid one, and otherwise reads the whole segment.

        Args:
            key: text is encoded as UTF-8.
            last: return only the newest committed record, if there is one.

        Raises:
            DataError: data that has to be read is damaged.
            TypeError: the key is neither bytes nor text.
        """
        checked("key", bytes | str, key)
        # Import here, so that code that only lists logs does not load the kernels that hash keys.
        from cordwood.storage.index.history import KeyHistory

        return KeyHistory([key.encode() if isinstance(key, str) else key], ranks=self.ranks).of(self, last=last)
