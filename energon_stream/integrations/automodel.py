"""Datasets for the recipes of NeMo Automodel, whose checkpoints they restore on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch.utils.data import IterableDataset

from energon_stream.imports import of_extra
from energon_stream.integrations.batch_puller import go_to, is_endless
from energon_stream.integrations.labelled import labelled_loader
from energon_stream.loader import SavableDataLoader

with of_extra("torchdata"):
    from torchdata.stateful_dataloader import StatefulDataLoader


class _Batches:
    """The batches of a loader, with the methods that save and restore their position."""

    loader: SavableDataLoader[Any]

    def __len__(self) -> int:
        """Return the batches of a pass. Raises TypeError if there is no end."""
        if is_endless(self.loader.dataset):
            raise TypeError("an endless dataset has no length; give max_steps")
        return self.loader.dataset.len_rank()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, with an entry for each stream of this rank."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at the position of a state dict."""
        go_to(self.loader, state_dict)


class EnergonDataset(_Batches, IterableDataset[Any]):
    """The batches of an :class:`EnergonDatasetConfig`, for a loader of a recipe."""

    def __init__(self, open_loader: Callable[[int, int], SavableDataLoader[Any]]) -> None:
        self._open = open_loader

    def shard(self, num_shards: int, index: int) -> EnergonDataset:
        """Open the dataset for a data-parallel rank."""
        self.loader: SavableDataLoader[Any] = self._open(index, num_shards)
        return self

    def __iter__(self) -> Iterator[Any]:
        """Iterate to the end of the pass."""
        return iter(self.loader)


@dataclass
class EnergonDatasetConfig:
    """The ``dataset:`` of a recipe.

    The dataset makes the batches, so ``dataloader:`` needs ``batch_size: null``, and no workers. Each rank's
    state is in a file of the recipe's checkpoint. With :class:`ElasticRecipe` they are in one, which any
    number of ranks restores that divides ``num_streams``.

    A dataset that ends does so on all ranks with the same step. Each sample counts once: what fills up the
    last step has labels that the loss ignores.

    Attributes:
        path: A dataset or metadataset.
        batch_size: Samples of a batch, ``local_batch_size`` of the ``step_scheduler``.
        task_encoder_fn: Called with the recipe's tokenizer; returns the ``TaskEncoder``. Its batches are
            dicts with the model's arguments and ``"labels"``.
        split_part: Part of the dataset; ``"val"`` reads it in order.
        infinite: Whether passes follow each other without end.
        batches_per_step: Unless ``infinite``: batches of all ranks in a step, ``global_batch_size /
            local_batch_size``; 0 for one of each rank.
        num_workers: Worker processes of a rank.
        num_streams: Streams of the job, a multiple of each number of ranks that it may get; 0 as
            ``WorkerConfig``.
        seed_offset: Another value is another order.
        options: Other arguments of ``get_train_dataset``, or for ``"val"`` of ``get_val_dataset``.

    Raises:
        MissingPackageError: (On import.) ``torchdata`` is not installed, which Automodel needs.

    Example:
        >>> from energon_stream import DefaultTaskEncoder
        >>> from energon_stream.integrations.automodel import EnergonDatasetConfig
        >>> make = lambda tokenizer: DefaultTaskEncoder()
        >>> config = EnergonDatasetConfig("texts", 8, make, infinite=True, num_workers=0)
        >>> len(next(iter(config.build(tokenizer=None).shard(1, 0))).text)
        8
    """

    path: str
    batch_size: int
    task_encoder_fn: Callable[[Any], Any] | None = None
    split_part: str = "train"
    infinite: bool = False
    batches_per_step: int = 0
    num_workers: int = 4
    num_streams: int = 0
    seed_offset: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    accepts_tokenizer: ClassVar[bool] = True

    def build(self, *, tokenizer: Any) -> EnergonDataset:
        """Make the dataset; Automodel then calls :meth:`EnergonDataset.shard`."""
        encoder = None if self.task_encoder_fn is None else self.task_encoder_fn(tokenizer)
        size = self.batch_size
        return EnergonDataset(
            lambda rank, ranks: labelled_loader(
                self.path, rank, ranks, self, batch_size=size, task_encoder=encoder
            )
        )


class _DistributedBatches(_Batches):
    """Takes the place of a recipe's ``dataloader``; Automodel saves it with all ranks together."""

    use_distributed_checkpointing = True  # the name is Automodel's

    def __init__(self, loader: SavableDataLoader[Any], collate: Callable[[Any], Any]) -> None:
        self.loader, self._collate = loader, collate

    def __iter__(self) -> Iterator[Any]:
        return map(self._collate, self.loader)


class ElasticRecipe:
    """Base of recipes that go on with another number of data-parallel ranks; it comes before the recipe.

    Example:
        >>> from energon_stream.integrations.automodel import ElasticRecipe
        >>> class Recipe(ElasticRecipe, TrainFinetuneRecipeForNextTokenPrediction): ...  # doctest: +SKIP
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, StatefulDataLoader) and isinstance(value.dataset, EnergonDataset):
            value = _DistributedBatches(value.dataset.loader, value.collate_fn)
        super().__setattr__(name, value)
