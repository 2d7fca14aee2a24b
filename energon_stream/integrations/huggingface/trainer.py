"""A ``transformers.Trainer`` that trains on this library's datasets, and a callback for its logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from energon_stream.errors import ConfigError, StateError
from energon_stream.imports import of_extra
from energon_stream.integrations.batch_puller import loader_of, read_state, write_state
from energon_stream.integrations.huggingface.accelerated import AcceleratedLoader
from energon_stream.loader import get_savable_loader
from energon_stream.loader.observe.metrics import Recent
from energon_stream.pipeline import SavableDataset

with of_extra("transformers"):
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import TrainerState
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

T = TypeVar("T")

_log = logging.getLogger(__name__)

_FILE = "energon_stream.pt"
_LAST_FILE = "trainer_state.json"  # what the trainer writes last into a checkpoint
_OTHERS = {
    "dataloader_num_workers": (0, "num_workers of the dataset's worker_config"),
    "dataloader_drop_last": (False, "batch_drop_last of get_train_dataset"),
    "auto_find_batch_size": (False, "batch_size of get_train_dataset"),
}
"""Arguments for a torch ``DataLoader``: their default, and the option that replaces them here."""


class StatsCallback(TrainerCallback):  # type: ignore[misc]
    """Adds the statistics of the training loader to the logs of training steps.

    The trainer's reporters, such as those of TensorBoard and Weights & Biases, get them with the loss. They
    get what :meth:`LoaderStats.scalars` returns, about the time since the last log. Callbacks are called in
    order, so this one must come before the reporters: :class:`EnergonTrainer` sees to it.

    Raises:
        MissingPackageError: (On import.) ``transformers`` is not installed.
        ConfigError: (In training.) The training loader is not of this library.

    Example:
        >>> from energon_stream.integrations.huggingface import StatsCallback
        >>> callback = StatsCallback()  # EnergonTrainer(..., callbacks=[callback])
    """

    def __init__(self) -> None:
        self._recent = Recent()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the values, if a training step is logged."""
        if logs is not None and "loss" in logs:
            loader = loader_of(kwargs["train_dataloader"])
            logs.update(self._recent.take(loader.stats()).scalars())


class _TrainerLoader(AcceleratedLoader[T]):
    """Goes on over the ends of passes, because the trainer leaves a pass before it sees the end."""

    def _pass(self) -> Iterator[T]:
        self._fill(1 + self.depth)
        if self._coming[0].ended:
            self._take()
        return super()._pass()

    def __len__(self) -> int:
        """Return the batches of a virtual epoch. Raises TypeError without: other lengths are estimates."""
        if not self.loader.dataset.pass_length:
            raise TypeError("the dataset has no virtual epochs; give max_steps")
        return len(self.loader)


