"""Options of all functions that open datasets, described once, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG, check_names, check_whole
from energon_stream.cache import CacheConfig, CacheLayer
from energon_stream.config.fields import Parts, parse_parts
from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.opening import DatasetLocation, PathOption
from energon_stream.config.sample_types import CRUDE, DeclaredSamples, SampleType, declare
from energon_stream.config.subset import parse_subset
from energon_stream.config.view import parse_view
from energon_stream.decode import FileStoreDecoder, SampleDecoder
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.limits import Limits
from energon_stream.logs import warn_deprecated
from energon_stream.pipeline.packing import BufferSize, check_buffer_size
from energon_stream.read.read_options import ReadOptions
from energon_stream.samples import CrudeSample
from energon_stream.schedule import OrderSpec
from energon_stream.schedule.leaf_order import check_multiplier
from energon_stream.storage import StoreSpec, Transport
from energon_stream.task import Cooker, DefaultTaskEncoder, TaskEncoder, check_encoder
from energon_stream.urls import is_local
from energon_stream.worker import WorkerConfig

CacheOption = CacheConfig | str | os.PathLike[str] | bool | None
RawParts = Literal["bytes", "memoryview"]
SubsetOption = Mapping[str, Any] | Sequence[Any] | None


class DecodingOptions(TypedDict, total=False):
    """Options that programs for older versions pass.

    ``handler`` gets the error and the key of a sample that fails. ``auto_decode=False`` leaves bytes. The
    others are arguments of ``SampleDecoder``.
    """

    handler: Callable[[Exception, Any], Any] | None
    auto_decode: bool
    image_decode: str | None
    av_decode: str | None
    video_decode_audio: bool
    guess_content: bool
    allow_pickle: bool | None


class OpeningOptions(DecodingOptions, total=False):
    """The shared options without ``sample_type``, which decides the type of the samples."""

    subset: SubsetOption
    filter_name: str | None
    where: str | None
    exclude: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    share: float | None
    weight_by: str | None
    subflavors: Mapping[str, Any] | None
    tags: Mapping[str, Any] | None
    parts: Sequence[str] | Callable[[str], bool] | None
    raw_parts: RawParts
    field_map: Mapping[str, str] | None
    split_config: str
    dataset_config: str
    storage_options: Mapping[str, Any] | None
    transport: Transport
    read_options: ReadOptions | None
    cache: CacheOption
    trust_dataset_code: bool | None
    limits: Limits | None
    allow_urls: Sequence[str] | None
    skip_bad: bool


class SharedOptions(OpeningOptions, total=False):
    """Options that all functions share which open datasets.

    ``path`` is a folder with ``.nv-meta``, or a metadataset: its ``.yaml`` file or parsed content. Also a
    ``.jsonl`` file, and datasets that are not prepared: a ``.tar``, tars by braces
    (``train-{000..999}.tar``), or a folder of tars (see ``sample_type``). Local paths and all URLs that
    fsspec knows.

    ``split_part`` is a part of the dataset's split, or a split of the metadataset. In a dataset that is not
    prepared, ``train``, ``val`` and ``test`` all have all samples.

    Attributes:
        subset: Range of the split part: ``{"range": ["10%", "50%"]}`` or ``{"range": [0, 1000]}``. In a
            metadataset the percentages apply to each dataset. Default: all samples.
        filter_name: Name of a filter: a file of the numbers of the samples to use; see
            :func:`build_filter_index`. In a metadataset, ``filter:`` of a dataset.
        where: Filter over the columns of the dataset's tables, such as ``"clip > 0.28 and not duplicate"``;
            see :func:`add_table`. In a metadataset, set it and the next three where the dataset is named.
        exclude: Column of truth values, file of keys (``keys.txt``, one a line), list of bad samples
            (``bad.jsonl``) or folder of a run (``runs/a``): these samples are left out. A sequence names
            several. Lists and runs may be given for a metadataset.
        share: Share of the samples, such as 0.1, chosen by a hash of shard and number. Samples that are
            appended later do not change it.
        weight_by: Column of weights: a sample of twice the weight occurs twice as often in a pass.
        subflavors: Labels that are put on each sample; they override those of the metadata.
        tags: Newer name of ``subflavors``; only one of the two may be given.
        parts: Parts of the samples to use, such as ``["json", "txt"]``, or a function of a name. Other parts
            are not read where that saves bytes. Default: all parts that ``dataset.yaml`` names.
        raw_parts: Type of parts of tars that are not decoded: ``"bytes"`` (default), or ``"memoryview"``,
            which copies nothing of local files. The views are read-only, and stay valid while you keep them,
            also when a tar is replaced or deleted. But a tar that is overwritten in place changes them, and
            one that is shortened kills the process.
        sample_type: Type of the samples of a dataset without ``dataset.yaml``: a class derived from
            ``Sample``, the name of one of the library's, or ``CrudeSample`` for parts by name, which cookers
            take. It is required for a folder that is not prepared; tars that the path names are crude by
            default.
        field_map: Part for each field, as in ``dataset.yaml``: ``{"image": "jpg"}``.
        split_config: File in ``.nv-meta`` that defines the split parts. Default ``split.yaml``.
        dataset_config: File in ``.nv-meta`` that describes the samples. Default ``dataset.yaml``.
        storage_options: Credentials, endpoint and other options of the store, in fsspec's names. Default:
            from the environment.
        transport: Client for remote data: ``"obstore"``, ``"fsspec"``, or ``"auto"`` (default) for the faster
            of the two that can read the URL.
        read_options: Limits of the look-ahead. Default ``ReadOptions()``.
        cache: Disk cache of this node for remote data: a :class:`CacheConfig` or a directory; False for none.
            Default: as ``ENERGON_STREAM_CACHE_DIR`` and ``ENERGON_STREAM_CACHE_SIZE`` say.
        trust_dataset_code: Whether classes and files that the dataset names may be imported and run. Default:
            whether ``ENERGON_STREAM_TRUST_DATASET_CODE`` is 1.
        limits: Bounds on what the dataset may cost: :class:`Limits`. A decoder with limits of its own keeps
            them. Default: as ``ENERGON_STREAM_LIMITS`` says.
        allow_urls: Prefixes of URLs and paths, such as ``["https://data.example.org/"]``, that a metadataset
            in a store may name beside its own store. Default: those of ``ENERGON_STREAM_ALLOW_URLS``,
            separated by spaces.
        skip_bad: Whether tars that are damaged or cut off are left out, with a warning, where the dataset is
            not prepared. Default: they are errors. (``prepare_dataset`` has the same option.)
    """

    sample_type: SampleType | None


class DatasetOptions(SharedOptions, total=False):
    """The shared options, and the two that every signature lists."""

    # Ranks, workers and seed. Default: the ranks of ``torch.distributed``, with 4 workers.
    worker_config: WorkerConfig | None
    # Makes batches of samples. Default: a new ``DefaultTaskEncoder()``.
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None


@dataclass(frozen=True, slots=True)
class Shuffling:
    """Options of shuffling; :func:`get_train_dataset` describes them."""

    shuffle_buffer_size: int | None
    max_samples_per_sequence: int | None
    parallel_shard_iters: int | None

    def order(self, multiplier: int | None) -> OrderSpec:
        """Return the order of a dataset, given the product of the multipliers that apply to it."""
        parallel = self.parallel_shard_iters
        if parallel is None:
            parallel = 1 if multiplier is None else 16
        window = 0 if self.shuffle_buffer_size is None else self.shuffle_buffer_size
        return OrderSpec(self.max_samples_per_sequence, window, parallel, multiplier)


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """A request to open a dataset: its options, checked and with their defaults."""

    location: DatasetLocation
    config: WorkerConfig
    encoder: TaskEncoder[Any, Any, Any, Any]
    decoder: FileStoreDecoder | None  # decodes parts; None leaves bytes
    trust_dataset_code: bool | None  # None asks the environment
    parts: Parts | None  # parts that are used; None for all
    memoryviews: bool  # whether parts that are not decoded are memoryviews
    cookers: Sequence[Cooker[Any]]  # they get the crude samples, and limit which parts are read
    limits: ReadOptions
    batch_size: int | None
    packing_buffer_size: BufferSize | None

    @classmethod
    def of(
        cls,
        path: PathOption,
        split_part: str,
        options: DatasetOptions,
        batch_size: int | None = None,
        packing_buffer_size: BufferSize | None = None,
        *,
        multiplier: int | None = 1,
        with_cookers: bool = True,
    ) -> DatasetRequest:
        """Check options, and raise ConfigError if one is unknown or cannot work. ``with_cookers`` lets the
        encoder's cookers decide which parts are read.
        """
        check_names(options, DatasetOptions.__optional_keys__)
        if not isinstance(split_part, str):
            raise ConfigError(f"split_part is {split_part!r:.80}", hint='pass one name, such as "train"')
        check_multiplier(multiplier)
        labels = [options[name] for name in ("tags", "subflavors") if options.get(name) is not None]
        if len(labels) > 1:
            raise ConfigError("tags and subflavors are both given", hint="use tags, the newer name")
        decoding = {name: value for name, value in options.items() if name not in _NOT_DECODING}
        config = options.get("worker_config") or WorkerConfig.default_worker_config()
        if not isinstance(config, WorkerConfig):
            raise ConfigError(
                f"worker_config is {config!r:.80}", hint="pass a WorkerConfig(…), or leave it out"
            )
        handler = options.get("handler")
        encoder = options.get("task_encoder") or DefaultTaskEncoder()
        check_encoder(encoder)
        bounds = options.get("limits") or Limits.from_environment()
        if not isinstance(bounds, Limits):
            raise ConfigError(f"limits is {bounds!r:.80}", hint="pass Limits(…)")
        read_options = options.get("read_options") or ReadOptions()
        if not isinstance(read_options, ReadOptions):
            raise ConfigError(f"read_options is {read_options!r:.80}", hint="pass ReadOptions(…)")
        if not (handler is None or callable(handler)):
            raise ConfigError(f"handler is {handler!r:.80}", hint="pass WorkerConfig(global_error_handler=…)")
        files = MetadatasetFiles(
            options.get("storage_options"),
            options.get("transport", "auto"),
            cache_layer(options.get("cache")),
            read_options.retry_deadline,
            bounds,
            options.get("allow_urls"),
            options.get("skip_bad", False),
            config.world_size,
        )
        location = DatasetLocation(
            path,
            split_part,
            files,
            options.get("split_config", SPLIT_CONFIG),
            options.get("dataset_config", DATASET_CONFIG),
            parse_subset(options.get("subset"), str(path)),
            multiplier,
            _declared(options.get("sample_type"), options.get("field_map"), config),
            dict(*labels),
            parse_view(
                {**options, "filter": options.get("filter_name")},
                str(path)[:200],
                lambda url: StoreSpec(url, None if is_local(url) else files.storage_options),
            ),
        )
        return cls(
            location,
            config if handler is None else _with_handler(config, handler),
            encoder,
            limited(_decoder(encoder.decoder, decoding), bounds),
            options.get("trust_dataset_code"),
            parse_parts(options.get("parts"), "parts="),
            _gives_memoryviews(options.get("raw_parts", "bytes"), config),
            encoder.cookers if with_cookers else (),
            _limits(read_options, batch_size, packing_buffer_size),
            batch_size,
            packing_buffer_size,
        )


_NOT_DECODING = {"handler", *DatasetOptions.__optional_keys__ - DecodingOptions.__optional_keys__}


def limited(decoder: FileStoreDecoder | None, limits: Limits) -> FileStoreDecoder | None:
    """Return a decoder with the limits of a dataset; a user's own class of decoder takes no limits."""
    return decoder.within(limits) if isinstance(decoder, SampleDecoder) else decoder


