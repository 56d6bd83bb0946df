"""The folder of a table, on a disk or in an object store.

Spark's writers only write to this machine's disks. For an object store they write to a folder for temporary files, and
Cordwood uploads the files; that folder needs room for the table.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from cordwood.commands.table_point import FACTS
from cordwood.common.errors import RequestError
from cordwood.common.threads import in_parallel
from cordwood.fs.base import TargetStore
from cordwood.fs.folders import temporary_directory
from cordwood.fs.workspace import check_outside
from cordwood.storage.log.files import write_file
from cordwood.storage.node.directory import check_outside_logs


@dataclass(frozen=True, slots=True)
class TableFolder:
    """The folder to write a table to.

    Attributes:
        finish: called last, with the facts to store beside the files; it completes the table.
    """

    path: str
    finish: Callable[[bytes], None]


#: Formats that Spark writes by itself or with a well-known package. A dot marks the name of a class.
_FORMATS = ("avro", "csv", "delta", "hudi", "iceberg", "json", "orc", "parquet", "xml")


def check_format(format_name: str, schema: pa.Schema, *, is_own_session: bool) -> None:
    """Check that a format can hold a table; a user's session may have further formats than our own.

    Raises:
        RequestError: the format is unknown, or cannot hold a column.
    """
    if is_own_session and format_name.lower() not in _FORMATS and "." not in format_name:
        raise RequestError(f"--format {format_name}: Spark cannot write this. Give {' or '.join(_FORMATS)}, or a class")
    binary = [field.name for field in schema if pa.types.is_binary(field.type)]
    if format_name.lower() == "csv" and binary:
        raise RequestError(
            f"--format csv: the {' and the '.join(binary)} is bytes, for which CSV has no place. Decode it as "
            f"{' or '.join(f'--{name} hex' for name in binary)}, or give json or parquet"
        )
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if format_name.lower() == "csv" and nested:
        raise RequestError(
            f"--format csv: the {' and the '.join(nested)} has fields, for which CSV has no place. Give json or parquet"
        )


@contextmanager
def table_folder(fs: TargetStore, output: str, sources: Sequence[str]) -> Iterator[TableFolder]:
    """Yield the folder to write a table to; on a disk, the writer creates it.

    In an object store, no file appears before the table is finished, and none after an error.

    Args:
        sources: directories that must not contain the folder.

    Raises:
        RequestError: it exists, or is in a source or a broker's log directory.
        LockedError: another run is making it.
    """
    if fs.path_on_disk(output) is None:
        with fs.target(output, sources) as copy, temporary_directory(fs, "cordwood-table-") as staging:
            staged = f"{staging}/table"

            def upload(facts: bytes) -> None:
                write_file(fs, f"{staged}/{FACTS}", facts)
                files = list(_files(fs, staged))
                targets = [f"{copy.data}/{posixpath.relpath(file, staged)}" for file in files]
                in_parallel(fs.concurrency, lambda pair: fs.copy(*pair), list(zip(files, targets, strict=True)))
                copy.publish()

            yield TableFolder(staged, upload)
        return
    if fs.exists(output):
        raise RequestError(f"--output {output}: this exists; a table is written to a new folder")
    check_outside(fs, fs.real_path(output), sources)
    check_outside_logs(fs, output)
    # Remove nothing here: files that appear at this path before Spark writes belong to another process.
    yield TableFolder(output, lambda facts: write_file(fs, f"{output}/{FACTS}", facts))


def _files(fs: TargetStore, folder: str) -> Iterator[str]:
    """Yield all files, except the checksums that Spark writes beside its files for its own use."""
    for info in fs.list(folder):
        path = f"{folder}/{info.name}"
        if info.is_directory:
            yield from _files(fs, path)
        elif not (info.name.startswith(".") and info.name.endswith(".crc")):
            yield path
