"""The partitions of a command, the sources of their configs, and the options of `ls`.

They are not in `commands.options`, which imports modules that read-only commands do not need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from cordwood.common.option import METADATA, NOW, SERVER_PROPERTIES, TOPICS, Option
from cordwood.fs.base import Store
from cordwood.storage.formats.filenames import index_folder
from cordwood.storage.index.place import check_root


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPartitions:
    """The selected partitions of a broker; by default all."""

    topics: Annotated[Sequence[str], TOPICS] = ()
    partitions: Annotated[
        Sequence[str],
        Option(
            "Only partitions with this number (3) or name (orders-3), or matching this glob.",
            flag="--partition",
            metavar="WHICH",
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(ChosenPartitions):
    """The selected partitions of a broker, and the sources of their configs."""

    PANEL: ClassVar[str] = "Which partitions, with which configs"

    overrides: Annotated[
        Sequence[str],
        Option(
            "Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.",
            flag="--config",
            metavar="KEY=VALUE",
        ),
    ] = ()
    server_properties: Annotated[str | None, SERVER_PROPERTIES] = None
    metadata: Annotated[str | None, METADATA] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """The location of the partitions' key indexes."""

    PANEL: ClassVar[str] = "Key indexes"

    index_dir: Annotated[
        str | None,
        Option(
            "Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.",
            metavar="DIR4",
        ),
    ] = None

    def root(self, fs: Store, partitions: Collection[str]) -> str | None:
        """Return the folder for `LogView`, after checking it for some partitions.

        Raises:
            RequestError: the folder cannot hold the indexes of all of them.
        """
        root = None if self.index_dir is None else fs.absolute_path(self.index_dir)
        check_root(fs, root, partitions)
        first = next(iter(partitions), None)
        if root is not None and first is not None and not fs.reads_by_request(root):
            # Imported here: it loads kernels, and options are read before Java starts.
            from cordwood.storage.node.directory import check_outside_logs

            # A partition's folder within it must not be in any broker's log directory.
            check_outside_logs(fs, index_folder(first, root))
        return root


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The options of `groups`."""

    groups: Annotated[
        Sequence[str],
        Option("Only groups with this name, or matching this glob.", flag="--group", metavar="GROUP"),
    ] = ()
    metadata: Annotated[str | None, METADATA] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """The options of `ls`."""

    selection: Selection = field(default_factory=Selection)
    index_place: IndexPlace = field(default_factory=IndexPlace)
    index_entries: Annotated[
        bool,
        Option(
            "Read all batch headers in object stores, too, and count the entries of indexes.",
            flag="--segments",
            flag_help="One line per segment. In an object store, only this reads every segment's batch headers.",
        ),
    ] = False
    sort: Annotated[
        str | None,
        Option(
            "In this order: disk, size (of logs), dirty, clean, records or segments, the largest first; newest or "
            "oldest (record) first; or name. Default: name.",
            metavar="ORDER",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOptions:
    """The options of `why`."""

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[int | None, NOW] = None
    keys: Annotated[
        bool,
        Option(
            "Count the keys of compacted partitions, from key indexes or a sample.",
            flag="--no-keys",
            flag_help="Do not count keys: no record is read, and what could go is an upper bound.",
        ),
    ] = True
    sample_bytes: Annotated[
        int,
        Option(
            "Read so much of a log to count its keys, if no key index helps; and at most 64 times as much in all. "
            "Default: 16m.",
            flag="--sample",
            metavar="BYTES",
        ),
    ] = 16 << 20
    read_all: Annotated[bool, Option("Read all records of all compacted partitions, instead of samples.")] = False
    index_place: IndexPlace = field(default_factory=IndexPlace)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPoint:
    """A metadata log, and the point in it to read up to."""

    at: Annotated[
        str | None,
        Option("As of this offset, or this time (2026-11-21T09:25:45Z). Default: the end.", metavar="OFFSET|TIME"),
    ] = None
    metadata: Annotated[str | None, METADATA] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of `topics` and `configs`."""

    topics: Annotated[Sequence[str], TOPICS] = ()
    point: MetadataPoint = field(default_factory=MetadataPoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersOptions:
    """The options of `brokers`."""

    point: MetadataPoint = field(default_factory=MetadataPoint)
