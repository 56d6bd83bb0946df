"""The folder that a table is written to, on a disk or in an object store.

Spark's writers know this machine's disks. For an object store they write to the folder for temporary files, from where
the files are uploaded; that needs room for the table.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from cordwood.commands.table_point import FACTS
from cordwood.errors import RequestError
from cordwood.fs.base import TargetStore
from cordwood.fs.folders import temporary_directory
from cordwood.fs.workspace import check_outside
from cordwood.storage.log.files import write_file
from cordwood.storage.node.directory import check_outside_logs
from cordwood.threads import in_parallel


@dataclass(frozen=True, slots=True)
class TableFolder:
    """Where a table is written.

    Attributes:
        finish: called in the end with what is to be kept beside the files; from then on the table is whole.
    """

    path: str
    finish: Callable[[bytes], None]


#: What Spark writes by itself or with a well-known package. A format that is a class has a dot in its name.
_FORMATS = ("avro", "csv", "delta", "hudi", "iceberg", "json", "orc", "parquet", "xml")


def check_format(format_name: str, schema: pa.Schema, *, is_own_session: bool) -> None:
    """Refuse a format that cannot hold a table. What a user's session can write, only that knows.

    Raises:
        RequestError: the format is not known, or has no place for a column.
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
    """The new folder of a table. In an object store nothing is left of it if the block ends with an error.

    Args:
        sources: the folder must not be in one of these.

    Raises:
        RequestError: it exists.
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
    # Nothing is removed here: files that appear at this path before Spark writes there belong to another process.
    yield TableFolder(output, lambda facts: write_file(fs, f"{output}/{FACTS}", facts))


def _files(fs: TargetStore, folder: str) -> Iterator[str]:
    """All files but the checksums that Spark writes beside its own, for itself."""
    for info in fs.list(folder):
        path = f"{folder}/{info.name}"
        if info.is_directory:
            yield from _files(fs, path)
        elif not (info.name.startswith(".") and info.name.endswith(".crc")):
            yield path
