"""`fetch`: downloads a broker's directory from an object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cordwood.commands.report.fetch  # noqa: F401 - so that a result can show itself
from cordwood.commands.copies import explain_full_disk
from cordwood.common.arguments import AnyPath, text_paths
from cordwood.common.errors import RequestError
from cordwood.fs.by_url import UrlStore
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.storage.changes.fetch import FetchResult, fetch_directory
from cordwood.storage.check.warnings import texts
from cordwood.storage.node.directory import check_outside_logs


def fetch(
    source: AnyPath,
    target: AnyPath,
    *,
    on_forecast: Callable[[Sequence[str]], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> FetchResult:
    """Bring a directory from an object store to this machine; it appears at the end, complete, or not at all.

    Every file gets its modification time back, by which Kafka's retention goes where records have no timestamps.

    Args:
        source: URL of a broker's log directory, or of any directory in it.
        target: a new or empty directory.
        on_forecast: called first with what keeps a broker from serving all of the source, a line each.
        on_progress: called with the number of bytes copied so far, and the number there are.

    Raises:
        NotFoundError: there is nothing at the source.
        RequestError: the source is not in an object store, or is a copy that was not finished; or the target is not
            new or empty, or in a broker's log directory.
        NoSpaceError: the disk is too small.
        CorruptFileError: a file does not have the checksum that the manifest of its copy lists.
    """
    source, target = text_paths((source, target))
    objects = ObjectTargetStore()
    fs = UrlStore(objects)
    if fs.path_on_disk(source) is not None:
        raise RequestError(f"{source} is not in an object store. Give a URL, such as s3://BUCKET/PATH")
    if fs.path_on_disk(target) is None:
        raise RequestError(f"{target} is in an object store. Give a directory of this machine")
    source = fs.absolute_path(source)
    check_outside_logs(fs, target)
    if on_forecast is not None:
        on_forecast(texts(fs, [source]))
    with explain_full_disk(fs, target):
        return fetch_directory(
            fs,
            source,
            target,
            has_checksums=objects.is_finished_copy(source),
            on_bytes=on_progress or (lambda _done, _total: None),
        )
