"""Arguments of commands and calls: options, each described once, and checks of what a Python program passes.

An option is a field of a frozen dataclass, with its type, default and help:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Choices:
        first_dirty: Annotated[int | None, Option("Clean from this offset on.", metavar="OFFSET")] = None

From these fields `cli.options` makes the command line, and `api` the arguments of Python functions such as
`cordwood.plan`. A field whose type is itself such a dataclass includes all of its options.
"""

from __future__ import annotations

import ast
import os
import re
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from cordwood.common.errors import RequestError

#: The types of paths that users may pass.
AnyPath: TypeAlias = str | os.PathLike[str]

_WORDS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    bytes: "bytes",
    type(None): "None",
}
_WORDS_FOR_MANY: Mapping[Any, str] = {int: "whole numbers", str: "texts", bytes: "bytes"}
#: Maximum length of a value in an error, in characters.
_SHOWN = 60


def text_paths(paths: Iterable[AnyPath]) -> tuple[str, ...]:
    """Convert paths to text."""
    return tuple(os.fspath(path) for path in paths)


def no_path(function: str) -> TypeError:
    """Return the error for a call without paths, such as from a pattern without a match: the call would do nothing."""
    return TypeError(f"{function}() is given no path: give at least one")


def misspelt(function: str, error: TypeError, names: Iterable[str]) -> TypeError:
    """Return the error for a call with wrong arguments, with the function's name and the nearest argument's name."""
    from difflib import get_close_matches  # only a misspelt argument needs it

    _, unexpected, given = str(error).partition("unexpected keyword argument ")
    nearest = get_close_matches(given.strip("'"), list(names), n=1) if unexpected else []
    return TypeError(f"{function}() {error}" + (f"; did you mean {nearest[0]}?" if nearest else ""))


def checked(name: str, kind: Any, given: Any) -> Any:
    """Return an argument of a Python call, with a path as text.

    Raises:
        TypeError: the argument has another type.
    """
    value = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not _is_a(value, kind):
        lone = isinstance(value, str | bytes) and get_origin(kind) is Sequence
        raise TypeError(
            f"{name} is {_in_words(kind)}: pass [{value!r}], not {value!r}"
            if lone
            else f"{name} is {_in_words(kind)}, not {shown(value)}"
        )
    return value


def check_whole(name: str, number: object) -> None:
    """Raise TypeError unless a value is a whole number; avoids `checked`, which takes longer than a small append."""
    if type(number) is not int:
        checked(name, int, number)


def check_number(name: str, number: int, least: int, most: int) -> None:
    """Raise an error unless a value is a whole number in a range."""
    check_whole(name, number)
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; it can be {least} to {most}")


def _is_a(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_is_a(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is Sequence:
        if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
            return False
        # Check one value of each class only: there may be a million keys.
        return all(_is_a(each, parts[0]) for each in {type(each): each for each in value}.values())
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_is_a(k, parts[0]) and _is_a(v, parts[1]) for k, v in value.items())
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def _in_words(kind: Any, words: Mapping[Any, str] = _WORDS) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_in_words(part, words) for part in parts)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is Sequence:
        return f"a list of {_in_words(parts[0], _WORDS_FOR_MANY)}"
    if origin is Mapping:
        return f"a mapping of {' to '.join(_in_words(part, _WORDS_FOR_MANY) for part in parts)}"
    return words[kind]


def shown(value: object) -> str:
    """Format a value of the wrong type for an error."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'} ({type(value).__name__})"


# ---- options ---------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")

#: Options with a metavar that starts with one of these are paths; a number may follow.
_PATHS = ("DIR", "FILE")


@dataclass(frozen=True, slots=True)
class Option:
    """Description of an option, besides the type and default of its field.

    Attributes:
        help: effect of the option, for users of the command line and of Python.
        flag: its name on the command line; empty for the field's name with dashes.
        metavar: name of its value on the command line; also selects its parser: see `cli.options`.
        flag_help: effect of the flag, if it is the opposite of the argument in Python.
    """

    help: str
    flag: str = ""
    metavar: str = ""
    flag_help: str = ""


def named_path(text: str, flag: str) -> tuple[str, str]:
    """Parse `NAME=DIR`: the name of a broker, and a path, which may have further `=`, as in `s3://bucket/date=2026-11-29`.

    Raises:
        RequestError: the name or the path is missing or invalid.
    """
    name, _, path = text.partition("=")
    if not path or not re.fullmatch(r"[A-Za-z0-9._-]+", name, re.ASCII):
        raise RequestError(f"{flag} {text}: give NAME=DIR, such as 1=/backup/broker-1")
    return name, path


# Options shared by several commands, with the same help everywhere.
TOPICS = Option("Only topics with this name, or matching this glob.", flag="--topic", metavar="TOPIC")
METADATA = Option("The directory that contains __cluster_metadata-0. Default: one of the given paths.", metavar="DIR")
SERVER_PROPERTIES = Option("The broker's server.properties file, for configs that topics do not set.", metavar="FILE")
NOW = Option("Decide as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS")
SINGLE_COPY = Option("I confirm that there is no other replica: also remove expired tombstones and markers.")
NO_BROKER_ELSEWHERE = Option("I confirm that no broker on another machine uses this network disk.")
SEED = Option("Seed for random choices. Default: 7.", metavar="NUMBER")


@dataclass(frozen=True, slots=True)
class OptionField:
    """One option, read from its field.

    Attributes:
        type_text: its type as in the source.
        panel: its heading in the command's help: `PANEL` of the field's class.
    """

    name: str
    type: Any
    type_text: str
    default: Any
    option: Option
    panel: str = ""

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return self.option.flag or "--" + self.name.replace("_", "-")

    @property
    def argument_text(self) -> str:
        """The type of its argument in a Python signature."""
        is_path = self.option.metavar.startswith(_PATHS)
        return self.type_text.replace("str", "AnyPath") if is_path else self.type_text


def option_fields(kind: type) -> Iterator[OptionField]:
    """Yield all options of an options class, including those of nested options classes."""
    hints = get_type_hints(kind, include_extras=True)
    for one in _fields(kind):
        hint = hints[one.name]
        if is_dataclass(hint):
            assert isinstance(hint, type), "a class, not a value"
            yield from option_fields(hint)
            continue
        assert get_origin(hint) is Annotated and one.default is not MISSING, f"{one.name} has no help or no default"
        value_type, option = get_args(hint)
        text = _type_text(str(one.type))
        yield OptionField(one.name, value_type, text, one.default, option, getattr(kind, "PANEL", ""))


def build(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Build an options value from the values of its options, by name."""
    hints = get_type_hints(kind)
    return kind(
        **{
            one.name: build(hints[one.name], values) if is_dataclass(hints[one.name]) else values[one.name]
            for one in _fields(kind)
        }
    )


def _type_text(annotation: str) -> str:
    """Return TYPE of the annotation `Annotated[TYPE, OPTION]`, as text."""
    annotated = ast.parse(annotation, mode="eval").body
    assert isinstance(annotated, ast.Subscript) and isinstance(annotated.slice, ast.Tuple), annotation
    return ast.unparse(annotated.slice.elts[0]).replace("'", '"')


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)
