"""What was logged, without what threads of earlier tests may log meanwhile: that their store is gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import LogRecord

    import pytest


def told(caplog: pytest.LogCaptureFixture, *loggers: str) -> list[str]:
    """Messages of loggers whose names begin so, or of all; of other threads only those of rooms that know
    their datasets.
    """
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(loggers or "") and not _is_of_others(record)
    ]


def _is_of_others(record: LogRecord) -> bool:
    knows = record.name.startswith("energon_stream.") and not record.name.startswith("energon_stream.storage")
    return record.thread != threading.get_ident() and not knows
