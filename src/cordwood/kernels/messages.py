"""Reads many of Kafka's messages at once, into tables of numbers.

A message is read by a program, which `storage.formats.messages.program` makes from its schema: an instruction per field
in the order of the wire. What it reads goes into tables: the first has a row per message, and there is one for each
array, with a row per item. A row has one or two slots per field:

    a number, bool      the number; a float64 as its bits
    uuid                where its 16 bytes are; -1: the zero uuid
    string, bytes       where it starts, and its size; -1 is null
    array               how many rows of its table are its items; -1 is null. The rows of all arrays follow each other
    struct              1, or 0 for null; its fields have slots in the same row

    instruction   op        table   slot   a              b             c
                  FIXED     table   slot   size           form
                  SIZED     table   slot   flexible       nullable      is text
                  ARRAY     table   slot   flexible       nullable      table of the items
                  ITEM                     where it ends  is no struct  follows ARRAY; then comes the body
                  ITEM_END                                              behind the body of an array
                  STRUCT    table   slot   null marker    where to go on if it is null
                  TAGS                     first tag      tags          what tagged fields the struct has
                  TAG_END                                               behind the body of a tagged field
                  END                                                   behind a message

`storage.formats.messages.codec` is the slow twin, which has the format and the reasons.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from cordwood.kernels.native import be16, be32, be64, load8, load16, store64

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

END, FIXED, SIZED, ARRAY, ITEM, ITEM_END, STRUCT, TAGS, TAG_END = range(9)
#: What stands before a struct and says whether it is null: nothing, a byte, or in a tagged field a varint.
NO_MARKER, BYTE_MARKER, VARINT_MARKER = range(3)
#: What a fixed field is.
SIGNED, UNSIGNED, BOOL, PLACE = range(4)
#: Numbers of an instruction.
INSTRUCTION = 6

#: What became of a message. Negative numbers are problems.
DONE, ROOM = 0, 1
#: It has more bytes, or items, than are there.
CUT = -1
#: Null, where it is not allowed.
NULL = -2
#: A varint of more than 31 bits.
VARINT = -3
#: A string that is longer than Kafka's.
LONG_STRING = -4
#: A tagged field that does not take all of its bytes.
TRAILING = -5
#: A tag for the second time.
TWICE = -6
#: The message is larger than what is decoded.
LARGE = -7

#: Where the type and the version of records are; see `storage.formats.messages.topics`.
COORDINATOR, FRAMED = range(2)
#: The version of a null value.
NO_VALUE = -1
#: Instead of a version: the bytes have no such prefix.
BAD_PREFIX = -(1 << 20)

_STRING_BYTES_MAX = 0x7FFF
_FRAME_VERSION = 1
#: Arrays and tagged fields within each other.
_DEPTH = 32
# A frame of the stack: what is open, with the numbers that it needs.
_KIND, _LEFT, _PC, _BOUND, _TABLE, _SLOT, _CHILD, _FIRST, _MET = range(9)
_FRAME = 9
_IN_ARRAY, _IN_TAGS = 0, 1


class Code(NamedTuple):
    """What reads a message, in all of its versions.

    Attributes:
        instructions: int64[instructions, INSTRUCTION].
        tags: int64[all tagged fields, 2], tag and where its program starts.
        widths: int64[tables], slots of a row.
        defaults: int64, a row of each table, one behind the other.
        default_starts: int64[tables], where each one's row is in `defaults`.
    """

    instructions: Int64Array
    tags: Int64Array
    widths: Int64Array
    defaults: Int64Array
    default_starts: Int64Array


class Room(NamedTuple):
    """Where what is read goes.

    Attributes:
        addresses: int64[tables], of each table's numbers.
        capacities: int64[tables], rows that there is room for; in the first for all messages.
        counts: int64[tables], rows that are there; added to.
    """

    addresses: Int64Array
    capacities: Int64Array
    counts: Int64Array


class Messages(NamedTuple):
    """The messages to read, and what became of them.

    Attributes:
        starts, ends: int64[messages], where each is in the data.
        entries: int64[messages], where each one's program starts; negative: there is no message, its row has defaults.
        lenient: bool[messages]: keep what can be read of one that has a problem; else its row has defaults.
        statuses: int64[messages], filled.
        stops: int64[messages], filled: where each message ended in the data.
    """

    starts: Int64Array
    ends: Int64Array
    entries: Int64Array
    lenient: BoolArray
    statuses: Int64Array
    stops: Int64Array


class Prefixes(NamedTuple):
    """What is before the messages in records.

    Attributes:
        types: int64[records]: record types. BAD_PREFIX where the bytes have none.
        versions: int64[records]: of the values; NO_VALUE of a null value. BAD_PREFIX where there is none.
        bodies: int64[records]: where the message in the value starts.
    """

    types: Int64Array
    versions: Int64Array
    bodies: Int64Array


@njit(inline="always")
def _uvarint(address, end):
    """Read a number; returns (number, address behind it, status)."""
    value = np.int64(0)
    shift = 0
    while True:
        if address >= end:
            return value, address, CUT
        byte = np.int64(load8(address))
        address += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, address, (DONE if value <= 0x7FFFFFFF else VARINT)
        shift += 7
        if shift == 35:
            return value, address, VARINT


@njit(cache=True, nogil=True)
def read_prefixes(address, rows, framing, prefixes):
    """Read the types and versions of records.

    Args:
        address: of the data that the records are in.
        rows: RECORD_ROW[records].
        framing: COORDINATOR or FRAMED.
        prefixes: Prefixes, filled.
    """
    types, versions, bodies = prefixes
    for i in range(rows.size):
        row = rows[i]
        types[i] = versions[i] = BAD_PREFIX
        at = address + row.value_start
        end = at + row.value_size
        bodies[i] = row.value_start
        if framing == COORDINATOR:
            if row.key_size < 2:
                continue
            types[i] = be16(address + row.key_start)
            if row.value_size < 0:
                versions[i] = NO_VALUE
            elif row.value_size >= 2:
                versions[i] = be16(at)
                bodies[i] = row.value_start + 2
            # A version below the first is wrong, as no version at all is.
            if row.value_size >= 0 and versions[i] < 0:
                versions[i] = BAD_PREFIX
            continue
        if row.value_size < 0:
            continue
        frame, at, status = _uvarint(at, end)
        if status != DONE or frame != _FRAME_VERSION:
            continue
        number, at, status = _uvarint(at, end)
        if status != DONE:
            continue
        version, at, status = _uvarint(at, end)
        if status != DONE:
            continue
        types[i] = number
        versions[i] = version
        bodies[i] = at - address


@njit(inline="always")
def _set(code, room, table, row, slot, value):
    store64(room.addresses[table] + 8 * (row * code.widths[table] + slot), np.uint64(value))


@njit(inline="always")
def _set_last(code, room, table, slot, value):
    _set(code, room, table, room.counts[table] - 1, slot, value)


@njit(inline="always")
def _new_row(code, room, table):
    row = room.counts[table]
    room.counts[table] = row + 1
    for slot in range(code.widths[table]):
        _set(code, room, table, row, slot, code.defaults[code.default_starts[table] + slot])


@njit(inline="always")
def _length(at, end, flexible, is_short, nullable):
    """Read a length or count; returns (length, address behind it, status)."""
    if flexible:
        length, at, status = _uvarint(at, end)
        length -= 1
        if status != DONE:
            return length, at, status
    elif is_short:
        if end - at < 2:
            return np.int64(0), at, CUT
        length = np.int64(be16(at))
        at += 2
    else:
        if end - at < 4:
            return np.int64(0), at, CUT
        length = np.int64(be32(at))
        at += 4
    if length < 0:
        return np.int64(-1), at, (DONE if nullable else NULL)
    return length, at, DONE


@njit(inline="always")
def _number(at, size, form, address):
    if form == PLACE:
        return np.int64(at - address)
    if size == 1:
        byte = np.int64(load8(at))
        if form == BOOL:
            return np.int64(byte != 0)
        return byte - 256 if byte > 127 else byte
    if size == 2:
        if form == UNSIGNED:
            word = np.int64(load16(at))
            return (word >> 8) | ((word & 0xFF) << 8)
        return np.int64(be16(at))
    if size == 4:
        return np.int64(be32(at))
    return np.int64(be64(at))


@njit
def _message(address, at, end, pc, code, room, stack):
    """Read one message into new rows; returns (status, address where it ended), or (ROOM, the table that is full)."""
    _new_row(code, room, 0)
    depth, status = 0, DONE
    while status == DONE:
        op = code.instructions[pc, 0]
        if op == FIXED:
            pc, at, status = _fixed(address, at, end, pc, code, room)
        elif op == SIZED:
            pc, at, status = _sized(address, at, end, pc, code, room)
        elif op == ARRAY:
            pc, at, depth, status = _array(at, end, pc, depth, code, room, stack)
        elif op == ITEM_END:
            pc, at, depth, status = _item_end(at, pc, depth, code, room, stack)
        elif op == STRUCT:
            pc, at, status = _struct(at, end, pc, code, room)
        elif op == TAGS:
            pc, at, end, depth, status = _tags(at, end, pc, depth, code, stack)
        elif op == TAG_END:
            pc, at, end, depth, status = _tag_end(at, end, pc, depth, code, stack)
        else:
            return DONE, at
    if status != ROOM:
        _close(depth, code, room, stack)
    return status, at


@njit
def _fixed(address, at, end, pc, code, room):
    """FIXED; returns (pc of the next instruction, address behind the field, status)."""
    size = code.instructions[pc, 3]
    if end - at < size:
        return pc, at, CUT
    _set_last(
        code,
        room,
        code.instructions[pc, 1],
        code.instructions[pc, 2],
        _number(at, size, code.instructions[pc, 4], address),
    )
    return pc + 1, at + size, DONE


@njit
def _sized(address, at, end, pc, code, room):
    """SIZED; returns as `_fixed`."""
    instructions = code.instructions
    is_text = instructions[pc, 5] != 0
    size, at, status = _length(at, end, instructions[pc, 3] != 0, is_text, instructions[pc, 4] != 0)
    if status != DONE:
        return pc, at, status
    if is_text and size > _STRING_BYTES_MAX:
        return pc, at, LONG_STRING
    if size > end - at:
        return pc, at, CUT
    _set_last(code, room, instructions[pc, 1], instructions[pc, 2], at - address)
    _set_last(code, room, instructions[pc, 1], instructions[pc, 2] + 1, size)
    return pc + 1, at + max(size, np.int64(0)), DONE


@njit
def _array(at, end, pc, depth, code, room, stack):
    """ARRAY; returns (next pc, address, depth, status), and with ROOM the full table instead of the address."""
    instructions = code.instructions
    count, at, status = _length(at, end, instructions[pc, 3] != 0, False, instructions[pc, 4] != 0)
    if status != DONE:
        return pc, at, depth, status
    if count > end - at:
        return pc, at, depth, CUT
    table, slot, child = instructions[pc, 1], instructions[pc, 2], instructions[pc, 5]
    _set_last(code, room, table, slot, count)
    if count <= 0:
        return instructions[pc + 1, 3], at, depth, DONE
    if room.counts[child] == room.capacities[child]:
        return pc, child, depth, ROOM
    frame = stack[depth]
    frame[_KIND], frame[_LEFT], frame[_PC] = _IN_ARRAY, count, pc + 2
    frame[_TABLE], frame[_SLOT], frame[_CHILD], frame[_FIRST] = table, slot, child, room.counts[child]
    _new_row(code, room, child)
    return pc + 2, at, depth + 1, DONE


@njit
def _item_end(at, pc, depth, code, room, stack):
    """ITEM_END; returns as `_array`."""
    frame = stack[depth - 1]
    frame[_LEFT] -= 1
    if frame[_LEFT] == 0:
        return pc + 1, at, depth - 1, DONE
    child = frame[_CHILD]
    if room.counts[child] == room.capacities[child]:
        return pc, child, depth, ROOM
    _new_row(code, room, child)
    return frame[_PC], at, depth, DONE


@njit
def _struct(at, end, pc, code, room):
    """STRUCT; returns as `_fixed`."""
    instructions = code.instructions
    is_null = False
    if instructions[pc, 3] == BYTE_MARKER:
        if end - at < 1:
            return pc, at, CUT
        is_null = load8(at) > 127
        at += 1
    elif instructions[pc, 3] == VARINT_MARKER:
        marker, at, status = _uvarint(at, end)
        if status != DONE:
            return pc, at, status
        is_null = marker == 0
    _set_last(code, room, instructions[pc, 1], instructions[pc, 2], 0 if is_null else 1)
    return (instructions[pc, 4] if is_null else pc + 1), at, DONE


@njit
def _tags(at, end, pc, depth, code, stack):
    """TAGS; returns as `_next_tag`."""
    count, at, status = _uvarint(at, end)
    if status != DONE:
        return pc, at, end, depth, status
    frame = stack[depth]
    frame[_KIND], frame[_LEFT], frame[_PC], frame[_BOUND], frame[_MET] = _IN_TAGS, count, pc, end, 0
    return _next_tag(at, end, depth + 1, code, stack)


@njit
def _tag_end(at, end, pc, depth, code, stack):
    """TAG_END; returns as `_next_tag`."""
    if at != end:
        return pc, at, end, depth, TRAILING
    return _next_tag(at, stack[depth - 1, _BOUND], depth, code, stack)


@njit
def _next_tag(at, end, depth, code, stack):
    """Go on to the next tagged field that is known, or behind the tagged fields.

    Returns:
        (pc of the next instruction, address, end of what may be read, depth, status).
    """
    frame = stack[depth - 1]
    pc = frame[_PC]
    first = code.instructions[pc, 3]
    while frame[_LEFT] > 0:
        frame[_LEFT] -= 1
        tag, at, status = _uvarint(at, end)
        if status != DONE:
            return pc, at, end, depth, status
        size, at, status = _uvarint(at, end)
        if status != DONE:
            return pc, at, end, depth, status
        body = np.int64(-1)
        for i in range(first, first + code.instructions[pc, 4]):
            if code.tags[i, 0] == tag:
                body = code.tags[i, 1]
        if body >= 0:
            bit = np.int64(1) << tag
            if frame[_MET] & bit:
                return pc, at, end, depth, TWICE
            frame[_MET] |= bit
        if size > end - at:
            return pc, at, end, depth, CUT
        if body >= 0:
            return body, at, at + size, depth, DONE
        at += size
    return pc + 1, at, end, depth - 1, DONE


@njit
def _close(depth, code, room, stack):
    """Give arrays that are open when a message stops the items that were read. An item that is no struct was not."""
    for level in range(depth - 1, -1, -1):
        frame = stack[level]
        if frame[_KIND] == _IN_ARRAY:
            child = frame[_CHILD]
            if level == depth - 1 and code.instructions[frame[_PC] - 1, 4] != 0:
                room.counts[child] -= 1
            _set_last(code, room, frame[_TABLE], frame[_SLOT], room.counts[child] - frame[_FIRST])


@njit(cache=True, nogil=True)
def read_messages(address, first, bytes_max, messages, code, room):
    """Read messages, until a table is full.

    Args:
        address: of the data that the messages are in.
        first: index of the first message to read.
        bytes_max: messages that are larger have the problem LARGE.

    Returns:
        the index of the first message that found no room, with the table that is full in its status; the number of
        messages if all found room.
    """
    stack = np.empty((_DEPTH, _FRAME), np.int64)
    counts = room.counts
    before = np.empty_like(counts)
    for i in range(first, messages.starts.size):
        before[:] = counts
        start, end = messages.starts[i], messages.ends[i]
        messages.stops[i] = start
        if messages.entries[i] < 0:
            _new_row(code, room, 0)
            messages.statuses[i] = DONE
            continue
        status, at = LARGE, address + start
        if end - start <= bytes_max:
            status, at = _message(address, at, address + end, messages.entries[i], code, room, stack)
        else:
            _new_row(code, room, 0)
        if status == ROOM:
            counts[:] = before
            messages.statuses[i] = at
            return i
        if status < 0 and not messages.lenient[i]:
            counts[:] = before
            _new_row(code, room, 0)
        messages.statuses[i] = status
        messages.stops[i] = at - address
    return messages.starts.size
