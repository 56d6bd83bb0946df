"""What a shell completes: topics and partitions in the directories that stand on the line already; names of configs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cordwood.types import TopicPartition


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics in the named directories that begin like this."""
    return sorted({one.topic for one in _partitions_on_the_line(ctx) if one.topic.startswith(incomplete)})


def partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """The partitions in the named directories that begin like this; of the chosen topics, if there are some."""
    globs = ctx.params.get("topic") or ctx.params.get("topics") or ()
    found = {
        one
        for one in _partitions_on_the_line(ctx)
        if str(one).startswith(incomplete) and (not globs or any(fnmatchcase(one.topic, glob) for glob in globs))
    }
    return [str(one) for one in sorted(found)]


def configs(incomplete: str) -> list[str]:
    """The names of configs that begin like this, behind `TOPIC:` if there is one."""
    # Loaded only here: it takes longer than completing a topic.
    from cordwood.config import BROKER_CONFIGS, TOPIC_CONFIGS

    topic, colon, name = incomplete.rpartition(":")
    known = TOPIC_CONFIGS if colon else {**TOPIC_CONFIGS, **BROKER_CONFIGS}
    return sorted(f"{topic}{colon}{one}=" for one in known if one.startswith(name))


def _partitions_on_the_line(ctx: typer.Context) -> Iterator[TopicPartition]:
    # What stands before an option without its value is not parsed yet.
    for path in (*(ctx.params.get("directories") or ctx.params.get("paths") or ()), *ctx.args):
        yield from _partitions_in(path)


def _partitions_in(path: str) -> Iterator[TopicPartition]:
    """The partitions in a directory, or in the directories in it."""
    from cordwood.errors import BadNameError
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


#: By the option that they belong to.
COMPLETIONS: Mapping[str, Callable[..., list[str]]] = {
    "--topic": topics,
    "--partition": partitions,
    "--config": configs,
    "--against": configs,
}
