"""Counts reported by tasks, summed up for the user of a session."""

from __future__ import annotations

from pyspark.accumulators import Accumulator, AccumulatorParam

from cordwood.common.errors import RequestError
from cordwood.common.types import override
from cordwood.tables.source.counts import ReadCounts


class Sum(AccumulatorParam[ReadCounts]):
    """Adds counts in a Spark accumulator."""

    @override
    def zero(self, value: ReadCounts) -> ReadCounts:
        return ReadCounts()

    @override
    def addInPlace(self, value1: ReadCounts, value2: ReadCounts) -> ReadCounts:  # noqa: N802
        return value1 + value2


class ReadCounter:
    """Counts records and bytes that all reads of a session's data source read and skipped.

    Each task reports its counts when it ends. A task that runs twice, because it failed or was slow, may count twice.
    """

    def __init__(self, accumulator: Accumulator[ReadCounts] | None) -> None:
        self._accumulator = accumulator
        self._taken = ReadCounts()

    @property
    def total(self) -> ReadCounts:
        """All counts since the registration.

        Raises:
            RequestError: the session uses Spark Connect, which has no accumulators.
        """
        if self._accumulator is None:
            raise RequestError(
                "Spark Connect does not hand counts to its clients. Set spark.sql.pyspark.worker.logging.enabled to "
                "true, and find them in spark.tvf.python_worker_logs()"
            )
        return self._accumulator.value

    def take(self) -> ReadCounts:
        """Return the counts since the last call.

        Raises:
            RequestError: as `total`.
        """
        total = self.total
        found, self._taken = total - self._taken, total
        return found
