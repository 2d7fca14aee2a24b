"""Statistics of the training loader in Lightning's loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_stream.integrations.batch_puller import loader_of
from energon_stream.integrations.lightning.packages import of_lightning
from energon_stream.loader.observe.metrics import Recent

if TYPE_CHECKING:
    _Base = object
else:
    _Base = of_lightning("Callback")


class StatsCallback(_Base):
    """Writes the statistics of the training loader to the trainer's loggers, every ``log_every_n_steps``.

    The values are those of :meth:`LoaderStats.scalars`, about the time since they were written last.

    Raises:
        MissingPackageError: (On import.) Lightning is not installed.
        ConfigError: (In training.) The training loader is none of this library's.

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
