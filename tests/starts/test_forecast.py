"""Test that `cordwood check` forecasts the recorded behavior of a real broker for each planted fault.

`check` must report something wherever a broker does not serve the node as usual. Wherever a broker does, `check` must
not report damage, unless the damage misleads a later reader. `python -m tests.starts.forecast` prints a table of all
faults.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import knobs
from tests.starts import outcomes
from tests.starts.faults import FAULTS
from tests.starts.forecast import alarms, disagreements, forecast
from tests.starts.known import FALSE_ALARMS, INVISIBLE

pytestmark = pytest.mark.more

#: A test run checks one of this many faults.
EVERY = 16
RECORDED = outcomes.read()
CHOSEN = list(RECORDED)[knobs.SEED % EVERY :: knobs.step(EVERY)]
#: Damage that neither a start nor a consumer from the first offset notices, by kind; the value is who is affected.
MEETS_LATER = {
    "batch-crc": "a node that reads the metadata log without its newest snapshot",
    "batch-leader-epoch": "a follower, which truncates by leader epochs",
    "checkpoint-beyond-end": "whoever misses the records that were there once",
    "index-missing": "a consumer that looks up a time, and retention",
    "index-padded": "a consumer that seeks an offset or a time, and retention",
    "index-size": "a consumer of committed records: the next entry is misplaced",
    "index-without-log": "whoever misses the records of the .log that is gone",
    "leader-epochs-beyond-end": "a follower, which truncates by leader epochs",
    "leader-epochs-mismatch": "a follower, which truncates by leader epochs",
    "leader-epochs-missing": "a follower, which truncates by leader epochs",
    "leader-epochs-order": "a follower, which truncates by leader epochs",
    "max-timestamp": "a consumer that looks up a time, and retention",
    "not-a-batch": "a consumer of the next records, which are written behind it",
    "offset-index-order": "a consumer that seeks an offset",
    "offset-index-position": "a consumer that seeks an offset",
    "offset-below-base": "a consumer that seeks an offset between the two names",
    "segment-overlap": "a consumer that seeks an offset in the overlap",
    "snapshot-beyond-end": "whoever misses the records that were there once",
    "snapshot-entry": "a producer that goes on, whose next batch is misjudged",
    "time-index-end": "retention, which takes the last entry for the newest record",
    "time-index-order": "a consumer that looks up a time",
    "transaction-index-missing": "a consumer of committed records, who gets aborted ones",
    "transaction-index-order": "a consumer of committed records, who gets aborted ones",
    "unreadable": "a consumer that looks up a time, and retention: a time index that a start does not open",
    "zero-tail": "a consumer of the next records, which are written behind it",
}


def test_forecasts_agree_with_a_broker(tmp_path: Path) -> None:
    wrong, false_alarms = {}, {}
    for number, name in enumerate(CHOSEN):
        fault = FAULTS[name]
        node = fault.plant(tmp_path / str(number))
        told = forecast(node)
        usual = RECORDED[f"{fault.state}: nothing"]
        found = list(disagreements(RECORDED[name], usual, told, node))
        if found and not (name in INVISIBLE and found == ["false good"]):
            wrong[name] = found
        kinds = {alarm.partition(":")[0] for alarm in alarms(RECORDED[name], told)}
        if unexpected := kinds - MEETS_LATER.keys() - FALSE_ALARMS:
            false_alarms[name] = unexpected
    assert wrong == {}
    assert false_alarms == {}
