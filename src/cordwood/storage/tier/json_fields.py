"""Fields of JSON that is not trusted, such as a manifest in a tier: each is checked as it is read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.text import parse_integer, parse_json, shown
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.tier.local import ID_LENGTH, is_id


@dataclass(frozen=True, slots=True)
class Fields:
    """An object in a manifest. Every method raises CorruptFileError for a field that is missing or not of its type.

    Attributes:
        path: the file that contains it.
        name: the names of the objects around it and its own; empty for the outermost.
    """

    values: Mapping[str, object]
    path: str
    name: str = ""

    @classmethod
    def of_file(cls, data: bytes, path: str) -> Self:
        """Return the object that a file contains."""
        try:
            content = parse_json(data.decode())
        except UnicodeDecodeError:
            content = None
        if not isinstance(content, dict):
            raise CorruptFileError("the manifest is not a JSON object", path=path)
        return cls(content, path)

    def refused(self, name: str, expected: str) -> CorruptFileError:
        """Return the error for a field with another value than expected."""
        where = f"{self.name}.{name}" if self.name else name
        value = shown(repr(self.values.get(name)))
        return CorruptFileError(f"{where} in the manifest is not {expected} but {value}", path=self.path)

    def integer(self, name: str, lowest: int, highest: int) -> int:
        """Return a number between two bounds, which are allowed themselves."""
        value = self.values.get(name)
        if type(value) is not int or not lowest <= value <= highest:
            raise self.refused(name, f"a number from {lowest} to {highest}")
        return value

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self.refused(name, "a text")
        return value

    def boolean(self, name: str) -> bool:
        """Return true or false; false if the field is missing."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.refused(name, "true or false")
        return bool(value)

    def decoded(self, name: str) -> bytes:
        """Return the bytes of a text in base64, which may follow a prefix and a colon."""
        try:
            return base64.b64decode(self.text(name).rpartition(":")[2], validate=True)
        except (binascii.Error, ValueError):
            raise self.refused(name, "base64") from None

    def id(self, name: str) -> str:
        """Return an id as Kafka prints it."""
        if not is_id(self.text(name)):
            raise self.refused(name, f"an id of {ID_LENGTH} characters")
        return self.text(name)

    def fields(self, name: str) -> Fields:
        """Return an object."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.refused(name, "an object")
        return Fields(value, self.path, f"{self.name}.{name}" if self.name else name)

    def optional(self, name: str) -> Fields | None:
        """Return an object, or None if it is missing or null."""
        return None if self.values.get(name) is None else self.fields(name)

    def objects(self, name: str) -> Iterator[Fields]:
        """Yield the objects of a list."""
        values = self.values.get(name)
        if not isinstance(values, list):
            raise self.refused(name, "a list")
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise self.refused(name, "a list of objects")
            yield Fields(value, self.path, f"{name}[{index}]")

    def ids(self, name: str) -> Sequence[str]:
        """Return a list of ids as Kafka prints them."""
        values = self.values.get(name)
        if not isinstance(values, list) or not all(isinstance(value, str) and is_id(value) for value in values):
            raise self.refused(name, f"a list of ids of {ID_LENGTH} characters")
        return values

    def epochs(self, name: str) -> tuple[EpochEntry, ...]:
        """Return leader epochs, an object of offsets by epoch, in ascending order; at least one."""
        offsets = self.fields(name)
        entries = []
        for text in offsets.values:
            epoch = parse_integer(text, 32)
            if epoch is None or epoch < 0:
                raise self.refused(name, "offsets by leader epoch")
            entries.append(EpochEntry(epoch, offsets.integer(text, 0, MAX_OFFSET)))
        if not entries or len({entry.epoch for entry in entries}) < len(entries):
            raise self.refused(name, "offsets by leader epoch")
        return tuple(sorted(entries, key=lambda entry: entry.epoch))
