"""Prints the lines of the library by wing, and fails above the bounds in ARCHITECTURE.md: ``make lint``.

A change that needs more lines raises its bound there in the same commit, and says why.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "energon_stream"


def main() -> int:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    bounds = {
        name: int(bound.replace(",", ""))
        for name, bound in re.findall(r"^\| `?([\w ]+)/?`? \|.*\| ≤ ([\d,]+) \|$", page, re.M)
    }
    lines: Counter[str] = Counter()
    for path in LIBRARY.rglob("*.py"):
        room = path.relative_to(LIBRARY).parts[0]
        lines[room if room in bounds else "core"] += len(path.read_text().splitlines())
    lines["library"] = lines.total()
    for name, bound in bounds.items():
        print(f"{name:14}{lines[name]:8,} of {bound:8,}")
    above = [name for name, bound in bounds.items() if lines[name] > bound]
    if above or not {"core", "library"} <= set(bounds):
        print(
            f"Too many lines: {', '.join(above)}. Simplify, or raise the bound in ARCHITECTURE.md and say why."
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
