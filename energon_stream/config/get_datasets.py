"""``get_train_dataset`` and its kin: from a path and options to a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from energon_stream.agreement import agreed_opening
from energon_stream.arguments import (
    MAX_SAMPLES_PER_SEQUENCE,
    SHUFFLE_BUFFER_SIZE,
    check_whole,
    names_checked,
)
from energon_stream.config.dataset_options import (
    DatasetOptions,
    DatasetRequest,
    OpeningOptions,
    SharedOptions,
    Shuffling,
)
from energon_stream.config.mixture import Mixture, open_mixture
from energon_stream.config.planned_packs import PlannedPacking, pack_mixture
from energon_stream.config.weight_unit import weigh_by
from energon_stream.errors import ConfigError
from energon_stream.pipeline import ConcatDataset, Ends, SavableDataset, with_ends
from energon_stream.task import LoadedDataset, TaskEncoder, call_with_accepted
from energon_stream.task.build import processed
from energon_stream.task.size_metric import SAMPLES

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from energon_stream.config.opening import PathOption
    from energon_stream.config.references import AnyLeafRef, Draws
    from energon_stream.config.sample_types import SampleType
    from energon_stream.pipeline.packing import BufferSize
    from energon_stream.samples import Sample
    from energon_stream.worker import WorkerConfig

    S = TypeVar("S", bound=Sample)
    T = TypeVar("T", default=Any)


class _Options(OpeningOptions, total=False):
    """Options that do not decide the type of a dataset's elements."""

    worker_config: WorkerConfig | None
    split_part: str
    batch_drop_last: bool
    packing_buffer_size: BufferSize | None
    ends: Ends


class _ValOptions(_Options, total=False):
    limit: int | None


class _TrainOptions(_Options, total=False):
    shuffle_buffer_size: int | None
    max_samples_per_sequence: int | None
    packing: PlannedPacking | None
    virtual_epoch_length: int
    shuffle_over_epochs_multiplier: int | None
    parallel_shard_iters: int | None
    repeat: bool
    draws: Draws | None
    weight_unit: str | None


@overload
def get_train_dataset(
    path: PathOption,
    *,
    batch_size: None,
    sample_type: type[S],
    task_encoder: None = None,
    **options: Unpack[_TrainOptions],
) -> SavableDataset[S]: ...


@overload
def get_train_dataset(
    path: PathOption,
    *,
    batch_size: int | None,
    sample_type: SampleType | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T] | None = None,
    **options: Unpack[_TrainOptions],
) -> SavableDataset[T]: ...


