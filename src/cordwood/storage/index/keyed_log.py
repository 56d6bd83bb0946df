"""A log that can be searched for keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.arguments import checked
from cordwood.storage.log.view import LogView

if TYPE_CHECKING:
    from cordwood.storage.index.history import KeyRecord


class KeyedLog(LogView):
    """The log of one partition, as it was when it was opened; see `LogView`."""

    def get(self, key: bytes | str, *, last: bool = False) -> list[KeyRecord]:
        """All records of a key from the log start offset on, in order; through key indexes where there are good ones.

        Args:
            key: text is encoded as UTF-8.
            last: only the newest committed record, if there is one.

        Raises:
            DataError: what has to be read for it is damaged.
            TypeError: the key is neither.
        """
        checked("key", bytes | str, key)
        # Imported here: code that only lists logs need not load the kernels that hash keys.
        from cordwood.storage.index.history import History

        return History([key.encode() if isinstance(key, str) else key]).of(self, last=last)
