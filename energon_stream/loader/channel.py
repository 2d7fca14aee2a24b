"""The channel from a worker to the main process: a pipe for small values, shared memory for large ones.

Large byte strings and tensors lie in slots of anonymous shared memory; the pickle on the pipe has only their
places. A batch that the library stacks is made in its slot (``samples/batch_memory.py``); other values are
copied there. The parent's tensors are views of the slot, which it gives back when no view is left: numbers of
free slots travel with the acknowledgements of messages. A consumer that holds three batches gets copies of
later ones, so the worker always has a slot. The memory has no name, so there is nothing to clean up: a
forked worker inherits it, others get a file descriptor. macOS has no such memory; there, all is pickled.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import io
import math
import mmap
import os
import pickle
import socket
import struct
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from typing import Any

import torch

from energon_stream.errors import WorkerError
from energon_stream.loader.observe.profile import CHANNEL, CONSUMER, counts_as
from energon_stream.samples.tensor_pickles import TensorPickler, bytes_of, is_plain, tensor_of

_MIN_SHARED = 4096  # bytes of values that go through shared memory; for smaller ones, the pickle is as fast
_ALIGN = 64
_LARGEST = 2 << 30  # bytes of a batch's values in shared memory; what is beyond is pickled
_HELD_SLOTS = 3  # of which the consumer may hold views; one of them is that of the batch which it works on

_parent_ends: weakref.WeakSet[Connection | socket.socket] = weakref.WeakSet()


def close_inherited_ends() -> None:
    """Close the parent's ends that a forked child inherited: else siblings would not notice their closing."""
    for end in list(_parent_ends):
        end.close()


class ParentGoneError(BaseException):
    """The parent has closed its end: it needs no more messages.

    A user's function can be on the stack. As no ``Exception``, it passes what tolerates failures there.
    """


