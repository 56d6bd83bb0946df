"""Describe each option once: as a field of a frozen dataclass, with its type, default and help.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Choices:
        first_dirty: Annotated[int | None, Option("Clean from this offset on.", metavar="OFFSET")] = None

From these fields `cli.options` makes the command line, and `api` the arguments of Python functions such as
`cordwood.plan`. A field whose type is itself such a dataclass includes all of its options.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

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