@agreed_opening
@names_checked(*SharedOptions.__optional_keys__)
def get_train_dataset(
    path: PathOption,
    *,
    batch_size: int | None,
    shuffle_buffer_size: int | None = SHUFFLE_BUFFER_SIZE,
    max_samples_per_sequence: int | None = MAX_SAMPLES_PER_SEQUENCE,
    worker_config: WorkerConfig | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    split_part: str = "train",
    batch_drop_last: bool = False,
    packing_buffer_size: BufferSize | None = None,
    packing: PlannedPacking | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    parallel_shard_iters: int | None = None,
    repeat: bool = True,
    ends: Ends = "uneven",
    draws: Draws | None = None,
    weight_unit: str | None = None,
    **options: Unpack[SharedOptions],
) -> SavableDataset[Any]:
    """Open a dataset for training: shuffled, and endless unless ``repeat=False``.

    Args:
        path: A dataset or metadataset; see :class:`~energon_stream.config.dataset_options.SharedOptions`.
        worker_config: Ranks, workers and seed; None for the ranks of ``torch.distributed``, with 4 workers.
        task_encoder: Makes batches of samples; None for a new ``DefaultTaskEncoder()``.
        split_part: See ``SharedOptions``.
        batch_size: Samples of a batch; None yields single samples.
        shuffle_buffer_size: Samples among which each is shuffled; None or 1 for none. A large buffer costs no
            memory, because it holds references and no samples.
        max_samples_per_sequence: Samples that are read in sequence before another place is read. Smaller is
            more random, and costs more requests. None reads the shards whole.
        batch_drop_last: Whether a last batch that is not full is dropped.
        packing_buffer_size: Samples to select packs from; ``"stream"`` for ``select_next_pack``, which takes
            what it needs; None for no packing.
        packing: Packs that are planned for the whole job; see :class:`PlannedPacking`. ``batch_size`` counts
            packs.
        virtual_epoch_length: Batches of one epoch of one rank; 0 for none. Its product with the number of
            ranks must stay the same when a run is resumed.
        shuffle_over_epochs_multiplier: k permutes the slices of k passes together; -1 draws slices with
            replacement; None keeps the order of the dataset. In a metadataset it multiplies the datasets'
            own.
        parallel_shard_iters: Slices that are read side by side; None for 16, or 1 where order is kept.
        repeat: Whether passes follow each other without end. A blend by weights has no passes.
        ends: The end of a pass, if passes end and ranks have unequal numbers of batches. ``"uneven"``: each
            rank yields its own. ``"drop"``, ``"pad"``: all ranks yield the same number, see
            :class:`EvenDataset`. Virtual epochs have the same length on all ranks anyway.
        draws: How a blend by weights chooses the dataset of each sample. ``"random"``: by independent draws.
            ``"even"``: after each round of batches of all streams, the samples of each dataset are within
            one of its share of all so far. None: as ``draws:`` of the metadataset says, or ``"random"``.
        weight_unit: What the weights of a blend are shares of: ``"samples"``, or the name of costs that
            ``energon-stream cost`` computed, such as ``"tokens"``. Draws follow them evenly then. None: as
            ``blend_weight_unit:`` of the metadataset says, or samples.
        **options: The options of all functions that open datasets, such as ``cache``; see ``SharedOptions``.

    Returns:
        A dataset of batches, for :func:`get_savable_loader`. Type checkers know its elements by the batch
        type of ``task_encoder``; without one, single samples by ``sample_type``.

    Raises:
        ConfigError: An option is unknown, or cannot work.
        StorageError: The dataset cannot be reached.
        DatasetError: The dataset is not prepared, or its metadata is wrong.

    Example:
        >>> from energon_stream import get_savable_loader, get_train_dataset
        >>> with get_savable_loader(get_train_dataset("captions", batch_size=4)) as loader:
        ...     print(next(iter(loader)).image.shape)
        torch.Size([4, 3, 48, 64])
    """
    shuffling = Shuffling(shuffle_buffer_size, max_samples_per_sequence, parallel_shard_iters)
    shared: DatasetOptions = {**options, "worker_config": worker_config, "task_encoder": task_encoder}
    sizes, multiplier = (batch_size, packing_buffer_size), shuffle_over_epochs_multiplier
    check_whole("virtual_epoch_length", virtual_epoch_length, 0, "use batches of a rank, or 0 for none")
    request = DatasetRequest.of(path, split_part, shared, *sizes, multiplier=multiplier)
    mixture = weigh_by(weight_unit, open_mixture(request, shuffling), request)
    is_measured = mixture.measured != SAMPLES
    if is_measured and (packing is not None or draws is not None):
        raise ConfigError(
            f"weights are shares of {mixture.measured!r}, which is measured when samples are read, too late for "
            "planned packs and draws=",
            hint=f"compute it with `energon-stream cost --name {mixture.measured}`, or leave packing and draws out",
        )
    if packing is not None:
        mixture = pack_mixture(packing, mixture, request, options.get("read_options"))
    blends_itself = is_measured or _takes_each_dataset(request, "build_train_datasets")
    if blends_itself and draws not in (None, "random"):
        raise ConfigError(
            f"draws={draws!r}, but the task encoder gets each dataset on its own",
            hint="leave draws out, or override none of build_train_datasets, build_packing_groups and "
            "build_cook_crude_sample",
        )
    dataset: SavableDataset[Any] = call_with_accepted(
        request.encoder.build_train_datasets,
        datasets=mixture.train_datasets(repeat) if blends_itself else [mixture.train_dataset(repeat, draws)],
        worker_config=request.config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        shuffle_buffer_size=shuffle_buffer_size,
        blend_mode=mixture.blend_mode,
        repeat=repeat,
        **({"blend_weight_unit": mixture.measured} if is_measured else {}),
    )
    return with_ends(dataset, ends, even=bool(virtual_epoch_length))


@overload
def get_val_dataset(
    path: PathOption,
    *,
    batch_size: None,
    sample_type: type[S],
    task_encoder: None = None,
    **options: Unpack[_ValOptions],
) -> SavableDataset[S]: ...


@overload
def get_val_dataset(
    path: PathOption,
    *,
    batch_size: int | None,
    sample_type: SampleType | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T] | None = None,
    **options: Unpack[_ValOptions],
) -> SavableDataset[T]: ...


@agreed_opening
@names_checked(*SharedOptions.__optional_keys__)
def get_val_dataset(  # noqa: D417 # get_train_dataset describes the other arguments
    path: PathOption,
    *,
    batch_size: int | None,
    worker_config: WorkerConfig | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    split_part: str = "val",
    batch_drop_last: bool = False,
    packing_buffer_size: BufferSize | None = None,
    limit: int | None = None,
    ends: Ends = "uneven",
    **options: Unpack[SharedOptions],
) -> SavableDataset[Any]:
    """Open a dataset for validation: one pass in order; the datasets of a metadataset follow each other.

    :func:`get_train_dataset` describes the errors, and the arguments except for these.

    Args:
        split_part: See ``SharedOptions``; ``"val"`` if left out.
        limit: Batches of a pass of one rank; None for all.

    Example:
        >>> from energon_stream import get_val_dataset
        >>> sum(len(batch.caption) for batch in get_val_dataset("captions", batch_size=3))
        8
    """
    shared: DatasetOptions = {**options, "worker_config": worker_config, "task_encoder": task_encoder}
    request = DatasetRequest.of(path, split_part, shared, batch_size, packing_buffer_size)
    mixture = open_mixture(request)
    concatenates_itself = _takes_each_dataset(request, "build_val_datasets")
    datasets = mixture.val_datasets() if concatenates_itself else [mixture.val_dataset()]
    return _batched(request, datasets, batch_drop_last, limit, ends)


