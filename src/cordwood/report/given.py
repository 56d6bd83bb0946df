"""A JSON document that somebody gave us: nothing in it is taken for granted, and what is wrong is said with its place.

given = Given.parse(data)
given["partitions"].items()[3]["bytes_before"].count()
RequestError: partitions[3].bytes_before: expected a whole number from 0 on, found "x"
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, NoReturn, Self, TypeVar, get_args, get_origin, get_type_hints

from cordwood.errors import RequestError

_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=StrEnum)
_COUNT_MAX = 2**63 - 1
#: Of a value that is wrong, so much is shown.
_SHOWN_MAX = 60
#: A value of any type is nested no deeper than this.
_DEPTH_MAX = 32


@dataclass(frozen=True, slots=True)
class Given:
    """A value of a document, and where it stands there; empty: it is the document."""

    value: Any
    where: str = ""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """A document.

        Raises:
            RequestError: it is no JSON.
        """
        try:
            return cls(json.loads(data, parse_constant=_refuse))
        except RecursionError:
            raise RequestError("it is nested too deeply") from None
        except ValueError as error:  # of JSON, of UTF-8, of numbers with thousands of digits
            raise RequestError(f"it is no JSON: {error}") from None

    def wrong(self, what: str) -> RequestError:
        """The error that says what is wrong with it."""
        return RequestError(f"{self.where}: {what}" if self.where else what)

    def _expected(self, what: str) -> RequestError:
        shown = json.dumps(self.value)[: _SHOWN_MAX + 1] if isinstance(self.value, str | int | float) else ""
        if len(shown) > _SHOWN_MAX:
            shown = f"{shown[:_SHOWN_MAX]}…"
        kinds = {dict: "an object", list: "a list", type(None): "null"}
        return self.wrong(f"expected {what}, found {shown or kinds[type(self.value)]}")

    def __getitem__(self, name: str) -> Given:
        """A field of an object."""
        if name not in self.names():
            raise self.wrong(f"there is no {name!r}")
        return Given(self.value[name], f"{self.where}.{name}" if self.where else name)

    def names(self) -> list[str]:
        """The names of an object's fields."""
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        return list(self.value)

    def items(self) -> list[Given]:
        """The values of a list."""
        if not isinstance(self.value, list):
            raise self._expected("a list")
        return [Given(value, f"{self.where}[{number}]") for number, value in enumerate(self.value)]

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self._expected("a text")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """Several texts."""
        return tuple(item.text() for item in self.items())

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self._expected("true or false")
        return self.value

    def count(self) -> int:
        """A whole number from 0 on."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _COUNT_MAX:
            raise self._expected("a whole number from 0 on")
        return value

    def whole(self) -> int:
        """A whole number, which may be below 0."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _COUNT_MAX:
            raise self._expected("a whole number")
        return value

    def amount(self) -> float:
        """A number from 0 on."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _COUNT_MAX:
            raise self._expected("a number from 0 on")
        return float(value)

    def word(self, kind: type[_Word]) -> _Word:
        """One of some words."""
        found = next((word for word in kind if word == self.value), None)
        if found is None:
            raise self._expected(f"one of {', '.join(kind)}")
        return found

    def plain(self, depth: int = _DEPTH_MAX) -> Any:
        """Any value, as a key has; an object of nothing but `hex` is bytes.

        Raises:
            RequestError: it is nested too deeply to be shown.
        """
        value = self.value
        if isinstance(value, dict | list) and not depth:
            raise self.wrong("it is nested too deeply")
        if isinstance(value, list):
            return [item.plain(depth - 1) for item in self.items()]
        if isinstance(value, float) and not math.isfinite(value):
            raise self._expected("a number that JSON can have")
        if not isinstance(value, dict):
            return value
        if list(value) == ["hex"] and isinstance(value["hex"], str):
            with contextlib.suppress(ValueError):
                return bytes.fromhex(value["hex"])
        return {name: self[name].plain(depth - 1) for name in value}

    def values(self, kind: Callable[..., _T]) -> _T:
        """A value of a dataclass, as `asdict` and JSON write it; no number is below 0."""
        found = {name: _read(self[name], hint) for name, hint in _hints(kind).items()}
        try:
            return kind(**found)
        except RequestError as error:
            raise self.wrong(str(error)) from None

    def same(self, wanted: Any) -> None:
        """Make sure that it is what follows from the other values.

        Raises:
            RequestError: it is not.
        """
        if self.value != wanted:
            raise self._expected(f"{json.dumps(wanted)}, which follows from the rest")

    def maybe(self, read: Callable[[Given], _T]) -> _T | None:
        """What `read` makes of it; None for null."""
        return None if self.value is None else read(self)


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    """The types of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _read(given: Given, hint: Any) -> Any:
    """A value of a type."""
    if hint in _READERS:
        return _READERS[hint](given)
    if is_dataclass(hint) and isinstance(hint, type):
        return given.values(hint)
    kind, parts = get_origin(hint), get_args(hint)
    if kind is UnionType:
        return given.maybe(lambda value: _read(value, parts[0]))
    if kind is Mapping:
        return {name: _read(given[name], parts[1]) for name in given.names()}
    assert kind is tuple, hint
    return tuple(_read(item, parts[0]) for item in given.items())


_READERS: Mapping[Any, Callable[[Given], Any]] = {
    int: Given.count,
    float: Given.amount,
    str: Given.text,
    bool: Given.flag,
}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
