"""Takes states to a changed recipe, by the names of Megatron-Energon 8's ``megatron.energon.checkpoint``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass
class ResumeMetadata:
    """Metadata that Megatron-Energon keeps beside a state. Here the state itself identifies its datasets."""

    version: int = 1
    root: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make it of plain values."""
        return cls(**values)


def collect_resume_metadata(loader_or_dataset: Any) -> ResumeMetadata:
    """Describe a loader or dataset, to be saved beside its state."""
    return ResumeMetadata(root={"config": loader_or_dataset.config()})


def migrate_dataloader_state(new_loader: Any, saved_state: Any, saved_metadata: Any = None) -> Any:
    """Return a state of a loader before its first batch, with the progress of a state of another recipe.

    Does and raises what ``restore_state_rank(state, on_change="continue")`` does, which needs no metadata.
    """
    new_loader.restore_state_rank(saved_state, on_change="continue")
    return new_loader.save_state_rank()
