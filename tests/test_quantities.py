"""Sizes, counts and times, against tables by hand."""

import pytest

from energon_stream.errors import ConfigError
from energon_stream.quantities import parse_count, parse_seconds, parse_size

SIZES = {
    "0": 0, "1": 1, "10": 10, "1_000": 1000, "512B": 512, "1k": 1000, "1kB": 1000, "1KB": 1000, "1 kB": 1000,
    "10MB": 10_000_000, "10mb": 10_000_000, "1.5M": 1_500_000, "200GB": 200_000_000_000, "2TB": 2_000_000_000_000,
    "1PB": 10**15, "1KiB": 1024, "1ki": 1024, "6MiB": 6_291_456, "1.5GiB": 1_610_612_736, "1TiB": 1_099_511_627_776,
    "0.1kB": 100, "1e6": 1_000_000, "9007199254740993": 9007199254740993, " 5 GB ": 5_000_000_000,
}  # fmt: skip
COUNTS = {
    "0": 0, "7": 7, "1_000_000": 1_000_000, "10k": 10_000, "10K": 10_000, "1.5M": 1_500_000, "2G": 2_000_000_000, "1e6": 1_000_000,
    "2.5k": 2500,
}  # fmt: skip
TIMES = {
    "0": 0, "2": 2, "0.05": 0.05, "200us": 0.0002, "200µs": 0.0002, "50ms": 0.05, "30s": 30, "1.5m": 90, "2min": 120, "12h": 43_200,
    "7d": 604_800, "2w": 1_209_600,
}  # fmt: skip


def test_tables():
    assert {text: parse_size(text) for text in SIZES} == SIZES
    assert {text: parse_count(text) for text in COUNTS} == COUNTS
    assert {text: parse_seconds(text) for text in TIMES} == TIMES
    assert parse_size(17) == 17


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_size, ["", "GB", "-1", "1,5GB", "10 MBB", "1iB", "1 2", "ten", "1e999", "0x10", "1MB/s"]),
        (parse_count, ["", "k", "-1", "1.5", "1,000", "10kB", "1Ki", "1e-3", "many"]),
        (parse_seconds, ["", "s", "-1s", "1y", "1:30", "5 parsecs", "1h30m"]),
    ],
)
def test_what_is_none_is_named(parse, texts):
    for text in texts:
        with pytest.raises(ConfigError, match="--x is") as caught:
            parse(text, "--x")
        assert "Use a" in caught.value.hint


def test_an_age_needs_its_unit():
    """A bare 7 may be meant as days, and seconds would remove nearly everything."""
    with pytest.raises(ConfigError):
        parse_seconds("7", bare=False)
    assert parse_seconds("7d", bare=False) == 604_800
