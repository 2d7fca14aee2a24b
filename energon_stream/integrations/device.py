"""Prefetch of batches to a device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch

from energon_stream.decode import SampleDecoder
from energon_stream.errors import ConfigError, MissingPackageError
from energon_stream.integrations.batch_puller import PulledBatch, PullingLoader
from energon_stream.limits import Limits
from energon_stream.loader import BasicDataLoader
from energon_stream.loader.ranks import gather_states
from energon_stream.logs import log_once
from energon_stream.samples import Batch
from energon_stream.samples.encoded_images import EncodedImages
from energon_stream.samples.tensors import map_tensors, map_values, pad_stack
from energon_stream.state import split_streams

_log = logging.getLogger(__name__)
T = TypeVar("T")
JpegDecoder: TypeAlias = Callable[[list[torch.Tensor], torch.device], list[torch.Tensor]]
"""Decodes JPEG files on a device; see :func:`prefetch_to_device`."""


@dataclass(frozen=True, slots=True)
class _Coming(PulledBatch[Any]):
    """A batch on its way to the device, or the end of a pass."""

    arrived: torch.cuda.Event | None  # event on the copying stream after the copy; None if no wait is needed


class DevicePrefetcher(PullingLoader[T]):
    """Iterates a loader, pass by pass, and returns its batches on a device; see :func:`prefetch_to_device`.

    A saved state is the position after the last batch that was *returned*. It can be restored at any time.
    """

    def __init__(
        self,
        loader: BasicDataLoader[T],
        device: torch.device | str | int,
        *,
        non_blocking: bool = True,
        depth: int = 1,
        jpeg_decoder: JpegDecoder | None = None,
    ) -> None:
        if depth < 0:
            raise ConfigError(f"depth is {depth}", hint="use 0 or more batches")
        self.device: torch.device = torch.empty(0, device=device).device  # with its index
        self.depth = depth
        self._jpeg_decoder: JpegDecoder | None = jpeg_decoder
        if jpeg_decoder is None and self.device.type == "cuda":
            self._jpeg_decoder = torchvision_jpegs
        super().__init__(loader)
        self._non_blocking = non_blocking
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda" and non_blocking:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._coming: deque[_Coming] = deque()
        self._consumed = self._state()

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        self._fill(1)  # the first batch does not wait for the second
        while not (coming := self._take()).ended:
            batch = [self._there(coming)]
            del coming
            yield batch.pop()  # keeps no reference, so the batch is freed as soon as the loop drops it
            self._fill(1 + self.depth)

    def _fill(self, count: int) -> None:
        """Prefetch until ``count`` batches are on their way, but none beyond the end of the pass."""
        while len(self._coming) < count and not (self._coming and self._coming[-1].ended):
            pulled = self._pull()
            moved, arrived = (None, None) if pulled.ended else self._send(pulled.batch)
            self._coming.append(_Coming(moved, pulled.ended, pulled.state, arrived))

    def _take(self) -> _Coming:
        """Take the next batch; from now on it counts as consumed."""
        coming = self._coming.popleft()
        self._consumed = coming.state
        return coming

    def _send(self, batch: Any) -> tuple[Any, torch.cuda.Event | None]:
        if self._stream is None:
            return _moved(self._decoded(batch), self.device, self._non_blocking), None
        with torch.cuda.stream(self._stream):
            moved = _moved(self._decoded(batch), self.device, True)
            return moved, self._stream.record_event()

    def _decoded(self, batch: Any) -> Any:
        decode = partial(decode_images, device=self.device, decoder=self._jpeg_decoder)
        return map_values(EncodedImages, decode, batch)

    def _there(self, coming: _Coming) -> Any:
        """Return the batch, for use on the caller's stream."""
        if coming.arrived is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(coming.arrived)
            # The copying stream allocated the memory: it must not reuse it before the current stream is done.
            map_tensors(partial(_record, stream=current), coming.batch)
        return coming.batch

    def __len__(self) -> int:
        """Return the loader's length."""
        return len(self.loader)

    def save_state_rank(self) -> dict[str, Any]:
        """Return the position of this rank after the last batch returned, in built-in types only.

        Raises ConfigError if ``get_savable_loader`` did not make the loader.
        """
        loader = self._savable()
        # Without a batch ahead, the position is the loader's own, which may have been restored directly.
        return self._consumed if self._coming else loader.save_state_rank()

    def restore_state_rank(self, state: dict[str, Any] | bytes | None) -> None:
        """Go on at the position of a saved state; batches that were fetched ahead are dropped.

        Raises StateError if the state does not fit this dataset or topology.
        """
        self._stop().restore_state_rank(state)
        self._begin_here()

    def save_state_global(self, global_dst_rank: int = 0) -> list[dict[str, Any]] | None:
        """Return the states of all ranks on one of them; see :meth:`SavableDataLoader.save_state_global`."""
        return gather_states(self.save_state_rank(), self.worker_config, global_dst_rank)

    def restore_state_global(self, state: Sequence[Any] | None, *, src_rank: int | None = None) -> None:
        """Go on at the position of all ranks; see :meth:`SavableDataLoader.restore_state_global`."""
        self._stop().restore_state_global(state, src_rank=src_rank)
        self._begin_here()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this rank, with one entry (of bytes) for each of its streams."""
        return split_streams(self.save_state_rank())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at the position of a state dict; see :meth:`restore_state_rank`."""
        self._stop().load_state_dict(state_dict)
        self._begin_here()

    def _begin_here(self) -> None:
        self._coming.clear()
        self._consumed = self._state()

    def close(self) -> None:
        """End the workers. Another iteration starts new ones, after the last batch returned."""
        if self._coming and self._consumed:
            with self._savable().alone():  # ranks close at any time, each at its own step
                self.restore_state_rank(self._consumed)
        else:
            self.loader.close()


