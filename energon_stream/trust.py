"""Trust in datasets, which may name classes to import and contain pickles."""

from __future__ import annotations

import os

TRUST_VARIABLE = "ENERGON_STREAM_TRUST_DATASET_CODE"
"""Environment variable that trusts all datasets if it is 1 and no argument says otherwise."""


def is_trusted(argument: bool | None) -> bool:
    """Return the argument, or, if it is None, whether the environment trusts datasets."""
    return os.environ.get(TRUST_VARIABLE) == "1" if argument is None else argument
