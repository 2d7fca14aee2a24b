"""The arguments that all ways to open a dataset share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from energon_stream.cache import CacheConfig, CacheLayer
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.read.decode import FileStoreDecoder, SampleDecoder
from energon_stream.read.options import ReadOptions
from energon_stream.recipe.fields import parse_parts
from energon_stream.recipe.leaves import SampleOptions
from energon_stream.recipe.sample_types import DeclaredSamples, SampleType, declare
from energon_stream.schedule import OrderSpec
from energon_stream.task import DefaultTaskEncoder, TaskEncoder
from energon_stream.worker import WorkerConfig

__all__ = ["CacheOption", "Shuffling", "cache_layer", "declared_samples", "prepare", "reading_options"]

CacheOption = CacheConfig | str | os.PathLike[str] | bool | None
"""What users say of the cache: a configuration, its directory, False for none, None for what the environment says."""

_FIRST_SAMPLES = 8
_PARALLEL_SLICES = 16


@dataclass(frozen=True, slots=True)
class Shuffling:
    """How sources are shuffled, but for the multiplier that each may have of its own.

    Attributes:
        max_samples_per_sequence: Samples that are read in sequence.
        shuffle_buffer_size: Samples among which each is shuffled.
        parallel_shard_iters: Slices that are read side by side; None for 16, or 1 where order is kept.
    """

    max_samples_per_sequence: int | None = None
    shuffle_buffer_size: int | None = None
    parallel_shard_iters: int | None = None

    def order(self, multiplier: int | None) -> OrderSpec:
        """The order of a source with a ``shuffle_over_epochs_multiplier``."""
        parallel = self.parallel_shard_iters
        if parallel is None:
            parallel = 1 if multiplier is None else _PARALLEL_SLICES
        return OrderSpec(self.max_samples_per_sequence, self.shuffle_buffer_size or 0, parallel, multiplier)


def cache_layer(cache: CacheOption) -> CacheLayer | None:
    """What reads of remote stores go through; None for nothing.

    Raises:
        ConfigError: It is neither a configuration nor a directory.
    """
    if cache is None:
        cache = CacheConfig.from_environment()
    if cache is None or cache is False:
        return None
    if isinstance(cache, (str, os.PathLike)):
        cache = CacheConfig(os.fspath(cache))
    if not isinstance(cache, CacheConfig):
        raise ConfigError(f"cache is {cache!r}", hint="pass a CacheConfig, its directory, or False for none")
    return CacheLayer(cache)


def declared_samples(
    sample_type: SampleType | None, field_map: Mapping[str, str] | None
) -> DeclaredSamples | None:
    """What the user says the samples are; None for nothing.

    Raises:
        ConfigError: There is no such type, or the field map does not fit it.
    """
    try:
        return declare(sample_type, field_map, "sample_type= and field_map=")
    except MetadataError as error:
        raise ConfigError(error.what, where=error.where, hint=error.hint) from error


def reading_options(given: ReadOptions | None, batch_size: int | None, packing: int | None) -> ReadOptions:
    """Limits of the look-ahead; ``first_samples`` follows from the batch unless it is set.

    The first batch is fetched as exact ranges, so that it arrives early. Packing needs a full buffer before it.
    """
    for name, value in (("batch_size", batch_size), ("packing_buffer_size", packing)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}", hint="use 1 or more, or None")
    options = given or ReadOptions()
    if options.first_samples is not None:
        return options
    return replace(options, first_samples=packing or batch_size or _FIRST_SAMPLES)


def prepare(
    config: WorkerConfig | None,
    encoder: TaskEncoder[Any, Any, Any, Any] | None,
    trust: bool | None,
    decoding: dict[str, Any],
    parts: Sequence[str] | None = None,
) -> tuple[WorkerConfig, TaskEncoder[Any, Any, Any, Any], SampleOptions]:
    """Fill in the defaults; ``decoding`` holds the arguments that older code passes.

    Raises:
        ConfigError: An unknown argument, or one that cannot be honoured.
    """
    config = config or WorkerConfig.default_worker_config()
    encoder = encoder or DefaultTaskEncoder()
    handler = decoding.pop("handler", None)
    if handler is not None:
        warnings.warn(
            "handler= is deprecated: use WorkerConfig(global_error_handler=…)", FutureWarning, stacklevel=3
        )
        config = replace(config, global_error_handler=_legacy_handler(handler))
    decoder = _decoder(encoder.decoder, decoding)
    return config, encoder, SampleOptions(decoder, trust, parse_parts(parts, "parts="), encoder.cookers)


def _legacy_handler(handler: Callable[[Exception, Any], Any]) -> Callable[..., None]:
    def call(error: Exception, sample: Any, sources: Any = None) -> None:
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        handler(error, key)

    return call


_DECODING = ("image_decode", "av_decode", "video_decode_audio", "guess_content", "allow_pickle")


def _decoder(own: FileStoreDecoder | None, decoding: dict[str, Any]) -> FileStoreDecoder | None:
    """The encoder's decoder, or another one made of the arguments; the encoder itself is not touched."""
    unknown = sorted(set(decoding) - {*_DECODING, "auto_decode"})
    if unknown:
        raise ConfigError(
            f"unknown arguments {unknown}", hint=f"known here are {[*_DECODING, 'auto_decode', 'handler']}"
        )
    auto: Literal[True, False] | None = decoding.pop("auto_decode", None)
    if auto is False:
        if decoding:
            raise ConfigError(f"auto_decode=False leaves bytes, so {sorted(decoding)} cannot be honoured")
        return None
    return SampleDecoder(**decoding) if decoding else own