def decode_images(images: EncodedImages, device: torch.device, decoder: JpegDecoder | None) -> torch.Tensor:
    """Decode images to a tensor on a device, padded as batches are. Without a decoder, Pillow decodes all."""
    about = images.about.tolist()
    parts = list(torch.split(images.data, [row[0] for row in about]))
    files = [place for place, row in enumerate(about) if not row[1]]
    made = _decode_files([parts[place] for place in files], device, decoder)
    if len(made) != len(files) or any(each.dtype != torch.uint8 for each in made):
        kinds = ", ".join(sorted({str(each.dtype) for each in made}))
        what = f"jpeg_decoder made {len(made)} images ({kinds}) of {len(files)} files"
        raise ConfigError(what, hint="return a uint8 tensor for each file, in their order")
    for place, (_, colours, height, width, _) in enumerate(about):
        if colours:
            parts[place] = parts[place].view(colours, height, width).to(device, non_blocking=True)
    for place, found in zip(files, made, strict=True):
        if tuple(found.shape) != (3, *about[place][2:4]):  # of a file that the decoder takes for another
            found = _by_pillow(parts[place]).to(device)
        parts[place] = found
    pixels = pad_stack(parts)
    return pixels.float() / 255 if about[0][4] else pixels


def _decode_files(
    files: list[torch.Tensor], device: torch.device, decoder: JpegDecoder | None
) -> list[torch.Tensor]:
    if decoder is not None and files:
        try:
            return decoder(files, device)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if len(files) > 1:  # one of them is odd
                return [made for file in files for made in _decode_files([file], device, decoder)]
            log_once(_log, "Pillow decodes a JPEG file that the GPU does not: %.200s", error, key=0)
    return [_by_pillow(file).to(device) for file in files]


def _by_pillow(file: torch.Tensor) -> torch.Tensor:
    checked = Limits(image_pixels=1 << 62)  # in the worker
    decoder = SampleDecoder(image_decode="torchrgb8", limits=checked)
    pixels: torch.Tensor = decoder.decode("jpg", file.numpy().tobytes())
    return pixels


def torchvision_jpegs(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Decode JPEG files on the GPU, by nvJPEG in torchvision."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError) as error:
        hint = (
            "run `pip install 'energon-stream[transforms]'`, pass jpeg_decoder=, or leave image_backend out"
        )
        raise MissingPackageError(f"image_backend='nvjpeg' needs torchvision: {error}", hint=hint) from error
    found: list[torch.Tensor] = decode_jpeg(files, ImageReadMode.RGB, device=device)
    return found


def _moved(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(batch, Batch):  # a class may override to_device
        return batch.to_device(device, non_blocking)
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), batch)


def _record(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    if tensor.is_cuda:
        tensor.record_stream(stream)
    return tensor


def prefetch_to_device(
    loader: BasicDataLoader[T],
    device: torch.device | str | int,
    non_blocking: bool = True,
    depth: int = 1,
    jpeg_decoder: JpegDecoder | None = None,
) -> DevicePrefetcher[T]:
    """Iterate a loader with batches on a device; the next batches are copied while one is used.

    Tensors within dicts, lists, tuples, named tuples and dataclasses are moved, and these containers are
    copied. ``Batch`` classes are moved by their ``to_device``. Other values stay as they are.

    On CUDA, copies run on a stream of their own. The stream that is current when the batch is returned waits
    for the copy; the Python thread does not. The memory is reused after the work that this stream has at that
    time. A program that uses a batch on another stream calls ``record_stream`` itself, as with any tensor.
    Copies are asynchronous only from page-locked memory, which loaders return where CUDA is available, unless
    ``pin_memory=False``. Copies from other memory are correct too, but the thread waits.

    Args:
        loader: A loader, made by ``get_savable_loader`` if its position is to be saved.
        device: Device of the batches. On ``"cpu"`` they stay as they are, and states are saved and restored
            all the same.
        non_blocking: Let copies run while Python goes on. False copies on the current stream, and waits.
        depth: Batches ahead of the one in use, 0 or more. Each takes memory on the device.
        jpeg_decoder: Decodes the JPEG files of :class:`EncodedImages`: called with ``uint8`` tensors and the
            device, it returns tensors ``uint8 [3, height, width]``. If it raises a RuntimeError, Pillow takes
            the files that it cannot decode. None: torchvision on CUDA, and Pillow on other devices.

    Raises:
        ConfigError: ``depth`` is negative; while iterating: ``jpeg_decoder`` does not return what it should.
        MissingPackageError: There are JPEG files to decode on CUDA, and no torchvision.

    Example:
        >>> from energon_stream import WorkerConfig, get_savable_loader, get_val_dataset
        >>> from energon_stream.integrations.device import prefetch_to_device
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("captions", worker_config=config, batch_size=4)
        >>> for batch in prefetch_to_device(get_savable_loader(dataset), "cpu"):  # or "cuda"
        ...     print(batch.image.device, batch.image.shape)
        cpu torch.Size([4, 3, 48, 64])
        cpu torch.Size([4, 3, 48, 64])
    """
    return DevicePrefetcher(loader, device, non_blocking=non_blocking, depth=depth, jpeg_decoder=jpeg_decoder)
