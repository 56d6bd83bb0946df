"""Random interleavings of a live log's calls beside a plain model of it: a list of records, and a few offsets."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cordwood.common.errors import OffsetOutOfRangeError
from cordwood.live.log import FetchIsolation, Log
from cordwood.live.validation import read_batches, read_records
from tests.live.live_logs import World, batch, read_all

pytestmark = pytest.mark.more

CONFIG = {"segment.bytes": "200", "index.interval.bytes": "0", "segment.index.bytes": "120", "retention.bytes": "100"}


class LogMachine(RuleBasedStateMachine):
    """The model: values by offset, in batches, between a start and an end; and the part that is on disk."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.log: Log = self.world.load(CONFIG)
        self.batches: list[tuple[int, list[str]]] = []
        self.start = self.end = self.watermark = self.flushed = 0

    # ---- Calls -------------------------------------------------------------------------------------------------------

    @rule(values=st.lists(st.text("abc", min_size=1, max_size=20), min_size=1, max_size=4))
    def append_values(self, values: list[str]) -> None:
        self.append(values)

    def append(self, values: list[str]) -> None:
        done = self.log.append_as_leader(batch(*values), 0)
        assert (done.first_offset, done.last_offset) == (self.end, self.end + len(values) - 1)
        self.batches.append((self.end, values))
        self.end += len(values)

    @rule(count=st.integers(2, 5))
    def append_some(self, count: int) -> None:
        for number in range(count):
            self.append([f"a{number}"])

    @rule()
    def roll(self) -> None:
        self.log.roll()
        self.flushed = self.log.recovery_point

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        # Batches reach replicas whole.
        ends = [first + len(values) for first, values in self.batches]
        possible = [end for end in ends if end > self.watermark]
        if possible:
            self.watermark = possible[int(share * (len(possible) - 1))]
            assert self.log.update_high_watermark(self.watermark) == self.watermark

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = int(share * self.watermark)
        self.log.delete_records(offset)
        self.start = max(self.start, offset)
        self.flushed = max(self.flushed, self.start)

    @rule()
    def retain(self) -> None:
        size = self.log.size_bytes
        deleted = self.log.delete_old_segments()
        assert self.log.size_bytes <= size
        assert deleted == 0 or self.log.log_start_offset >= self.start
        assert self.log.log_start_offset <= self.watermark
        self.start = self.log.log_start_offset
        self.flushed = max(self.flushed, self.start)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + int(share * (self.end - self.start))
        self.log.truncate_to(offset)
        if offset < self.end:
            # The truncation drops the whole batch that holds the offset, but the log continues at the offset.
            self.batches = [(first, values) for first, values in self.batches if first + len(values) <= offset]
            self.end = offset
            self.watermark = min(self.watermark, offset)
            self.flushed = min(self.flushed, offset)

    @rule()
    def restart(self) -> None:
        self.log.flush(force_active_segment=True)
        self.log.close()
        self.log = self.world.load(CONFIG, log_start_offset=self.start, recovery_point=self.end)
        # A truncation within a batch is forgotten: the log continues behind the last batch, or at its segment's start.
        least = max((first + len(values) for first, values in self.batches), default=0)
        assert least <= self.log.log_end_offset <= self.end
        self.end = self.log.log_end_offset
        self.watermark, self.flushed = max(self.start, 0), self.end
        self.log.update_high_watermark(self.watermark)

    @rule()
    def crash(self) -> None:
        # Only the process crashes: its writes survive.
        self.log.close_handlers()
        self.log = self.world.load(
            CONFIG, log_start_offset=self.start, recovery_point=self.flushed, clean_shutdown=False
        )
        # As after a restart: behind the last batch, or at the start of the last segment.
        least = max([first + len(values) for first, values in self.batches], default=0)
        assert least <= self.log.log_end_offset <= self.end
        self.end = self.log.log_end_offset
        self.watermark = self.start
        self.log.update_high_watermark(self.watermark)

    # ---- Invariants --------------------------------------------------------------------------------------------------

    @rule(share=st.floats(0, 1), max_bytes=st.integers(0, 400))
    def read(self, share: float, max_bytes: int) -> None:
        offset = self.start + int(share * (self.end - self.start))
        data = self.log.read(offset, max_bytes, FetchIsolation.HIGH_WATERMARK).records
        found = {record.offset: record.value for one in read_batches(data) for record in read_records(data, one)}
        assert all(at < self.watermark for at in found)
        # A high watermark at which no batch begins moves to the start of an existing batch; no record is in between.
        moved = self.log.high_watermark
        low, high = sorted((moved, self.watermark))
        inside = [first for first, values in self.batches if first <= low < high < first + len(values)]
        assert inside or not [at for at in self._values() if low <= at < high]
        self.watermark = moved
        expected = [at for at in self._values() if offset <= at < self.watermark]
        if expected:
            assert expected[0] in found, "at least one batch is returned"

    @rule(beyond=st.integers(1, 5))
    def read_outside(self, beyond: int) -> None:
        for offset in (self.end + beyond, self.start - beyond):
            try:
                self.log.read(offset, 100, FetchIsolation.LOG_END)
            except OffsetOutOfRangeError:
                continue
            raise AssertionError(f"offset {offset} is outside")

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (self.start, self.end, self.watermark)
        assert read_all(log) == self._values()
        bases = [segment.base_offset for segment in log.log_segments]
        assert bases == sorted(set(bases))
        assert log.recovery_point <= log.log_end_offset

    def _values(self) -> dict[int, str]:
        """Values by offset, from the log start on."""
        values = {first + i: value for first, batched in self.batches for i, value in enumerate(batched)}
        return {offset: value for offset, value in values.items() if offset >= self.start}


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestLog = LogMachine.TestCase
