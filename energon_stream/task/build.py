"""The builder of pipelines from the hooks of a task encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import isgeneratorfunction, unwrap
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.media import AuxStores, FileStore
from energon_stream.pipeline import (
    BatchDataset,
    ConcatDataset,
    EpochizeDataset,
    GroupBatchDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
)
from energon_stream.pipeline.packing import BufferSize, check_buffer_size
from energon_stream.pipeline.planned_packing import PlannedPackingDataset
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.samples import CrudeSample, OnDemandSample
from energon_stream.task.clips import clips_ahead
from energon_stream.task.cooking import Cooker, check_cookers, cooker_arguments, select_cooker
from energon_stream.task.loaded_dataset import (
    DatasetBlendMode,
    LoadedDataset,
    PackingGroupConfig,
    call_with_accepted,
    group_members,
)
from energon_stream.task.mapped_hooks import map_hook, mapped, tolerance_of
from energon_stream.task.packers import LengthPacker
from energon_stream.task.size_metric import SAMPLES, blend_by
from energon_stream.task.stateless import get_stateless
from energon_stream.worker import WorkerConfig


class PipelineBuilder:
    """Base of task encoders: builds datasets from their hooks."""

    _has_library_hooks = True
    """Marks the class that defines it as the library's: its hooks do not count as overrides."""

    __default_failure_tolerance__: int
    cookers: Sequence[Cooker[Any]]
    packer: LengthPacker | None
    cook_crude_sample: Callable[..., Any]

    def _hook_function(self, name: str) -> Callable[..., Any]:
        return getattr(self, name)  # type: ignore[no-any-return]

    def _hook_overridden(self, name: str) -> bool:
        """Return whether a hook's function, on the class or the instance, is not the library's own."""
        found = getattr(self, name)
        function = getattr(found, "__func__", found)
        own = [vars(cls).get(name) for cls in type(self).__mro__ if "_has_library_hooks" in vars(cls)]
        return all(function is not candidate for candidate in own)

    def _hook_does_nothing(self, hook: str) -> bool:
        """Return whether calling a hook would change nothing, so that the pipeline can leave it out."""
        return not self._hook_overridden(hook)

    def build_train_datasets(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: BufferSize | None = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: DatasetBlendMode = DatasetBlendMode.NONE,
        repeat: bool = True,
        blend_weight_unit: str = SAMPLES,
    ) -> SavableDataset[Any]:
        """Compose the training pipeline; override it to compose your own.

        Args:
            datasets: One dataset with the order of the whole mixture, because its plan already blends,
                shuffles and repeats. An encoder that overrides this method, or ``build_cook_crude_sample``,
                gets one dataset for each leaf instead; several are blended by their weights.
            worker_config: The job's configuration.
            batch_size: Samples of a batch; None for single samples.
            batch_drop_last: Drop the last batch of a pass if it is not full.
            packing_buffer_size: Samples to select packs from; ``"stream"`` for ``select_next_pack``, which
                takes what it needs; None for no packing.
            virtual_epoch_length: Batches of one epoch of one rank; 0 for none. Multiplied by the number of
                ranks, it has to stay the same when a run resumes.
            shuffle_buffer_size: Window of the plan's shuffle; an override may use it.
            blend_mode: How the plan blends; an override may use it.
            repeat: True if the plan repeats; an override may use it.
            blend_weight_unit: Unit of weights that ``sample_size_metric`` measures, or ``"samples"``.

        Raises:
            ConfigError: The hooks and arguments do not fit together.
        """
        endless = repeat and blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
        dataset = _built(
            self,
            datasets,
            worker_config,
            blend_by(self, blend_weight_unit),
            endless,
            shuffle_buffer_size,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
        )
        if virtual_epoch_length:
            dataset = EpochizeDataset(dataset, virtual_epoch_length, worker_config=worker_config)
        return dataset

    def _load_dataset(
        self, dataset: LoadedDataset, worker_rotation_offset: int, worker_config: WorkerConfig
    ) -> SavableDataset[Any]:
        """Return one pass over a dataset, cooked, as copies of ``build_train_datasets`` of 7.4.1 ask for."""
        build: Callable[[int], SavableDataset[Any]] = getattr(dataset.dataset, "build")  # noqa: B009 # of leaves
        return _cooked(self, dataset, worker_config, build(worker_rotation_offset))

    def build_val_datasets(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: BufferSize | None = None,
        limit: int | None = None,
    ) -> SavableDataset[Any]:
        """Compose the validation pipeline; each pass has the same first ``limit`` batches of a rank.

        Each dataset has one pass, whatever its repetitions.
        """
        datasets = [replace(each, weight=1.0) if each.weight is None else each for each in datasets]
        dataset = _built(
            self,
            datasets,
            worker_config,
            lambda *pairs: ConcatDataset(*(dataset for dataset, _ in pairs)),
            False,
            None,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
        )
        if limit is not None:
            dataset = LimitDataset(dataset, limit, reset_after_epoch=True, worker_config=worker_config)
        return dataset

    def build_packing_groups(
        self,
        datasets: Sequence[LoadedDataset],
        packing_buffer_size: BufferSize | None,
        shuffle_buffer_size: int | None,
    ) -> Sequence[PackingGroupConfig]:
        """Return groups of datasets with a packing buffer each; a pack has samples of one group.

        An encoder that overrides it gets each dataset of a mixture on its own. The packs of the groups are
        blended by the sums of their datasets' weights.
        """
        return [PackingGroupConfig(datasets, packing_buffer_size)]

    def build_cook_crude_sample(
        self,
        dataset: SavableDataset[Any],
        *,
        worker_config: WorkerConfig | None = None,
        subflavors: Mapping[str, Any] | None = None,
        get_primary_aux: Callable[[], FileStore[Any]] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> SavableDataset[Any]:
        """Add the cooking of crude samples, if there are cookers.

        An encoder that overrides this method gets each dataset of a mixture on its own.

        Args:
            dataset: The samples.
            worker_config: Must agree with the dataset's, if given.
            subflavors: Choose the cooker by these, and not by those of each sample.
            get_primary_aux: Returns the store that cookers get as ``primary``. Default: the sample's own
                dataset.
            aux: Stores that cookers get by name. Default: those of the sample's dataset.

        Raises:
            ConfigError: A leaf has no cooker, or its auxiliary data is not the one that its cooker asks for.
        """
        if subflavors is None and aux is None and not self._hook_overridden("cook_crude_sample"):
            check_cookers(
                self.cookers, (leaf for _, reader in find_readers(dataset) for leaf in reader.leaves)
            )
        if not self.cookers:
            return dataset
        hook = self._hook_function("cook_crude_sample")
        pure = get_stateless(hook) and all(get_stateless(candidate.cook) for candidate in self.cookers)
        cook: Callable[[Any], Any] = self._cook_if_crude
        ahead = primary = None
        if subflavors is None and get_primary_aux is None and aux is None:
            ahead = clips_ahead(self.cookers, dataset)
        else:
            if get_primary_aux is not None and any(each.need_primary for each in self.cookers):
                primary = get_primary_aux()
            cook = partial(self._cook_if_crude, subflavors=subflavors, primary=primary, aux=aux)
        return MapDataset(
            dataset,
            cook,
            stateless_map_fn=pure,
            failure_tolerance=tolerance_of(self, hook),
            ahead=ahead,
            worker_config=worker_config,
        )

    def _cook_if_crude(
        self,
        sample: Any,
        subflavors: Mapping[str, Any] | None = None,
        primary: FileStore[Any] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> Any:
        if not isinstance(sample, CrudeSample):
            return sample
        if primary is not None or aux is not None:
            own = sample.stores or AuxStores()
            sample.stores = replace(own, aux=own.aux if aux is None else aux, primary=primary or own.primary)
        chosen = self.cookers[0]
        if chosen.has_subflavors:
            chosen = select_cooker(self.cookers, subflavors or dict.get(sample, "__subflavors__"))
        cooked = self.cook_crude_sample(sample, chosen, cooker_arguments(chosen, sample))
        # Damaged parts of a sample that the cooker passes on fail here, where that sample alone is left out.
        return cooked.decoded() if isinstance(cooked, OnDemandSample) else cooked

    def build_encode_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None
    ) -> SavableDataset[Any]:
        """Add ``encode_sample`` or ``preencode_sample``, if it is overridden."""
        halves = [name for name in ("preencode_sample", "postencode_sample") if self._hook_overridden(name)]
        if halves and self._hook_overridden("encode_sample"):
            raise ConfigError(
                f"encode_sample cannot be combined with {' and '.join(halves)}",
                hint="override encode_sample alone, or preencode_sample and postencode_sample",
            )
        return map_hook(self, dataset, "preencode_sample" if halves else "encode_sample", worker_config)

    def build_batch(
        self,
        dataset: SavableDataset[Any],
        *,
        batch_size: int | None,
        worker_config: WorkerConfig | None = None,
        batch_drop_last: bool = False,
        packing_buffer_size: BufferSize | None = None,
    ) -> SavableDataset[Any]:
        """Add packing or ``postencode_sample``, then batching and ``encode_batch``."""
        packed = _packed(self, dataset, packing_buffer_size, worker_config)
        return self._build_batches(
            packed, batch_size=batch_size, worker_config=worker_config, batch_drop_last=batch_drop_last
        )

    def _build_batches(
        self,
        dataset: SavableDataset[Any],
        *,
        batch_size: int | None,
        worker_config: WorkerConfig | None,
        batch_drop_last: bool,
    ) -> SavableDataset[Any]:
        if self._hook_overridden("batch_group_criterion"):
            batcher = self._hook_function("batch")
            if isgeneratorfunction(unwrap(batcher)):
                raise ConfigError(
                    "batch is a generator, which batch_group_criterion cannot use",
                    hint="return one batch, and make several in encode_batch",
                )
            dataset = GroupBatchDataset(
                dataset,
                batch_size,
                self._hook_function("batch_group_criterion"),
                batcher,
                batcher_stateless=get_stateless(batcher),
                drop_last=batch_drop_last,
                failure_tolerance=tolerance_of(self, batcher),
                worker_config=worker_config,
            )
        elif batch_size is None:
            return dataset
        else:
            dataset = _batched(self, dataset, batch_size, batch_drop_last, worker_config)
        return map_hook(self, dataset, "encode_batch", worker_config)


def _built(
    encoder: PipelineBuilder,
    datasets: Sequence[LoadedDataset],
    config: WorkerConfig,
    combine: Callable[..., SavableDataset[Any]],
    endless: bool,
    shuffle_buffer_size: int | None,
    **batching: Any,
) -> SavableDataset[Any]:
    """Add the steps that all pipelines share. ``combine`` takes pairs of a dataset and a weight.

    What several datasets were combined to is repeated if it is ``endless``.
    """
    if not datasets:
        raise ConfigError("there is no dataset", hint="pass one dataset or more in datasets=")
    datasets = [each.with_passes() for each in datasets]
    pairs = [(_cooked(encoder, each, config), each.weight) for each in datasets]

    def joined(pairs: Sequence[tuple[Any, Any]], is_whole: bool) -> SavableDataset[Any]:
        dataset = pairs[0][0] if len(pairs) == 1 else combine(*pairs)
        return RepeatDataset(dataset) if is_whole and endless and len(datasets) > 1 else dataset

    if not encoder._hook_overridden("build_packing_groups"):
        encoded = encoder.build_encode_sample(joined(pairs, True), worker_config=config)
        return encoder.build_batch(encoded, worker_config=config, **batching)
    if encoder._hook_overridden("build_batch"):
        raise ConfigError(
            "build_packing_groups and build_batch exclude each other", hint="override one of them"
        )
    made = encoder.build_packing_groups(datasets, batching.pop("packing_buffer_size"), shuffle_buffer_size)
    packed = []
    for group, numbers in group_members(made, datasets):
        chosen, size = [pairs[number] for number in numbers], group.shuffle_buffer_size
        check_buffer_size(group.packing_buffer_size)
        dataset = joined(chosen, False)
        if size not in (None, 0, 1, shuffle_buffer_size):
            dataset = ShuffleBufferDataset(dataset, size, worker_config=config)
        encoded = encoder.build_encode_sample(dataset, worker_config=config)
        dataset = _packed(encoder, encoded, group.packing_buffer_size, config)
        packed.append((dataset, sum(weight or 0 for _, weight in chosen)))
    return encoder._build_batches(joined(packed, True), worker_config=config, **batching)


def _cooked(
    encoder: PipelineBuilder,
    loaded: LoadedDataset,
    config: WorkerConfig,
    built: SavableDataset[Any] | None = None,
) -> SavableDataset[Any]:
    dataset = loaded.dataset if built is None else built
    if not encoder._hook_overridden("build_cook_crude_sample"):
        return encoder.build_cook_crude_sample(dataset, worker_config=config)
    made: SavableDataset[Any] = call_with_accepted(
        partial(encoder.build_cook_crude_sample, dataset),
        worker_config=config,
        subflavors=loaded.subflavors or {},
        get_primary_aux=getattr(loaded.dataset, "as_file_store", None),
        aux=loaded.aux,
    )
    return made


def processed(encoder: PipelineBuilder, loaded: LoadedDataset, config: WorkerConfig) -> SavableDataset[Any]:
    """Return a dataset of cooked and encoded samples, without packs and batches."""
    encoded = encoder.build_encode_sample(_cooked(encoder, loaded, config), worker_config=config)
    dataset = map_hook(encoder, encoded, "postencode_sample", config)
    dataset.training = False
    return dataset


def _packed(
    encoder: PipelineBuilder,
    dataset: SavableDataset[Any],
    size: BufferSize | None,
    config: WorkerConfig | None,
) -> SavableDataset[Any]:
    """Add packing from a buffer of a size; for None, that of planned packs, or ``postencode_sample``."""
    planned = any(reader.packing is not None for _, reader in find_readers(dataset))
    if size is None and not planned:
        return map_hook(encoder, dataset, "postencode_sample", config)
    select = "select_next_pack" if size == "stream" else "select_samples_to_pack"
    names = (select, "pack_selected_samples", "postencode_sample")
    selector, packer, post = (encoder._hook_function(name) for name in names)
    shared: dict[str, Any] = {
        "sample_encoder": None if encoder._hook_does_nothing("postencode_sample") else post,
        "final_packer_failure_tolerance": tolerance_of(encoder, packer),
        "sample_encoder_failure_tolerance": tolerance_of(encoder, post),
        "worker_config": config,
    }
    if planned or size is None:
        return PlannedPackingDataset(dataset, packer, **shared)
    tolerance = tolerance_of(encoder, selector)
    ready = None if encoder._hook_overridden(select) else encoder.packer
    for name, is_said in ((select, ready), ("pack_selected_samples", False)):
        if not (encoder._hook_overridden(name) or isinstance(is_said, LengthPacker)):
            raise ConfigError(
                f"{type(encoder).__qualname__} does not say how to pack, but packing_buffer_size is {size}",
                hint=f"override {name}" + (", or set packer = LengthPacker(…)" if name == select else ""),
            )
    shared["packer_config"] = ready and ready.describe
    return PackingDataset(dataset, size, selector, packer, pre_packer_failure_tolerance=tolerance, **shared)


def _batched(
    encoder: PipelineBuilder,
    dataset: SavableDataset[Any],
    size: int,
    drop_last: bool,
    config: WorkerConfig | None,
) -> SavableDataset[Any]:
    batcher = encoder._hook_function("batch")
    many = isgeneratorfunction(unwrap(batcher))
    batched = BatchDataset(
        dataset,
        size,
        list if many else batcher,
        batcher_stateless=many or get_stateless(batcher),
        drop_last=drop_last,
        failure_tolerance=tolerance_of(encoder, batcher),
        worker_config=config,
    )
    return mapped(encoder, batched, batcher, config) if many else batched
