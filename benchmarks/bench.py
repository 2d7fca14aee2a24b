"""Runs candidates, each in a fresh process, interleaved, and collects what they and the server counted."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nginx_s3
from datasets import BUCKET, SAMPLES
from request_log import Request

HERE = Path(__file__).parent
TIMEOUT = 300


@dataclass(frozen=True, slots=True)
class Run:
    """One measured process: what it printed and what the server logged meanwhile."""

    result: dict[str, Any]
    requests: list[Request]


HIGHER_IS_BETTER = {"samples/s", "of 1"}


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
    """

    row: str
    what: str
    unit: str
    goal: float | None
    values: dict[str, list[float]]
    limit: tuple[str, ...] = ()

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
    energon_python: str | None
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something about this run in the report (once)."""
        if text not in self.notes:
            self.notes.append(text)

    def remote(self, candidate: str, dataset: str, profile: str, **spec: Any) -> dict[str, Any]:
        """Spec of a run over the network: the path in the form that the candidate takes."""
        endpoint = self.server.endpoints[profile]
        root = {"webdataset": endpoint, "energon": "msc://bench"}.get(candidate, "s3:/")
        return self._spec(candidate, dataset, path=f"{root}/{BUCKET}/{dataset}", endpoint=endpoint, **spec)

    def local(self, candidate: str, dataset: str, **spec: Any) -> dict[str, Any]:
        """Spec of a run over local files."""
        return self._spec(candidate, dataset, path=str(self.root / BUCKET / dataset), **spec)

    def _spec(self, candidate: str, dataset: str, **spec: Any) -> dict[str, Any]:
        if candidate == "webdataset":
            spec["shards"] = sorted(p.name for p in (self.root / BUCKET / dataset).glob("*.tar"))
        spec = {"workers": 0, "epoch_samples": SAMPLES, "scratch": str(self.scratch)} | spec
        return spec | {"candidate": candidate}

    def run(self, spec: dict[str, Any]) -> Run | None:
        """One process; None (and a note) when the candidate is absent or fails."""
        name = spec["candidate"]
        if name not in self.candidates and name not in ("raw", "mmap"):
            return None
        self.server.take()
        python = self.energon_python if name == "energon" else sys.executable
        command = [str(python), str(HERE / "candidate.py"), json.dumps(spec)]
        # No proxy may stand between a client and the loopback.
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT, "env": env}
        try:
            done = subprocess.run(command, check=True, **options)
        except subprocess.TimeoutExpired:
            return self._drop(name, f"took more than {TIMEOUT} s")
        except subprocess.CalledProcessError as error:
            sys.stderr.write(error.stderr[-3000:])
            lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
            return self._drop(name, lines[-1][:200])
        time.sleep(0.3)  # requests that the process left behind reach the log when their sleep is over
        return Run(json.loads(done.stdout.splitlines()[-1]), self.server.take())

    def _drop(self, name: str, why: str) -> None:
        self.note(f"{name}: a run failed and has no value ({why})")

    def rounds_of(self, specs: dict[str, dict[str, Any]]) -> dict[str, list[Run]]:
        """Run every candidate in every round, beginning with another one each time.

        Megatron-Energon takes part in the first round only where it is remote: an epoch takes it half a minute.
        """
        runs: dict[str, list[Run]] = {name: [] for name in specs}
        names = list(specs)
        for number in range(self.rounds):
            shift = number % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                if specs[name]["candidate"] == "energon" and "endpoint" in specs[name] and number:
                    continue
                found = self.run(specs[name])
                if found is not None:
                    runs[name].append(found)
        return runs


def values(runs: dict[str, list[Run]], figure: Callable[[Run], float | None]) -> dict[str, list[float]]:
    """A figure of every run that has it."""
    return {name: [v for v in map(figure, some) if v is not None] for name, some in runs.items()}


def find_energon() -> str | None:
    """Interpreter that has megatron-energon, from ENERGON_STREAM_PEER_PYTHON or ``.venv-energon``."""
    default = HERE.parent / ".venv-energon" / "bin" / "python"
    python = os.environ.get("ENERGON_STREAM_PEER_PYTHON", str(default))
    if shutil.which(python) is None:
        return None
    probe = subprocess.run([python, "-c", "import megatron.energon"], capture_output=True, check=False)
    return python if probe.returncode == 0 else None
