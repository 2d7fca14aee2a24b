"""The channel from a worker to the main process: a pipe for small values, shared memory for large ones.

Large byte strings and tensors are copied into slots of anonymous shared memory, which parent and child share;
the pickle on the pipe holds only their places. The parent copies them out when it takes a
message, and acknowledges the message, which frees the slot. Slots are used in order, and there is one more
than messages may be unacknowledged. Each message begins at the start of its slot, so the same few pages are
used again and again. A worker waits when the consumer is slow. There is no named shared memory and nothing to
clean up: a forked worker inherits the memory, others get a file descriptor. Where the system has no memory
without a name (macOS), everything is pickled.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import socket
import weakref
from multiprocessing import Pipe, reduction
from typing import TYPE_CHECKING, Any

import torch

from energon_stream.errors import WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_MIN_SHARED = 4096
"""Values of at least this many bytes go through shared memory; for smaller ones, the pickle is as fast."""

_ALIGN = 64

_parent_ends: weakref.WeakSet[Connection | socket.socket] = weakref.WeakSet()


def close_inherited_ends() -> None:
    """Close the parent's ends of all channels that a forked child inherited.

    Otherwise a worker would not notice that the parent closed its end while any later sibling lives.
    """
    for end in list(_parent_ends):
        end.close()


class ParentGoneError(Exception):
    """The parent has closed its end: it needs no more messages."""


class Wire:
    """Both ends of one worker's channel; made in the parent before the worker.

    No two workers share anything, and nothing has a lock. So a worker that is killed at any moment leaves
    whole messages, which the parent can still take, and at most the beginning of one.

    Args:
        shared_bytes: Size of the shared memory; 0 for none. Untouched pages cost nothing.
        depth: Number of messages that may be unacknowledged.

    Attributes:
        parent: The parent's end of the pipe.
        child: The worker's end.
        monitor: The parent's end of the line of ``loader/monitor.py``.
        child_monitor: The worker's end.

    Raises OSError if the process may not open so many files.
    """

    def __init__(self, shared_bytes: int, depth: int) -> None:
        self.parent, self.child = Pipe()
        self.monitor, self.child_monitor = socket.socketpair()
        self.depth = depth
        self.shared: mmap.mmap | None = None
        self._file: int | None = None
        if shared_bytes and hasattr(os, "memfd_create"):
            self._file = os.memfd_create("energon-stream")
            os.ftruncate(self._file, shared_bytes)
            self.shared = mmap.mmap(self._file, shared_bytes)
        _parent_ends.add(self.parent)
        _parent_ends.add(self.monitor)

    def close_child(self) -> None:
        """Close what only the worker needs, after it was started."""
        self.child.close()
        self.child_monitor.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker that does not fork gets: its end of the pipe, and the shared memory."""
        file = None if self._file is None else reduction.DupFd(self._file)
        size = 0 if self.shared is None else len(self.shared)
        ends = {"child": self.child, "monitor": self.child_monitor}
        return {**ends, "depth": self.depth, "file": file, "size": size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.child, self.child_monitor = state["child"], state["monitor"]
        self.depth, self._file, self.shared = state["depth"], None, None
        if state["file"] is not None:
            file = state["file"].detach()
            self.shared = mmap.mmap(file, state["size"])
            os.close(file)


def _can_share(tensor: torch.Tensor) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.requires_grad
    return plain and not tensor.is_quantized and tensor.nbytes >= _MIN_SHARED


class _Pickler(pickle.Pickler):
    """Moves large values from the pickle to shared memory."""

    def __init__(self, file: io.BytesIO, sender: Sender) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._sender = sender

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is bytes:
            if len(obj) >= _MIN_SHARED:
                place = self._sender.place(memoryview(obj))
                return None if place is None else ("b", *place)
        elif kind is torch.Tensor and _can_share(obj):
            place = self._sender.place(memoryview(obj.contiguous().view(-1).view(torch.uint8).numpy()))
            return None if place is None else ("t", *place, str(obj.dtype)[6:], tuple(obj.shape))
        return None


class _Unpickler(pickle.Unpickler):
    """Reads messages of this library's own workers; never a file or a peer's message."""

    def __init__(self, file: io.BytesIO, shared: mmap.mmap | None) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        kind, start, size, *rest = pid
        if self._shared is None:
            raise WorkerError("a message refers to shared memory that this process does not have")
        if kind == "b":
            return self._shared[start : start + size]
        dtype, shape = rest
        data = bytearray(memoryview(self._shared)[start : start + size])
        return torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(shape)


class Sender:
    """The worker's end."""

    def __init__(self, wire: Wire) -> None:
        self._pipe = wire.child
        self._view = None if wire.shared is None else memoryview(wire.shared)
        self._slots = wire.depth + 1
        self._slot_size = 0 if wire.shared is None else len(wire.shared) // self._slots // _ALIGN * _ALIGN
        self._depth = wire.depth
        self._sent = 0
        self._unacknowledged = 0
        self._filled = 0  # bytes of the current slot

    def place(self, data: memoryview) -> tuple[int, int] | None:
        """Copy a value into the current slot and return its place; None if there is no room."""
        size = len(data)
        if self._view is None or self._filled + size > self._slot_size:
            return None
        start = self._sent % self._slots * self._slot_size + self._filled
        self._view[start : start + size] = data
        self._filled += -(-size // _ALIGN) * _ALIGN
        return start, size

    def send(self, message: Any) -> None:
        """Send a message; wait while too many are unacknowledged.

        Raises ParentGoneError if the parent has closed its end.
        """
        while self._has_acknowledgement():
            self._take_acknowledgement()
        while self._unacknowledged >= self._depth:
            self._take_acknowledgement()
        buffer = io.BytesIO()
        self._filled = 0
        _Pickler(buffer, self).dump(message)
        self._sent += 1
        self._unacknowledged += 1
        try:
            self._pipe.send_bytes(buffer.getbuffer())
        except OSError as error:
            raise ParentGoneError from error

    def drain(self) -> None:
        """Wait until the parent has acknowledged everything. Raises ParentGoneError as :meth:`send` does."""
        while self._unacknowledged:
            self._take_acknowledgement()

    def _has_acknowledgement(self) -> bool:
        try:
            return self._pipe.poll()
        except OSError as error:
            raise ParentGoneError from error

    def _take_acknowledgement(self) -> None:
        try:
            self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise ParentGoneError from error
        self._unacknowledged -= 1


class Receiver:
    """The main process's end."""

    def __init__(self, wire: Wire) -> None:
        self._pipe = wire.parent
        self._shared = wire.shared

    @property
    def pipe(self) -> Connection:
        """The pipe to wait on."""
        return self._pipe

    @property
    def is_closed(self) -> bool:
        """True after :meth:`close`."""
        return self._pipe.closed

    def receive(self) -> Any:
        """Take the next message, and copy the values in shared memory that it refers to.

        Raises EOFError if the worker is gone, also in the middle of a message.
        """
        try:
            message = self._pipe.recv_bytes()
        except OSError as error:
            raise EOFError("the worker is gone") from error
        return _Unpickler(io.BytesIO(message), self._shared).load()

    def acknowledge(self) -> None:
        """Let the worker use the oldest message's slot again."""
        # The worker may have sent its last message and be gone.
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(b"\0")

    def close(self) -> None:
        """Close the pipe and release the shared memory."""
        self._pipe.close()
        self._shared = None
