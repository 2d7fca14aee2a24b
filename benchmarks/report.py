"""Write the measures: a table in Markdown, everything in JSON, bars in PNG.

python benchmarks/report.py        latest.md once more, from latest.json, with the causes of today
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import Bench, Measure
from causes import CAUSES

REPORTS = Path(__file__).parent.parent / "docs" / "benchmarks"

PACKAGES = ("torch", "obstore", "s3fs", "fsspec", "webdataset", "numpy")
HEAD = "| # | figure | ours | goal | peers | limit | share of the limit | ours ÷ peers |\n|---|---|--:|--:|--:|--:|--:|--:|"

SHORT = "| # | figure | ours | best other | goals | what binds it |\n|---|---|--:|--:|--:|---|"


@dataclass(frozen=True, slots=True)
class Earlier:
    """Parts of an earlier report.

    Attributes:
        measures: Lines.
        made: The command that made them.
        notes: Notes under the table.
    """

    measures: tuple[Measure, ...] = ()
    made: tuple[dict[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def commit() -> str:
    """The commit, as git names it. To be asked before the report is written, which is a change itself."""
    asked = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, check=False, text=True)
    return done.stdout.strip() or "an unknown commit"


def machine() -> dict[str, str]:
    """The machine in general words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    about = {
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            about[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            about[name] = "absent"
    return about


def _nginx() -> dict[str, str]:
    """Version of nginx as it gives it itself (on its standard error)."""
    if shutil.which("nginx") is None:
        return {"nginx": "absent"}
    said = subprocess.run(["nginx", "-v"], capture_output=True, check=False, text=True).stderr
    return {"nginx": said.strip().rpartition("/")[2]}


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _spread(measure: Measure, name: str | None) -> str:
    """Median, and lowest to highest where the rounds differ."""
    if name is None or not measure.values.get(name):
        return "–"
    some = measure.values[name]
    text = number(statistics.median(some))
    if len(some) > 1 and number(min(some)) != number(max(some)):
        text += f" ({number(min(some))}–{number(max(some))})"
    return text


def _ratio(ours: float | None, other: float | None) -> str:
    return "–" if ours is None or not other else f"{ours / other:.2f}"


def _goal(ours: float | None, goal: float | None, more_is_better: bool = True) -> str:
    """A goal, and whether ours reaches it; a dash without one."""
    if goal is None:
        return "–"
    reached = ours is not None and (ours >= goal if more_is_better else ours <= goal)
    return f"{'≥' if more_is_better else '≤'} {number(goal)} {'✓' if reached else '✗'}"


def _share(measure: Measure) -> float | None:
    """Ours, of the best limit."""
    ours, limit = measure.median("ours"), measure.best(measure.limit)
    whole = measure.median(limit) if limit else None
    return ours / whole if ours is not None and whole else None


def line(measure: Measure) -> str:
    """One line of the table."""
    ours = measure.median("ours")
    limit = measure.best(measure.limit)
    peers = sorted(
        (p for p in measure.peers if measure.values[p]), reverse=measure.more_is_better, key=measure.median
    )
    goal = _goal(ours, measure.goal, measure.more_is_better)
    share = _share(measure)
    shown = []
    for peer in peers:
        compared = measure.goal is not None or measure.more_is_better
        ahead = ours is not None and compared and measure.ahead(peer)
        shown.append(
            f"**{peer} {_spread(measure, peer)}** (ahead)" if ahead else f"{peer} {_spread(measure, peer)}"
        )
    limit_text = f"{limit} {_spread(measure, limit)}" if limit else "–"
    cells = [
        measure.row,
        measure.what,
        f"{_spread(measure, 'ours')} {measure.unit}".strip(),
        goal,
        "; ".join(shown) or "–",
        limit_text,
        "–"
        if share is None
        else f"{share:.2f}" + (f" ({_goal(share, measure.share)})" if measure.share else ""),
        "; ".join(_ratio(ours, measure.median(peer)) for peer in peers) or "–",
    ]
    return "| " + " | ".join(cells) + " |"


def short(measure: Measure) -> str:
    """One line of the second table: a figure that is hard to reach, and what keeps it from its goals."""
    share, peer = _share(measure), measure.best(measure.peers)
    goals = [_goal(measure.median("ours"), measure.goal, measure.more_is_better)] if measure.goal else []
    if measure.share:
        limit = measure.best(measure.limit) or "the limit"
        goals.append(f"{_goal(share, measure.share)} of {limit}" + (f": {share:.2f}" if share else ""))
    ahead = peer is not None and measure.ahead(peer)
    reached = not ahead and all("✓" in goal for goal in goals)
    best = f"{peer} {_spread(measure, peer)}{' (ahead)' if ahead else ''}" if peer else "–"
    cells = (measure.row, measure.what, f"{_spread(measure, 'ours')} {measure.unit}".strip(), best)
    return "| " + " | ".join([*cells, "; ".join(goals), "reached" if reached else _binds(measure)]) + " |"


def _binds(measure: Measure) -> str:
    """Return the cause that keeps a figure from its goals; "" for one that is not hard, or has no goal."""
    has_goal = measure.goal is not None or measure.share is not None
    return measure.binds or (CAUSES.get((measure.row, measure.what), "") if has_goal else "")


def _place(measure: Measure) -> tuple[bool, int, str]:
    """Goals by their number, then rows without a goal."""
    number = measure.row[1:]
    goal = measure.row[0] == "P" and number.isdigit()
    return not goal, int(number) if goal else 0, measure.row


def earlier(folder: Path) -> Earlier:
    """Parse the report in a folder."""
    try:
        found = json.loads((folder / "latest.json").read_text())
    except FileNotFoundError:
        return Earlier()
    measures = tuple(Measure(**measure) for measure in found["measures"])
    return Earlier(measures, tuple(found["made"]), tuple(found["notes"]))


def write(
    folder: Path,
    bench: Bench,
    measures: Sequence[Measure],
    command: str,
    measured: str,
    versions: Mapping[str, str],
    before: Earlier,
) -> str:
    """Write ``latest.md``, ``latest.json`` and the plots; returns the table.

    Args:
        folder: Where they go.
        bench: The set-up that was measured in.
        measures: The lines.
        command: What to type to make them again.
        measured: The measured commit.
        versions: Versions of the peers' packages.
        before: What was measured before; lines stay that were not made again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    again = {(measure.row, measure.what) for measure in measures}
    kept = [measure for measure in before.measures if (measure.row, measure.what) not in again]
    order = sorted([*measures, *kept], key=_place)
    how = {"command": command, "date": time.strftime("%Y-%m-%d"), "commit": measured}
    made = [*before.made, how]
    everything: dict[str, Any] = {"made": made, "server": bench.server.kind}
    everything["machine"] = machine() | _nginx() | dict(versions)
    everything["notes"] = list(dict.fromkeys([*before.notes, *bench.notes]))
    everything["measures"] = [asdict(m) for m in order]
    (folder / "latest.json").write_text(json.dumps(everything, indent=1) + "\n")
    return _write_text(folder, everything, _plots(folder, order))


def _write_text(folder: Path, found: Mapping[str, Any], plots: Iterable[str]) -> str:
    """Write ``latest.md`` of the content of ``latest.json``; returns the table."""
    order = [Measure(**measure) for measure in found["measures"]]
    said = "; then ".join(f"`{h['command']}` on {h['date']} at {h['commit']}" for h in found["made"])
    table = "\n".join([HEAD, *(line(m) for m in order)])
    hard = "\n".join([SHORT, *(short(m) for m in order if _binds(m))])
    facts = ", ".join(f"{k} {v}" for k, v in found["machine"].items())
    notes = "".join(f"- {note}\n" for note in found["notes"])
    text = (
        f"# Benchmarks, latest run\n\nMade by {said}; server: {found['server']}.\nMachine: {facts}.\nMedians, lowest and highest in brackets; how it is measured and how to "
        f"read it: [README.md](README.md).\n\n{table}\n\n## The hardest goals\n\n{hard}\n\n{notes}\n"
        + "".join(f"![{name}]({name}.png)\n" for name in plots)
    )
    (folder / "latest.md").write_text(text.rstrip() + "\n")
    return table


def rewrite(folder: Path) -> None:
    """Write ``latest.md`` once more, of the values in ``latest.json``, with the causes of today."""
    found = json.loads((folder / "latest.json").read_text())
    rows = dict.fromkeys(measure["row"] for measure in found["measures"])
    _write_text(folder, found, [row for row in rows if (folder / f"{row}.png").exists()])


def _plots(folder: Path, measures: Sequence[Measure]) -> list[str]:
    """One picture a row of the goals, a group of bars for each of its figures in the row's first unit."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = []
    for row in dict.fromkeys(m.row for m in measures):
        shown = [m for m in measures if m.row == row]
        shown = [m for m in shown if m.unit == shown[0].unit and m.values]
        candidates = list(dict.fromkeys(name for m in shown for name in m.values))
        if len(candidates) < 2:
            continue
        fig, axes = plt.subplots(figsize=(9, 0.5 + 0.22 * len(shown) * (len(candidates) + 1)))
        height = 0.8 / len(candidates)
        for i, name in enumerate(candidates):
            have = [(k, m) for k, m in enumerate(shown) if m.values.get(name)]
            medians = [statistics.median(m.values[name]) for _, m in have]
            low = [v - min(m.values[name]) for v, (_, m) in zip(medians, have, strict=True)]
            high = [max(m.values[name]) - v for v, (_, m) in zip(medians, have, strict=True)]
            axes.barh([k + i * height for k, _ in have], medians, height, xerr=[low, high], label=name)
        axes.set_yticks(
            [k + 0.4 - height / 2 for k in range(len(shown))], [m.what for m in shown], fontsize=7
        )
        axes.invert_yaxis()
        axes.set_xlabel(shown[0].unit)
        axes.set_title(row)
        axes.legend(fontsize=7)
        fig.savefig(folder / f"{row}.png", dpi=110, bbox_inches="tight")
        plt.close(fig)
        names.append(row)
    return names


if __name__ == "__main__":
    rewrite(REPORTS)
