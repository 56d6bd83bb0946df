"""What a shell completes: names of topics in the directories that stand on the line already, and names of configs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping

import typer


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics in the named directories that begin like this."""
    # What stands before an option without its value is not parsed yet.
    paths = [*(ctx.params.get("directories") or ctx.params.get("paths") or ()), *ctx.args]
    return sorted({name for path in paths for name in _topics_in(path) if name.startswith(incomplete)})


def configs(incomplete: str) -> list[str]:
    """The names of configs that begin like this, behind `TOPIC:` if there is one."""
    # Loaded only here: it takes longer than completing a topic.
    from cordwood.config import BROKER_CONFIGS, TOPIC_CONFIGS

    topic, colon, name = incomplete.rpartition(":")
    known = TOPIC_CONFIGS if colon else {**TOPIC_CONFIGS, **BROKER_CONFIGS}
    return sorted(f"{topic}{colon}{one}=" for one in known if one.startswith(name))


def _topics_in(path: str) -> Iterator[str]:
    """Topics of the partitions in a directory, or in the directories in it."""
    from cordwood.errors import BadNameError
    from cordwood.storage.formats.filenames import parse_directory

    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            if not entry.is_dir():
                continue
            try:
                yield parse_directory(entry.name).topic_partition.topic
            except BadNameError:
                with contextlib.suppress(OSError, BadNameError):
                    for name in os.listdir(entry.path):
                        yield parse_directory(name).topic_partition.topic


#: By the option that they belong to.
COMPLETIONS: Mapping[str, Callable[..., list[str]]] = {"--topic": topics, "--config": configs, "--against": configs}
