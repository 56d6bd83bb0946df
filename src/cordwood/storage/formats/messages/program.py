"""Many messages at once: a schema becomes a program for `kernels.messages`, which reads messages into tables.

A `Layout` says which table and slots hold each field. It is the same for all versions of a message, so that messages of
several versions stand in one table, those that lack a field with its default. A program has an entry for each version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from struct import Struct

import numpy as np

from cordwood.kernels import messages as kernel
from cordwood.kernels.layout import U8Array
from cordwood.kernels.messages import BoolArray, Int64Array
from cordwood.storage.formats.messages.codec import DECODED_BYTES_MAX
from cordwood.storage.formats.messages.schema import Field, Message

#: Rows of a table of items before it grows.
_FIRST_ROWS = 64
_FIXED = {
    "bool": (1, kernel.BOOL),
    "int8": (1, kernel.SIGNED),
    "int16": (2, kernel.SIGNED),
    "uint16": (2, kernel.UNSIGNED),
    "int32": (4, kernel.SIGNED),
    "int64": (8, kernel.SIGNED),
    "float64": (8, kernel.SIGNED),
    "uuid": (16, kernel.PLACE),
}
_SIZED = ("string", "bytes")
#: What stands in the place of an array's items when they are no structs.
_ITEM = "item"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where a field is.

    Attributes:
        table: index of its table.
        slot: index of its first number in a row of the table.
        inner: of a struct, its fields; of an array, the fields of its items, or the item itself.
        items: of an array, the table of its items.
    """

    field: Field
    table: int
    slot: int
    inner: tuple[Layout, ...] = ()
    items: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What reads a message, in all of its versions.

    Attributes:
        entries: int64[versions], where each version's program starts; those below the first version have -1.
    """

    message: Message
    fields: tuple[Layout, ...]
    code: kernel.Code
    entries: Int64Array


@dataclass(frozen=True, slots=True)
class Tables:
    """Messages that were read.

    Attributes:
        rows: int64[rows, slots] of each table; the first has a row for each message.
        statuses: int64[messages]: 0, or the problem that a message has.
        stops: int64[messages]: where each message ended in the data.
    """

    fields: tuple[Layout, ...]
    rows: tuple[Int64Array, ...]
    statuses: Int64Array
    stops: Int64Array


class _Tables:
    """Gives each field its place."""

    def __init__(self) -> None:
        self.defaults: list[list[int]] = []

    def lay_out(self, fields: tuple[Field, ...], table: int) -> tuple[Layout, ...]:
        return tuple(self._field(one, table) for one in fields)

    def _field(self, field: Field, table: int) -> Layout:
        row = self.defaults[table]
        slot = len(row)
        if field.is_array:
            row.append(-1 if field.default is None else 0)
            items = len(self.defaults)
            self.defaults.append([])
            inner = field.fields or (Field(_ITEM, field.item),)
            return Layout(field, table, slot, self.lay_out(inner, items), items)
        row += _default(field)
        inner_fields = self.lay_out(field.fields, table) if field.type == "struct" else ()
        return Layout(field, table, slot, inner_fields)


def _default(field: Field) -> list[int]:
    # Items have no default, and are always there.
    if field.item in _SIZED:
        return [0, -1 if field.default is None else 0]
    if field.item == "uuid":
        return [-1]
    if field.item == "float64":
        return [Struct("<q").unpack(Struct("<d").pack(field.default or 0))[0]]
    if field.item == "struct":
        return [0 if field.default is None else 1]
    return [int(field.default or 0)]


class _Compiler:
    """Writes the program of a message, version by version."""

    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.tags: list[tuple[int, int]] = []
        self._later: list[tuple[int, list[Layout]]] = []

    def message(self, fields: tuple[Layout, ...], version: int, flexible: bool) -> int:
        """Write a version; returns where it starts."""
        start = len(self.code)
        self._struct(fields, version, flexible)
        self._add(kernel.END)
        while self._later:
            at, tagged = self._later.pop()
            bodies = []
            for one in tagged:
                assert one.field.tag is not None
                bodies.append((one.field.tag, len(self.code)))
                self._field(one, version, flexible)
                self._add(kernel.TAG_END)
            self.code[at][3:5] = len(self.tags), len(bodies)
            self.tags += bodies
        return start

    def _add(self, op: int, *numbers: int) -> int:
        self.code.append([op, *numbers, *[0] * (kernel.INSTRUCTION - 1 - len(numbers))])
        return len(self.code) - 1

    def _struct(self, fields: tuple[Layout, ...], version: int, flexible: bool) -> None:
        present = [one for one in fields if one.field.is_in(version)]
        for one in present:
            if one.field.tag is None:
                self._field(one, version, flexible)
        if flexible:
            self._later.append((self._add(kernel.TAGS), [one for one in present if one.field.tag is not None]))

    def _field(self, layout: Layout, version: int, flexible: bool) -> None:
        field, place = layout.field, (layout.table, layout.slot)
        if field.is_array:
            self._add(kernel.ARRAY, *place, flexible, field.nullable, layout.items)
            item = self._add(kernel.ITEM)
            if field.item == "struct":
                self._struct(layout.inner, version, flexible)
            else:
                self._field(layout.inner[0], version, flexible)
            self.code[item][3:5] = self._add(kernel.ITEM_END) + 1, field.item != "struct"
        elif field.type == "struct":
            marker = kernel.VARINT_MARKER if field.tag is not None else kernel.BYTE_MARKER
            at = self._add(kernel.STRUCT, *place, marker if field.nullable else kernel.NO_MARKER)
            self._struct(layout.inner, version, flexible)
            self.code[at][4] = len(self.code)
        elif field.type in _SIZED:
            self._add(kernel.SIZED, *place, flexible, field.nullable, field.type == "string")
        else:
            self._add(kernel.FIXED, *place, *_FIXED[field.type])


@cache
def program_of(message: Message) -> Program:
    """The program of a message."""
    places = _Tables()
    places.defaults.append([])
    fields = places.lay_out(message.fields, 0)
    compiler = _Compiler()
    entries = [
        compiler.message(fields, version, version >= message.flexible_from) if version >= message.first_version else -1
        for version in range(message.last_version + 1)
    ]
    widths = [len(row) for row in places.defaults]
    code = kernel.Code(
        np.array(compiler.code, np.int64),
        np.array(compiler.tags, np.int64).reshape(-1, 2),
        np.array(widths, np.int64),
        np.array([number for row in places.defaults for number in row], np.int64),
        np.array([sum(widths[:at]) for at in range(len(widths))], np.int64),
    )
    return Program(message, fields, code, np.array(entries, np.int64))


def read(program: Program, data: U8Array, starts: Int64Array, ends: Int64Array, versions: Int64Array) -> Tables:
    """Read messages.

    Args:
        data: bytes that they are in.
        starts, ends: int64[messages], where each is.
        versions: int64[messages]. A later one than is known is read as the last that is known, as far as that goes;
            a negative one is no message, and its row has the defaults.
    """
    count, last = starts.size, program.message.last_version
    entries = np.where(versions < 0, -1, program.entries[np.clip(versions, 0, last)])
    statuses, stops = np.zeros(count, np.int64), np.zeros(count, np.int64)
    messages = kernel.Messages(starts, ends, entries, versions > last, statuses, stops)
    widths = program.code.widths
    rows = [np.empty((count, widths[0]), np.int64), *(np.empty((_FIRST_ROWS, width), np.int64) for width in widths[1:])]
    counts = np.zeros(len(rows), np.int64)
    done = 0
    while done < count:
        addresses = np.array([table.ctypes.data for table in rows], np.int64)
        room = kernel.Room(addresses, np.array([len(table) for table in rows], np.int64), counts)
        done = kernel.read_messages(data.ctypes.data, done, DECODED_BYTES_MAX, messages, program.code, room)
        if done < count:
            full = statuses[done]
            larger = np.empty((2 * len(rows[full]), rows[full].shape[1]), np.int64)
            larger[: counts[full]] = rows[full][: counts[full]]
            rows[full] = larger
    filled = tuple(table[:size] for table, size in zip(rows, counts.tolist(), strict=True))
    return Tables(program.fields, filled, statuses, stops)


def null_of(layout: Layout, tables: Tables) -> BoolArray:
    """bool[rows]: where a field is null."""
    numbers = tables.rows[layout.table]
    if layout.field.is_array:
        return np.asarray(numbers[:, layout.slot] < 0)
    if layout.field.type == "struct":
        return np.asarray(numbers[:, layout.slot] == 0)
    if layout.field.type in _SIZED:
        return np.asarray(numbers[:, layout.slot + 1] < 0)
    return np.zeros(len(numbers), np.bool_)
