"""An event store: accounts as streams of events, changed in transactions, rebuilt by reading.

    python event_store.py /data/events

The files are Kafka's: `cordwood dump /data/events` shows them, and a broker could serve them. Run it several
times: each run adds to the balances of the run before.
"""

import json
import sys
from collections import Counter

from cordwood import LogManager, PosixFileSystem, TopicPartition, overrides

EVENTS = TopicPartition("account-events", 0)
#: Nothing is ever deleted or compacted: an event store keeps all its events.
CONFIGS = ["account-events:cleanup.policy=delete", "log.retention.ms=-1", "log.retention.bytes=-1"]


def balances(log) -> Counter:
    """Rebuild all balances from the committed events."""
    found = Counter()
    for record in log.records():
        found[record.key.decode()] += json.loads(record.value)["amount"]
    return found


def transfer(log, source: str, target: str, amount: int) -> None:
    """Move money: both events count, or neither does."""
    with log.transaction(producer_id=1) as transaction:
        transaction.append({source: json.dumps({"type": "sent", "amount": -amount})})
        transaction.append({target: json.dumps({"type": "received", "amount": amount})})
        if balances(log)[source] < amount:
            raise ValueError(f"{source} has less than {amount}")  # the error aborts the transaction


def main(folder: str) -> None:
    """Open the store, change it, show it."""
    with LogManager(PosixFileSystem(), [folder], overrides(CONFIGS)) as manager:
        log = manager.get_or_create_log(EVENTS, is_new=True)
        log.append({"ann": json.dumps({"type": "opened", "amount": 100})})
        transfer(log, "ann", "bob", 30)
        try:
            transfer(log, "bob", "ann", 1_000_000)
        except ValueError as error:
            print(f"refused: {error}")
        log.flush(force_active_segment=True)  # on disk, whatever happens to the machine
        for account, amount in sorted(balances(log).items()):
            print(f"{account:10} {amount:8}")


if __name__ == "__main__":
    main(sys.argv[1])
