"""Importing this imports all test modules, as pytest does, and rewrites what they assert.

Processes of pytest-xdist are forks of one that has done it. Otherwise each of them would do it again: half of
what collecting the tests costs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

ROOT = Path(__file__).resolve().parents[2]


class _ImportOnly:
    """Makes no tests, but those of hypothesis: for one of them it looks up the constants of all modules."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, obj: object) -> list[pytest.Item] | None:
        return None if is_hypothesis_test(obj) else []


# Modules that do not import are errors in the processes, which import them again.
_COMMAND = "--collect-only -n 0 -p no:terminal -o addopts="
pytest.main([*_COMMAND.split(), f"--rootdir={ROOT}", str(ROOT / "tests")], plugins=[_ImportOnly()])
