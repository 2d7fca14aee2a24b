"""What the samples of one source dataset may be completed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from energon_stream.media.file_store import FileStore

__all__ = ["AuxStores"]


@dataclass(frozen=True, slots=True)
class AuxStores:
    """File stores of one source dataset; a value that travels to other processes.

    Attributes:
        aux: Auxiliary stores by name.
        primary: The dataset itself; None where it has no names to look up.
    """

    aux: Mapping[str, FileStore[Any]] = field(default_factory=dict)
    primary: FileStore[Any] | None = None
