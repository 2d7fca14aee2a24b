"""Runs candidates, each in a fresh process, interleaved, and collects what they and the server counted."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
from datasets import BUCKET, DATASETS, Dataset

if TYPE_CHECKING:
    import nginx_s3
    from request_log import Request

HERE = Path(__file__).parent
TIMEOUT = 120


@dataclass(frozen=True, slots=True)
class Run:
    """One measured process: what it was asked for, what it printed and what the server logged meanwhile."""

    dataset: Dataset
    spec: dict[str, Any]
    result: dict[str, Any]
    requests: list[Request]


HIGHER_IS_BETTER = {"samples/s", "MB/s", "of 1", "shards"}


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the report: the values of every candidate for one figure.

    Attributes:
        row: Number of the goal, as "P1".
        what: What is measured, in words.
        unit: Of the values; "" for a ratio or count.
        goal: What ours should reach, or None.
        values: Per candidate, one value a round.
        limit: The candidates that stand for the physical limit (the best of them counts).
        share: Of the limit, what ours should reach, or None.
        binds: What keeps ours from the goal, with a link; the report shows these lines once more.
    """

    row: str
    what: str
    unit: str
    goal: float | None
    values: dict[str, list[float]]
    limit: tuple[str, ...] = ()
    share: float | None = None
    binds: str = ""

    @property
    def more_is_better(self) -> bool:
        """Direction of the figure."""
        return self.unit in HIGHER_IS_BETTER

    def median(self, name: str) -> float | None:
        """Median over the rounds, None for a candidate without a value."""
        return statistics.median(self.values[name]) if self.values.get(name) else None

    def best(self, names: Iterable[str]) -> str | None:
        """The best of these candidates by median."""
        have = [name for name in names if self.values.get(name)]
        pick = max if self.more_is_better else min
        return pick(have, key=lambda name: statistics.median(self.values[name])) if have else None

    def ahead(self, name: str) -> bool:
        """True when a candidate's median is better than ours."""
        return self.median("ours") != self.median(name) and self.best(["ours", name]) == name

    @property
    def peers(self) -> list[str]:
        """Candidates that are neither ours nor a limit."""
        return [name for name in self.values if not name.startswith("ours") and name not in self.limit]


@dataclass(slots=True)
class Bench:
    """The set-up shared by all rows."""

    server: nginx_s3.Server
    root: Path
    scratch: Path
    rounds: int
    candidates: set[str]
    pythons: dict[str, str]
    against: Path | None = None
    """Checkout of another version of this library, which runs as the candidate ``before``."""
    notes: list[str] = field(default_factory=list)
    until: float = math.inf
    """When the present rows begin no further round."""

    def note(self, text: str) -> None:
        """Say something about this run in the report (once)."""
        if text not in self.notes:
            self.notes.append(text)

    def remote(self, candidate: str, dataset: str, profile: str, **spec: Any) -> dict[str, Any]:
        """Spec of a run over the network: the path in the form that the candidate takes."""
        endpoint = self.server.endpoints[profile]
        root = {"webdataset": endpoint, "energon": "msc://bench"}.get(candidate, "s3:/")
        path = f"{root}/{BUCKET}/{peers.folder(candidate, dataset)}"
        return self._spec(candidate, dataset, path=path, endpoint=endpoint, **spec)

    def local(self, candidate: str, dataset: str, **spec: Any) -> dict[str, Any]:
        """Spec of a run over local files."""
        path = self.root / BUCKET / peers.folder(candidate, dataset)
        return self._spec(candidate, dataset, path=str(path), **spec)

    def _spec(self, candidate: str, dataset: str, **spec: Any) -> dict[str, Any]:
        if candidate in ("webdataset", "s3torch"):
            spec["shards"] = sorted(p.name for p in (self.root / BUCKET / dataset).glob("*.tar"))
        common = {"workers": 0, "epoch_samples": DATASETS[dataset].samples, "scratch": str(self.scratch)}
        return common | spec | {"candidate": candidate, "dataset": dataset}

    def run(self, spec: dict[str, Any]) -> Run | None:
        """One process; None (and a note) when the candidate is absent or fails."""
        name = spec["candidate"]
        if name not in self.candidates and name not in ("raw", "mmap", "decode"):
            return None
        self.server.take()
        command = [self.pythons.get(name, sys.executable), str(HERE / "candidate.py")]
        # No proxy may stand between a client and the loopback. Modules are compiled once, as where a package
        # is installed, and not in each run.
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        if "checkout" in spec:
            env["PYTHONPATH"] = spec["checkout"]
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT}
        with tempfile.TemporaryDirectory(dir=self.scratch) as cache:
            options["env"] = env | {"TMPDIR": cache}  # some peers leave files behind
            try:
                done = subprocess.run([*command, json.dumps(spec | {"cache": cache})], check=True, **options)
            except subprocess.TimeoutExpired:
                return self._drop(name, f"took more than {TIMEOUT} s")
            except subprocess.CalledProcessError as error:
                sys.stderr.write(error.stderr[-3000:])
                lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
                return self._drop(name, lines[-1][:200])
        time.sleep(0.3)  # requests that the process left behind reach the log when their sleep is over
        result = json.loads(done.stdout.splitlines()[-1])
        return Run(DATASETS[spec["dataset"]], spec, result, self.server.take())

    def _drop(self, name: str, why: str) -> None:
        self.note(f"{name}: a run failed and has no value ({why})")

    def before(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The same run with the version of ``against``."""
        return spec | {"checkout": str(self.against)}

    def rounds_of(
        self, specs: dict[str, dict[str, Any]], most: int | None = None, once: Set[str] = peers.SLOW
    ) -> dict[str, list[Run]]:
        """Run every candidate in every round, beginning with a different candidate each time.

        Args:
            specs: By name in the report.
            most: Rounds at most.
            once: Candidates that take many seconds for an epoch: remote they take part in the first round
                only.
        """
        if self.against and "ours" in specs and "before" not in specs:
            specs = {"ours": specs["ours"], "before": self.before(specs["ours"]), **specs}
        runs: dict[str, list[Run]] = {name: [] for name in specs}
        names = list(specs)
        for number in range(min(self.rounds, most or self.rounds)):
            if number and time.time() > self.until:
                self.note(f"{specs[names[0]]['dataset']}: a figure has {number} rounds, for want of time")
                break
            shift = number % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                if specs[name]["candidate"] in once and "endpoint" in specs[name] and number:
                    continue
                found = self.run(specs[name])
                if found is not None:
                    runs[name].append(found)
        return runs


def values(runs: dict[str, list[Run]], figure: Callable[[Run], float | None]) -> dict[str, list[float]]:
    """A figure of every run that has it."""
    return {name: [v for v in map(figure, some) if v is not None] for name, some in runs.items()}
