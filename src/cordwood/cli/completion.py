"""Shell completion: topics and partitions of the directories on the command line, and names of configs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cordwood.common.types import TopicPartition


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """List topics in the given directories whose names start with `incomplete`."""
    return sorted({one.topic for one in _partitions_on_the_line(ctx) if one.topic.startswith(incomplete)})


def partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """List partitions in the given directories that start with `incomplete`, only of the chosen topics if any."""
    globs = ctx.params.get("topic") or ctx.params.get("topics") or ()
    found = {
        one
        for one in _partitions_on_the_line(ctx)
        if str(one).startswith(incomplete) and (not globs or any(fnmatchcase(one.topic, glob) for glob in globs))
    }
    return [str(one) for one in sorted(found)]


def configs(incomplete: str) -> list[str]:
    """List configs whose names start with `incomplete`, after `TOPIC:` if it is present."""
    # Import here: it takes longer than completing a topic.
    from cordwood.common.config import BROKER_CONFIGS, TOPIC_CONFIGS

    topic, colon, name = incomplete.rpartition(":")
    known = TOPIC_CONFIGS if colon else {**TOPIC_CONFIGS, **BROKER_CONFIGS}
    return sorted(f"{topic}{colon}{one}=" for one in known if one.startswith(name))


def _partitions_on_the_line(ctx: typer.Context) -> Iterator[TopicPartition]:
    # Typer has not parsed the arguments before an option that still lacks its value.
    for path in (*(ctx.params.get("directories") or ctx.params.get("paths") or ()), *ctx.args):
        yield from _partitions_in(path)


def _partitions_in(path: str) -> Iterator[TopicPartition]:
    """Yield the partitions in a directory or in its subdirectories."""
    from cordwood.common.errors import BadNameError
    from cordwood.storage.formats.filenames import parse_directory

    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            if not entry.is_dir():
                continue
            try:
                yield parse_directory(entry.name).topic_partition
            except BadNameError:
                with contextlib.suppress(OSError, BadNameError):
                    for name in os.listdir(entry.path):
                        yield parse_directory(name).topic_partition


#: Completion function by option.
COMPLETIONS: Mapping[str, Callable[..., list[str]]] = {
    "--topic": topics,
    "--partition": partitions,
    "--config": configs,
    "--against": configs,
}