class Wire:
    """Both ends of one worker's channel; made in the parent before the worker.

    No two workers share anything, and nothing has a lock. So a worker that is killed at any moment leaves
    whole messages, which the parent can still take, and at most the beginning of one. Slots are for ``depth``
    unacknowledged messages, the next one, and three messages that the consumer holds. Each has
    ``slot_bytes`` of addresses, of which untouched pages cost nothing. Where the system refuses them, it
    has a share of ``shared_bytes``. That also bounds the messages on their way, if they are more than two.
    """

    parent: Connection
    child: Connection
    monitor: socket.socket  # the parent's end of the line of ``observe/monitor.py``
    child_monitor: socket.socket
    depth: int
    shared_bytes: int
    slot_bytes: int

    def __init__(self, shared_bytes: int, depth: int, slot_bytes: int = _LARGEST) -> None:
        self.parent, self.child = Pipe()
        self.monitor, self.child_monitor = socket.socketpair()
        self.depth = depth
        self.shared: mmap.mmap | None = None
        self._file: int | None = None
        self.shared_bytes = shared_bytes
        share = shared_bytes // (depth + 1) // _ALIGN * _ALIGN
        self.slot_bytes = share
        if share and hasattr(os, "memfd_create"):
            self._file = os.memfd_create("energon-stream")
            if not self._map(max(share, slot_bytes)) and not self._map(share):
                os.close(self._file)
                self._file = None
        _parent_ends.add(self.parent)
        _parent_ends.add(self.monitor)

    def _map(self, slot_bytes: int) -> bool:
        """Make slots; return False where ``ulimit -f`` or ``ulimit -v`` allows fewer bytes."""
        self.slot_bytes = slot_bytes
        size = slot_bytes * (self.depth + 1 + _HELD_SLOTS)
        try:
            os.ftruncate(self._file or 0, size)
            self.shared = mmap.mmap(self._file or 0, size)
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.ENOMEM):
                raise
        return self.shared is not None

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
        return {
            **ends,
            "depth": self.depth,
            "file": file,
            "size": size,
            "slot": self.slot_bytes,
            "bytes": self.shared_bytes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.child, self.child_monitor = state["child"], state["monitor"]
        self.depth, self._file, self.shared = state["depth"], None, None
        self.slot_bytes, self.shared_bytes = state["slot"], state["bytes"]
        if state["file"] is not None:
            file = state["file"].detach()
            self.shared = mmap.mmap(file, state["size"])
            os.close(file)


class _Lease:
    """A slot of which views exist; ``ended`` is called once, on any thread, when the last of them is gone."""

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._refs: list[weakref.ref[memoryview]] = []
        # One for whoever made the lease, which is the last to go, and one for each view.
        self._tokens = [True]

    def view(self, shared: mmap.mmap, start: int, size: int) -> memoryview:
        """Return a view of some bytes; tensors on it keep it alive."""
        made = memoryview(shared)[start : start + size]
        self._tokens.append(False)
        self._refs.append(weakref.ref(made, self._drop))
        return made

    def release(self) -> None:
        """Make no more views."""
        self._drop(None)

    def _drop(self, _: object) -> None:
        if self._tokens.pop():  # atomic, so exactly one caller gets the last token
            self._ended()


class _Pickler(TensorPickler):
    """Moves large values from the pickle to shared memory."""

    def __init__(self, file: io.BytesIO, sender: Sender) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._sender = sender

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is str:  # most objects: this is called for each
            return None
        if kind is bytes:
            if len(obj) >= _MIN_SHARED:
                place = self._sender.place(obj)
                return None if place is None else ("b", *place)
        elif kind is torch.Tensor and is_plain(obj) and obj.nbytes >= _MIN_SHARED:
            place = self._sender.place_of(obj) or self._sender.place(bytes_of(obj))
            return None if place is None else ("t", *place, obj.dtype, tuple(obj.shape), obj.requires_grad)
        return None


class _Unpickler(pickle.Unpickler):
    """Reads messages of this library's own workers; never a file or a peer's message."""

    def __init__(self, file: io.BytesIO, receiver: Receiver) -> None:
        super().__init__(file)
        self._receiver = receiver

    def persistent_load(self, pid: Any) -> Any:
        kind, start, size, *rest = pid
        data = self._receiver.data_at(start, size, copied=kind == "b")
        if kind == "b":
            return data
        return tensor_of(data, *rest)


class Sender:
    """The worker's end, and the ``BatchMemory`` of ``samples/batch_memory.py``."""

    def __init__(self, wire: Wire) -> None:
        self._pipe = wire.child
        self._shared = wire.shared
        self._slot_bytes = wire.slot_bytes
        self._depth = wire.depth
        self._shared_bytes = wire.shared_bytes
        self._sizes: collections.deque[int] = collections.deque()  # shared bytes of unacknowledged messages
        self._last_size = 0  # those of the message before: the next one is about as large
        # Slots that are neither with the receiver nor part of a view here.
        self._free = set() if wire.shared is None else set(range(len(wire.shared) // wire.slot_bytes))
        self._returned: set[int] = set()  # slots that the receiver gave back, of which views exist here
        self._leases: dict[int, _Lease] = {}  # of the slots of which views exist here
        self._slot: int | None = None  # that of the next message
        self._filled = 0  # bytes of it
        self._is_referred = False  # whether the next message refers to it
        self._made: dict[int, tuple[int, int]] = {}  # places of tensors that were made in it, by address

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return an uninitialized tensor in the slot of the next message; None if there is no room."""
        size = math.prod(shape) * dtype.itemsize
        place = self._room(size) if size >= _MIN_SHARED else None
        if place is None or self._slot is None or self._shared is None:
            return None
        slot = self._slot
        lease = self._leases.get(slot)
        if lease is None:
            lease = self._leases[slot] = _Lease(partial(self._leases.pop, slot, None))
        made = torch.frombuffer(lease.view(self._shared, *place), dtype=dtype).reshape(shape)
        self._made[made.data_ptr()] = place
        return made

    def place_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the place of a tensor that was made for this message; None for others."""
        place = self._made.get(tensor.data_ptr())
        if place is None or place[1] != tensor.nbytes or not tensor.is_contiguous():
            return None
        self._is_referred = True
        return place

    def place(self, data: bytes | memoryview) -> tuple[int, int] | None:
        """Copy a value into the current slot and return its place; None if there is no room."""
        place = self._room(len(data))
        if place is None or self._shared is None:
            return None
        self._shared[place[0] : place[0] + place[1]] = data
        self._is_referred = True
        return place

    def _room(self, size: int) -> tuple[int, int] | None:
        """Return a place of the current slot, which is chosen if there is none."""
        if self._slot is None:
            self._slot = self._next_slot()
            self._filled = 0
        if self._slot is None or self._filled + size > self._slot_bytes:
            return None
        start = self._slot * self._slot_bytes + self._filled
        self._filled += -(-size // _ALIGN) * _ALIGN
        return start, size

    def _next_slot(self) -> int | None:
        most = min(self._depth, len(self._sizes))
        # The latest ones and the next one should fit.
        while (
            most > 1
            and sum(self._sizes[number] for number in range(-most, 0)) + self._last_size > self._shared_bytes
        ):
            most -= 1
        self._take_acknowledgements(most)
        self._free |= {slot for slot in self._returned if slot not in self._leases}
        self._returned -= self._free
        if not self._free:
            return None
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    @counts_as(CHANNEL)
    def send(self, message: Any) -> None:
        """Send a message; wait while too many are unacknowledged. Raises ParentGoneError."""
        self._take_acknowledgements(self._depth - 1)
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, self).dump(message)
        except Exception as error:
            step = message[0] if isinstance(message, tuple) else message
            raise self._cannot_send(getattr(step, "value", step), error) from error
        self._last_size = self._filled if self._slot is not None else 0
        self._sizes.append(self._last_size)
        self._leave_slot()
        try:
            self._pipe.send_bytes(buffer.getvalue())  # Python 3.12.1 crashes if a view of it is garbage
        except OSError as error:
            raise ParentGoneError from error

    def _cannot_send(self, value: Any, error: Exception, place: tuple[str, ...] = ()) -> WorkerError:
        """Return the error for a value that cannot be pickled; it names the innermost one."""
        parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for name, part in enumerate(value) if isinstance(value, list | tuple) else parts.items():
            try:
                _Pickler(io.BytesIO(), self).dump(part)
            except Exception as cause:
                return self._cannot_send(part, cause, (*place, str(name)))
        return WorkerError(
            f"a worker cannot send a {type(value).__name__} to the main process: "
            f"{type(error).__name__}: {error}",
            where="/".join(place) or None,
            hint="return values that can be pickled, or use num_workers=0",
        )

    def _leave_slot(self) -> None:
        """Go on with another slot, after a message or without one."""
        slot = self._slot
        if slot is None:
            return
        lease = self._leases.get(slot)
        if lease is not None:
            lease.release()
        if not self._is_referred:  # what was made in it is not part of the message
            self._returned.add(slot)
        self._slot, self._is_referred = None, False
        self._made.clear()

    def drain(self) -> None:
        """Wait until the parent has acknowledged everything. Raises ParentGoneError."""
        self._take_acknowledgements(0)

    def _take_acknowledgements(self, most: int) -> None:
        """Take what came; wait while more than ``most`` messages have no acknowledgement."""
        try:
            while len(self._sizes) > most or self._pipe.poll():
                self._take_acknowledgement()
        except (EOFError, OSError) as error:
            raise ParentGoneError from error

    @counts_as(CONSUMER)
    def _take_acknowledgement(self) -> None:
        slots = self._pipe.recv_bytes()
        self._returned.update(slot for (slot,) in struct.iter_unpack("=I", slots))
        self._sizes.popleft()


class Receiver:
    """The main process's end."""

    def __init__(self, wire: Wire) -> None:
        self.pipe: Connection = wire.parent
        self._shared = wire.shared
        self._slot_bytes = wire.slot_bytes
        self._held: dict[int, _Lease] = {}  # of the slots of which the consumer has views
        self._free: collections.deque[int] = collections.deque()  # slots to give back
        self._slot: int | None = None  # that of the message that is read
        self._lease: _Lease | None = None

    def receive(self) -> Any:
        """Take the next message. Raises EOFError if the worker is gone, also in the middle of a message."""
        try:
            message = self.pipe.recv_bytes()
        except OSError as error:
            raise EOFError("the worker is gone") from error
        try:
            return _Unpickler(io.BytesIO(message), self).load()
        except Exception as error:
            raise WorkerError(
                f"what a worker sent cannot be read here: {type(error).__name__}: {error}",
                hint="return values that can be pickled and read again, or use num_workers=0",
            ) from error
        finally:
            if self._lease is not None:
                self._lease.release()
            elif self._slot is not None:
                self._free.append(self._slot)
            self._slot = self._lease = None

    def data_at(self, start: int, size: int, copied: bool) -> bytes | bytearray | memoryview:
        """Return bytes of the shared memory: a view if there may be one, else a copy."""
        if self._shared is None:
            raise WorkerError("a message refers to shared memory that this process does not have")
        if self._slot is None:
            self._slot = start // self._slot_bytes
        if copied:
            return self._shared[start : start + size]
        if self._lease is None:
            if len(self._held) >= _HELD_SLOTS:
                return bytearray(memoryview(self._shared)[start : start + size])
            self._lease = self._held[self._slot] = _Lease(partial(self._end_lease, self._slot))
        return self._lease.view(self._shared, start, size)

    def _end_lease(self, slot: int) -> None:
        self._held.pop(slot, None)
        self._free.append(slot)

    def acknowledge(self) -> None:
        """Let the worker send another message, and use the slots again that are free."""
        slots = b""
        while self._free:
            slots += struct.pack("=I", self._free.popleft())
        # The worker may have sent its last message and be gone.
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(slots)

    def close(self) -> None:
        """Close the pipe and release the shared memory; views that the consumer has stay as they are."""
        self.pipe.close()
        self._shared = None
