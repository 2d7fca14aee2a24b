"""The data module and the loader wrapper that Megatron's training loops are given."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from energon_stream.errors import ConfigError, EmptyDatasetError
from energon_stream.loader import SavableDataLoader, get_savable_loader
from energon_stream.pipeline import SavableDataset
from energon_stream.recipe import get_train_dataset
from energon_stream.task import DefaultTaskEncoder
from energon_stream.worker import DataParallelGroup, WorkerConfig

__all__ = ["EnergonDataloader", "EnergonMultiModalDataModule", "cyclic_iter"]

_log = logging.getLogger(__name__)


class EnergonMultiModalDataModule:
    """Makes the training and the validation loader of a multimodal dataset.

    Signature, defaults and attributes are those of Megatron-Bridge's class of this name, of both its
    generations: the later one, without ``image_processor`` and ``global_batch_size``, is called by keywords.

    Args:
        path: Dataset or metadataset, local or on object storage.
        tokenizer: Kept for task encoders, as the arguments that are said to be kept.
        image_processor: Kept.
        seq_length: Kept.
        micro_batch_size: Samples of a batch.
        global_batch_size: Kept.
        num_workers: Worker processes of each rank for training.
        num_val_workers: The same for validation; default ``num_workers``.
        pin_memory: Whether batches are pinned where CUDA is available.
        shuffle_buffer_size: See ``get_train_dataset``; holds for both splits.
        max_samples_per_sequence: See ``get_train_dataset``.
        multimodal_sample_config: Kept.
        task_encoder: How samples become batches; default a ``DefaultTaskEncoder()``.
        decoder_seq_length: Kept.
        packing_buffer_size: See ``get_train_dataset``.
        validation_task_encoder: The same for validation; default ``task_encoder``.
        pg_collection: Has the process group ``dp`` of the data-parallel ranks, as Megatron-Core's
            ``ProcessGroupCollection``; any object will do. None: see :meth:`_build_worker_config`.
        cache_pool: What cookers and hooks fetch auxiliary data with.
        **kwargs: Further arguments of ``get_train_dataset``, for both splits.

    Attributes:
        init_global_step: 0; for the trainer.
        train_dataloader_object: The training loader, when it was made.
        val_dataloader_object: The validation loader, when it was made.
    """

    def __init__(
        self,
        path: str,
        tokenizer: Any,
        image_processor: Any = None,
        seq_length: int = 2048,
        micro_batch_size: int = 1,
        global_batch_size: int = 1,
        num_workers: int = 1,
        num_val_workers: int | None = None,
        pin_memory: bool = True,
        shuffle_buffer_size: int | None = 100,
        max_samples_per_sequence: int | None = None,
        multimodal_sample_config: Any | None = None,
        task_encoder: Any | None = None,
        decoder_seq_length: int | None = None,
        packing_buffer_size: int | None = None,
        validation_task_encoder: Any | None = None,
        pg_collection: Any | None = None,
        *,
        cache_pool: Any | None = None,
        **kwargs: Any,
    ) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.seq_length = seq_length
        self.decoder_seq_length = decoder_seq_length
        self.micro_batch_size = micro_batch_size
        self.global_batch_size = global_batch_size
        self.num_workers = num_workers
        self.num_val_workers = num_workers if num_val_workers is None else num_val_workers
        self.pin_memory = pin_memory
        self.shuffle_buffer_size = shuffle_buffer_size
        self.max_samples_per_sequence = max_samples_per_sequence
        self.multimodal_sample_config = multimodal_sample_config
        self.task_encoder = DefaultTaskEncoder() if task_encoder is None else task_encoder
        self.validation_task_encoder = (
            self.task_encoder if validation_task_encoder is None else validation_task_encoder
        )
        self.packing_buffer_size = packing_buffer_size
        self.pg_collection = pg_collection
        self.cache_pool = cache_pool
        self.kwargs = kwargs
        self.init_global_step = 0
        self.train_dataloader_object: SavableDataLoader[Any] | None = None
        self.val_dataloader_object: SavableDataLoader[Any] | None = None
        self._train: EnergonDataloader | None = None
        self._val: EnergonDataloader | None = None

    def _build_worker_config(self, num_workers: int, split: str = "train") -> WorkerConfig:
        """Find out which data this process reads.

        It is that of its pure data-parallel rank. Ranks that share it because they differ in their tensor,
        pipeline or context parallel rank have to read the same batches; the group of data and context
        parallelism together, ``dp_cp``, would give each of them other ones.

        The group is ``pg_collection.dp``. Without it, it is that of Megatron-Core where the program has
        initialised its model parallelism; and where it has not, or there is no Megatron-Core, the ranks are
        those of ``torch.distributed``.
        """
        group: DataParallelGroup | None = getattr(self.pg_collection, "dp", None)
        if group is None:
            group = _megatron_core_group()
        if group is None:
            _log.info("%s loader: no data-parallel group of Megatron, so the default ranks", split)
            return WorkerConfig.default_worker_config(num_workers)
        _log.info("%s loader: data-parallel rank %d of %d", split, group.rank(), group.size())
        return WorkerConfig(
            rank=group.rank(), world_size=group.size(), num_workers=num_workers, data_parallel_group=group
        )

    def datasets_provider(
        self, worker_config: WorkerConfig, split: Literal["train", "val"] = "val"
    ) -> SavableDataset[Any]:
        """Open a split: shuffled and endless, for validation as well.

        Raises:
            ConfigError: Another split than ``"train"`` or ``"val"``.
        """
        if split not in ("train", "val"):
            raise ConfigError(f"the split is {split!r}", hint="use 'train' or 'val'")
        return get_train_dataset(
            self.path,
            batch_size=self.micro_batch_size,
            task_encoder=self.task_encoder if split == "train" else self.validation_task_encoder,
            worker_config=worker_config,
            packing_buffer_size=self.packing_buffer_size,
            split_part=split,
            shuffle_buffer_size=self.shuffle_buffer_size,
            max_samples_per_sequence=self.max_samples_per_sequence,
            **self.kwargs,
        )

    def _loader(self, num_workers: int, split: Literal["train", "val"]) -> SavableDataLoader[Any]:
        config = self._build_worker_config(num_workers, split)
        dataset = self.datasets_provider(config, split)
        # Without CUDA there is nothing to pin for, so True is "where it is available".
        return get_savable_loader(
            dataset, cache_pool=self.cache_pool, pin_memory=None if self.pin_memory else False
        )

    def build(self) -> tuple[EnergonDataloader, EnergonDataloader]:
        """The training and the validation loader."""
        return self.train_dataloader(), self.val_dataloader()

    def train_dataloader(self) -> EnergonDataloader:
        """The training loader, made at the first call."""
        if self._train is None:
            self.train_dataloader_object = self._loader(self.num_workers, "train")
            self._train = EnergonDataloader(self.train_dataloader_object)
        return self._train

    def val_dataloader(self) -> EnergonDataloader:
        """The validation loader, made at the first call."""
        if self._val is None:
            self.val_dataloader_object = self._loader(self.num_val_workers, "val")
            self._val = EnergonDataloader(self.val_dataloader_object)
        return self._val

    def test_dataloader(self) -> None:
        """None: there is no test split."""
        _log.warning("there is no test split")


def _megatron_core_group() -> DataParallelGroup | None:
    """The data-parallel group of Megatron-Core, if the program has initialised its model parallelism."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    group: DataParallelGroup = state.get_data_parallel_group(with_context_parallel=False)
    return group