class EnergonTrainerHooks:
    """Trains and evaluates on datasets of this library, and keeps the position in the trainer's checkpoints.

    Mix it into ``transformers.Trainer`` or a class derived from it; :class:`EnergonTrainer` does the former.
    Pass the results of ``get_train_dataset`` and ``get_val_dataset`` as ``train_dataset`` and
    ``eval_dataset``; the trainer handles other datasets as always. The task encoder makes the batches, dicts
    with the model's arguments: ``data_collator`` and the batch sizes of ``TrainingArguments`` do not apply.

    A checkpoint has the file ``energon_stream.pt`` with the position of all ranks after the last batch
    trained on. ``train(resume_from_checkpoint=...)`` goes on with the next batch, and reads none to skip it;
    with ``True``, from the newest checkpoint that was written completely. Epochs are the dataset's virtual
    epochs; without them, pass ``max_steps``.
    """

    args: Any
    accelerator: Any
    train_dataset: Any
    eval_dataset: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._train_loader: _TrainerLoader[Any] | None = None
        self._eval_loaders: dict[int, AcceleratedLoader[Any]] = {}
        self._resume_from: Path | None = None
        self._saved_step: int | None = None  # the step whose position was written
        super().__init__(*args, **kwargs)
        self.add_callback(_Saver(self))  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from a checkpoint if one is given; see ``Trainer.train``.

        Raises ConfigError if ``TrainingArguments`` sets an option that the dataset has to set, and StateError
        if the checkpoint has no loader's state, or the state does not fit the dataset.
        """
        if isinstance(self.train_dataset, SavableDataset):
            _check(self.args, self.train_dataset)
            callbacks = self.callback_handler.callbacks  # type: ignore[attr-defined]
            callbacks.sort(key=lambda each: not isinstance(each, StatsCallback))  # before the reporters
            self.args.ignore_data_skip = True
            pipeline: list[Any] = [self.train_dataset]
            for each in pipeline:
                pipeline += each.inputs
            sizes = (each.batch_size for each in pipeline if getattr(each, "batch_size", None))
            self._train_batch_size = next(sizes, 1)  # by which the trainer counts samples
            found = resume_from_checkpoint
            if found is True:
                newest = newest_checkpoint(self.args.output_dir)
                if newest is not None:
                    found = resume_from_checkpoint = str(newest)
            # Without any checkpoint, the trainer's own error follows.
            self._resume_from = Path(found) if isinstance(found, str) else None
            if self._resume_from is not None:
                _check_complete(self._resume_from)
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._resume_from = None

    def get_train_dataloader(self) -> Any:
        """Return the training loader, at the position of the checkpoint if a run resumes."""
        if not isinstance(self.train_dataset, SavableDataset):
            return super().get_train_dataloader()  # type: ignore[misc]
        if self._train_loader is None:
            self._train_loader = _TrainerLoader(self._loader(self.train_dataset), self.accelerator)
        if self._resume_from is not None:
            self._train_loader.load_state_dict(_read(self._resume_from / _FILE))
        return self._train_loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a loader of the evaluation dataset, or of one that is given itself or by name."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if not isinstance(dataset, SavableDataset):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        if id(dataset) not in self._eval_loaders:
            self._eval_loaders[id(dataset)] = AcceleratedLoader(self._loader(dataset), self.accelerator)
        return self._eval_loaders[id(dataset)]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a loader of the dataset to predict for."""
        if not isinstance(test_dataset, SavableDataset):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, dataset: SavableDataset[Any]) -> Any:
        return get_savable_loader(dataset, pin_memory=None if self.args.dataloader_pin_memory else False)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint, the position first: after the rest, the trainer deletes older checkpoints."""
        step = self.state.global_step  # type: ignore[attr-defined]
        if self._train_loader is not None and self.args.should_save:
            # A folder of an earlier run counts as complete again only when the trainer has written it anew.
            (_checkpoint(self.args, step) / _LAST_FILE).unlink(missing_ok=True)
        self._save_position(step)
        return super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]

    def _save_position(self, step: int) -> None:
        """Write the state of all ranks, unless it was written for this step; all ranks have to call it."""
        if self._train_loader is None or self._saved_step == step:
            return
        self._saved_step = step
        state = self._train_loader.state_dict()
        if self.args.should_save:
            write_state(_checkpoint(self.args, step) / _FILE, state)


class EnergonTrainer(EnergonTrainerHooks, Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` that takes this library's datasets; see :class:`EnergonTrainerHooks`.

    Raises:
        MissingPackageError: (On import.) ``transformers`` is not installed.

    Example:
        >>> import torch
        >>> from transformers import TrainingArguments
        >>> from energon_stream import WorkerConfig, get_val_dataset
        >>> from energon_stream.integrations.huggingface import EnergonTrainer
        >>> arguments = TrainingArguments("checkpoints", max_steps=2, report_to=[], use_cpu=True)
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("texts", worker_config=config, batch_size=4)
        >>> trainer = EnergonTrainer(torch.nn.Linear(1, 1), arguments, train_dataset=dataset)
        >>> next(iter(trainer.get_train_dataloader())).text
        ['text ...', 'text ...', 'text ...', 'text ...']
    """


class _Saver(TrainerCallback):  # type: ignore[misc]
    """Sees to it that each checkpoint has the position, and ends the workers after training."""

    def __init__(self, trainer: EnergonTrainerHooks) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._saved_step = None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._save_position(state.global_step)  # for trainers that save in a way of their own

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for loader in (self._trainer._train_loader, *self._trainer._eval_loaders.values()):
            if loader is not None:
                loader.close()


def _check(args: Any, dataset: SavableDataset[Any]) -> None:
    """Refuse options that would have no effect."""
    for name, (default, instead) in _OTHERS.items():
        if getattr(args, name, default) != default:
            raise ConfigError(
                f"{name}={getattr(args, name)} has no effect on this dataset", hint=f"use {instead}"
            )
    length = dataset.len_rank() if dataset.pass_length else 0
    if length % args.gradient_accumulation_steps:
        # After a resume, the trainer counts the epoch's batches from 0, and would miss its last step.
        raise ConfigError(
            f"an epoch of {length} batches has no whole number of optimizer steps",
            hint="choose virtual_epoch_length as a multiple of gradient_accumulation_steps",
        )


def newest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of an ``output_dir`` from which a trainer can resume; None without any.

    A process that was killed while it saved leaves a folder without its last files. Such folders are passed
    over, and a warning names them. Raises StateError if no checkpoint is complete.
    """
    named = [(path.name.rpartition("-")[2], path) for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*")]
    folders = {int(step): path for step, path in named if step.isdecimal() and path.is_dir()}
    first_error: StateError | None = None
    for _, path in sorted(folders.items(), reverse=True):
        try:
            _check_complete(path)
        except StateError as error:
            _log.warning("passing over the checkpoint %s: %s", path, error)
            first_error = first_error or error
        else:
            return path
    if first_error is not None:
        raise first_error
    return None


def _checkpoint(args: Any, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def _check_complete(folder: Path) -> None:
    """Raise StateError if a trainer cannot resume from a checkpoint."""
    _read(folder / _FILE)
    path = folder / _LAST_FILE
    try:
        TrainerState.load_from_json(str(path))
    except (OSError, ValueError, TypeError) as error:
        raise StateError(
            "the checkpoint was not written to its end",
            where=str(path),
            hint="resume_from_checkpoint=True takes the newest complete checkpoint",
        ) from error


def _read(path: Path) -> Any:
    if not path.exists():
        raise StateError(
            "the checkpoint has no loader's state",
            where=str(path),
            hint="use a checkpoint of a program that trained on this library's datasets",
        )
    return read_state(path, "resume_from_checkpoint=True takes the newest complete checkpoint")
