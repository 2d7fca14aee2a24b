"""The log of a rank: what the plan does not tell, in a few bytes a sample.

A batch that follows the plan needs no entry. An entry is ``[step, stream, batch, kind, payload]``: step of
the rank and batch of the stream, both counted from the beginning of the run. Kinds:

* ``GAPS``: the batch follows the plan with gaps, because samples were skipped. The payload has the number of
  samples that were left out before each of its samples.
* ``REFS``: the batch has other samples, as packs have. The payload has leaf and number of each.
* ``END``: the stream ended its pass before this step. The payload is the state of its reader.
* ``ANCHOR``: the state of the stream's reader before this batch.

A file has the steps of a rank from one on, compressed, with a digest. It begins with the place of each
stream, so it is read without the files before it. It grows to at most a megabyte.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from energon_stream.lineage.run_description import reading_run

_MAGIC = b"energon_stream.log.1\n"
_DIGEST = 16
_MOST_BYTES = 1 << 28


class EntryKind(IntEnum):
    """Kinds of entries."""

    GAPS = 0
    REFS = 1
    END = 2
    ANCHOR = 3


class StepEntry(NamedTuple):
    """A note on one batch, one end of a pass, or one place in the plan."""

    step: int  # step of the rank
    stream: int
    batch: int  # of the stream
    kind: EntryKind
    payload: Any


@dataclass(frozen=True, slots=True)
class LogFile:
    """Steps of a rank that follow each other, and the place of each stream before the first."""

    rank: int
    world_size: int
    num_streams: int
    first: int  # first step
    end: int  # one past the last step that was recorded
    next_stream: int
    ended: tuple[int, ...]  # streams that have ended in the pass
    passes: int  # passes that are over
    pass_length: int
    batches: Mapping[int, int]  # batches of each stream, all before the first step
    readers: Mapping[int, Any]  # state of each stream's reader; None at its start
    entries: Sequence[StepEntry] = ()

    def dumps(self) -> bytes:
        """Return the content of the file."""
        values = [getattr(self, name) for name in _FIELDS]
        body = zlib.compress(msgpack.packb([*values, [tuple(entry) for entry in self.entries]]))
        return _MAGIC + hashlib.blake2b(body, digest_size=_DIGEST).digest() + body

    @classmethod
    def loads(cls, data: bytes, where: str) -> LogFile:
        """Read the content of a file. Raises RunDamagedError if it is damaged."""
        with reading_run(where):
            begin = len(_MAGIC) + _DIGEST
            digest = hashlib.blake2b(data[begin:], digest_size=_DIGEST).digest()
            if data[:begin] != _MAGIC + digest:
                raise ValueError("its digest does not match its content")
            inflate = zlib.decompressobj()
            body = inflate.decompress(data[begin:], _MOST_BYTES)
            if not inflate.eof:
                raise ValueError("it is too large")
            *values, entries = msgpack.unpackb(body, strict_map_key=False)
            made = [
                StepEntry(step, stream, batch, EntryKind(kind), p) for step, stream, batch, kind, p in entries
            ]
            return cls(**dict(zip(_FIELDS, values, strict=True)), entries=made)


_FIELDS = tuple(name for name in LogFile.__dataclass_fields__ if name != "entries")


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """Pack integers in as few bytes as each needs: seven bits a byte, the sign in the lowest."""
    packed = bytearray()
    for number in numbers:
        left = number << 1 if number >= 0 else (-number << 1) - 1
        while left > 127:
            packed.append(left & 127 | 128)
            left >>= 7
        packed.append(left)
    return bytes(packed)


def unpack_numbers(packed: bytes) -> list[int]:
    """Return the integers that :func:`pack_numbers` packed.

    Example:
        >>> unpack_numbers(pack_numbers([0, -1, 300]))
        [0, -1, 300]
    """
    numbers, number, shift = [], 0, 0
    for byte in packed:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(-((number + 1) >> 1) if number & 1 else number >> 1)
            number, shift = 0, 0
    return numbers


def pack_refs(refs: Sequence[tuple[int, int]]) -> bytes:
    """Pack leaf and number of samples, each as the difference from the one before."""
    numbers, leaf, index = [], 0, 0
    for next_leaf, next_index in refs:
        numbers += [next_leaf - leaf, next_index - index]
        leaf, index = next_leaf, next_index
    return pack_numbers(numbers)


def unpack_refs(packed: bytes) -> list[tuple[int, int]]:
    """Return the samples that :func:`pack_refs` packed."""
    numbers, refs, leaf, index = unpack_numbers(packed), [], 0, 0
    for place in range(0, len(numbers), 2):
        leaf, index = leaf + numbers[place], index + numbers[place + 1]
        refs.append((leaf, index))
    return refs
