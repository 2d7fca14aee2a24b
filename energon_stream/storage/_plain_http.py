"""Range GETs over HTTP without TLS, received to where the bytes are wanted.

A client that hands out bodies of its own takes fresh memory for each and copies it together. Here the kernel copies
to the caller's memory and nobody else does, which takes half the processor time for ranges of some MB. Not so over TLS:
Python's ``ssl`` gives its lock away once for each record of 16 KiB.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["Answer", "PlainHttp", "goes_straight"]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_IDLE_SECONDS = 30.0
"""After how long a connection is not used again; servers close theirs after a minute or so."""
_MOST_OF_A_MESSAGE = 64 << 10
_MUCH = 64 << 10
"""More than headers' buffer has."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered.

    Attributes:
        status: HTTP status.
        etag: The content's version, or None.
        start: First byte that the answer has; None where it does not tell.
        size: How many it has. They are in the caller's memory if that is large enough.
        total_size: Length of the object, or None where the answer did not tell.
        message: Body of another answer, not more than its begin.
    """

    status: int
    etag: str | None = None
    start: int | None = None
    size: int = 0
    total_size: int | None = None
    message: str = ""


@dataclass(slots=True)
class _Idle:
    connection: http.client.HTTPConnection
    since: float = field(default_factory=time.monotonic)


class PlainHttp:
    """Connections to one server, each used by one thread at a time. Safe to call from several threads.

    Args:
        host: Name and port.
        connect_timeout: Seconds until a connection has to be there.
        read_timeout: Seconds without any progress.
    """

    def __init__(self, host: str, connect_timeout: float, read_timeout: float) -> None:
        self._host = host
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._idle: list[_Idle] = []  # the latest one last; its operations are atomic

    def get_into(
        self, target: str, headers: Mapping[str, str], into: memoryview, is_wanted: Callable[[], bool]
    ) -> Answer | None:
        """Ask for a byte range.

        Args:
            target: Path and query.
            headers: What to send, ``Range`` included.
            into: Memory for the bytes. What it holds after an error is undefined.
            is_wanted: Called at the first bytes of a good answer: whether to read the others.

        Returns:
            The answer; None if it was not wanted.

        Raises:
            OSError: No connection, or it broke or stalled.
            http.client.HTTPException: This is no HTTP, or the body ended early.
        """
        connection, response = self._send(target, headers)
        try:
            answer = _read(response, into, is_wanted)
        except BaseException:
            connection.close()
            raise
        if answer is None or response.will_close or not response.isclosed():
            connection.close()
        else:
            self._idle.append(_Idle(connection))
        return answer

    def _send(
        self, target: str, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """The begin of an answer; by a connection that was used before, if there is one that still works."""
        used = self._take()
        if used is not None:
            try:
                return used, _ask(used, target, headers)
            except (ConnectionError, http.client.BadStatusLine):  # the server had closed it
                used.close()
            except BaseException:
                used.close()
                raise
        connection = http.client.HTTPConnection(self._host, timeout=self._connect_timeout)
        try:
            connection.connect()
            connection.sock = _PatientSocket(connection.sock, self._read_timeout)
            return connection, _ask(connection, target, headers)
        except BaseException:
            connection.close()
            raise

    def _take(self) -> http.client.HTTPConnection | None:
        now = time.monotonic()
        while self._idle and now - self._idle[0].since > _IDLE_SECONDS:
            try:
                oldest = self._idle.pop(0)
            except IndexError:  # other threads take them, too
                break
            oldest.connection.close()
        try:
            return self._idle.pop().connection
        except IndexError:
            return None


class _PatientSocket(socket.socket):
    """A socket whose reads of much wait in the kernel for all of it, with one call of Python's for many of the network's.

    Args:
        other: The socket whose place it takes.
        timeout: Seconds to wait, then what is there is returned. The kernel's timeout, not Python's: that
            asks before each read whether there is anything to read.
    """

    def __init__(self, other: socket.socket, timeout: float) -> None:
        super().__init__(other.family, other.type, other.proto, other.detach())
        self.settimeout(None)
        seconds = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive; see ``socket.socket``.

        Raises:
            TimeoutError: There was no progress.
        """
        if len(memoryview(buffer)) >= _MUCH:
            flags |= socket.MSG_WAITALL
        try:
            return super().recv_into(buffer, nbytes, flags)
        except BlockingIOError as error:
            raise TimeoutError from error


def goes_straight(url: str) -> bool:
    """Whether requests for a URL without TLS go to its server, and not to a proxy that the environment names. Always False on
    systems whose sockets are not POSIX's."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    if os.name != "posix" or parts.scheme != "http" or not parts.netloc or "@" in parts.netloc:
        return False
    return not ({"http", "all"} & proxies.keys()) or bool(urllib.request.proxy_bypass(parts.netloc))


def _ask(
    connection: http.client.HTTPConnection, target: str, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    connection.request("GET", target, headers=dict(headers))
    return connection.getresponse()


def _read(
    response: http.client.HTTPResponse, into: memoryview, is_wanted: Callable[[], bool]
) -> Answer | None:
    if response.status != http.client.PARTIAL_CONTENT:
        message = b"" if response.status == http.client.OK else response.read(_MOST_OF_A_MESSAGE)
        return Answer(response.status, message=message.decode("utf-8", "replace"))
    found = _CONTENT_RANGE.fullmatch(response.getheader("Content-Range", ""))
    if found is None:
        return Answer(response.status)
    start, size = int(found[1]), int(found[2]) + 1 - int(found[1])
    if not is_wanted():
        return None
    if size <= len(into):
        _fill(response, into[:size])
    total = None if found[3] == "*" else int(found[3])
    return Answer(response.status, response.getheader("ETag"), start, size, total)


def _fill(response: http.client.HTTPResponse, into: memoryview) -> None:
    filled = 0
    while filled < len(into):
        count = response.readinto(into[filled:])
        if not count:
            raise http.client.IncompleteRead(b"", len(into) - filled)
        filled += count
