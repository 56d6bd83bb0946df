"""Send values between two processes through a socket: a length in eight bytes, then a pickle."""

from __future__ import annotations

import pickle
import select
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 20


class Channel:
    """One end of a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._arrived = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor, for `selectors`."""
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        """Whether an idle worker is still running: its socket is neither closed nor readable."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        """Close the socket, which signals the end to the other process."""
        self._socket.close()

    def send(self, value: object) -> None:
        """Send a value.

        Raises:
            OSError: the other process has ended, or does not read before the timeout.
        """
        data = pickle.dumps(value)
        self._socket.sendall(_LENGTH.pack(len(data)))
        self._socket.sendall(data)

    def receive(self) -> Any:
        """Wait for a value from a process that sends one at a time.

        Raises:
            EOFError: the other process has ended.
        """
        while not (values := self.read()):
            pass
        (value,) = values
        return value

    def read(self) -> list[Any]:
        """Wait until bytes arrive, and return all complete values.

        Raises:
            EOFError: the other process has ended.
        """
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except ConnectionError:
            piece = b""
        if not piece:
            raise EOFError
        self._arrived += piece
        whole = []
        while len(self._arrived) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._arrived)[0]
            if len(self._arrived) < end:
                break
            whole.append(bytes(self._arrived[_LENGTH.size : end]))
            del self._arrived[:end]
        return [pickle.loads(one) for one in whole]
