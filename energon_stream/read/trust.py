"""Whether data may run code: files that name classes, and parts that are pickles."""

from __future__ import annotations

import os

__all__ = ["TRUST_VARIABLE", "is_trusted"]

TRUST_VARIABLE = "ENERGON_STREAM_TRUST_DATASET_CODE"
"""Setting this environment variable to 1 trusts all datasets, unless an argument says otherwise."""


def is_trusted(said: bool | None) -> bool:
    """What an argument says, or the environment where it says nothing."""
    return os.environ.get(TRUST_VARIABLE) == "1" if said is None else said