def _with_handler(config: WorkerConfig, handler: Callable[[Exception, Any], Any]) -> WorkerConfig:
    def call(error: Exception, sample: Any, sources: Any = None) -> None:
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        handler(error, key)

    # The caller of the function that opens the dataset.
    warn_deprecated("handler=", "WorkerConfig(global_error_handler=…)")
    return replace(config, global_error_handler=call)


def _limits(limits: ReadOptions, batch_size: int | None, packing_buffer: BufferSize | None) -> ReadOptions:
    check_whole("batch_size", batch_size, 1, "use 1 or more, or None")
    check_buffer_size(packing_buffer)
    if limits.first_samples is not None:
        return limits
    # The first batch is fetched in small requests, so that it arrives early. Packing needs a full buffer
    # before it.
    return replace(limits, first_samples=(packing_buffer != "stream" and packing_buffer) or batch_size or 8)


def cache_layer(cache: CacheOption) -> CacheLayer | None:
    """Return the disk cache that an option means. Raises ConfigError if it can mean none."""
    if cache is None:
        cache = CacheConfig.from_environment()
    if cache is None or cache is False:
        return None
    if isinstance(cache, (str, os.PathLike)):
        cache = CacheConfig(os.fspath(cache))
    if not isinstance(cache, CacheConfig):
        raise ConfigError(f"cache is {cache!r}", hint="pass a CacheConfig, its directory, or False for none")
    return CacheLayer(cache)


