"""The data module and callback for PyTorch Lightning, for ``lightning`` and for ``pytorch_lightning``.

The trainer of each of the two packages takes only what derives from its own classes.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from energon_stream.config import get_train_dataset, get_val_dataset
from energon_stream.errors import ConfigError
from energon_stream.imports import of_extra
from energon_stream.integrations.batch_puller import loader_of, saved_ranks
from energon_stream.integrations.lightning.loaders import EvaluationLoader, TrainLoader
from energon_stream.loader import SavableDataLoader, get_savable_loader
from energon_stream.loader.observe.metrics import Recent
from energon_stream.pipeline import SavableDataset
from energon_stream.worker import WorkerConfig

_COPIES = ("lightning.pytorch", "pytorch_lightning")


def of_lightning(name: str) -> Any:
    """Return a class of the package that the program has imported; of the one that is there, if none."""
    first, second = sorted(_COPIES, key=lambda package: package not in sys.modules)
    with of_extra("lightning"):
        try:
            return getattr(importlib.import_module(first), name)
        except ModuleNotFoundError:
            return getattr(importlib.import_module(second), name)


if TYPE_CHECKING:
    _Base = object
    _Callback = object
else:
    _Base, _Callback = of_lightning("LightningDataModule"), of_lightning("Callback")

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Callable[[WorkerConfig], SavableDataset[Any]]
"""Path or URL, content of a metadataset, or a function that opens a dataset with its ``WorkerConfig``."""


class EnergonDataHooks:
    """Loaders for training and evaluation, with their position in Lightning's checkpoints.

    Mix it into a ``LightningDataModule``; :class:`EnergonDataModule` does that for most programs. Rank and
    number of ranks are the trainer's data-parallel ones, and each rank reads its own data. Loaders are made
    when the trainer asks for them.

    A checkpoint has the position of all ranks after the last batch that was *trained on*. A resumed run goes
    on with the next batch, in the middle of an epoch too, and so does a data module that is used again.
    Validation and tests begin at the start each time.

    Args:
        train: Dataset for training.
        val: Dataset for validation, or a list or tuple of several.
        test: Dataset for tests, or a list or tuple of several.
        num_workers: Worker processes of each rank for each loader.
        num_streams: Number of streams of the whole job in training, see :class:`WorkerConfig`. With it, a run
            can resume on another number of ranks or workers.
        seed_offset: The seed of everything random.
        train_options: Further arguments of ``get_train_dataset``, for paths.
        val_options: Further arguments of ``get_val_dataset``, for paths. Tests use the split part ``"test"``,
            unless this has another.
        loader_options: Further arguments of ``get_savable_loader``.
    """

    trainer: Any  # set by Lightning

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
        self._num_workers, self._num_streams, self._seed_offset = num_workers, num_streams, seed_offset
        self._train_options, self._val_options = train_options or {}, val_options or {}
        self._loader_options = loader_options or {}
        self._train: TrainLoader[Any] | None = None
        self._owner: Any = None  # the trainer for which it was made
        self._saved: dict[str, Any] | None = None
        self._evaluation: dict[str, list[EvaluationLoader[Any]]] = {}
        for split, source in self._sources.items():
            name = f"{split}_dataloader"
            if source is None and getattr(type(self), name) is getattr(EnergonDataHooks, name):
                # Lightning concludes from an overridden hook that there is such data.
                setattr(self, name, getattr(super(), name))

    def worker_config(self, num_streams: int = 0) -> WorkerConfig:
        """Make the configuration for the trainer's ranks, which a tensor parallel group shares."""
        ranks = getattr(self.trainer, "distributed_sampler_kwargs", None) or {"rank": 0, "num_replicas": 1}
        rank, size = ranks["rank"], ranks["num_replicas"]
        seed = self._seed_offset
        return WorkerConfig(rank, size, self._num_workers, num_streams=num_streams, seed_offset=seed)

    def _loader(
        self, open_path: Callable[..., Any], source: Any, options: Any, num_streams: int = 0
    ) -> SavableDataLoader[Any]:
        config = self.worker_config(num_streams)
        if callable(source):
            dataset = source(config)
            if dataset.worker_config != config:
                raise ConfigError(
                    "the function opened its dataset with a worker_config other than its argument",
                    hint="pass the argument on: lambda config: get_train_dataset(..., worker_config=config)",
                )
        else:
            dataset = open_path(source, worker_config=config, **options)
        return get_savable_loader(dataset, **self._loader_options)

    def train_dataloader(self) -> Any:
        """Return the training loader, made for this trainer at the first call."""
        if self._train is not None and self._owner is self.trainer:
            return self._train
        loader = self._loader(
            get_train_dataset, self._sources["train"], self._train_options, self._num_streams
        )
        if getattr(self.trainer, "overfit_batches", 0):
            return EvaluationLoader(loader)  # each epoch has the same batches, so there is no position
        if self._train is not None:
            self._saved = self._train.state_dict()
            self._train.close()
        if self._saved is not None and self.trainer is not None:
            _count_for(self.trainer, saved_ranks(self._saved), loader.worker_config.world_size)
        per_step = getattr(self.trainer, "accumulate_grad_batches", 1)
        self._train, self._owner = TrainLoader(loader, self._count_of_trained(), per_step), self.trainer
        if self._saved is not None:
            self._train.load_state_dict(self._saved)
            self._saved = None
        return self._train

    def _count_of_trained(self) -> Callable[[], int] | None:
        """Return a function that reads Lightning's count of trained batches; None if it keeps no count."""
        trainer = self.trainer
        if trainer is None:
            return None
        if "dataloader_iter" in inspect.signature(trainer.lightning_module.training_step).parameters:
            return None  # the training step itself fetches its batches
        return lambda: int(trainer.fit_loop.epoch_loop.batch_progress.total.processed)

    def val_dataloader(self) -> Any:
        """Return the validation loader, or a list of several."""
        return self._evaluation_loaders("val", self._val_options)

    def test_dataloader(self) -> Any:
        """Return the test loader, or a list of several."""
        return self._evaluation_loaders("test", {"split_part": "test", **self._val_options})

    def _evaluation_loaders(self, split: str, options: Mapping[str, Any]) -> Any:
        given = self._sources[split]
        sources = given if isinstance(given, (list, tuple)) else [given]
        loaders = [EvaluationLoader(self._loader(get_val_dataset, source, options)) for source in sources]
        for loader in self._evaluation.get(split, ()):
            loader.close()
        self._evaluation[split] = loaders
        return loaders if isinstance(given, (list, tuple)) else loaders[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training on all ranks, for the checkpoint; all ranks have to call it."""
        saved = self._saved if self._train is None else self._train.state_dict()
        return {} if saved is None else {"train": saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the checkpoint's position; the training begins there."""
        self._saved = state_dict.get("train")
        if self._train is not None:
            self._train.close()
            self._train = None

    def teardown(self, stage: str) -> None:
        """End the workers."""
        if self._train is not None:
            self._train.close()
        while self._evaluation:
            for loader in self._evaluation.popitem()[1]:
                loader.close()


def _count_for(trainer: Any, saved: int, ranks: int) -> None:
    """Convert Lightning's count of a rank's batches, by which it ends steps and epochs, to other ranks."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    for count in (progress.total, progress.current):
        more = count.processed * saved // ranks - count.processed
        for name, value in vars(count).items():
            setattr(count, name, value + more)


class EnergonDataModule(EnergonDataHooks, _Base):
    """A ``LightningDataModule`` with the arguments of :class:`EnergonDataHooks`.

    It is of ``lightning.pytorch``, or of ``pytorch_lightning`` if the program has imported, or the
    environment has, only that.

    Raises:
        MissingPackageError: (On import.) Neither package is installed.

    Example:
        >>> from energon_stream.integrations.lightning import EnergonDataModule
        >>> data = EnergonDataModule(
        ...     train="captions",
        ...     val="captions",
        ...     num_workers=0,
        ...     train_options={"batch_size": 4},
        ...     val_options={"batch_size": 4},
        ... )
        >>> next(iter(data.val_dataloader())).image.shape  # Trainer().fit(model, datamodule=data)
        torch.Size([4, 3, 48, 64])
    """


class StatsCallback(_Callback):
    """Writes the statistics of the training loader to the trainer's loggers, every ``log_every_n_steps``.

    It writes what :meth:`LoaderStats.scalars` returns, about the time since the last write.

    Raises:
        MissingPackageError: (On import.) Lightning is not installed.
        ConfigError: (In training.) The training loader is not of this library.

    Example:
        >>> from energon_stream.integrations.lightning import StatsCallback
        >>> callback = StatsCallback()  # Trainer(callbacks=[callback], logger=...)
    """

    def __init__(self) -> None:
        super().__init__()
        self._recent = Recent()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Write, if it is time."""
        step = trainer.global_step
        if not trainer.loggers or step % trainer.log_every_n_steps:
            return
        values = self._recent.take(loader_of(trainer.train_dataloader).stats()).scalars()
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)
