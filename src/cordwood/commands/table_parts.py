"""Writes a table's files by tasks of any runner, without Spark's writers.

Each attempt of a task writes a file into a folder of unfinished files. At the end, the files of finished attempts are
renamed to their final names, so a killed task leaves no file in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa

from cordwood.fs.base import TargetStore
from cordwood.fs.folders import remove_tree
from cordwood.tables.files import FileFormat, RowCounts
from cordwood.tables.newest import NewestTask
from cordwood.tables.rows import TableFormat
from cordwood.tasks.packing import pack
from cordwood.tasks.runner import Runner
from cordwood.tasks.tasks import run_each


@dataclass(frozen=True, slots=True)
class _PartWriter:
    """Writes files of a table; can be pickled.

    Attributes:
        limit: maximum number of rows of a file; None: all.
    """

    folder: str
    rows_format: TableFormat
    file_format: FileFormat
    limit: int | None

    def __call__(self, tasks: Sequence[NewestTask]) -> tuple[str, RowCounts]:
        """Write the rows of some tasks; return the path of the file, and its row counts."""
        path = f"{self.folder}/{uuid4().hex}"
        return path, self.file_format.write(path, self.rows_format.schema, self._rows(tasks))

    def _rows(self, tasks: Sequence[NewestTask]) -> Iterator[pa.RecordBatch]:
        left = self.limit
        for batch in self.rows_format.batches(tasks):
            if left is None:
                yield batch
                continue
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return


def write_parts(
    runner: Runner,
    fs: TargetStore,
    output: str,
    tasks: Sequence[NewestTask],
    rows_format: TableFormat,
    file_format: FileFormat,
    limit: int | None,
) -> RowCounts:
    """Write the rows of a table to files of a new folder; after an error, leave no files.

    Args:
        limit: maximum number of rows of the table; None: all.

    Raises:
        FileExistsError: the folder exists.
        DataError: a log is damaged, or a key or value cannot be decoded.
    """
    fs.make_directory(output)
    try:
        unfinished = f"{output}/_temporary"
        fs.make_directory(unfinished)
        sizes = [task.run.size_bytes for task in tasks]
        # A limit applies to all rows together, so it needs one file. Without rows, one file shows the columns.
        chosen = [list(range(len(tasks)))] if limit is not None or not tasks else pack(sizes, runner.cores)
        parts = [[tasks[at] for at in sorted(one)] for one in chosen]
        write = _PartWriter(unfinished, rows_format, file_format, limit)
        written = run_each(runner, write, parts, [sum(sizes[at] for at in one) for one in chosen])
        run = uuid4()
        for number, (path, _) in enumerate(written):
            fs.rename(path, f"{output}/part-{number:05}-{run}{file_format.suffix}")
        remove_tree(fs, unfinished)
        counts = RowCounts()
        for _, of_part in written:
            counts = counts.plus(of_part)
        return counts
    except BaseException:
        remove_tree(fs, output)
        raise