def _declared(
    sample_type: SampleType | None, field_map: Mapping[str, str] | None, config: WorkerConfig
) -> DeclaredSamples | None:
    if config.conventions == "energon" and field_map is None and isinstance(sample_type, type):
        # In Megatron-Energon it is for type checkers. Plain tars, which that does not read, are crude.
        return replace(CRUDE, typing_only=True) if issubclass(sample_type, CrudeSample) else None
    try:
        return declare(sample_type, field_map, "sample_type= and field_map=")
    except MetadataError as error:  # the user's argument is wrong, and no file
        raise ConfigError(error.what, where=error.where, hint=error.hint) from error


def _gives_memoryviews(raw_parts: RawParts, config: WorkerConfig) -> bool:
    if raw_parts not in ("bytes", "memoryview"):
        raise ConfigError(f"raw_parts is {raw_parts!r:.80}", hint="use 'bytes' or 'memoryview'")
    if raw_parts == "memoryview" and config.conventions == "energon":
        what = "raw_parts='memoryview' does not go with Megatron-Energon's conventions: its parts are bytes"
        raise ConfigError(what, hint="leave it out, or use energon_stream and not the alias")
    return raw_parts == "memoryview"


def _decoder(own: FileStoreDecoder | None, decoding: dict[str, Any]) -> FileStoreDecoder | None:
    """Return the encoder's own decoder, or a new one made of the arguments."""
    if decoding.pop("auto_decode", None) is False:
        if decoding:
            raise ConfigError(f"auto_decode=False leaves bytes, so {sorted(decoding)} cannot be honoured")
        return None
    return SampleDecoder(**decoding) if decoding else own
