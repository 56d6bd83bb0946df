"""`cordwood index`: create or remove the key indexes of segments."""

from __future__ import annotations

import json

from cordwood.cli.main import EXIT_OK, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.commands.index import index
from cordwood.commands.key_options import IndexingOptions


@with_options
def main(directories: Directories, options: IndexingOptions, as_json: Json = False) -> int:
    """Make a key index of each segment: which keys it has, and in which records. No file of the log changes.

    With one, `cordwood get` and `cordwood dump --key` read only the batches that may have the key. An index takes about
    8.5 bytes per record. Those that are up to date stay, and those of segments that are gone or have changed are
    removed or made anew; a segment gets none if the index would be larger than a tenth of it.
    """
    result = index([named(one) for one in directories], options)
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK
