"""What a ``transformers.Trainer`` needs to train on this library's datasets, for any class derived from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from energon_stream.errors import ConfigError, StateError
from energon_stream.integrations.huggingface.accelerated import AcceleratedLoader
from energon_stream.integrations.optional import of_extra
from energon_stream.loader import get_savable_loader
from energon_stream.pipeline import SavableDataset

with of_extra("transformers"):
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

__all__ = ["EnergonTrainerHooks"]

T = TypeVar("T")

_FILE = "energon_stream.pt"
_KEY = "dataloader_state_dict"

_OTHERS = {
    "dataloader_num_workers": (0, "num_workers of the dataset's worker_config"),
    "dataloader_drop_last": (False, "batch_drop_last of get_train_dataset"),
    "auto_find_batch_size": (False, "batch_size of get_train_dataset"),
}
"""Arguments that say how a torch ``DataLoader`` batches: their default, and what says it here."""


class _TrainerLoader(AcceleratedLoader[T]):
    """Goes on over the ends of passes, which the trainer, counting batches, leaves before it sees them."""

    def _pass(self) -> Iterator[T]:
        self._fill(1 + self.depth)
        if self._coming[0].ended:
            self._take()
        return super()._pass()

    def __len__(self) -> int:
        """Batches of a virtual epoch.

        Raises:
            TypeError: There are none. An endless dataset has no epochs, and the length of other ones is an estimate.
        """
        if not self.loader.dataset.pass_length:
            raise TypeError("the dataset has no virtual epochs; give max_steps")
        return len(self.loader)


class EnergonTrainerHooks:
    """Trains and evaluates on datasets of this library, and keeps the position in the trainer's checkpoints.

    Mix it into ``transformers.Trainer`` or a class derived from it; :class:`EnergonTrainer` is the former. What
    ``get_train_dataset`` and ``get_val_dataset`` return is passed as ``train_dataset`` and ``eval_dataset``; other datasets
    are handled as the trainer does. The task encoder makes the batches, dicts with the model's arguments:
    ``data_collator`` and the batch sizes of ``TrainingArguments`` do not apply.

    A checkpoint has the file ``energon_stream.pt``: where all ranks stood after the last batch that was trained on.
    ``train(resume_from_checkpoint=...)`` goes on with the next one; nothing is read to be skipped (``ignore_data_skip``
    is set). Epochs are the dataset's virtual epochs; without them, give ``max_steps``.
    """

    args: Any
    accelerator: Any
    train_dataset: Any
    eval_dataset: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._train_loader: _TrainerLoader[Any] | None = None
        self._eval_loaders: dict[int, AcceleratedLoader[Any]] = {}
        self._resume_from: Path | None = None
        super().__init__(*args, **kwargs)
        self.add_callback(_Saver(self))  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from a checkpoint if one is given; see ``Trainer.train``.

        Raises:
            ConfigError: ``TrainingArguments`` that the dataset has to have instead.
            StateError: The checkpoint has no state of a loader, or one that does not fit the dataset.
        """
        if isinstance(self.train_dataset, SavableDataset):
            _check(self.args, self.train_dataset)
            self.args.ignore_data_skip = True
            found = resume_from_checkpoint
            if found is True:
                found = get_last_checkpoint(self.args.output_dir)
            self._resume_from = Path(found) if found else None
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._resume_from = None

    def get_train_dataloader(self) -> Any:
        """The training loader, where the checkpoint stands that is resumed."""
        if not isinstance(self.train_dataset, SavableDataset):
            return super().get_train_dataloader()  # type: ignore[misc]
        if self._train_loader is None:
            self._train_loader = _TrainerLoader(self._loader(self.train_dataset), self.accelerator)
        if self._resume_from is not None:
            self._train_loader.load_state_dict(_read(self._resume_from / _FILE))
        return self._train_loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """A loader of the evaluation dataset, or of one that is given, or of one by its name."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if not isinstance(dataset, SavableDataset):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        loader = self._eval_loaders.get(id(dataset))
        if loader is None:
            loader = self._eval_loaders[id(dataset)] = AcceleratedLoader(
                self._loader(dataset), self.accelerator
            )
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """A loader of the dataset to predict for."""
        if not isinstance(test_dataset, SavableDataset):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, dataset: SavableDataset[Any]) -> Any:
        return get_savable_loader(dataset, pin_memory=None if self.args.dataloader_pin_memory else False)

    def _save_position(self, folder: Path) -> None:
        """Write the state of all ranks; all of them have to call it."""
        if self._train_loader is None:
            return
        state = self._train_loader.state_dict()
        if self.args.should_save:
            torch.save({_KEY: state}, folder / _FILE)

    def _close_loaders(self) -> None:
        for loader in (self._train_loader, *self._eval_loaders.values()):
            if loader is not None:
                loader.close()


class _Saver(TrainerCallback):  # type: ignore[misc]
    """Saves the position with each checkpoint, and ends the workers after training."""

    def __init__(self, trainer: EnergonTrainerHooks) -> None:
        self._trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._save_position(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._close_loaders()


def _check(args: Any, dataset: SavableDataset[Any]) -> None:
    """Refuse what would not be honoured."""
    for name, (default, instead) in _OTHERS.items():
        if getattr(args, name, default) != default:
            raise ConfigError(f"{name} is {getattr(args, name)}, which does not apply", hint=f"use {instead}")
    length = dataset.len_rank() if dataset.pass_length else 0
    if length % args.gradient_accumulation_steps:
        # The trainer counts an epoch's batches anew where it resumes, and would not see that a step is the last one.
        raise ConfigError(
            f"{length} batches of an epoch are no whole number of steps of {args.gradient_accumulation_steps} batches",
            hint="choose virtual_epoch_length as a multiple of gradient_accumulation_steps",
        )


def _read(path: Path) -> Any:
    if not path.exists():
        raise StateError(
            "the checkpoint has no state of a loader",
            where=str(path),
            hint="it was saved by a program that did not train on this library's datasets",
        )
    content = torch.load(path, weights_only=True)
    if not isinstance(content, dict) or _KEY not in content:
        raise StateError(f"the file has no {_KEY!r}", where=str(path))
    return content[_KEY]
