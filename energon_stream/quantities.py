"""Sizes, counts and times as people write them: ``200GB``, ``10k``, ``1.5h``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from energon_stream.errors import ConfigError

_QUANTITY = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?(?:e\d{1,2})?)\s*([a-zµ]*)\s*", re.IGNORECASE)
_LETTERS = ("", "k", "m", "g", "t", "p")
_COUNTS = {letter: Decimal(1000**power) for power, letter in enumerate(_LETTERS)}
_BINARY = {f"{letter}i": Decimal(1024**power) for power, letter in enumerate(_LETTERS) if letter}
_SIZES = {f"{unit}{end}": factor for unit, factor in (_COUNTS | _BINARY).items() for end in ("", "b")}
_MINUTE = Decimal(60)
_SECONDS = {
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "": Decimal(1),
    "s": Decimal(1),
}
_SECONDS |= {"m": _MINUTE, "min": _MINUTE, "h": 60 * _MINUTE, "d": 1440 * _MINUTE, "w": 10080 * _MINUTE}


def parse_size(size: int | str, name: str = "size") -> int:
    """Return the bytes of a number, or of a text such as ``"200GB"`` (10⁹) or ``"1.5GiB"`` (2³⁰)."""
    found = _parse(size, _SIZES) if isinstance(size, str) else size
    if not isinstance(found, (int, Decimal)) or isinstance(found, bool) or found < 0:
        hint = "Use a number of bytes, or a text such as '200GB' or '1.5GiB'."
        raise ConfigError(f"{name} is {size!r:.80}", hint=hint)
    return int(found)


def parse_count(text: str, name: str = "count", *, least: int = 0) -> int:
    """Return a whole number: ``1000``, ``1_000``, ``1k``, ``1.5M`` or ``1e6``."""
    found = _parse(text, _COUNTS)
    if found is None or found != int(found) or found < least:
        hint = f"Use a whole number from {least} on, such as 1000, 10k or 1.5M."
        raise ConfigError(f"{name} is {text!r:.80}", hint=hint)
    return int(found)


def parse_seconds(text: str, name: str = "time", *, bare: bool = True) -> float:
    """Return the seconds of a text such as ``50ms``, ``30m``, ``1.5h``, ``7d`` or ``2w``.

    A number without a unit is seconds, unless ``bare`` is false.
    """
    found = _parse(text, _SECONDS) if bare or text.strip()[-1:].isalpha() else None
    if found is None:
        hint = "Use a number of seconds, or a time such as 50ms, 30m, 12h or 7d."
        raise ConfigError(f"{name} is {text!r:.80}", hint=hint)
    return float(found)


def _parse(text: str, units: Mapping[str, Decimal]) -> Decimal | None:
    match = _QUANTITY.fullmatch(text)
    factor = None if match is None else units.get(match[2].lower())
    return None if match is None or factor is None else Decimal(match[1]) * factor