@agreed_opening
@names_checked(*SharedOptions.__optional_keys__)
def get_val_datasets(
    path: PathOption,
    *,
    batch_size: int | None,
    worker_config: WorkerConfig | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T] | None = None,
    split_part: str = "val",
    batch_drop_last: bool = False,
    packing_buffer_size: BufferSize | None = None,
    limit: int | None = None,
    ends: Ends = "uneven",
    **options: Unpack[SharedOptions],
) -> list[tuple[SavableDataset[T], AnyLeafRef]]:
    """Open each dataset of a validation split on its own.

    Arguments and errors as for :func:`get_val_dataset`; ``limit`` applies to each dataset.

    Returns:
        Pairs of an opened dataset and its reference, which has ``path``, ``split_part`` and ``subflavors``.
        A join has the path and split part of its first dataset; ``members`` has all.

    Example:
        >>> from energon_stream import WorkerConfig, get_val_datasets
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> for dataset, ref in get_val_datasets("mix.yaml", batch_size=4, worker_config=config):
        ...     print(len(list(dataset)), ref.path)
        2 .../captions
    """
    shared: DatasetOptions = {**options, "worker_config": worker_config, "task_encoder": task_encoder}
    request = DatasetRequest.of(path, split_part, shared, batch_size, packing_buffer_size)
    mixture = open_mixture(request)
    return [
        (_batched(request, [dataset], batch_drop_last, limit, ends), item.ref)
        for dataset, item in zip(mixture.val_datasets(), mixture.items, strict=True)
    ]


@agreed_opening
def get_processing_dataset(
    path: PathOption, *, split_part: str = "train", **options: Unpack[DatasetOptions]
) -> SavableDataset[Any]:
    """Open a dataset to process each sample once: in order, cooked and encoded, neither packed nor batched.

    The datasets of a metadataset follow each other, whatever their weights and repetitions. One that is named
    twice is read twice. :func:`get_train_dataset` describes the arguments and errors.

    Example:
        >>> from energon_stream import get_processing_dataset
        >>> sum(1 for sample in get_processing_dataset("mix.yaml"))
        96
    """
    _, made = open_processed(DatasetRequest.of(path, split_part, options))
    return made[0] if len(made) == 1 else ConcatDataset(*made)


def open_processed(request: DatasetRequest) -> tuple[Mixture, list[SavableDataset[Any]]]:
    """Return a mixture, and its samples in order: as one dataset, unless the encoder takes each alone."""
    mixture = open_mixture(request)
    each = _takes_each_dataset(request, "build_cook_crude_sample")
    datasets = mixture.val_datasets() if each else [mixture.val_dataset()]
    return mixture, [processed(request.encoder, dataset, request.config) for dataset in datasets]


@agreed_opening
def get_processing_datasets(
    path: PathOption, *, split_part: str = "train", **options: Unpack[DatasetOptions]
) -> list[tuple[SavableDataset[Any], AnyLeafRef]]:
    """Open each dataset on its own, as :func:`get_processing_dataset` does, with its reference.

    Example:
        >>> from energon_stream import get_processing_datasets
        >>> [len(list(dataset)) for dataset, ref in get_processing_datasets("mix.yaml")]
        [48, 48]
    """
    request = DatasetRequest.of(path, split_part, options)
    mixture = open_mixture(request)
    made = (processed(request.encoder, dataset, request.config) for dataset in mixture.val_datasets())
    return list(zip(made, (item.ref for item in mixture.items), strict=True))


def _takes_each_dataset(request: DatasetRequest, hook: str) -> bool:
    """Return whether the encoder gets the datasets of a mixture one by one."""
    hooks = (hook, "build_cook_crude_sample", "build_packing_groups")
    return any(request.encoder._hook_overridden(name) for name in hooks)


def _batched(
    request: DatasetRequest,
    datasets: list[LoadedDataset],
    batch_drop_last: bool,
    limit: int | None,
    ends: Ends,
) -> SavableDataset[Any]:
    """Apply the task encoder's operators for validation to datasets of samples."""
    if limit is not None and ends != "uneven":
        raise ConfigError(
            f"limit={limit} and ends={ends!r} exclude each other",
            hint="leave out ends: a limit is the same for all ranks, if each of them has so many batches",
        )
    dataset: SavableDataset[Any] = call_with_accepted(
        request.encoder.build_val_datasets,
        datasets=datasets,
        worker_config=request.config,
        batch_size=request.batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=request.packing_buffer_size,
        limit=limit,
    )
    dataset.training = False
    return with_ends(dataset, ends, even=False)