class EnergonDataloader:
    """Endless batches for a training loop that calls ``next``, one epoch after the other.

    Args:
        dataloader: A loader of ``get_savable_loader``, or of ``get_loader`` where no state is wanted.
    """

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader
        self._iter = iter(cyclic_iter(dataloader))

    def __next__(self) -> Any:
        return next(self._iter)

    def __iter__(self) -> EnergonDataloader:
        return self

    def save_state(self) -> dict[str, Any]:
        """Where this rank stands; see ``SavableDataLoader.save_state_rank``."""
        state: dict[str, Any] = self._dataloader.save_state_rank()
        return state

    def restore_state(self, state: dict[str, Any] | None) -> None:
        """Go on where a saved state stands; before the first ``next``.

        Raises:
            StateError: See ``SavableDataLoader.restore_state_rank``.
        """
        self._dataloader.restore_state_rank(state)
        self._iter = iter(cyclic_iter(self._dataloader))


def cyclic_iter(iter: Iterable[Any]) -> Iterator[Any]:
    """Iterate again and again.

    Args:
        iter: What can be iterated more than once.

    Raises:
        EmptyDatasetError: It gave nothing, twice in a row; the first time it may just have been at its end.
    """
    empty = 0
    while empty < 2:
        empty += 1
        for element in iter:
            empty = 0
            yield element
    raise EmptyDatasetError(
        "there is nothing to iterate", hint="is the split empty, or are all samples skipped?"
    )
