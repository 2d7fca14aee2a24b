"""The decoder of parts that are values already, such as those of the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from energon_stream.decode.sample_decoder import FileStoreDecoder, SampleDecoder
from energon_stream.errors import DecodeError


@dataclass(frozen=True, slots=True)
class ValueDecoder(FileStoreDecoder):
    """Decodes Arrow's values and parts that have an extension, and leaves other parts unchanged."""

    extensions: Mapping[str, str] = field(default_factory=dict)  # by part
    decoder: SampleDecoder | None = None  # decodes the parts in ``extensions``

    def decode(self, fname: str, data: Any) -> Any:
        try:
            data = data.as_py() if hasattr(data, "as_py") else data
        except (ValueError, OverflowError, ImportError) as error:
            raise DecodeError(f"the value of {fname!r} has no form in Python: {error}") from error
        extension = self.extensions.get(fname)
        return data if extension is None or self.decoder is None else self.decoder.decode(extension, data)
