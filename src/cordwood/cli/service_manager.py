"""What a service manager such as systemd is told of `cordwood run`: that it is ready, what it does, that it is alive.

A message is a datagram of lines NAME=VALUE to the socket that NOTIFY_SOCKET names. Without that variable nobody wants
to know, and nothing is sent. A message that cannot be sent is dropped: the logs matter more.

Source: sd_notify(3).
"""

from __future__ import annotations

import contextlib
import os
import socket

from cordwood.text import printable

#: A status is a line that people read.
_STATUS_MAX = 300


class ServiceManager:
    """What started this process, if it wants to know."""

    def __init__(self) -> None:
        # Not for the processes that this one starts: their messages would be taken for ours.
        path = os.environ.pop("NOTIFY_SOCKET", "")
        # Of Linux: a name that is in no file system begins with a zero byte.
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def ready(self, status: str) -> None:
        """The logs are loaded."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """This is what it does now."""
        self._send(_status(status))

    def alive(self, status: str) -> None:
        """The logs have just been looked at, so neither they nor this program hang."""
        self._send("WATCHDOG=1", _status(status))

    def stopping(self) -> None:
        """The shutdown has begun."""
        self._send("STOPPING=1", _status("shutting down: flushing and closing the logs"))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that reads nothing must not make the logs wait.
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={printable(text)[:_STATUS_MAX]}"
