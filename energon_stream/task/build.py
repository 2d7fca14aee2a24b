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
from energon_stream.samples import CrudeSample
from energon_stream.task.cooking import Cooker, select_cooker
from energon_stream.task.loaded import DatasetBlendMode, LoadedDataset
from energon_stream.task.stateless import get_failure_tolerance, get_stateless
from energon_stream.worker import WorkerConfig

__all__ = ["PipelineBuilder"]

_HERE = __name__.rpartition(".")[0] + "."


class PipelineBuilder:
    """Builds datasets from the hooks of the encoder that derives from it."""

    __default_failure_tolerance__: int
    cookers: Sequence[Cooker[Any]]

    def hook(self, name: str) -> Callable[..., Any]:
        """The function that runs for a hook."""
        function: Callable[..., Any] = getattr(self, name)
        return function

    def overrides(self, name: str) -> bool:
        """Whether a hook is not the library's own, however the user's came there.

        Functions are compared, not names: a lambda on the class or an attribute of the instance counts.
        """
        found = getattr(self, name)
        function = getattr(found, "__func__", found)
        own = [vars(cls).get(name) for cls in type(self).__mro__ if cls.__module__.startswith(_HERE)]
        return all(function is not candidate for candidate in own)

    def does_nothing(self, hook: str) -> bool:
        """Whether calling a hook would change nothing, so that it can be left out."""
        return not self.overrides(hook)

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
            virtual_epoch_length: Batches of one epoch of one rank; 0 for none.
            shuffle_buffer_size: Window of the shuffle that the plan does; for those who override.
            blend_mode: How the plan blends; for those who override.
            repeat: Whether the plan repeats; for those who override.

        Raises:
            ConfigError: The hooks and arguments do not fit together.
        """
        dataset = self._encoded(datasets, worker_config)
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
        dataset = self._encoded(datasets, worker_config)
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

    def _encoded(self, datasets: Sequence[LoadedDataset], config: WorkerConfig) -> SavableDataset[Any]:
        if len(datasets) != 1:
            raise ConfigError(
                f"{len(datasets)} datasets were given to be ordered as one",
                hint="in your build_train_datasets, blend them yourself: BlendDataset(*datasets)",
            )
        cooked = self.build_cook_crude_sample(datasets[0].dataset, worker_config=config)
        return self.build_encode_sample(cooked, worker_config=config)

    def build_cook_crude_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None
    ) -> SavableDataset[Any]:
        """Add the cooking of crude samples, where there are cookers."""
        if not self.cookers:
            return dataset
        for candidate in self.cookers:
            for need in ("cache", "primary"):
                if getattr(candidate.cook, f"__cooker_need_{need}__", False):
                    raise ConfigError(
                        f"a cooker needs {need!r}, which this version cannot give to cookers yet",
                        where=getattr(candidate.cook, "__qualname__", None),
                    )
        pure = all(get_stateless(function) for function in (self.hook("cook_crude_sample"), *self._cooks()))
        return self._map(dataset, self.cook, worker_config, pure, "cook_crude_sample")

    def _cooks(self) -> list[Callable[..., Any]]:
        return [candidate.cook for candidate in self.cookers]

    def cook(self, sample: Any) -> Any:
        """Cook a crude sample with the first cooker that matches; others pass through."""
        if not isinstance(sample, CrudeSample):
            return sample
        chosen = select_cooker(self.cookers, sample.get("__subflavors__"))
        return self.hook("cook_crude_sample")(sample, chosen, {})

    def build_encode_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None
    ) -> SavableDataset[Any]:
        """Add ``encode_sample``, or ``preencode_sample``, where they do something.

        Raises:
            ConfigError: Both ways of encoding are overridden.
        """
        halves = [name for name in ("preencode_sample", "postencode_sample") if self.overrides(name)]
        if halves and self.overrides("encode_sample"):
            raise ConfigError(
                f"encode_sample and {' and '.join(halves)} exclude each other", hint="override one of the two"
            )
        return self._map_hook(dataset, "preencode_sample" if halves else "encode_sample", worker_config)

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
            dataset = self._map_hook(dataset, "postencode_sample", worker_config)
        else:
            dataset = self._packed(dataset, packing_buffer_size, worker_config)
        if self.overrides("batch_group_criterion"):
            batcher = self.hook("batch")
            if isgeneratorfunction(unwrap(batcher)):
                raise ConfigError("batch is a generator, which batch_group_criterion cannot use")
            dataset = GroupBatchDataset(
                dataset,
                self.hook("batch_group_criterion"),
                batcher,
                fixed_batch_size=batch_size,
                batcher_stateless=get_stateless(batcher),
                drop_last=batch_drop_last,
                failure_tolerance=self._tolerance(batcher),
                worker_config=worker_config,
            )
        elif batch_size is None:
            return dataset
        else:
            dataset = self._batched(dataset, batch_size, batch_drop_last, worker_config)
        return self._map_hook(dataset, "encode_batch", worker_config)

    def _packed(
        self, dataset: SavableDataset[Any], buffer_size: int, config: WorkerConfig | None
    ) -> SavableDataset[Any]:
        packer = self.hook("pack_selected_samples")
        encoder = None if self.does_nothing("postencode_sample") else self.hook("postencode_sample")
        return PackingDataset(
            dataset,
            buffer_size,
            self.hook("select_samples_to_pack"),
            packer,
            sample_encoder=encoder,
            failure_tolerance=self._tolerance(packer),
            worker_config=config,
        )

    def _batched(
        self, dataset: SavableDataset[Any], size: int, drop_last: bool, config: WorkerConfig | None
    ) -> SavableDataset[Any]:
        batcher = self.hook("batch")
        many = isgeneratorfunction(unwrap(batcher))
        batched = BatchDataset(
            dataset,
            size,
            list if many else batcher,
            batcher_stateless=many or get_stateless(batcher),
            drop_last=drop_last,
            failure_tolerance=self._tolerance(batcher),
            worker_config=config,
        )
        return self._map(batched, batcher, config, get_stateless(batcher), "batch") if many else batched

    def _map_hook(
        self, dataset: SavableDataset[Any], name: str, config: WorkerConfig | None
    ) -> SavableDataset[Any]:
        if self.does_nothing(name):
            return dataset
        function = self.hook(name)
        return self._map(dataset, function, config, get_stateless(function), name)

    def _map(
        self,
        dataset: SavableDataset[Any],
        function: Callable[[Any], Any],
        config: WorkerConfig | None,
        pure: bool,
        hook: str,
    ) -> SavableDataset[Any]:
        return MapDataset(
            dataset,
            function,
            stateless_map_fn=pure,
            failure_tolerance=self._tolerance(self.hook(hook)),
            worker_config=config,
        )

    def _tolerance(self, function: Callable[..., Any]) -> int:
        return get_failure_tolerance(function, self.__default_failure_tolerance__)
