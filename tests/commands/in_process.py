"""Spark's part in a clean, done in this process: for tests that need many cleans, or tasks that share the test's
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import pyarrow as pa

from cordwood.tasks.spark.settings import SETTINGS

Worker = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class InThisProcess:
    """The part of a Spark session that the pipeline uses: calls the workers' functions in a chain."""

    version = "4.3.0"
    #: Those of a local session of ours, whose workers need no check.
    conf = {**SETTINGS, "spark.master": "local[1]"}  # noqa: RUF012 (nobody changes it)

    def range(self, start: int, end: int, step: int, partitions: int) -> Self:
        self._batches = iter([pa.RecordBatch.from_arrays([pa.array(range(start, end, step))], ["id"])])
        return self

    def mapInArrow(self, worker: Worker, _schema: str) -> Self:  # noqa: N802 (as Spark has it)
        self._batches = worker(self._batches)
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [row for batch in self._batches for row in batch.to_pylist()]

    @property
    def sparkSession(self) -> Self:  # noqa: N802
        return self

    def getTags(self) -> set[str]:  # noqa: N802
        return set()

    def addTag(self, tag: str) -> None:  # noqa: N802
        """Ignored: no other job runs."""

    removeTag = interruptTag = addTag  # noqa: N815
