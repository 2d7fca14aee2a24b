"""Text of parts as it is shown: decoded, laid out, shortened, without control characters. No I/O."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from energon_stream.printable import printable
from energon_stream.tools.browse.kinds import Kind
from energon_stream.tools.browse.sample_filter import parse_json

PREVIEW_CHARACTERS = 600
"""Characters of a text in a list of samples."""

MOST_TEXT = 1 << 20
"""Bytes of a text part that are read."""


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text to be shown, or its beginning."""

    text: str
    is_cut: bool  # whether there is more


def shown_text(data: bytes | memoryview, kind: Kind, most: int) -> ShownText:
    r"""Return at most ``most`` characters of a part, JSON laid out in lines, control characters written out.

    Example:
        >>> shown_text(b"a\x1b[2J", Kind.TEXT, 100).text
        'a\\x1b[2J'
        >>> print(shown_text(b'{"a": [1]}', Kind.JSON, 100).text)
        {
          "a": [
            1
          ]
        }
    """
    text = bytes(data[: MOST_TEXT + 1]).decode("utf-8", "replace")
    if kind is Kind.JSON and len(data) <= MOST_TEXT:
        with contextlib.suppress(RecursionError):  # it is shown as it is
            value = parse_json(text)
            text = text if value is None else json.dumps(value, indent=2, ensure_ascii=False)
    return ShownText(printable(text[:most]), len(text) > most or len(data) > MOST_TEXT)
