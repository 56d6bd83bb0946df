"""Options of the command line: generated from options values, completed in a shell, and shared by commands.

`with_options` makes them from the fields that `cordwood.common.arguments` describes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin, get_type_hints

import typer

from cordwood.common.arguments import OptionField, build, option_fields
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import Paged
from cordwood.fs.by_url import file_system_for

if TYPE_CHECKING:
    from cordwood.common.types import TopicPartition

_COUNT = re.compile(r"([0-9]{1,15})([kmg]?)", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,18})([kmgt]?)(?:i?b)?", re.IGNORECASE)


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command one command-line option per field of the options values that it takes."""
    hints = get_type_hints(command, include_extras=True)
    kinds = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters: list[inspect.Parameter] = []
    fields: dict[str, OptionField] = {}
    for one in inspect.signature(command).parameters.values():
        if one.name in kinds:
            # Several options values may share an option.
            new = {option.name: option for option in option_fields(kinds[one.name]) if option.name not in fields}
            parameters += map(_parameter, new.values())
            fields |= new
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(one.replace(annotation=hints[one.name], kind=kind))

    @functools.wraps(command)
    def run(**given: Any) -> int:
        options = {name: _value(one, given.pop(name)) for name, one in fields.items()}
        values = {name: build(kind, options) for name, kind in kinds.items()}
        return command(**given, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameter(field: OptionField) -> inspect.Parameter:
    """Describe a command-line option to Typer."""
    is_list, is_switch = get_origin(field.type) is Sequence, field.type is bool
    text = (field.option.flag_help or field.option.help) + (" Repeatable." if is_list else "")
    kind: Any = list[str] | None if is_list else bool if is_switch else str | None
    if field.type in (int, int | None) and field.option.metavar not in _PARSERS:
        kind = int | None
    option = typer.Option(
        field.flag,
        metavar=field.option.metavar or None,
        help=text,
        rich_help_panel=field.panel or None,
        # A bare number needs no completion.
        autocompletion=None if kind == (int | None) else _COMPLETIONS.get(field.flag),
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_switch else None,
        annotation=Annotated[kind, option],
    )


def _value(field: OptionField, given: Any) -> Any:
    """Convert an option's value from the command line."""
    if field.type is bool:
        return given is not field.default  # a switch inverts the default
    if given is None:
        return field.default
    if field.option.metavar in _PARSERS:
        return _PARSERS[field.option.metavar](given, field.flag)
    return tuple(given) if get_origin(field.type) is Sequence else given


def parse_size(text: str, flag: str) -> int:
    """Parse a size: a number of bytes, or a number with suffix k, m, g or t."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise RequestError(f"{flag} {text}: give a number of bytes, or a size such as 512m or 4g")
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


def parse_count(text: str, flag: str) -> int:
    """Parse a count: a number, or a number with suffix k, m or g for thousands, millions, billions."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{flag} {text}: give a number, or a count such as 500k or 10m")
    return int(match[1]) * int(1000 ** " kmg".index(match[2].lower() or " "))


def _parse_high_watermark(text: str, flag: str) -> int | Literal["end"]:
    if text == "end":
        return "end"
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"{flag} {text}: give an offset, or end") from None


def _parse_share(text: str, flag: str) -> float:
    part = _parse_number(text.strip().removesuffix("%"), flag, "a share, such as 5% or 0.05")
    return part / 100 if text.strip().endswith("%") else part


def _number_parser(what: str) -> Callable[[str, str], float]:
    return lambda text, flag: _parse_number(text, flag, what)


def _parse_number(text: str, flag: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"{flag} {text}: give {what}")
    return value


#: Parsers of option values that Typer cannot parse, by metavar.
_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "BYTES": parse_size,
    "COUNT": parse_count,
    "OFFSET|end": _parse_high_watermark,
    "SHARE": _parse_share,
    "DAYS": _number_parser("a number of days"),
    "EXPONENT": _number_parser("a number, such as 1"),
    "FACTOR": _number_parser("a number, such as 1000"),
}


# ---- completion in a shell -------------------------------------------------------------------------------------------


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """List topics in the given directories whose names start with `incomplete`."""
    return sorted({one.topic for one in _partitions_on_the_line(ctx) if one.topic.startswith(incomplete)})


def _complete_partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """List partitions in the given directories that start with `incomplete`, only of the chosen topics if any."""
    globs = ctx.params.get("topic") or ctx.params.get("topics") or ()
    found = {
        one
        for one in _partitions_on_the_line(ctx)
        if str(one).startswith(incomplete) and (not globs or any(fnmatchcase(one.topic, glob) for glob in globs))
    }
    return [str(one) for one in sorted(found)]


def _complete_configs(incomplete: str) -> list[str]:
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
_COMPLETIONS: Mapping[str, Callable[..., list[str]]] = {
    "--topic": complete_topics,
    "--partition": _complete_partitions,
    "--config": _complete_configs,
    "--against": _complete_configs,
}


# ---- arguments and options of several commands -----------------------------------------------------------------------

Directories = Annotated[
    list[str],
    typer.Argument(metavar="DIR...", help="Log directories of one broker, or partition directories."),
]
ClusterDirectories = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DIR...", help="Log directories of one or more brokers of a cluster, or partition directories."
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", autocompletion=complete_topics, help="Only this topic, or topics that match this glob."),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        autocompletion=_complete_partitions,
        help="Only this partition: its number, its name, or a glob of either.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, with exact bytes and times.")]
Report = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Also write the result to this HTML file, which needs no network."),
]


def check_output(path: str, what: str) -> None:
    """Raise RequestError now if a file could not be written after the work is done.

    Args:
        what: the file's content, for the message.
    """
    fs = file_system_for([path])
    folder = path.rpartition("/")[0] or "."
    if fs.path_on_disk(path) is not None and not fs.exists(folder):
        raise NotFoundError(f"{folder} does not exist, so {path} cannot be written")
    if fs.exists(path) and fs.stat(path).is_directory:
        raise RequestError(f"{path} is a directory; give a file for {what}")


def write_output(path: str, text: str) -> None:
    """Write the file, replacing an existing one. A pipe or device, such as /dev/stdout, gets the text and stays."""
    fs, data = file_system_for([path]), text.encode("utf-8", "backslashreplace")
    if fs.exists(path) and fs.stat(path).is_special:
        Path(fs.path_on_disk(path) or path).write_bytes(data)
    else:
        # A rename over a link would leave a file in its place.
        fs.put(fs.real_path(path) if fs.is_link(path) else path, data)


def check_report(path: str | None) -> None:
    """Raise RequestError now if the report could not be written after the work; see `check_output`."""
    if path is not None:
        check_output(path, "the report")


def write_report(path: str | None, result: Paged) -> None:
    """Write a result as an HTML page if `--report` names a file."""
    if path is not None:
        write_output(path, result.page())
