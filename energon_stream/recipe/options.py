"""Options of all functions that open datasets, described once, and what follows from them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from energon_stream.cache import CacheConfig, CacheLayer
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.read.decode import FileStoreDecoder, SampleDecoder
from energon_stream.read.options import ReadOptions
from energon_stream.recipe.fields import parse_parts
from energon_stream.recipe.leaves import SampleOptions
from energon_stream.recipe.location import DatasetLocation, PathOption, root_of
from energon_stream.recipe.sample_types import DeclaredSamples, SampleType, declare
from energon_stream.recipe.subset import parse_subset
from energon_stream.schedule import OrderSpec
from energon_stream.task import DefaultTaskEncoder, TaskEncoder
from energon_stream.worker import WorkerConfig

if TYPE_CHECKING:
    from energon_stream.storage import Transport

CacheOption = CacheConfig | str | os.PathLike[str] | bool | None
SubsetOption = Mapping[str, Any] | Sequence[Any] | None

_FIRST_SAMPLES = 8
_PARALLEL_SLICES = 16
_DECODING = (
    "image_decode",
    "av_decode",
    "video_decode_audio",
    "guess_content",
    "allow_pickle",
    "auto_decode",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Options that all functions and loaders share which open datasets. Raises ConfigError if an option is
    unknown, or cannot work.
    """

    # Folder with ``.nv-meta``, or a metadataset: its ``.yaml`` file or parsed content. Also a ``.jsonl``
    # file, and datasets that are not prepared: a ``.tar``, tars by braces (``train-{000..999}.tar``), or a
    # folder of tars (see ``sample_type``). Local paths and all URLs that fsspec knows.
    path: PathOption
    # Part of the dataset's split, or split of the metadataset. In a dataset that is not prepared, ``train``,
    # ``val`` and ``test`` all have all samples.
    split_part: str
    batch_size: int | None = None  # samples of a batch; None yields single samples
    packing_buffer_size: int | None = None  # samples to select packs from; None for no packing
    # Ranks, workers and seed. Default: the ranks of ``torch.distributed``, with 4 workers.
    worker_config: WorkerConfig | None = None
    # Makes batches of samples. Default: a new ``DefaultTaskEncoder()``.
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None
    # Range of the split part: ``{"range": ["10%", "50%"]}`` or ``{"range": [0, 1000]}``. In a metadataset the
    # percentages apply to each dataset.
    subset: SubsetOption = None
    # Parts of the samples to use, such as ``["json", "txt"]``. Other parts are not read where that saves
    # bytes. None: all parts that ``dataset.yaml`` names.
    parts: Sequence[str] | None = None
    # Type of the samples of a dataset without ``dataset.yaml``: a class derived from ``Sample``, the name of
    # one of the library's, or ``CrudeSample`` for parts by name, which cookers take. It is required for a
    # folder that is not prepared; tars that the path names are crude by default.
    sample_type: SampleType | None = None
    # Part for each field, as in ``dataset.yaml``: ``{"image": "jpg"}``.
    field_map: Mapping[str, str] | None = None
    # File in ``.nv-meta`` that defines the split parts. Default ``split.yaml``.
    split_config: str = "split.yaml"
    # File in ``.nv-meta`` that describes the samples. Default ``dataset.yaml``.
    dataset_config: str = "dataset.yaml"
    # Credentials, endpoint and the like, in fsspec's names. Default: from the environment.
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    # Client for remote data: ``"obstore"``, ``"fsspec"``, or ``"auto"`` (default) for the faster of the two
    # that can read the URL.
    transport: Transport = "auto"
    read_options: ReadOptions | None = None  # limits of the look-ahead
    # Disk cache of this node for remote data: a :class:`CacheConfig` or a directory; False for none. None: as
    # ``ENERGON_STREAM_CACHE_DIR`` and ``ENERGON_STREAM_CACHE_SIZE`` say.
    cache: CacheOption = None
    # Whether classes and files that the dataset names may be imported and run. None: whether
    # ``ENERGON_STREAM_TRUST_DATASET_CODE`` is 1.
    trust_dataset_code: bool | None = None
    # Arguments that programs for older versions pass: ``handler``, called with the error and the key of a
    # sample that fails; ``auto_decode=False``, which leaves bytes; and the arguments of ``SampleDecoder``.
    decoding: Mapping[str, Any] = field(default_factory=dict)
    # Whether samples are shuffled, or keep the order of the dataset. :func:`get_train_dataset` describes the
    # four options of shuffling that follow.
    is_shuffled: bool = False
    shuffle_buffer_size: int | None = None  # see there
    max_samples_per_sequence: int | None = None  # see there
    shuffle_over_epochs_multiplier: int | None = 1  # see there
    parallel_shard_iters: int | None = None  # see there
    with_cookers: bool = True  # whether the encoder's cookers decide which parts of crude samples are read
    config: WorkerConfig = field(init=False)  # ``worker_config`` or its default
    encoder: TaskEncoder[Any, Any, Any, Any] = field(init=False)  # ``task_encoder`` or its default
    location: DatasetLocation = field(init=False)  # the dataset and how to reach it
    samples: SampleOptions = field(init=False)  # how samples are made of parts
    limits: ReadOptions = field(init=False)  # ``read_options`` with all values set

    def __post_init__(self) -> None:
        decoding = dict(self.decoding)
        encoder = self.task_encoder or DefaultTaskEncoder()
        derived = {
            "config": self._config(decoding.pop("handler", None)),
            "encoder": encoder,
            "samples": SampleOptions(
                _decoder(encoder.decoder, decoding),
                self.trust_dataset_code,
                parse_parts(self.parts, "parts="),
                encoder.cookers if self.with_cookers else (),
            ),
            "location": self._location(),
            "limits": self._limits(),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def _config(self, handler: Callable[[Exception, Any], Any] | None) -> WorkerConfig:
        config = self.worker_config or WorkerConfig.default_worker_config()
        if handler is None:
            return config

        def call(error: Exception, sample: Any, sources: Any = None) -> None:
            key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
            handler(error, key)

        warnings.warn(
            "handler= is deprecated: use WorkerConfig(global_error_handler=…)",
            FutureWarning,
            stacklevel=5,  # the caller of the function that creates the options
        )
        return replace(config, global_error_handler=call)

    def _location(self) -> DatasetLocation:
        return DatasetLocation(
            root_of(self.path),
            self.split_part,
            self.storage_options,
            self.transport,
            self.split_config,
            self.dataset_config,
            parse_subset(self.subset, str(self.path)),
            self.shuffle_over_epochs_multiplier,
            cache_layer(self.cache),
            _declared(self.sample_type, self.field_map),
        )

    def order(self, multiplier: int | None) -> OrderSpec | None:
        """Return the order of a dataset, given the product of the multipliers that apply to it; None to keep
        it."""
        if not self.is_shuffled:
            return None
        parallel = self.parallel_shard_iters
        if parallel is None:
            parallel = 1 if multiplier is None else _PARALLEL_SLICES
        return OrderSpec(self.max_samples_per_sequence, self.shuffle_buffer_size or 0, parallel, multiplier)

    def _limits(self) -> ReadOptions:
        for name in ("batch_size", "packing_buffer_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}", hint="use 1 or more, or None")
        limits = self.read_options or ReadOptions()
        if limits.first_samples is not None:
            return limits
        # The first batch is fetched as exact ranges, so that it arrives early. Packing needs a full buffer
        # before it.
        first = self.packing_buffer_size or self.batch_size or _FIRST_SAMPLES
        return replace(limits, first_samples=first)


def cache_layer(cache: CacheOption) -> CacheLayer | None:
    """Return the disk cache that an option means; None for no cache. Raises ConfigError if the option is
    neither a configuration nor a directory.
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


def _declared(sample_type: SampleType | None, field_map: Mapping[str, str] | None) -> DeclaredSamples | None:
    try:
        return declare(sample_type, field_map, "sample_type= and field_map=")
    except MetadataError as error:  # the user's argument is wrong, and no file
        raise ConfigError(error.what, where=error.where, hint=error.hint) from error


def _decoder(own: FileStoreDecoder | None, decoding: dict[str, Any]) -> FileStoreDecoder | None:
    """Return the encoder's decoder, or a new one made of the arguments. The encoder keeps its own."""
    unknown = sorted(set(decoding) - set(_DECODING))
    if unknown:
        known = [*_DECODING, "handler"]
        raise ConfigError(
            f"unknown arguments {unknown}", hint=f"beside the documented ones, {known} are known"
        )
    if decoding.pop("auto_decode", None) is False:
        if decoding:
            raise ConfigError(f"auto_decode=False leaves bytes, so {sorted(decoding)} cannot be honoured")
        return None
    return SampleDecoder(**decoding) if decoding else own
