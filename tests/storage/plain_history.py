"""The records of keys found the slow way: every record of a log as an object, every header for its transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cordwood.record.columns import BatchWindow, decode
from cordwood.record.record import to_records
from cordwood.storage.index.history import KeyRecord, TransactionOutcome
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap


def plain_history(log: LogView, keys: Collection[bytes]) -> list[KeyRecord]:
    """All records of some keys from the log start offset on, in order."""
    found = [one for one in _records(log) if one.key in keys and one.offset >= log.log_start_offset]
    return [_with_successor(one, found[at + 1 :]) for at, one in enumerate(found)]


def all_keys(log: LogView) -> list[bytes]:
    """All keys of a log."""
    return sorted({one.key for one in _records(log)})


def _with_successor(record: KeyRecord, later: list[KeyRecord]) -> KeyRecord:
    same = (one.offset for one in later if one.key == record.key and one.outcome is TransactionOutcome.COMMITTED)
    names = ("key", "offset", "timestamp", "value", "base_offset", "segment", "position", "producer_id", "outcome")
    fields = {name: getattr(record, name) for name in names}
    return KeyRecord(**fields, superseded_by=next(same, None), delete_horizon_ms=record.delete_horizon_ms)


def _records(log: LogView) -> Iterator[KeyRecord]:
    transactions = log.transactions()
    for segment, item in log.windows():
        if isinstance(item, Gap):
            continue
        for at in range(item.batches.size):
            batch = item.batches[at : at + 1]
            if batch["magic"][0] == 2 and batch["attributes"][0] & 0x20:
                continue
            in_transaction = batch["magic"][0] == 2 and bool(batch["attributes"][0] & 0x10)
            horizon = batch["magic"][0] == 2 and bool(batch["attributes"][0] & 0x40)
            outcome = TransactionOutcome.COMMITTED
            if in_transaction and transactions.aborted_data(batch)[0]:
                outcome = TransactionOutcome.ABORTED
            elif in_transaction and transactions.open_data(batch)[0]:
                outcome = TransactionOutcome.OPEN
            for columns in decode(BatchWindow(item.position, item.data, batch, item.read), on_damage=lambda _: None):
                for record in to_records(columns.data, columns.rows):
                    if record.key is not None:
                        yield KeyRecord(
                            record.key,
                            record.offset,
                            record.timestamp,
                            record.value,
                            int(columns.batches["base_offset"][0]),
                            segment.base_offset,
                            int(batch["position"][0]),
                            int(batch["producer_id"][0]) if in_transaction else -1,
                            outcome,
                            None,
                            int(batch["base_timestamp"][0]) if horizon else None,
                        )
