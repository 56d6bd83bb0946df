"""Options that several verbs share: which partitions, by what configs, by what choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cordwood.errors import RequestError

if TYPE_CHECKING:
    from cordwood.commands.options import PlanOptions

_SIZE = re.compile(r"([0-9]{1,18})([kmgt]?)(?:i?b)?", re.IGNORECASE)

Directories = Annotated[
    list[str], typer.Argument(metavar="DIR...", help="Log directories of one broker, or partitions' directories.")
]
OnlyTopic = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic, or those that match this glob.")]
OnlyPartition = Annotated[
    list[str] | None,
    typer.Option("--partition", help="Only this partition: its number, its name, or a glob of either."),
]
Now = Annotated[int | None, typer.Option(metavar="MS", help="The time to decide by, in milliseconds since 1970.")]
Config = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A config, or TOPIC:KEY=VALUE; wins over all others.")
]
ServerProperties = Annotated[
    str | None, typer.Option(metavar="FILE", help="The broker's settings, for configs that topics don't have.")
]
Metadata = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where __cluster_metadata-0 is, when it is in none of DIR….")
]
IgnoreRatio = Annotated[bool, typer.Option("--ignore-ratio", help="Clean however little is dirty.")]
FirstDirty = Annotated[
    int | None, typer.Option(metavar="OFFSET", help="Clean again from this offset on, whatever the checkpoint says.")
]
HighWatermark = Annotated[
    str | None, typer.Option(metavar="OFFSET|end", help="What all replicas have; nothing above it is cleaned.")
]
Retention = Annotated[bool, typer.Option("--retention", help="Delete old segments, too, by limits that somebody set.")]
SingleCopy = Annotated[
    bool, typer.Option("--single-copy", help="There is no other replica: expired tombstones may go for good.")
]
OffsetMap = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Clean in rounds, as Kafka would with an offset map of this size.")
]
StrictKafka = Annotated[
    bool, typer.Option("--strict-kafka", help="Do exactly as Kafka: use its offset map, and fail where it would.")
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="What all tasks on a machine may take for keys: 512m, 4g; default: a quarter."),
]
Master = Annotated[str, typer.Option(metavar="URL", help="Where Spark runs.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document, with exact bytes and times.")]


def plan_options(given: Mapping[str, Any]) -> PlanOptions:
    """What a verb's parameters, by their names, mean for a plan.

    Raises:
        RequestError: one of them means nothing.
    """
    return {
        "topics": given["topic"] or (),
        "partitions": given["partition"] or (),
        "now_ms": given["now"],
        "overrides": given["config"] or (),
        "server_properties": given["server_properties"],
        "metadata": given["metadata"],
        "ignore_ratio": given["ignore_ratio"],
        "first_dirty": given["first_dirty"],
        "high_watermark": high_watermark_of(given["high_watermark"]),
        "retention": given["retention"],
        "single_copy": given["single_copy"],
        "offset_map": bytes_of(given["offset_map"], "--offset-map"),
        "strict_kafka": given["strict_kafka"],
        "memory": bytes_of(given["memory"], "--memory"),
    }


def bytes_of(text: str | None, option: str) -> int | None:
    """A size: a number of bytes, or one with k, m, g or t behind it.

    Raises:
        RequestError: it is none.
    """
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise RequestError(f"{option} {text}: give a number of bytes, or one like 512m or 4g")
    return int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ")


def high_watermark_of(text: str | None) -> int | Literal["end"] | None:
    """What `--high-watermark` says.

    Raises:
        RequestError: it is neither an offset nor `end`.
    """
    if text is None or text == "end":
        return "end" if text else None
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"--high-watermark {text}: give an offset, or end") from None
