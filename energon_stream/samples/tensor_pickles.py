"""Pickles of values with tensors of any dtype: torch cannot pickle ``uint16``, ``float8_e5m2`` and others."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from energon_stream.arrays import reduce_view


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True if dtype, shape, bytes and ``requires_grad`` say all of a tensor."""
    is_usual = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_nested
    is_marked = tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return type(tensor) is torch.Tensor and is_usual and not is_marked and not tensor.__dict__


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a plain tensor, which are copied if it is not contiguous."""
    whole = tensor.detach().contiguous()
    return _bytes_in(
        whole.untyped_storage(), int(whole.storage_offset() * whole.element_size()), whole.nbytes
    )


def tensor_of(
    data: bytes | bytearray | memoryview, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    """Return a tensor of writable bytes, or of a copy of others."""
    writable = bytearray(data) if isinstance(data, bytes) else data
    made = torch.empty(0, dtype=dtype)
    if len(data):  # torch takes no empty buffer
        made.set_(torch.frombuffer(writable, dtype=torch.uint8).untyped_storage())
    return made.view(shape).requires_grad_(requires_grad)


class TensorPickler(pickle.Pickler):
    """Pickles values with tensors. Each value that ``pickle`` can write stays as it is."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduce tensors, the storages of which torch makes unusual ones, and memoryviews of parts."""
        if isinstance(obj, torch.Tensor) and is_plain(obj):
            return tensor_of, (bytes(bytes_of(obj)), obj.dtype, tuple(obj.shape), obj.requires_grad)
        if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
            return _storage, (bytes(_bytes_in(obj, 0, obj.nbytes())),)
        if isinstance(obj, torch.TypedStorage) and obj.device.type == "cpu":
            untyped = obj._untyped_storage
            return _typed_storage, (bytes(_bytes_in(untyped, 0, untyped.nbytes())), obj.dtype)
        if isinstance(obj, memoryview):  # a part as it is
            return reduce_view(obj)
        return NotImplemented


def dumps(value: Any) -> bytes:
    """Pickle a value; ``pickle.loads`` reads it."""
    buffer = io.BytesIO()
    TensorPickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Storage(torch.UntypedStorage):
    """A storage as torch makes tensors of all dtypes from."""

    @property
    def _untyped_storage(self) -> torch.UntypedStorage:
        return self


def _bytes_in(storage: torch.UntypedStorage, start: int, size: int) -> memoryview:
    array: Any = torch.empty(0, dtype=torch.uint8).set_(storage, start, (size,), (1,)).numpy()
    return memoryview(array)


def _storage(data: bytes) -> torch.UntypedStorage:
    made = _Storage(len(data))  # type: ignore[no-untyped-call]
    made.copy_(tensor_of(data, torch.uint8, (len(data),), False).untyped_storage())
    return made


def _typed_storage(data: bytes, dtype: torch.dtype) -> torch.TypedStorage:
    storage = _storage(data)
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
