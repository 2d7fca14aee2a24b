"""A dataloader for torchtitan's ``Trainer``, whose checkpoints it restores on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from energon_stream.imports import of_extra
from energon_stream.integrations.labelled import labelled_loader
from energon_stream.loader import SavableDataLoader

with of_extra("torchtitan"):
    import tyro
    from torchtitan.components.dataloader import BaseDataLoader


class EnergonDataLoader(BaseDataLoader):  # type: ignore[misc]
    """Reads a dataset for torchtitan, as ``dataloader`` of its ``Trainer.Config`` and ``Validator.Config``.

    torchtitan's checkpoints keep one entry for each stream, so a job goes on with any number of data-parallel
    ranks that divides ``num_streams``, and with the same global batches if ``training.global_batch_size``
    stays the same. The ranks of tensor, context and pipeline parallelism read the same batches.

    With ``infinite=False`` a run ends after one pass, on all ranks with the same step. Each sample counts
    once: what fills up the last step has labels that the loss ignores.

    Raises:
        MissingPackageError: (On import.) torchtitan is not installed.
        ConfigError: ``dataset_path`` or ``task_encoder`` is missing, or ``batches_per_step`` is no multiple
            of the ranks.

    Example:
        >>> from energon_stream.integrations.torchtitan import EnergonDataLoader  # doctest: +SKIP
        >>> make = lambda tokenizer, seq_len: Encoder(tokenizer, seq_len)  # doctest: +SKIP
        >>> config.dataloader = EnergonDataLoader.Config(  # doctest: +SKIP
        ...     dataset_path="s3://data/texts", num_streams=12, task_encoder=make
        ... )
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """The dataset and its options."""

        num_workers: int = 4
        """Worker processes of a rank."""
        num_streams: int = 0
        """Streams of the job, a multiple of each number of ranks that it may get; 0 as ``WorkerConfig``."""
        seed_offset: int = 0
        """Another value is another order."""
        split_part: str = "train"
        """Part of the dataset; ``"val"`` reads it in order."""
        infinite: bool = True
        """Whether passes follow each other without end."""
        batches_per_step: int = 0
        """With ``infinite=False``: batches of all ranks in a step, ``global_batch_size / local_batch_size``;
        0 for one of each rank."""
        task_encoder: Annotated[Callable[[Any, int], Any] | None, tyro.conf.Suppress] = None
        """Called with the tokenizer and ``seq_len``; returns the ``TaskEncoder``. Its batches are the pairs
        of inputs and labels that torchtitan takes, or the inputs with an entry ``"labels"``."""
        options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        """Other arguments of ``get_train_dataset``, or for ``"val"`` of ``get_val_dataset``."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        encoder = None if config.task_encoder is None else config.task_encoder(tokenizer, seq_len)
        path = config.dataset_path or config.dataset
        self._infinite = config.infinite
        self.loader: SavableDataLoader[Any] = labelled_loader(
            path, dp_rank, dp_world_size, config, batch_size=local_batch_size, task_encoder=encoder
        )

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Iterate to the end of the pass; without end if ``infinite``."""
        while True:
            for batch in self.loader:
                if isinstance(batch, Mapping):
                    batch = (
                        {name: value for name, value in batch.items() if name != "labels"},
                        batch["labels"],
                    )
                yield batch
            if not self._infinite:
                return

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch returned, with an entry for each stream of this rank."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at the position of a checkpoint, whichever ranks saved the streams of this one."""
        self.loader.load_state_dict(state_dict)
