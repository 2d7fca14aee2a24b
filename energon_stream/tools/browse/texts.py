"""Texts of samples: filters on them, and how they are shown. No I/O."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from energon_stream.errors import ConfigError
from energon_stream.printable import printable
from energon_stream.tools.browse.shown_parts import Kind

PREVIEW_CHARACTERS = 600
"""Characters of a text in a list of samples."""

MOST_TEXT = 1 << 20
"""Bytes of a text part that are read."""

Operator = Literal["contains", "equals"]


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one field of a sample. Raises ConfigError if the operator is unknown.

    Example:
        >>> texts = {"txt": "A Dog", "json": '{"user": {"age": 7}}'}
        >>> Filter("txt", "contains", "dog").matches("0001", "a.tar", texts)
        True
        >>> Filter("json.user.age", "equals", "7").matches("0001", "a.tar", texts)
        True
    """

    # ``key``, ``shard``, ``part`` (names of parts), the name of a text part, or a path in a JSON part such as
    # ``json.user.name`` or ``json.tags.0``. Empty: any of these.
    field: str
    operator: Operator  # ``contains``, whatever the case of letters, or ``equals``
    value: str  # Text to compare with. Numbers, true, false and null compare as JSON writes them.

    def __post_init__(self) -> None:
        if self.operator not in get_args(Operator):
            raise ConfigError(f"the operator {self.operator!r:.80} is unknown", hint="use contains or equals")

    def matches(
        self, key: str, shard: str | None, texts: Mapping[str, str], others: tuple[str, ...] = ()
    ) -> bool:
        """Return whether a sample matches: by key, shard, texts by part, and names of its other parts."""
        known = {"key": [key], "shard": [shard or ""], "part": [*texts, *others]}
        if self.field in known:
            return any(map(self._holds, known[self.field]))
        if not self.field:
            return any(map(self._holds, [key, shard or "", *texts.values()]))
        return any(map(self._holds, _values(self.field, texts)))

    def _holds(self, text: str) -> bool:
        if self.operator == "equals":
            return text == self.value
        return self.value.casefold() in text.casefold()


def _values(field: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the text at a field: that of the part, and what the longest part name leaves as a path."""
    if field in texts:
        yield texts[field]
        return
    for part, text in texts.items():
        if field.startswith(f"{part}."):
            found = _look_up(parse_json(text), field[len(part) + 1 :].split("."))
            if found is not None:
                yield found


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; None if it is none, or costs too much to parse.

    Example:
        >>> parse_json("[1]"), parse_json("[1")
        ([1], None)
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _look_up(value: Any, path: list[str]) -> str | None:
    for name in path:
        if isinstance(value, dict):
            if name not in value:
                return None
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return None


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
