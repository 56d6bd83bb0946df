"""The key indexes of a live log's segments in its tier: on the disk, where cleans use them, and beside the objects.

    orders-0/.cordwood/index/00000000000000000400-NnrzoxQmSeO9cOTo6MCn3Q.keyhashes          on the disk
    orders-tqTXryP4TGyVbT77P-TwlA/0/00000000000000000400-NnrzoxQmSeO9cOTo6MCn3Q.keyhashes   in the tier

The name has the segment's id, and the identity is made of it (`storage.index.identity`). An id is never used again, and
the objects of a segment never change. So neither a crash, nor an old disk, nor another writer brings an index together
with other bytes, and no index has to be removed before a commit:

    put         a clean made the index of a segment that it put into the tier
    take_over   a clean made the index of a segment that stays in the tier as it is
    adopt       a segment on the disk has an index, and was copied to the tier
    fetch       the tier alone has the index, as after the loss of a disk
    sweep       the log no longer has the segment in the tier

An index is a cache. Whatever fails here leaves a segment without an index, which only costs the next clean a scan.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cordwood.common.errors import CorruptFileError, DataError, StoreError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.paced import Check
from cordwood.storage.formats.filenames import (
    index_folder,
    parse_key_index,
    parse_tier_key_index,
    tier_key_index_name,
)
from cordwood.storage.formats.key_index import KeyIndex, decode, with_identity
from cordwood.storage.index.files import indexes_in, read_index, write_index
from cordwood.storage.index.identity import is_of_objects, is_same_log, of_objects, read_header
from cordwood.storage.log.files import checksum, read_file
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.local import upload
from cordwood.storage.tier.packed import TierSegment
from cordwood.storage.tier.store import infos_of

_log = logging.getLogger(__name__)


class TierKeyIndexes:
    """The key indexes of one log's segments in its tier.

    Attributes:
        missing: ids of segments whose index is in the tier alone.
    """

    def __init__(self, fs: LocalFileSystem, directory: str, layout: AivenLayout) -> None:
        self.missing: set[str] = set()
        self._fs = fs
        self._directory = directory
        self._layout = layout

    def put(self, path: str, segment: TierSegment) -> None:
        """Keep the index of an output that became a segment.

        Args:
            path: the index, as the clean made it. The segment may begin earlier than the output, without a record
                there, as an output without any record joins its neighbour.
        """
        with contextlib.suppress(OSError, CorruptFileError):
            index = decode(read_file(self._fs, path), path)
            header = replace(index.header, base_offset=segment.segment.start_offset)
            self._keep(replace(index, header=header), segment)

    def take_over(self, paths: Sequence[str], segments: Iterable[TierSegment]) -> tuple[str, ...]:
        """Keep the indexes that a clean made of segments in the tier; return the paths of all others."""
        in_tier = {offset: path for path in paths if (offset := self._offset_in_tier(path)) is not None}
        for segment in segments if in_tier else ():
            path = in_tier.get(segment.segment.start_offset)
            if path is None:
                continue
            with contextlib.suppress(OSError, CorruptFileError):
                index = decode(read_file(self._fs, path), path)
                # Another clean or retention may have replaced the segment.
                if index.identity is not None and index.identity.files == of_objects(infos_of(segment), None).files:
                    self._keep(index, segment)
        return tuple(path for path in paths if path not in in_tier.values())

    def _offset_in_tier(self, path: str) -> int | None:
        """Return the base offset of the segment of an index, if the segment was read from a tier; else None."""
        with contextlib.suppress(OSError, CorruptFileError), self._fs.open(path) as file:
            _, identity = read_header(file)
            if identity is not None and is_of_objects(identity):
                return parse_key_index(posixpath.basename(path))
        return None

    def adopt(self, segments: Iterable[TierSegment]) -> None:
        """Keep the indexes of segments that are on the disk, too, with the same bytes."""
        with contextlib.suppress(OSError, DataError):
            indexed = {offset for offset, _ in indexes_in(self._fs, self._directory)}
            if not indexed:
                return
            known = set(self._on_disk())
            log = LogView(self._directory, fs=self._fs, log_start_offset=0)
            local = {one.base_offset: one for one in log.segments if one.base_offset in indexed}
            for segment in segments if local else ():
                one = segment.segment
                if one.start_offset in local and (one.start_offset, one.id) not in known:
                    self._adopt(local[one.start_offset], segment)

    def _adopt(self, local: Segment, segment: TierSegment) -> None:
        with contextlib.suppress(OSError, CorruptFileError):
            index = read_index(local)
            if not is_same_log(index.identity, local) or local.size_bytes != segment.segment.size_bytes:
                return
            # The disk may be an old one, on which the log went on differently.
            if checksum(self._fs, local.path) == segment.crc32c and is_same_log(index.identity, local):
                self._keep(index, segment)

    def _keep(self, index: KeyIndex, segment: TierSegment) -> None:
        """Write an index to the disk, and put it into the tier."""
        one, header = segment.segment, index.header
        if (header.base_offset, header.covered_bytes) != (one.start_offset, one.size_bytes):
            return
        name = tier_key_index_name(one.start_offset, one.id)
        index = with_identity(index, of_objects(infos_of(segment), index.identity))
        write_index(self._fs, self._directory, index, name=name)
        try:
            path = f"{index_folder(self._directory)}/{name}"
            upload(self._layout.store, path, self._layout.key_index_path(one))
        except (OSError, StoreError) as error:
            _log.info("the key index %s is on this disk alone: %s", path, error)

    def fetch(self, segments: Iterable[TierSegment], check: Check) -> None:
        """Copy the indexes that only the tier has to the disk.

        Args:
            check: called before each request; raises once the clean must stop.
        """
        for segment in segments if self.missing else ():
            one = segment.segment
            if one.id not in self.missing:
                continue
            check()
            path = self._layout.key_index_path(one)
            try:
                with self._layout.store.open(path) as file:
                    index = decode(file.read(0, file.size()), path)
                expected = of_objects(infos_of(segment), index.identity)
                if index.identity is not None and index.identity.files == expected.files:
                    write_index(self._fs, self._directory, index, name=tier_key_index_name(one.start_offset, one.id))
            except FileNotFoundError:
                pass
            except CorruptFileError as error:
                _log.warning("a key index in the tier is not used: %s", error)
            except (OSError, StoreError) as error:
                _log.warning("key indexes cannot be fetched from the tier now: %s", error)
                return
            self.missing.discard(one.id)
        self.missing.clear()

    def sweep(self, segments: Iterable[TierSegment]) -> None:
        """Remove the indexes of all other segments from the disk."""
        with contextlib.suppress(OSError):
            here = set(self._on_disk())
            gone = here - {(one.segment.start_offset, one.segment.id) for one in segments} if here else set()
            for offset, segment_id in gone:
                self._fs.unlink(f"{index_folder(self._directory)}/{tier_key_index_name(offset, segment_id)}")

    def expect(self, segment_ids: Iterable[str]) -> None:
        """Note the segments whose index the tier has."""
        with contextlib.suppress(OSError):
            self.missing = set(segment_ids) - {segment_id for _, segment_id in self._on_disk()}

    def _on_disk(self) -> Iterator[tuple[int, str]]:
        """Yield base offset and id of each segment in the tier whose index is on the disk."""
        folder = index_folder(self._directory)
        for info in self._fs.list(folder) if self._fs.exists(folder) else ():
            found = parse_tier_key_index(info.name)
            if found is not None:
                yield found
