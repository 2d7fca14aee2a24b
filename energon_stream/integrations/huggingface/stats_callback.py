"""Statistics of the training loader among what ``transformers.Trainer`` logs."""

from __future__ import annotations

from typing import Any

from energon_stream.imports import of_extra
from energon_stream.integrations.batch_puller import loader_of
from energon_stream.loader.observe.metrics import Recent

with of_extra("transformers"):
    from transformers import TrainerCallback


class StatsCallback(TrainerCallback):  # type: ignore[misc]
    """Adds the statistics of the training loader to the logs of training steps.

    The trainer's reporters, such as those of TensorBoard and Weights & Biases, get them with the loss. The
    values are those of :meth:`LoaderStats.scalars`, about the time since they were logged last. Callbacks
    are called in order, so this one must come before the reporters: :class:`EnergonTrainer` sees to it.

    Raises:
        MissingPackageError: (On import.) ``transformers`` is not installed.
        ConfigError: (In training.) The training loader is none of this library's.

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
