"""The parts of a fault: functions that each make a small change to a node's files, given the node's folder.

Paths start with the disk. In file names the leading zeros of an offset may be omitted: `a/orders-0/45.log`.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

Action = Callable[[Path], None]
#: Positions in a batch (format 2): its checksum, and the first byte that the checksum covers.
CRC_AT, CRC_FROM = 17, 21
NOISE = bytes((i * 167 + 13) % 251 for i in range(8192))


def located(node: Path, path: str) -> Path:
    """Return the path of a node's file or directory, after adding omitted zeros to its name."""
    folder, _, name = path.rpartition("/")
    name = re.sub(r"^(\d+)-(\d+)(?=\.checkpoint)", lambda m: f"{int(m[1]):020d}-{int(m[2]):010d}", name)
    name = re.sub(r"^\d+(?=\.)", lambda m: f"{int(m[0]):020d}", name)
    return node / folder / name


def change(path: str, make: Callable[[bytes], bytes]) -> Action:
    """Return an action that replaces a file's bytes by `make` of them; a missing file counts as empty."""

    def act(node: Path) -> None:
        file = located(node, path)
        data = file.read_bytes() if file.exists() else b""
        if file.exists():
            file.chmod(0o644)
        file.write_bytes(make(data))

    return act


def remove(*paths: str) -> Action:
    def act(node: Path) -> None:
        for path in paths:
            place = located(node, path)
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    return act


def remove_all(folder: str, pattern: str) -> Action:
    def act(node: Path) -> None:
        found = list((node / folder).glob(pattern))
        assert found, f"nothing in {folder} is called {pattern}"
        for file in found:
            file.unlink()

    return act


def write(path: str, text: str | bytes) -> Action:
    return change(path, lambda _: text.encode() if isinstance(text, str) else text)


def empty(path: str) -> Action:
    return write(path, b"")


def zero(path: str) -> Action:
    return change(path, lambda data: bytes(len(data)))


def cut(path: str) -> Action:
    return change(path, lambda data: data[: len(data) // 2])


def garbage(path: str) -> Action:
    return change(path, lambda data: NOISE[: max(len(data), 1)])


def zero_tail(path: str, count: int) -> Action:
    """Replace the last `count` bytes by zeros, as after a crash that saved a file's length before its contents."""
    return change(path, lambda data: data[:-count] + bytes(count))


def chop(path: str, count: int) -> Action:
    return change(path, lambda data: data[:-count])


def append(path: str, more: bytes) -> Action:
    return change(path, lambda data: data + more)


def flip(path: str, at: int) -> Action:
    return change(path, lambda data: data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])


def edit(path: str, pattern: str, new: str) -> Action:
    """Replace text in a file; the pattern must occur."""

    def make(data: bytes) -> bytes:
        text, count = re.subn(pattern, new, data.decode(), flags=re.MULTILINE)
        assert count, f"{path} has no {pattern}"
        return text.encode()

    return change(path, make)


def rename(path: str, new: str) -> Action:
    return lambda node: os.rename(located(node, path), located(node, new))


def copy(path: str, new: str) -> Action:
    def act(node: Path) -> None:
        source, target = located(node, path), located(node, new)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)

    return act


def directory(path: str) -> Action:
    return lambda node: located(node, path).mkdir(parents=True)


def fifo(path: str) -> Action:
    return lambda node: os.mkfifo(located(node, path))


def link(path: str, target: str) -> Action:
    return lambda node: located(node, path).symlink_to(target)


def chmod(path: str, mode: int) -> Action:
    return lambda node: located(node, path).chmod(mode)


def batches(data: bytes) -> list[tuple[int, int]]:
    """Return the position and size of each batch in a log's bytes."""
    found, at = [], 0
    while at + 12 <= len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        found.append((at, size))
        at += size
    return found


def change_batch(path: str, index: int, make: Callable[[bytearray], None], *, with_crc: bool = True) -> Action:
    """Change one batch of a log. With `with_crc`, update its checksum, so that it stays valid."""

    def edited(data: bytes) -> bytes:
        at, size = batches(data)[index]
        batch = bytearray(data[at : at + size])
        make(batch)
        if with_crc:
            struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[CRC_FROM:])))
        return data[:at] + bytes(batch) + data[at + size :]

    return change(path, edited)


def put(form: str, at: int, value: int) -> Callable[[bytearray], None]:
    """Return a change that writes one field of a batch."""
    return lambda batch: struct.pack_into(form, batch, at, value)


def drop_batch(path: str, index: int) -> Action:
    def edited(data: bytes) -> bytes:
        at, size = batches(data)[index]
        return data[:at] + data[at + size :]

    return change(path, edited)


def swap_batches(path: str, first: int, second: int) -> Action:
    """Exchange two batches, so that offsets are out of order."""

    def edited(data: bytes) -> bytes:
        parts = [data[at : at + size] for at, size in batches(data)]
        parts[first], parts[second] = parts[second], parts[first]
        return b"".join(parts)

    return change(path, edited)


def join(target: str, *paths: str) -> Action:
    """Write the concatenated contents of `paths` to a file."""

    def act(node: Path) -> None:
        located(node, target).write_bytes(b"".join(located(node, path).read_bytes() for path in paths))

    return act


def leave_header(path: str, count: int) -> Action:
    """Truncate a log so that `count` bytes of its last batch remain."""
    return change(path, lambda data: data[: batches(data)[-1][0] + count])


def append_half(target: str, path: str) -> Action:
    """Append the first half of the batches in `path` to `target`."""

    def act(node: Path) -> None:
        data = located(node, path).read_bytes()
        at, _ = batches(data)[len(batches(data)) // 2]
        with located(node, target).open("ab") as file:
            file.write(data[:at])

    return act


def split(path: str, second: str, count: int) -> Action:
    """Move all batches after the first `count` to another file."""

    def act(node: Path) -> None:
        data = located(node, path).read_bytes()
        at, _ = batches(data)[count]
        located(node, path).write_bytes(data[:at])
        located(node, second).write_bytes(data[at:])

    return act
