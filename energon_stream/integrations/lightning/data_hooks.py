"""What a Lightning data module does, for whichever package's class it is."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from energon_stream.errors import ConfigError
from energon_stream.integrations.lightning.loaders import EvaluationLoader, TrainLoader
from energon_stream.loader import SavableDataLoader, get_savable_loader
from energon_stream.pipeline import SavableDataset
from energon_stream.recipe import get_train_dataset, get_val_dataset
from energon_stream.worker import WorkerConfig

__all__ = ["EnergonDataHooks"]

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Callable[[WorkerConfig], SavableDataset[Any]]
"""A path or URL (or a metadataset's content), or a function that opens a dataset with the configuration it is given."""


class EnergonDataHooks:
    """Training and evaluation loaders, each rank's of its own data, and their position in Lightning's checkpoints.

    Mix it into the ``LightningDataModule`` of the package whose ``Trainer`` is used; :class:`EnergonDataModule` is that
    for most programs. Rank and number of ranks are the trainer's data-parallel ones. Loaders are made when the
    trainer asks for them.

    Checkpoints hold where training stood after the last batch that was *trained on*, of all ranks, and resuming goes on with
    the next one, wherever in an epoch that was. Validation and tests begin at the start each time.

    A data module that is used again, by the same or another trainer, goes on where training was.

    Args:
        train: What to train on.
        val: What to validate on; several of them in a list or tuple.
        test: What to test on; likewise.
        num_workers: Worker processes of each rank for each loader.
        num_streams: Number of streams of the whole job in training, see :class:`WorkerConfig`; given, it lets a run go
            on with another number of ranks or workers.
        seed_offset: The seed of everything random.
        train_options: Further arguments of ``get_train_dataset``, for paths.
        val_options: Further arguments of ``get_val_dataset``, for paths; tests have the split part ``"test"``, unless it is
            given.
        loader_options: Further arguments of ``get_savable_loader``.
    """

    trainer: Any
    """The trainer, which Lightning sets."""

    def __init__(
        self,
        train: Source | None = None,
        val: Source | Sequence[Source] | None = None,
        test: Source | Sequence[Source] | None = None,
        *,
        num_workers: int = 4,
        num_streams: int = 0,
        seed_offset: int = 0,
        train_options: Mapping[str, Any] | None = None,
        val_options: Mapping[str, Any] | None = None,
        loader_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._sources = {"train": train, "val": val, "test": test}
        self._num_workers = num_workers
        self._num_streams = num_streams
        self._seed_offset = seed_offset
        self._train_options = dict(train_options or {})
        self._val_options = dict(val_options or {})
        self._loader_options = dict(loader_options or {})
        self._train: TrainLoader[Any] | None = None
        self._saved: dict[str, Any] | None = None
        self._evaluation: dict[str, list[EvaluationLoader[Any]]] = {}
        self._owner: Any = None
        for split, source in self._sources.items():
            name = f"{split}_dataloader"
            if source is None and getattr(type(self), name) is getattr(EnergonDataHooks, name):
                # Lightning asks whether the hook is overridden to find out whether there is such data.
                setattr(self, name, getattr(super(), name))

    def worker_config(self, num_streams: int = 0) -> WorkerConfig:
        """Rank and number of ranks as the trainer deals data: copies in tensor parallel groups have the same."""
        ranks = getattr(self.trainer, "distributed_sampler_kwargs", None) or {"rank": 0, "num_replicas": 1}
        return WorkerConfig(
            rank=ranks["rank"],
            world_size=ranks["num_replicas"],
            num_workers=self._num_workers,
            num_streams=num_streams,
            seed_offset=self._seed_offset,
        )

    def _loader(
        self, open_path: Callable[..., Any], source: Any, options: Any, num_streams: int = 0
    ) -> SavableDataLoader[Any]:
        config = self.worker_config(num_streams)
        if callable(source):
            dataset = source(config)
            if dataset.worker_config != config:
                raise ConfigError(
                    "the function opened its dataset with another worker_config than it was given",
                    hint="pass its argument on: lambda config: get_train_dataset(..., worker_config=config)",
                )
        else:
            dataset = open_path(source, worker_config=config, **options)
        return get_savable_loader(dataset, **self._loader_options)

    def train_dataloader(self) -> Any:
        """The training loader, made for this trainer at the first call.

        Raises:
            StateError: The checkpoint's state does not fit the dataset or the number of ranks.
        """
        if self._train is not None and self._owner is self.trainer:
            return self._train
        loader = self._loader(
            get_train_dataset, self._sources["train"], self._train_options, self._num_streams
        )
        if getattr(self.trainer, "overfit_batches", 0):
            return EvaluationLoader(loader)  # the same batches in each epoch, so there is no position
        if self._train is not None:
            self._saved = self._train.state_dict()
            self._train.close()
        self._train, self._owner = TrainLoader(loader, self._count_of_trained()), self.trainer
        if self._saved is not None:
            self._train.load_state_dict(self._saved)
            self._saved = None
        return self._train

    def _count_of_trained(self) -> Callable[[], int] | None:
        """Lightning's count of the batches it has trained on."""
        trainer = self.trainer
        if trainer is None:
            return None
        if "dataloader_iter" in inspect.signature(trainer.lightning_module.training_step).parameters:
            return None  # the step itself fetches what it trains on
        return lambda: int(trainer.fit_loop.epoch_loop.batch_progress.total.processed)

    def val_dataloader(self) -> Any:
        """The validation loader, or a list of them."""
        return self._evaluation_loaders("val", self._val_options)

    def test_dataloader(self) -> Any:
        """The test loader, or a list of them."""
        return self._evaluation_loaders("test", {"split_part": "test", **self._val_options})

    def _evaluation_loaders(self, split: str, options: Mapping[str, Any]) -> Any:
        given = self._sources[split]
        sources = given if isinstance(given, (list, tuple)) else [given]
        loaders = [EvaluationLoader(self._loader(get_val_dataset, source, options)) for source in sources]
        self._close_evaluation(split)
        self._evaluation[split] = loaders
        return loaders if isinstance(given, (list, tuple)) else loaders[0]

    def _close_evaluation(self, split: str) -> None:
        for loader in self._evaluation.pop(split, []):
            loader.close()

    def state_dict(self) -> dict[str, Any]:
        """Where training stands on all ranks, for the checkpoint; all ranks have to call it."""
        saved = self._saved if self._train is None else self._train.state_dict()
        return {} if saved is None else {"train": saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the checkpoint stands, when training begins."""
        self._saved = state_dict.get("train")
        if self._train is not None:
            self._train.close()
            self._train = None

    def teardown(self, stage: str) -> None:
        """End the workers."""
        if self._train is not None:
            self._train.close()
        for split in list(self._evaluation):
            self._close_evaluation(split)
