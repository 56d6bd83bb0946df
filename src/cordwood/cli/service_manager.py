"""Notifications from `cordwood run` to a service manager such as systemd: ready, current activity, alive.

A message is a datagram of lines NAME=VALUE to the socket that NOTIFY_SOCKET names. Without that variable nothing is
sent. A message that cannot be sent is dropped: the logs matter more.

Source: sd_notify(3).
"""

from __future__ import annotations

import contextlib
import os
import socket

from cordwood.common.text import printable

#: Maximum length of a status, which people read as one line.
_STATUS_MAX = 300


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self) -> None:
        # Remove it from the environment: the manager would take messages from child processes for ours.
        path = os.environ.pop("NOTIFY_SOCKET", "")
        # On Linux, an abstract socket name, which is in no file system, begins with a zero byte.
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def ready(self, status: str) -> None:
        """Report that the logs are loaded."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Report the current activity."""
        self._send(_status(status))

    def alive(self, status: str) -> None:
        """Report that the logs were just polled, so neither they nor this program hang."""
        self._send("WATCHDOG=1", _status(status))

    def stopping(self) -> None:
        """Report that the shutdown has begun."""
        self._send("STOPPING=1", _status("shutting down: flushing and closing the logs"))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that does not read must not block us.
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={printable(text)[:_STATUS_MAX]}"
