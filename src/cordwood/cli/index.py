"""`cordwood index`: create or remove the key indexes of segments."""

from __future__ import annotations

import json

from cordwood.cli.main import EXIT_OK, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.commands.index import index
from cordwood.commands.options import IndexingOptions


@with_options
def main(directories: Directories, options: IndexingOptions, as_json: Json = False) -> int:
    """Make a key index of each segment: its keys, and the records that have them. No file of the log changes.

    With an index, `cordwood get` and `cordwood dump --key` read only the batches that may have the key. An index takes
    about 8.5 bytes per record. Indexes that are up to date stay; indexes of deleted segments are removed, and those of
    changed segments are made again. A segment gets no index larger than a tenth of it.
    """
    result = index([named(one) for one in directories], options)
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK
