"""The generations of a log's tier: claims, commits, and the removal of objects that no manifest names.

A manifest is put only if its name is free, so of several writers that commit the same generation one succeeds. The
store needs no renames, no conditions on content, and no shared clock.

    claim      commit the next generation with a higher writer epoch: the old writer's next commit fails
    commit     put the next generation, then list the manifests: the new one must be the last
    sweep      list the objects, then the manifests: if none is newer than ours, every object that ours does not name is
               of a writer that can no longer commit; delete those, and generations that no reader needs

Why a commit lists: old generations are deleted. A writer that slept while another one claimed the log, committed many
generations and deleted the first of them would find its next number free. But then larger numbers exist, as the last
one is never deleted.

Why a sweep lists the manifests after the objects: a new writer claims the log before it writes its first object. So if
no newer claim exists, no listed object is of a newer writer.

An answer may be lost. The store repeats the request, and finds the name taken by its own bytes: that is success. If it
gives up, it is unknown whether the manifest exists; the next commit of this writer then may find its own earlier
attempt under the number, and takes the number after it.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cordwood.common.errors import CorruptFileError, KafkaStorageError, RequestError, StoreError, UnsupportedError
from cordwood.common.text import number
from cordwood.fs.base import PutMode, TargetStore
from cordwood.fs.manifest import TIER_FOLDER
from cordwood.storage.formats.filenames import parse_tier_key_index, parse_tier_manifest, tier_manifest_name
from cordwood.storage.formats.text import shown
from cordwood.storage.log.files import TIER_MANIFEST_BYTES_MAX
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.local import ID_LENGTH
from cordwood.storage.tier.manifest import (
    TierState,
    Writer,
    decode,
    decode_writer,
    empty_state,
    encode,
    is_whole,
)
from cordwood.storage.tier.segments import TopicIdPartition

#: Number of generations that are kept for readers, beside the base of the last one.
KEPT = 10
#: Old generations are deleted after each whole manifest, and after this number of commits.
_DELETED_EVERY = 100
#: How often to list again if a manifest disappears between listing and reading.
_ATTEMPTS = 10
#: A file of a segment, or a temporary file of a killed program; with the segment's id.
_OF_SEGMENT = re.compile(rf"[0-9]{{20}}-([A-Za-z0-9_-]{{{ID_LENGTH}}})\..+")
#: A manifest, or a temporary file of one.
_OF_GENERATION = re.compile(r"([0-9]{20}\.json)(\..+)?")


class FencedError(KafkaStorageError):
    """Another writer has claimed the log, so this one can no longer commit.

    Attributes:
        writer: the new owner of the log.
    """

    def __init__(self, folder: str, writer: Writer) -> None:
        super().__init__(
            f"{folder}: another writer has claimed this log: run {shown(writer.run)} on {shown(writer.host)}, writer "
            f"epoch {writer.epoch}. Nothing more is written from here. Stop one of the two programs; to go on with "
            "this one, stop the other and open the log again"
        )
        self.writer = writer


class Generations:
    """The manifests of one partition; used by one thread at a time.

    Attributes:
        key_indexed: ids of the segments that had a key index beside their objects at the last sweep.
    """

    def __init__(self, store: TargetStore, layout: AivenLayout, partition: TopicIdPartition) -> None:
        """Find the manifests' folder.

        Args:
            store: contains the tier.
            layout: its objects; its root ends with a slash, unless there are objects already.
        """
        self.key_indexed: set[str] = set()
        self._store = store
        self._partition = partition
        self._objects = layout.folder(partition)
        self._folder = f"{self._objects}/{TIER_FOLDER}"
        #: The last whole state that was read or committed.
        self._base: TierState | None = None

    # ---- reading -----------------------------------------------------------------------------------------------------

    def newest(self) -> TierState | None:
        """Read the last generation; None if the log has no manifest, or a broker owns its tier.

        Raises:
            CorruptFileError: a manifest is damaged, or the base of the last one is missing.
            StoreError: the object store failed.
        """
        state = self._last_state()
        return None if state is None or state.handed_over else state

    def _last_state(self) -> TierState | None:
        """Read the last generation; None if the log has no manifest. One list, and at most two files.

        Raises:
            CorruptFileError: a manifest is damaged, or the base of the last one is missing.
            StoreError: the object store failed.
        """
        for _ in range(_ATTEMPTS):
            generation = self._last(self._generations())
            if not generation:
                return None
            try:
                return self._read(generation)
            except (FileNotFoundError, StoreError) as error:
                # A writer may have deleted it after the listing; then there is a newer one.
                if self._last(self._generations()) != generation:
                    continue
                if isinstance(error, StoreError):
                    raise
                what = f"it changes a generation that is missing: {error.filename}"
                raise CorruptFileError(what, path=self._path(generation)) from None
        raise StoreError(f"its manifests were replaced {_ATTEMPTS} times while they were read", self._folder)

    def _read(self, generation: int) -> TierState:
        base: TierState | None = None

        def read_base(number: int) -> TierState:
            nonlocal base
            path = self._path(number)
            if self._base is not None and self._base.generation == number:
                base = self._base
            else:
                base = decode(self._content(path), path, self._partition, _refuse_base(path))
            return base

        path = self._path(generation)
        state = decode(self._content(path), path, self._partition, read_base)
        self._base = base or state
        return state

    def _content(self, path: str) -> bytes:
        with self._store.open(path) as file:
            if (size := file.size()) > TIER_MANIFEST_BYTES_MAX:
                raise CorruptFileError(f"the manifest has {size} bytes, more than {TIER_MANIFEST_BYTES_MAX}", path=path)
            return file.read(0, size)

    def _path(self, generation: int) -> str:
        return f"{self._folder}/{tier_manifest_name(generation)}"

    def _names(self, folder: str) -> Sequence[str]:
        try:
            return [name for name, is_directory in self._store.names_in(folder).items() if not is_directory]
        except FileNotFoundError:
            return []

    def _generations(self) -> Sequence[int]:
        return sorted(one for name in self._names(self._folder) if (one := parse_tier_manifest(name)) is not None)

    @staticmethod
    def _last(generations: Sequence[int]) -> int:
        return generations[-1] if generations else 0

    # ---- writing -----------------------------------------------------------------------------------------------------

    def claim(self, run: str, host: str) -> TierState:
        """Become the writer of the log, and return its state; every other writer is fenced from now on.

        Args:
            run: random text of this run.
            host: name of this machine.

        Raises:
            FencedError: another program claimed the log at the same time.
            RequestError: the tier has segments of this partition, and no manifest: a broker wrote them.
            StoreError: the object store failed; the log may be claimed nevertheless.
        """
        state = self._last_state()
        if state is None or state.handed_over:
            self._refuse_foreign()
            state = self._emptied(state)
        while True:
            try:
                return self.commit(replace(state, writer=Writer(state.writer.epoch + 1, run, host)))
            except FencedError:
                newest = self._last_state()
                if newest is None or newest.writer != state.writer:
                    raise
                state = newest  # the previous writer committed meanwhile

    def adopt(self, state: TierState, run: str, host: str) -> TierState:
        """Become the writer of a log that a broker owned, and return its state with its number.

        Args:
            state: the state of the log; its generation and writer do not count.
            run, host: see `claim`.

        Raises:
            FencedError: another program claimed the log at the same time.
            StoreError: the object store failed; the log may be adopted nevertheless.
        """
        last = self._emptied(self._last_state())
        return self.commit(replace(state, generation=last.generation, writer=Writer(last.writer.epoch + 1, run, host)))

    def hand_over(self, state: TierState) -> None:
        """Give the log to a broker: no program can claim it while the tier has segments.

        Args:
            state: the last committed state of this writer.

        Raises:
            FencedError: another writer has claimed the log.
            StoreError: the object store failed; see `commit`.
        """
        self.commit(replace(state, segments=(), gone=(), handed_over=True))

    def _emptied(self, state: TierState | None) -> TierState:
        """Return the state of an empty log, with the number and the writer of a state."""
        empty = empty_state(self._partition)
        return empty if state is None else replace(empty, generation=state.generation, writer=state.writer)

    def _refuse_foreign(self) -> None:
        """Raise RequestError if the partition has objects: `sweep` would delete them."""
        segments = {match[1] for name in self._names(self._objects) if (match := _OF_SEGMENT.fullmatch(name))}
        if segments:
            raise RequestError(
                f"{self._objects} has {number(len(segments), 'segment')} and no manifest, so another program wrote "
                "them, such as a broker with Aiven's plugin. Choose another place for the tier; or take it over, once "
                "the broker has stopped: cordwood tier adopt"
            )

    def commit(self, state: TierState) -> TierState:
        """Make a state the next generation, durably, and return it with its number.

        Args:
            state: the last committed state with changes; its generation is that of the last committed state.

        Raises:
            FencedError: another writer has claimed the log. It may have done so after this commit, and have its state.
            RequestError: the manifest would be too large.
            StoreError: the object store failed; it is unknown whether the state was committed. The next commit of this
                writer decides: it replaces this one.
        """
        base = self._base
        committed = replace(state, generation=state.generation + 1)
        while not self._put(committed, base):
            committed = replace(committed, generation=committed.generation + 1)
        generations = self._generations()
        if self._last(generations) > committed.generation:
            # It is the predecessor of a claim; or its name was free because old generations had been deleted.
            raise self._fenced(committed.writer)
        whole = is_whole(committed, base)
        self._base = committed if whole else base
        if whole or committed.generation % _DELETED_EVERY == 0:
            # Readers that listed the manifests before may still need the last ones, and their base.
            needed = {one.generation for one in (base, self._base) if one is not None}
            old = [one for one in generations if one <= committed.generation - KEPT and one not in needed]
            # The state is committed in any case, and the next sweep deletes them.
            with contextlib.suppress(OSError, StoreError):
                self._store.delete_all([self._path(one) for one in old])
        return committed

    def _put(self, state: TierState, base: TierState | None) -> bool:
        """Put the manifest of a state.

        Returns:
            False if an earlier attempt of this writer, whose answer was lost, has the generation.

        Raises:
            FencedError: another writer has it.
        """
        path, data = self._path(state.generation), encode(state, base)
        if len(data) > TIER_MANIFEST_BYTES_MAX:
            raise RequestError(
                f"{path}: the manifest would have {len(data):,} bytes, more than {TIER_MANIFEST_BYTES_MAX:,}"
            )
        failure: StoreError | None = None
        try:
            try:
                self._store.put(path, data, PutMode.CREATE)
            except FileNotFoundError:
                make_folders(self._store, self._folder)
                self._store.put(path, data, PutMode.CREATE)
            return True
        except FileExistsError:
            pass
        except StoreError as error:
            failure = error
        try:
            found = self._content(path)
        except (FileNotFoundError, StoreError):
            raise failure or self._fenced(state.writer) from None
        if found == data:
            return True
        if (writer := decode_writer(found, path)) != state.writer:
            raise FencedError(self._folder, writer)
        return False

    def _fenced(self, writer: Writer) -> FencedError:
        """Return the error for a writer whose generation is taken."""
        newest = self._last_state()
        return FencedError(self._folder, writer if newest is None else newest.writer)

    def sweep(self, state: TierState) -> int:
        """Delete the objects that a state does not name, and generations that no reader needs; return their number.

        Call it after a claim, and before this writer uploads anything: its own uploads would not be named either.

        Raises:
            FencedError: another writer has claimed the log; nothing is deleted.
            StoreError: the object store failed; some objects may be deleted.
        """
        objects = self._names(self._objects)
        names = self._names(self._folder)
        found = (parse_tier_key_index(name) for name in objects)
        named = {one.segment.id for one in state.segments}
        self.key_indexed = {one[1] for one in found if one is not None and one[1] in named}
        last = self._last(sorted(one for name in names if (one := parse_tier_manifest(name)) is not None))
        if last != state.generation:
            raise self._fenced(state.writer)
        if self._base is None:
            self._last_state()
        base = last if self._base is None else self._base.generation
        kept = {one.segment.id for one in state.segments} | {one.segment.id for one in state.gone}
        old = [
            f"{self._objects}/{name}"
            for name in objects
            if (match := _OF_SEGMENT.fullmatch(name)) and match[1] not in kept
        ]
        for name in names:
            if (match := _OF_GENERATION.fullmatch(name)) and (generation := parse_tier_manifest(match[1])) is not None:
                is_old = generation < base or base < generation <= last - KEPT
                if is_old or (match[2] and generation <= last):
                    old.append(f"{self._folder}/{name}")
        self._store.delete_all(old)
        return len(old)


def _refuse_base(path: str) -> Callable[[int], TierState]:
    def read_base(_: int) -> TierState:
        raise CorruptFileError("it is not whole, although a later generation changes it", path=path)

    return read_base


def partitions_in(layout: AivenLayout) -> Iterator[TopicIdPartition]:
    """Yield the partitions of a tier that have manifests."""
    for path, partition in layout.folders():
        if any(parse_tier_manifest(name) is not None for name in layout.names_in(f"{path}/{TIER_FOLDER}")):
            yield partition


# ---- stores ----------------------------------------------------------------------------------------------------------


def make_folders(store: TargetStore, path: str) -> None:
    """Make a directory durably, and those above it; a bucket has none.

    Raises:
        FileNotFoundError: there is no such bucket.
    """
    if store.reads_by_request(path):
        raise FileNotFoundError(errno.ENOENT, "there is no such bucket", path)
    missing = []
    while not store.exists(path):
        missing.append(path)
        path = posixpath.dirname(path) or "."
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            store.make_directory(folder)
        store.sync_directory(posixpath.dirname(folder) or ".")


def check_store(store: TargetStore, root: str) -> None:
    """Make sure that a store refuses to create an object that exists, as claims and commits depend on it.

    Raises:
        RequestError: it does not; the message names the store.
        StoreError: the object store failed.
    """
    path = f"{root.rstrip('/')}/{TIER_FOLDER}-probe-{secrets.token_hex(8)}"
    try:
        try:
            store.put(path, b"1", PutMode.CREATE)
        except FileNotFoundError:
            make_folders(store, posixpath.dirname(path))
            store.put(path, b"1", PutMode.CREATE)
    except UnsupportedError:
        raise RequestError(_no_create(root)) from None
    try:
        store.put(path, b"2", PutMode.CREATE)
    except FileExistsError:
        return
    finally:
        with contextlib.suppress(FileNotFoundError):
            store.delete(path)
    raise RequestError(_no_create(root))


def _no_create(root: str) -> str:
    return (
        f"{root}: the store replaces an object that should only be created if it is absent, so two programs could "
        "write one log. Use a store with conditional writes (If-None-Match: *), such as Amazon S3, Google Cloud "
        "Storage, Azure Blob Storage, or a local disk"
    )
