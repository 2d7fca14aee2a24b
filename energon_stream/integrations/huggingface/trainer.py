"""The hooks on ``transformers.Trainer``."""

from __future__ import annotations

from energon_stream.integrations.huggingface.trainer_hooks import EnergonTrainerHooks
from energon_stream.integrations.optional import of_extra

with of_extra("transformers"):
    from transformers import Trainer

__all__ = ["EnergonTrainer"]


class EnergonTrainer(EnergonTrainerHooks, Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` that takes this library's datasets; see :class:`EnergonTrainerHooks`.

    Raises:
        MissingPackageError: (On import.) ``transformers`` is not installed.
    """
