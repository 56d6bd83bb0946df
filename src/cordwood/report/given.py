"""A JSON document that somebody gave us: nothing in it is taken for granted, and what is wrong is said with its place.

given = Given.parse(data)
given["partitions"].items()[3]["bytes_before"].count()
RequestError: partitions[3].bytes_before: expected a whole number from 0 on, found "x"
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, Self, TypeVar

from cordwood.errors import RequestError

_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=StrEnum)
_COUNT_MAX = 2**63 - 1
#: Of a value that is wrong, so much is shown.
_SHOWN_MAX = 60


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
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        if name not in self.value:
            raise self.wrong(f"there is no {name!r}")
        return Given(self.value[name], f"{self.where}.{name}" if self.where else name)

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

    def maybe(self, read: Callable[[Given], _T]) -> _T | None:
        """What `read` makes of it; None for null."""
        return None if self.value is None else read(self)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
