"""Composes the pipeline of a task encoder from its hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isgeneratorfunction, unwrap
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.pipeline import (
    BatchDataset,
    EpochizeDataset,
    GroupBatchDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    SavableDataset,
)
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.samples import CrudeSample
from energon_stream.task.cooking import Cooker, check_cookers, cooker_arguments, select_cooker
from energon_stream.task.loaded import DatasetBlendMode, LoadedDataset
from energon_stream.task.stateless import get_failure_tolerance, get_stateless
from energon_stream.worker import WorkerConfig

__all__ = ["PipelineBuilder"]

_HERE = __name__.rpartition(".")[0] + "."


class PipelineBuilder:
    """Builds datasets from the hooks of the encoder that derives from it."""

    __default_failure_tolerance__: int
    cookers: Sequence[Cooker[Any]]

    def _hook_function(self, name: str) -> Callable[..., Any]:
        """The function that runs for a hook."""
        function: Callable[..., Any] = getattr(self, name)
        return function

    def _hook_overridden(self, name: str) -> bool:
        """Whether a hook is not the library's own, however the user's came there.

        Functions are compared, not names: a lambda on the class or an attribute of the instance counts.
        """
        found = getattr(self, name)
        function = getattr(found, "__func__", found)
        own = [vars(cls).get(name) for cls in type(self).__mro__ if cls.__module__.startswith(_HERE)]
        return all(function is not candidate for candidate in own)

    def _hook_does_nothing(self, hook: str) -> bool:
        """Whether calling a hook would change nothing, so that it can be left out."""
        return not self._hook_overridden(hook)

    def build_train_datasets(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: DatasetBlendMode = DatasetBlendMode.NONE,
        repeat: bool = True,
    ) -> SavableDataset[Any]:
        """Compose the training pipeline; override it to compose another one.

        Args:
            datasets: One dataset, whose order is that of the whole mixture: blending, shuffling and
                repeating only order samples, and are done by its plan. An encoder that overrides this
                method gets one dataset for each source instead.
            worker_config: The job's configuration.
            batch_size: Samples of a batch; None for single samples.
            batch_drop_last: Whether a last batch that is not full is dropped.
            packing_buffer_size: Samples to select packs from; None for no packing.
            virtual_epoch_length: Batches of one epoch of one rank; 0 for none. Times the ranks it has to stay the same when
                a run is resumed.
            shuffle_buffer_size: Window of the shuffle that the plan does; for those who override.
            blend_mode: How the plan blends; for those who override.
            repeat: Whether the plan repeats; for those who override.

        Raises:
            ConfigError: The hooks and arguments do not fit together.
        """
        dataset = _encoded(self, datasets, worker_config)
        dataset = self.build_batch(
            dataset,
            worker_config=worker_config,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
        )
        if virtual_epoch_length:
            dataset = EpochizeDataset(dataset, virtual_epoch_length, worker_config=worker_config)
        return dataset

    def build_val_datasets(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        limit: int | None = None,
    ) -> SavableDataset[Any]:
        """Compose the validation pipeline; each pass gives the same ``limit`` first batches of a rank."""
        dataset = _encoded(self, datasets, worker_config)
        dataset = self.build_batch(
            dataset,
            worker_config=worker_config,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
        )
        if limit is not None:
            dataset = LimitDataset(dataset, limit, reset_after_epoch=True, worker_config=worker_config)
        return dataset

    def build_cook_crude_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None
    ) -> SavableDataset[Any]:
        """Add the cooking of crude samples, where there are cookers.

        Raises:
            ConfigError: A source has no cooker, or auxiliary data that its cooker does not ask for, or lacks
                some that it asks for.
        """
        if not self._hook_overridden("cook_crude_sample"):
            check_cookers(
                self.cookers, (leaf for _, reader in find_readers(dataset) for leaf in reader.leaves)
            )
        if not self.cookers:
            return dataset
        hook = self._hook_function("cook_crude_sample")
        pure = get_stateless(hook) and all(get_stateless(candidate.cook) for candidate in self.cookers)
        return MapDataset(
            dataset,
            self._cook_if_crude,
            stateless_map_fn=pure,
            failure_tolerance=_tolerance(self, hook),
            worker_config=worker_config,
        )

    def _cook_if_crude(self, sample: Any) -> Any:
        """Cook a crude sample with the first cooker that matches; others pass through."""
        if not isinstance(sample, CrudeSample):
            return sample
        chosen = select_cooker(self.cookers, sample.get("__subflavors__"))
        return self._hook_function("cook_crude_sample")(sample, chosen, cooker_arguments(chosen, sample))

    def build_encode_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None
    ) -> SavableDataset[Any]:
        """Add ``encode_sample``, or ``preencode_sample``, where they do something.

        Raises:
            ConfigError: Both ways of encoding are overridden.
        """
        halves = [name for name in ("preencode_sample", "postencode_sample") if self._hook_overridden(name)]
        if halves and self._hook_overridden("encode_sample"):
            raise ConfigError(
                f"encode_sample and {' and '.join(halves)} exclude each other", hint="override one of the two"
            )
        return _map_hook(self, dataset, "preencode_sample" if halves else "encode_sample", worker_config)

    def build_batch(
        self,
        dataset: SavableDataset[Any],
        *,
        batch_size: int | None,
        worker_config: WorkerConfig | None = None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
    ) -> SavableDataset[Any]:
        """Add packing or ``postencode_sample``, then batching and ``encode_batch``.

        Raises:
            ConfigError: The hooks and arguments do not fit together.
        """
        if packing_buffer_size is None:
            dataset = _map_hook(self, dataset, "postencode_sample", worker_config)
        else:
            dataset = _packed(self, dataset, packing_buffer_size, worker_config)
        if self._hook_overridden("batch_group_criterion"):
            batcher = self._hook_function("batch")
            if isgeneratorfunction(unwrap(batcher)):
                raise ConfigError("batch is a generator, which batch_group_criterion cannot use")
            dataset = GroupBatchDataset(
                dataset,
                self._hook_function("batch_group_criterion"),
                batcher,
                fixed_batch_size=batch_size,
                batcher_stateless=get_stateless(batcher),
                drop_last=batch_drop_last,
                failure_tolerance=_tolerance(self, batcher),
                worker_config=worker_config,
            )
        elif batch_size is None:
            return dataset
        else:
            dataset = _batched(self, dataset, batch_size, batch_drop_last, worker_config)
        return _map_hook(self, dataset, "encode_batch", worker_config)


def _encoded(
    encoder: PipelineBuilder, datasets: Sequence[LoadedDataset], config: WorkerConfig
) -> SavableDataset[Any]:
    if len(datasets) != 1:
        raise ConfigError(
            f"{len(datasets)} datasets were given to be ordered as one",
            hint="in your build_train_datasets, blend them yourself: BlendDataset(*datasets)",
        )
    cooked = encoder.build_cook_crude_sample(datasets[0].dataset, worker_config=config)
    return encoder.build_encode_sample(cooked, worker_config=config)


def _packed(
    encoder: PipelineBuilder, dataset: SavableDataset[Any], buffer_size: int, config: WorkerConfig | None
) -> SavableDataset[Any]:
    packer, post = encoder._hook_function("pack_selected_samples"), "postencode_sample"
    return PackingDataset(
        dataset,
        buffer_size,
        encoder._hook_function("select_samples_to_pack"),
        packer,
        sample_encoder=None if encoder._hook_does_nothing(post) else encoder._hook_function(post),
        failure_tolerance=_tolerance(encoder, packer),
        worker_config=config,
    )


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
        failure_tolerance=_tolerance(encoder, batcher),
        worker_config=config,
    )
    return _mapped(encoder, batched, batcher, config) if many else batched


def _map_hook(
    encoder: PipelineBuilder, dataset: SavableDataset[Any], name: str, config: WorkerConfig | None
) -> SavableDataset[Any]:
    if encoder._hook_does_nothing(name):
        return dataset
    return _mapped(encoder, dataset, encoder._hook_function(name), config)


def _mapped(
    encoder: PipelineBuilder,
    dataset: SavableDataset[Any],
    function: Callable[[Any], Any],
    config: WorkerConfig | None,
) -> SavableDataset[Any]:
    return MapDataset(
        dataset,
        function,
        stateless_map_fn=get_stateless(function),
        failure_tolerance=_tolerance(encoder, function),
        worker_config=config,
    )


def _tolerance(encoder: PipelineBuilder, function: Callable[..., Any]) -> int:
    return get_failure_tolerance(function, encoder.__default_failure_tolerance__)
