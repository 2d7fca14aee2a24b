"""The data module and the loader wrapper for Megatron's training loops."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from energon_stream.compat.rank_files import get_savable_loader
from energon_stream.config import get_train_dataset
from energon_stream.errors import ConfigError, EmptyDatasetError
from energon_stream.loader import SavableDataLoader
from energon_stream.pipeline import SavableDataset
from energon_stream.task import DefaultTaskEncoder, TaskEncoder
from energon_stream.worker import WorkerConfig
from energon_stream.worker_fields import DataParallelGroup

_log = logging.getLogger(__name__)


class EnergonMultiModalDataModule:
    """Creates the training and the validation loader of a multimodal dataset.

    It has the signature, defaults and attributes of Megatron-Bridge's class of this name. The later version
    of that class, without ``image_processor`` and ``global_batch_size``, is called by keywords, so both
    versions are covered.

    ``tokenizer``, ``image_processor``, ``multimodal_sample_config``, ``global_batch_size`` and the sequence
    lengths are stored, for task encoders. ``num_workers`` and ``task_encoder`` (by default a
    ``DefaultTaskEncoder()``) are for validation as well, unless ``num_val_workers`` and
    ``validation_task_encoder`` say otherwise. ``cache_pool`` fetches auxiliary data. All other arguments are
    those of ``get_train_dataset``, with ``micro_batch_size`` for ``batch_size``, and apply to both splits.

    ``pg_collection`` is an object with the process group ``dp`` of the data-parallel ranks, such as
    Megatron-Core's ``ProcessGroupCollection``. None stands for the group of Megatron-Core, if the program has
    initialised its model parallelism, and for the ranks of ``torch.distributed`` otherwise.

    Example:
        >>> from energon_stream.integrations.megatron import EnergonMultiModalDataModule
        >>> module = EnergonMultiModalDataModule("captions", None, micro_batch_size=4, num_workers=0)
        >>> len(next(module.train_dataloader()).caption)
        4
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
        packing_buffer_size: int | Literal["stream"] | None = None,
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
        self.num_val_workers: int = num_workers if num_val_workers is None else num_val_workers
        self.pin_memory = pin_memory
        self.shuffle_buffer_size = shuffle_buffer_size
        self.max_samples_per_sequence = max_samples_per_sequence
        self.multimodal_sample_config = multimodal_sample_config
        self.task_encoder: TaskEncoder[Any, Any, Any, Any] = (
            DefaultTaskEncoder() if task_encoder is None else task_encoder
        )
        self.validation_task_encoder: TaskEncoder[Any, Any, Any, Any] = (
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
        """Return the configuration of this process, by its pure data-parallel rank.

        Ranks that differ only in their tensor, pipeline or context parallel rank must read the same batches.
        The group of data and context parallelism together, ``dp_cp``, would give them different ones.
        """
        group: DataParallelGroup | None = getattr(self.pg_collection, "dp", None)
        if group is None:
            group = _megatron_core_group()
        if group is None:
            _log.info(
                "%s loader: no data-parallel group of Megatron, so the ranks of torch.distributed", split
            )
            return WorkerConfig.default_worker_config(num_workers)
        _log.info("%s loader: data-parallel rank %d of %d", split, group.rank(), group.size())
        return WorkerConfig(
            rank=group.rank(), world_size=group.size(), num_workers=num_workers, data_parallel_group=group
        )

    def datasets_provider(
        self, worker_config: WorkerConfig, split: Literal["train", "val"] = "val"
    ) -> SavableDataset[Any]:
        """Open a split, ``"train"`` or ``"val"``. Validation is shuffled and endless as well."""
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
        dataset = self.datasets_provider(self._build_worker_config(num_workers, split), split)
        # None pins where CUDA is available. Without CUDA, True would be an error.
        pin_memory = None if self.pin_memory else False
        loader: SavableDataLoader[Any] = get_savable_loader(
            dataset, cache_pool=self.cache_pool, pin_memory=pin_memory
        )
        return loader

    def build(self) -> tuple[EnergonDataloader, EnergonDataloader]:
        """Return the training and the validation loader."""
        return self.train_dataloader(), self.val_dataloader()

    def train_dataloader(self) -> EnergonDataloader:
        """Return the training loader; the first call creates it."""
        if self._train is None:
            self.train_dataloader_object = self._loader(self.num_workers, "train")
            self._train = EnergonDataloader(self.train_dataloader_object)
        return self._train

    def val_dataloader(self) -> EnergonDataloader:
        """Return the validation loader; the first call creates it."""
        if self._val is None:
            self.val_dataloader_object = self._loader(self.num_val_workers, "val")
            self._val = EnergonDataloader(self.val_dataloader_object)
        return self._val

    def test_dataloader(self) -> None:
        """Return None, because there is no test split."""
        _log.warning("there is no test split")


def _megatron_core_group() -> DataParallelGroup | None:
    """Return Megatron-Core's data-parallel group, if the program has initialised its model parallelism."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    group: DataParallelGroup = state.get_data_parallel_group(with_context_parallel=False)
    return group


class EnergonDataloader:
    """An endless iterator of batches, epoch after epoch, for training loops that call ``next``.

    Args:
        dataloader: A loader of ``get_savable_loader``, or of ``get_loader`` if no state is saved.

    Example:
        >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("captions", batch_size=8, worker_config=config)
        >>> loader = EnergonDataloader(get_loader(dataset))
        >>> [len(next(loader).caption) for _ in range(3)]  # the split has 8 samples
        [8, 8, 8]
    """

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader
        self._iter = iter(cyclic_iter(dataloader))

    def __next__(self) -> Any:
        return next(self._iter)

    def __iter__(self) -> EnergonDataloader:
        return self

    @property
    def worker_config(self) -> WorkerConfig:
        """The configuration of the loader."""
        config: WorkerConfig = self._dataloader.worker_config
        return config

    def save_state(self) -> dict[str, Any]:
        """Return the state of this rank; see ``SavableDataLoader.save_state_rank``."""
        state: dict[str, Any] = self._dataloader.save_state_rank()
        return state

    def restore_state(self, state: dict[str, Any] | None) -> None:
        """Continue from a saved state; see ``SavableDataLoader.restore_state_rank``."""
        self._dataloader.restore_state_rank(state)
        self._iter = iter(cyclic_iter(self._dataloader))


def cyclic_iter(iter: Iterable[Any]) -> Iterator[Any]:
    """Iterate over an iterable again and again.

    Raises:
        EmptyDatasetError: The iterable yielded nothing twice in a row.

    Example:
        >>> from itertools import islice
        >>> list(islice(cyclic_iter([1, 2]), 5))
        [1, 2, 1, 2, 1]
    """
    empty = 0  # once is not an error: a restored loader may be at its end
    while empty < 2:
        empty += 1
        for element in iter:
            empty = 0
            yield element
    raise EmptyDatasetError(
        "the loader yields no batch", hint="is the split empty, or are all samples skipped?"
    )
