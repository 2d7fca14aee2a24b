"""Rows for verl's trainers, which name a dataset class in ``data.custom_cls``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from energon_stream.atomic_files import replacing
from energon_stream.errors import ConfigError, StateError, StateMismatchError
from energon_stream.integrations.batch_puller import go_to, is_endless
from energon_stream.integrations.shuffled_rows import ENDLESS, ShuffledRows
from energon_stream.integrations.torchdata import deal_sampled
from energon_stream.loader import SavableDataLoader, get_savable_loader
from energon_stream.pipeline import SavableDataset

__all__ = ["ShuffledRows", "VerlRows", "deal_states"]


class VerlRows(Dataset[Any]):
    """A dataset of verl's trainers whose rows come from datasets of this library.

    Derive from it, and write :meth:`open`. What that returns decides who chooses the order:

    * **A sequence**: verl's samplers choose rows by number, in training, validation and fine-tuning. For
      positions at the end of an epoch, which verl does not restore, use :class:`ShuffledRows`.
    * **A dataset to iterate**, with ``batch_size=None``: its own shuffling, blend and packing decide, and its
      position is in verl's checkpoints. One that ends is the same in each epoch.

    Args:
        data_files: ``data.train_files`` or ``data.val_files``; for fine-tuning, ``parquet_files``.
        max_samples: Rows to use of a sequence, the first ones; -1 for all.
        **attributes: ``tokenizer``, ``processor`` and ``config`` (the section ``data``), for ``open``.

    Raises:
        ConfigError: An option of verl does not fit a dataset to iterate.

    Example:
        >>> from energon_stream import WorkerConfig, get_train_dataset
        >>> from energon_stream.integrations.verl import VerlRows
        >>> class Rows(VerlRows):
        ...     def open(self, files):
        ...         config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        ...         return get_train_dataset(files, batch_size=None, worker_config=config)
        >>> rows = Rows("texts")
        >>> rows[0].text, rows[1].text  # verl counts
        ('text ...', 'text ...')
    """

    def __init__(
        self, data_files: Any = None, max_samples: int = -1, parquet_files: Any = None, **attributes: Any
    ) -> None:
        vars(self).update(attributes)
        files = data_files if parquet_files is None else parquet_files
        opened = self.open(files)
        self._loader: SavableDataLoader[Any] | None = None
        if not isinstance(opened, SavableDataset):
            self._rows = opened
            self._length = min(max_samples if max_samples >= 0 else ENDLESS, len(opened))
        else:
            self._length = ENDLESS if is_endless(opened) else opened.len_rank()
            self._loader = get_savable_loader(opened)
            self._batches: Iterator[Any] | None = None
            self._next = 0  # the row that follows
        has_end, config = self._length <= ENDLESS // 2, attributes.get("config") or {}
        if (parquet_files is not None and not has_end) or (max_samples >= 0 and self._loader is not None):
            hint = "return a sequence from open: open_dataset(...)"
            raise ConfigError("sft_trainer and max_samples choose among rows that have an end", hint=hint)
        if not has_end and files == config.get("val_files"):
            hint = "give data.val_files a name of its own, for which open returns get_val_dataset(...)"
            raise ConfigError("validation on an endless dataset would not end", hint=hint)
        if not has_end and config.get("shuffle"):
            hint = "set data.shuffle=False: the order is the dataset's"
            raise ConfigError("verl would draw an order of rows that have no end", hint=hint)

    def open(self, files: Any) -> Any:
        """Return the rows of ``files``: a sequence, or a dataset to iterate. The derived class writes it."""
        raise NotImplementedError("VerlRows.open")

    def __len__(self) -> int:
        """Return the rows of an epoch."""
        return self._length

    def __getitem__(self, row: int) -> Any:
        """Return a row. Raises ConfigError if it is not the next of a dataset to iterate."""
        if self._loader is None:
            return self._rows[row]
        if row == 0 and self._next:  # the next epoch, or validation
            self._go_to(None, 0)
        if row != self._next:
            hint = "set data.shuffle=False, data.validation_shuffle=False, data.dataloader_num_workers=0"
            raise ConfigError(f"row {row} is wanted, and the dataset goes on with {self._next}", hint=hint)
        if self._batches is None:
            self._batches = iter(self._loader)
        try:
            found = next(self._batches)
        except StopIteration:
            hint = "leave samples out by a view (where=...) instead of skipping them, or use repeat=True"
            raise ConfigError(f"{row} rows of {self._length}: some were skipped", hint=hint) from None
        self._next = row + 1
        return found

    def _go_to(self, state: Any, row: int) -> None:
        assert self._loader is not None
        go_to(self._loader, state)
        self._batches, self._next = None, row

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows, and the position of a dataset to iterate. verl's loader calls it."""
        if self._loader is None:
            return {"rows": self._length}
        return {"rows": self._length, "next": self._next, "loader": self._loader.save_state_rank()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at a state. Raises StateError if it is of another dataset."""
        if state_dict.get("rows") != self._length or ("loader" in state_dict) != (self._loader is not None):
            hint = "resume with the dataset that the run began with, or set trainer.resume_mode=disable"
            raise StateMismatchError(
                f"a state of {state_dict.get('rows')} rows, here {self._length}", hint=hint
            )
        if self._loader is not None:
            self._go_to(state_dict["loader"], state_dict["next"])


def deal_states(checkpoint: str | Path, ranks: int) -> None:
    """Let verl's fine-tuning go on from a folder ``global_step_<n>`` with other data-parallel ranks.

    It writes ``data_<rank>.pt`` for each: verl starts a rank without this file from scratch. Keep
    ``data.train_batch_size``. Raises StateError if ranks have no files, or unequal numbers of rows.

    Example:
        >>> from energon_stream.integrations.verl import deal_states
        >>> deal_states("checkpoints/global_step_4", ranks=3)  # doctest: +SKIP
    """
    files = sorted(Path(checkpoint).glob("data_*.pt"), key=lambda path: int(path.stem[5:]))
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in files]
    try:
        state = deal_sampled(states, ranks)
    except StateError as error:
        raise StateError(error.what, where=str(checkpoint), hint=error.hint) from error
    for path in files[ranks:]:
        path.unlink()
    for rank in range(ranks):
        with replacing(Path(checkpoint) / f"data_{rank}.pt") as temporary:
            torch.save(state, temporary)
