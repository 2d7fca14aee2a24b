"""Opens a dataset or metadataset as one order of all samples, or each of its datasets on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from energon_stream.config.leaves import open_leaf
from energon_stream.config.opening import open_location
from energon_stream.config.references import Draws, MixtureItem
from energon_stream.errors import ConfigError
from energon_stream.logs import warn_deprecated
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.plugins import load_plugin
from energon_stream.schedule import (
    ALONG_LINES,
    BY_SEGMENTS,
    IN_STAIRS,
    BlendPlan,
    ConcatPlan,
    LeafPlan,
    Plan,
    RepeatPlan,
    WeightChange,
)
from energon_stream.task import DatasetBlendMode, LoadedDataset
from energon_stream.task.size_metric import SAMPLES

if TYPE_CHECKING:
    from energon_stream.config.dataset_options import DatasetRequest, Shuffling
    from energon_stream.media import FileStore
    from energon_stream.pipeline.leaf import Leaf
    from energon_stream.pipeline.pack_keys import PackPlan
    from energon_stream.read.read_options import ReadOptions
    from energon_stream.worker import WorkerConfig


class LeafDataset(ReaderDataset):
    """Reads the samples of one leaf.

    In Megatron-Energon, ``dataset.build()`` makes such a dataset of a description. Here the dataset is its
    own description, which repeats in training, and :meth:`build` returns one pass over its samples.
    """

    def build(self, worker_rotation_offset: int = 0) -> ReaderDataset:
        """Return a dataset with one pass over the samples, for ``build_train_datasets`` to repeat and blend.

        The plan deals samples to workers evenly by itself, whatever ``worker_rotation_offset`` is.
        """
        plan = self.plan.child if isinstance(self.plan, RepeatPlan) else self.plan
        return ReaderDataset(self.leaves, plan, worker_config=self.worker_config, options=self.options)

    def repeated(self, repetitions: float) -> tuple[LeafDataset, float]:
        """Return a dataset of a number of passes, and how many samples these have."""
        plan = self.plan
        if not isinstance(plan, LeafPlan):
            raise ConfigError("the dataset repeats already", hint="give a weight and no repetitions")
        made = LeafDataset(
            self.leaves,
            _repeated(plan, _passes(plan, repetitions, self.worker_config)),
            worker_config=self.worker_config,
            options=self.options,
        )
        return made, _samples_of(plan, repetitions)

    @property
    def subflavors(self) -> dict[str, Any]:
        return self.leaves[0].subflavors or {}

    @property
    def paths(self) -> list[Any]:
        """Paths of the dataset, or of the joined datasets, as ``EPath``."""
        leaf = self.leaves[0]
        members = getattr(leaf, "members", (leaf,))
        make_path = load_plugin("path_class")
        return [make_path(member.index.spec.url) for member in members]

    @property
    def path(self) -> Any:
        """Path of the dataset, or of the first joined dataset, as ``EPath``."""
        return self.paths[0]

    def as_file_store(self) -> FileStore[Any]:
        """Return the dataset as a file store, in which cookers look up parts by name."""
        store = self.leaves[0].stores.primary
        if store is None:
            raise ConfigError(
                "only prepared folders of tars can be file stores",
                where=str(self.path),
                hint="prepare the dataset",
            )
        return store


@dataclass(frozen=True, slots=True)
class Mixture:
    """Opened datasets and their shares. A single dataset is a mixture of one."""

    items: tuple[MixtureItem, ...]
    leaves: tuple[Leaf, ...]  # in the order of ``items``
    plans: tuple[LeafPlan, ...]  # the order of each dataset's samples, numbered by its place
    config: WorkerConfig
    limits: ReadOptions  # of the look-ahead
    per_batch: int = 1  # samples of a batch, by which steps of weights are counted
    packing: PackPlan | None = None  # planned packing of all datasets together
    unit: tuple[str, str] | None = None  # name and hash of the costs of which weights are shares
    measured: str = SAMPLES  # unit of the weights, of which samples are measured when they are read

    @property
    def blend_mode(self) -> DatasetBlendMode:
        if self.items[0].repetitions is not None:
            return DatasetBlendMode.SAMPLE_REPETITIONS
        return DatasetBlendMode.NONE if len(self.items) == 1 else DatasetBlendMode.DATASET_WEIGHT

    def train_dataset(self, repeat: bool, draws: Draws | None = None) -> LoadedDataset:
        """Return all datasets as one, blended sample by sample; None draws as the metadataset says.

        Raises ConfigError if ``repeat`` is False for a blend by weights, which has no end, or draws cannot be
        even, and EmptyStreamError if there are more streams than samples.
        """
        if draws not in (None, *get_args(Draws)):
            raise ConfigError(f"draws is {draws!r}", hint=f"use one of {', '.join(get_args(Draws))}")
        if draws == "even" and self.blend_mode is not DatasetBlendMode.DATASET_WEIGHT:
            raise ConfigError(
                'draws="even", but this is no blend by weights',
                hint="leave draws out: repetitions, and a single dataset, leave nothing to draw",
            )
        if not repeat and self.blend_mode is DatasetBlendMode.DATASET_WEIGHT:
            raise ConfigError(
                "repeat=False, but a blend by weights has no last sample",
                hint="use blend_epochized, or repeat=True with virtual_epoch_length",
            )
        if draws == "random" and self.unit is not None:
            raise ConfigError(
                f'draws="random", but weights are shares of {self.unit[0]}, which draws follow',
                hint='leave draws out, or pass weight_unit="samples"',
            )
        plan = self._train_plan(repeat)
        if isinstance(plan, BlendPlan):
            even = self.unit is not None or (draws or self.items[0].draws) == "even"
            plan = replace(plan, per_batch=self.per_batch, even=even, unit=self.unit)
            lines = self.items[0].lines
            if even and self.packing is None and self.unit is None:
                has_knots = lines is not None and len(lines.begins()) > 1
                version = BY_SEGMENTS if has_knots else IN_STAIRS
                plan = replace(plan, foresees=version, lines=lines if has_knots else None)
            elif even and self.packing is None and lines is not None and lines.are_long:
                plan = replace(plan, foresees=ALONG_LINES, lines=lines)
        if self.packing is not None and isinstance(plan, BlendPlan) and plan.changes:
            raise ConfigError(
                "planned packing mixes with one weight for each dataset",
                hint="leave out packing=, or give no steps in weight:",
            )
        dataset = self._dataset(plan)
        dataset.require_samples_in_every_stream()
        return self._loaded(dataset)

    def _train_plan(self, repeat: bool) -> Plan:
        if self.blend_mode is not DatasetBlendMode.SAMPLE_REPETITIONS:
            endless = tuple(_repeated(plan, None if repeat else 1) for plan in self.plans)
            weights = tuple(1.0 if item.weight is None else item.weight for item in self.items)
            later = zip(*(item.later for item in self.items), strict=True)
            changes = tuple(
                WeightChange(of_items[0][0], tuple(weight for _, weight in of_items)) for of_items in later
            )
            return endless[0] if len(endless) == 1 else BlendPlan(endless, weights, changes)
        passes = tuple(
            _repeated(plan, _passes(plan, item.repetitions or 1.0, self.config))
            for item, plan in zip(self.items, self.plans, strict=True)
        )
        shares = tuple(self._samples(number) for number in range(len(self.items)))
        epoch = passes[0] if len(passes) == 1 else BlendPlan(passes, shares)
        return _repeated(epoch, None if repeat else 1)

    def val_dataset(self) -> LoadedDataset:
        """Return all datasets as one, in which they follow each other."""
        plan = self.plans[0] if len(self.plans) == 1 else ConcatPlan(self.plans)
        return self._loaded(self._dataset(plan))

    def train_datasets(self, repeat: bool = True) -> list[LoadedDataset]:
        """Return the datasets one by one, for task encoders that blend them.

        Datasets with weights repeat. Those with repetitions end after them, and weigh as many samples. With
        Megatron-Energon's conventions they have one pass and no weight, and the task encoder repeats them.
        """
        if any(item.later or item.weight == 0 or item.draws == "even" or self.unit for item in self.items):
            hint = (
                "override neither build_train_datasets nor build_cook_crude_sample, and use get_train_dataset"
            )
            if self.measured != SAMPLES:
                hint = (
                    f"compute {self.measured!r} with `energon-stream cost`, so that samples need no measuring"
                )
            raise ConfigError(
                "weights that change, are 0, or are shares of a cost, and even draws, need one order of all "
                "datasets, and here each is read on its own",
                hint=hint,
            )
        if self.config.conventions == "energon" and self.items[0].repetitions is not None:
            return self.val_datasets()
        return [
            self._single(number, item.repetitions if item.repetitions is not None else None if repeat else 1)
            for number, item in enumerate(self.items)
        ]

    def val_datasets(self) -> list[LoadedDataset]:
        """Return the datasets one by one, with one pass each."""
        singles = [self._single(number, 1) for number in range(len(self.items))]
        if self.config.conventions == "energon" and self.items[0].repetitions is not None:
            return [replace(one, weight=None, repetitions=_whole(one.repetitions)) for one in singles]
        return singles

    def _single(self, number: int, repeats: float | None) -> LoadedDataset:
        item, leaf = self.items[number], self.leaves[number]
        plan = replace(self.plans[number], leaf=0)
        dataset = LeafDataset(
            (leaf,), _repeated(plan, repeats), worker_config=self.config, options=self.limits
        )
        weight = self._samples(number) if item.weight is None else item.weight
        return LoadedDataset(dataset, weight, item.repetitions, leaf.subflavors, leaf.stores.aux or None)

    def _samples(self, number: int) -> float:
        """Return the number of samples that a dataset contributes to one epoch."""
        return _samples_of(self.plans[number], self.items[number].repetitions or 1.0)

    def _dataset(self, plan: Plan) -> ReaderDataset:
        return ReaderDataset(
            self.leaves, plan, worker_config=self.config, options=self.limits, packing=self.packing
        )

    def _loaded(self, dataset: ReaderDataset) -> LoadedDataset:
        return LoadedDataset(dataset, subflavors=self.leaves[0].subflavors if len(self.leaves) == 1 else None)


def _samples_of(plan: LeafPlan, repetitions: float) -> float:
    return plan.num_samples * max(1, plan.order.shuffle_over_epochs or 1) * repetitions


def _passes(plan: LeafPlan, repetitions: float, config: WorkerConfig) -> float:
    """Return the passes over a plan; by Megatron-Energon's conventions, a share is of one copy."""
    whole = math.floor(repetitions)
    copies = max(1, plan.order.shuffle_over_epochs or 1) if config.conventions == "energon" else 1
    return whole + (repetitions - whole) / copies


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number


def _repeated(plan: Plan, repeats: float | None) -> Plan:
    return plan if repeats == 1 else RepeatPlan(plan, repeats)


def open_mixture(request: DatasetRequest, shuffling: Shuffling | None = None) -> Mixture:
    """Open a dataset, or all datasets of a metadataset; without ``shuffling``, samples keep their order."""
    found = open_location(request.location, request.config.num_workers)
    items = tuple(item for item, _ in found)
    if any("__subflavor__" in item.ref.subflavors for item in items):
        warn_deprecated("subflavor:", "subflavors:, whose values may be anything")
    leaves, plans = [], []
    for number, (item, index) in enumerate(found):
        order = None if shuffling is None else shuffling.order(item.ref.multiplier)
        leaf, plan = open_leaf(number, item.ref, index, order, request)
        leaves.append(leaf)
        plans.append(plan)
    per_batch = request.batch_size or 1
    return Mixture(items, tuple(leaves), tuple(plans), request.config, request.limits, per_batch)
