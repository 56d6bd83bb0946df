"""`erase-check`: whether any trace of some keys remains in directories of brokers, copies or backups.

    every file ──► is searched, whatever its type ──► traces ──► the step that removes each trace
                       │                                  ▲
                       size, SHA-256                      the log of the record: superseded, and which clean removes it

The check trusts no index or checkpoint: it reads all bytes of all files, including files that brokers ignore. Files
that appear or change during the check are searched again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from threading import Lock

import cordwood.commands.report.erasure  # noqa: F401 - so that a result can show itself
from cordwood.commands.key_options import EraseCheckOptions
from cordwood.commands.selection import Selection
from cordwood.commands.trace_files import FileToCheck, files_in
from cordwood.commands.trace_steps import Judge
from cordwood.commands.why.found_keys import CheckedFile, ErasureResult, FoundTrace
from cordwood.common.clock import Clock, system_clock
from cordwood.common.errors import ConfigError, NotFoundError, RequestError
from cordwood.common.threads import in_parallel
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.fs.machine import local_cores
from cordwood.storage.index.byte_search import KEY_BYTES_MIN
from cordwood.storage.index.traces import LookedAt, TraceKind, TraceSearch
from cordwood.storage.node.node import Node
from cordwood.tables.decoders.keys import Coder, schema_folder

_ROUNDS = 4
#: Called with the bytes searched so far, and the bytes of all files.
OnProgress = Callable[[int, int], None]


def erase_check(
    paths: Sequence[str],
    keys: Sequence[bytes | str],
    options: EraseCheckOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> ErasureResult:
    """Look for traces of keys in all files of some directories, and list the steps that remain.

    Every byte of every file is read, and nothing is changed; brokers may be running. `page()` of the result is the
    certificate as an HTML file.

    Args:
        paths: directories of brokers, copies, folders of kept files: all that may have traces.
        keys: bytes, or text as `key_as` says.
        on_progress: called with the bytes of files that were looked at, and of all.

    Raises:
        NotFoundError: there is nothing at a path, or no file was selected.
        RequestError: a path is a file; or a key is not what `key_as` says.
        ConfigError: Kafka would not accept a config.
    """
    chosen = options.selection
    if not keys:
        raise RequestError("no key was given")
    folder = schema_folder(options.key_as)
    fs = fs or file_system_for([*paths, chosen.metadata, chosen.server_properties, folder])
    coder = Coder(options.key_as, fs)
    raw = sorted({key for one in keys for key in coder.encode(one)})
    started_ms = clock()
    search = TraceSearch(fs, raw, values=options.values)
    nodes = [_node(fs, path, chosen) for path in paths]
    files, looked_at, unknown = _look_at_all(fs, paths, chosen, search, on_progress)
    judge = Judge(
        fs, [node for node in nodes if node is not None], started_ms if options.now_ms is None else options.now_ms
    )
    judge.judge_logs(files, looked_at)
    traces = [trace for file in files for trace in judge.traces(file, looked_at[file.path])]
    shown = dict(zip(raw, coder.decode(raw), strict=True))
    return ErasureResult(
        version("cordwood"),
        started_ms,
        clock(),
        tuple(paths),
        tuple(fs.absolute_path(path) for path in paths),
        tuple(chosen.topics),
        tuple(chosen.partitions),
        len(raw),
        _digest(raw),
        options.values,
        tuple(_checked(files, looked_at, traces)),
        tuple(replace(trace, key=shown[trace.key]) for trace in traces),
        (*_never_known(raw, options), *unknown, *judge.notes),
    )


def _node(fs: Store, path: str, chosen: Selection) -> Node | None:
    """Open a directory as a broker's, for its configs; None if it is not a broker's directory."""
    try:
        return Node.open(fs, [path], chosen.metadata, chosen.server_properties, chosen.overrides)
    except ConfigError:
        raise
    except RequestError:
        return None


def _digest(keys: Sequence[bytes]) -> str:
    found = hashlib.sha256()
    for key in keys:
        found.update(len(key).to_bytes(4, "big") + key)
    return found.hexdigest()


def _checked(
    files: Iterable[FileToCheck], looked_at: Mapping[str, LookedAt], traces: Iterable[FoundTrace]
) -> Iterator[CheckedFile]:
    """Yield the files with their traces by kind; a record counts as superseded only if its trace has a description."""
    superseded: Counter[tuple[str, TraceKind]] = Counter()
    for trace in traces:
        if trace.kind is TraceKind.SUPERSEDED and trace.record is not None:
            superseded[trace.path, TraceKind.TOMBSTONE if trace.record.is_tombstone else TraceKind.RECORD] += 1
    for file in files:
        found = looked_at[file.path]
        counts = Counter(found.counts)
        for kind in (TraceKind.RECORD, TraceKind.TOMBSTONE):
            counts[kind] -= superseded[file.path, kind]
            counts[TraceKind.SUPERSEDED] += superseded[file.path, kind]
        yield CheckedFile(file.role, found, {kind: count for kind, count in counts.items() if count > 0})


# ---- searching ------------------------------------------------------------------------------------------------------


def _look_at_all(
    fs: Store, paths: Sequence[str], chosen: Selection, search: TraceSearch, on_progress: OnProgress | None
) -> tuple[list[FileToCheck], dict[str, LookedAt], list[str]]:
    """Search all files, and changed files again; the third value has notes on files that kept changing."""
    states: dict[str, tuple[int, int, int]] = {}
    done: dict[str, LookedAt] = {}
    mutex, progress = Lock(), [0, 0]

    def look_at(file: FileToCheck) -> None:
        try:
            found = LookedAt(file.path, problems=[file.problem]) if file.problem else search.look_at(file.path)
        except FileNotFoundError:
            return  # the next listing has its new name, if any
        with mutex:
            done[file.path], states[file.path] = found, file.state
            progress[0] += found.size_bytes
            if on_progress is not None:
                on_progress(*progress)

    files: list[FileToCheck] = []
    changed: list[FileToCheck] = []
    for _ in range(_ROUNDS):
        files = [file for path in paths for file in files_in(fs, path.rstrip("/") or "/", chosen)]
        changed = [file for file in files if states.get(file.path) != file.state]
        if not changed:
            break
        progress[1] += sum(file.info.size_bytes for file in changed)
        in_parallel(max(fs.concurrency, local_cores()), look_at, changed)
    if not files:
        what = ", ".join([*chosen.topics, *chosen.partitions])
        raise NotFoundError(f"There is no file in {', '.join(paths)}" + (f" that belongs to {what}" if what else ""))
    late = [file.path for file in files if file.path not in done]
    for path in late:
        done[path] = LookedAt(path, problems=["it appeared or changed too often to be looked at"])
    grown = [file.path for file in changed if file.path not in late]
    notes = [f"it is being written to; what was added later was not looked at: {path}" for path in grown]
    return files, done, notes


def _never_known(keys: Sequence[bytes], options: EraseCheckOptions) -> Iterator[str]:
    """Yield the limits of any search through files."""
    yield "blocks that a disk or store has freed, its snapshots, old versions of objects and backups may hold the bytes"
    yield "other replicas, tiers, mirrors, archives and consumers have copies of their own: give all their directories"
    yield "keys are compared byte by byte: the same person under another key or encoding is not found"
    if not options.values:
        yield "values and headers were not searched: --values looks for the keys in them"
    else:
        yield "values that a producer compressed or encrypted are searched as they are"
    short = sum(len(key) < KEY_BYTES_MIN for key in keys)
    if short:
        yield f"{short} keys of fewer than {KEY_BYTES_MIN} bytes were looked for as keys of records only, not as bytes"
