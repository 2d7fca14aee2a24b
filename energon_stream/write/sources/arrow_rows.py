"""Rows of Arrow tables, for the sources whose packages deliver these."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_stream.write.sources.source import Row

BATCH_ROWS = 16
"""Rows that are taken from Arrow at a time: media are large."""


def table_rows(batch: Any) -> Iterator[Row]:
    """Yield the rows of a record batch or table of ``pyarrow``."""
    columns = [(name, batch.column(place).to_pylist()) for place, name in enumerate(batch.schema.names)]
    for number in range(batch.num_rows):
        yield {name: plain(values[number]) for name, values in columns}


def plain(value: Any) -> Any:
    """Return a value that JSON can hold for what Arrow has beyond that: decimals and maps."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): plain(item) for key, item in value}  # a map
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value
