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

import numpy as np
from numba import njit

from cordwood.kernels.native import be16, be32, be64, load8, load16, store64

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
def read_prefixes(address, starts, key_starts, key_sizes, value_sizes, framing, types, versions, bodies):
    """Read the types and versions of records.

    Args:
        address: of the data that the records are in.
        starts: int32[records], of their values.
        key_starts, key_sizes, value_sizes: int32[records]; a negative size is null.
        framing: COORDINATOR or FRAMED.
        types: int64[records], filled: record types. BAD_PREFIX where the bytes have none.
        versions: int64[records], filled: of the values; NO_VALUE of a null value. BAD_PREFIX where there is none.
        bodies: int64[records], filled: where the message in the value starts.
    """
    for i in range(starts.size):
        types[i] = versions[i] = BAD_PREFIX
        at = address + starts[i]
        end = at + value_sizes[i]
        bodies[i] = starts[i]
        if framing == COORDINATOR:
            if key_sizes[i] < 2:
                continue
            types[i] = be16(address + key_starts[i])
            if value_sizes[i] < 0:
                versions[i] = NO_VALUE
            elif value_sizes[i] >= 2:
                versions[i] = be16(at)
                bodies[i] = starts[i] + 2
            # A version below the first is wrong, as no version at all is.
            if value_sizes[i] >= 0 and versions[i] < 0:
                versions[i] = BAD_PREFIX
            continue
        if value_sizes[i] < 0:
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
def _set(addresses, widths, table, row, slot, value):
    store64(addresses[table] + 8 * (row * widths[table] + slot), np.uint64(value))


@njit(inline="always")
def _new_row(addresses, widths, counts, defaults, default_starts, table):
    row = counts[table]
    counts[table] = row + 1
    for slot in range(widths[table]):
        _set(addresses, widths, table, row, slot, defaults[default_starts[table] + slot])


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
def _fixed(at, size, form, address):
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
def _message(
    address, at, end, pc, program, tags, addresses, widths, capacities, counts, defaults, default_starts, stack
):
    """Read one message into new rows; returns (status, address where it ended), or (ROOM, the table that is full)."""
    depth = 0
    _new_row(addresses, widths, counts, defaults, default_starts, 0)
    status = DONE
    while True:
        op = program[pc, 0]
        table, slot = program[pc, 1], program[pc, 2]
        if op == FIXED:
            size = program[pc, 3]
            if end - at < size:
                status = CUT
                break
            _set(addresses, widths, table, counts[table] - 1, slot, _fixed(at, size, program[pc, 4], address))
            at += size
            pc += 1
        elif op == SIZED:
            is_text = program[pc, 5] != 0
            size, at, status = _length(at, end, program[pc, 3] != 0, is_text, program[pc, 4] != 0)
            if status != DONE:
                break
            if is_text and size > _STRING_BYTES_MAX:
                status = LONG_STRING
                break
            if size > end - at:
                status = CUT
                break
            row = counts[table] - 1
            _set(addresses, widths, table, row, slot, at - address)
            _set(addresses, widths, table, row, slot + 1, size)
            at += max(size, np.int64(0))
            pc += 1
        elif op == ARRAY:
            count, at, status = _length(at, end, program[pc, 3] != 0, False, program[pc, 4] != 0)
            if status != DONE:
                break
            if count > end - at:
                status = CUT
                break
            child = program[pc, 5]
            _set(addresses, widths, table, counts[table] - 1, slot, count)
            if count <= 0:
                pc = program[pc + 1, 3]
                continue
            if counts[child] == capacities[child]:
                return ROOM, child
            frame = stack[depth]
            frame[_KIND], frame[_LEFT], frame[_PC] = _IN_ARRAY, count, pc + 2
            frame[_TABLE], frame[_SLOT], frame[_CHILD], frame[_FIRST] = table, slot, child, counts[child]
            depth += 1
            _new_row(addresses, widths, counts, defaults, default_starts, child)
            pc += 2
        elif op == ITEM_END:
            frame = stack[depth - 1]
            frame[_LEFT] -= 1
            if frame[_LEFT] == 0:
                depth -= 1
                pc += 1
                continue
            child = frame[_CHILD]
            if counts[child] == capacities[child]:
                return ROOM, child
            _new_row(addresses, widths, counts, defaults, default_starts, child)
            pc = frame[_PC]
        elif op == STRUCT:
            is_null = False
            if program[pc, 3] == BYTE_MARKER:
                if end - at < 1:
                    status = CUT
                    break
                is_null = load8(at) > 127
                at += 1
            elif program[pc, 3] == VARINT_MARKER:
                marker, at, status = _uvarint(at, end)
                if status != DONE:
                    break
                is_null = marker == 0
            if is_null:
                _set(addresses, widths, table, counts[table] - 1, slot, 0)
                pc = program[pc, 4]
                continue
            _set(addresses, widths, table, counts[table] - 1, slot, 1)
            pc += 1
        elif op == TAGS:
            count, at, status = _uvarint(at, end)
            if status != DONE:
                break
            frame = stack[depth]
            frame[_KIND], frame[_LEFT], frame[_PC], frame[_BOUND], frame[_MET] = _IN_TAGS, count, pc, end, 0
            depth += 1
            pc, at, status = _next_tag(program, tags, frame, at, end)
            if status != DONE:
                break
            if pc < 0:
                depth -= 1
                pc = frame[_PC] + 1
            else:
                end = frame[_FIRST]
        elif op == TAG_END:
            frame = stack[depth - 1]
            if at != end:
                status = TRAILING
                break
            end = frame[_BOUND]
            pc, at, status = _next_tag(program, tags, frame, at, end)
            if status != DONE:
                break
            if pc < 0:
                depth -= 1
                pc = frame[_PC] + 1
            else:
                end = frame[_FIRST]
        else:
            return DONE, at
    # Arrays that were open have the items that were read. An item that is no struct was not.
    for level in range(depth - 1, -1, -1):
        frame = stack[level]
        if frame[_KIND] == _IN_ARRAY:
            child = frame[_CHILD]
            if level == depth - 1 and program[frame[_PC] - 1, 4] != 0:
                counts[child] -= 1
            _set(
                addresses, widths, frame[_TABLE], counts[frame[_TABLE]] - 1, frame[_SLOT], counts[child] - frame[_FIRST]
            )
    return status, at


