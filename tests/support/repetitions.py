"""How many examples hypothesis tries: few in every run, all of them in the nightly one.

``make test`` uses the profile ``ci``, ``make test-all`` the profile ``nightly``. Examples are random in both.
A failing one is printed with the line that reproduces it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

CI, NIGHTLY = "ci", "nightly"
SHARE, LEAST = 8, 5


def register_profiles() -> None:
    """Register both profiles and load ``ci``; ``--hypothesis-profile`` chooses the other."""
    # Tests compare counters, not clocks: no example is too slow.
    common: dict[str, Any] = {"deadline": None, "print_blob": True}
    settings.register_profile(NIGHTLY, max_examples=100, **common)
    settings.register_profile(CI, max_examples=_few(100), **common)
    settings.load_profile(CI)


def examples(count: int, **options: Any) -> settings:
    """Settings of a test that tries ``count`` examples in the nightly run, and an eighth of them
    otherwise.
    """
    return settings(max_examples=count if is_nightly() else _few(count), **options)


def is_nightly() -> bool:
    """Return whether this is the nightly run."""
    return settings.get_current_profile_name() == NIGHTLY


def _few(count: int) -> int:
    return min(count, max(LEAST, count // SHARE))