@njit(inline="always")
def _next_tag(program, tags, frame, at, end):
    """Go on to the next tagged field that is known.

    Returns:
        (pc of its body, address of its first byte, status), with the address behind it in the frame; a negative pc:
        there is none.
    """
    first, known = program[frame[_PC], 3], program[frame[_PC], 4]
    while frame[_LEFT] > 0:
        frame[_LEFT] -= 1
        tag, at, status = _uvarint(at, end)
        if status != DONE:
            return np.int64(0), at, status
        size, at, status = _uvarint(at, end)
        if status != DONE:
            return np.int64(0), at, status
        for i in range(first, first + known):
            if tags[i, 0] == tag:
                bit = np.int64(1) << tag
                if frame[_MET] & bit:
                    return np.int64(0), at, TWICE
                frame[_MET] |= bit
                if size > end - at:
                    return np.int64(0), at, CUT
                frame[_FIRST] = at + size
                return tags[i, 1], at, DONE
        if size > end - at:
            return np.int64(0), at, CUT
        at += size
    return np.int64(-1), at, DONE


@njit(cache=True, nogil=True)
def read_messages(
    address,
    first,
    starts,
    ends,
    entries,
    lenient,
    bytes_max,
    program,
    tags,
    addresses,
    widths,
    capacities,
    counts,
    defaults,
    default_starts,
    statuses,
    stops,
):
    """Read messages, until a table is full.

    Args:
        address: of the data that the messages are in.
        first: index of the first message to read.
        starts, ends: int64[messages], where each is in the data.
        entries: int64[messages], where each one's program starts; negative: there is no message, its row has defaults.
        lenient: bool[messages]: keep what can be read of one that has a problem; else its row has defaults.
        bytes_max: messages that are larger have the problem LARGE.
        program: int64[instructions, INSTRUCTION].
        tags: int64[all tagged fields, 2], tag and where its program starts.
        addresses: int64[tables], of each table's numbers.
        widths: int64[tables], slots of a row.
        capacities: int64[tables], rows that there is room for; in the first for all messages.
        counts: int64[tables], rows that are there; added to.
        defaults: int64, a row of each table.
        default_starts: int64[tables], where each one's row is in `defaults`.
        statuses: int64[messages], filled.
        stops: int64[messages], filled: where each message ended in the data.

    Returns:
        the index of the first message that found no room, with the table that is full in its status; the number of
        messages if all found room.
    """
    stack = np.empty((_DEPTH, _FRAME), np.int64)
    before = np.empty(counts.size, np.int64)
    for i in range(first, starts.size):
        for table in range(counts.size):
            before[table] = counts[table]
        stops[i] = starts[i]
        if entries[i] < 0:
            _new_row(addresses, widths, counts, defaults, default_starts, 0)
            statuses[i] = DONE
            continue
        status, at = LARGE, address + starts[i]
        if ends[i] - starts[i] <= bytes_max:
            status, at = _message(
                address,
                address + starts[i],
                address + ends[i],
                entries[i],
                program,
                tags,
                addresses,
                widths,
                capacities,
                counts,
                defaults,
                default_starts,
                stack,
            )
        else:
            _new_row(addresses, widths, counts, defaults, default_starts, 0)
        if status == ROOM:
            for table in range(counts.size):
                counts[table] = before[table]
            statuses[i] = at
            return i
        if status < 0 and not lenient[i]:
            for table in range(counts.size):
                counts[table] = before[table]
            _new_row(addresses, widths, counts, defaults, default_starts, 0)
        statuses[i] = status
        stops[i] = at - address
    return starts.size
