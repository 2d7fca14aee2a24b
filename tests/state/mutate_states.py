"""Damages states of many pipelines and restores them; run by ``test_mutated_states.py`` in a short form.

The full run, from the root of the checkout::

    PYTHONPATH=$PWD python tests/state/mutate_states.py --structured 2000 --bytes 5000

A damaged state is refused by a StateError, or the run goes on exactly as from the undamaged state. A state
whose digest was made for the damaged state may also be another place that the pipeline can come to: nothing
tells it from a saved one. Then the run must have bounded time and memory, and its samples must be those of
the dataset.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mutations import MODES, by_bytes, plain, structured
from save_states import write_datasets
from saved_pipelines import PIPELINES, Saved, take, train

from energon_stream import (
    DefaultTaskEncoder,
    IterMapDataset,
    RepeatDataset,
    WorkerConfig,
    get_savable_loader,
)
from energon_stream.errors import StateError

BATCHES = 6
SECONDS = 1.0
"""Processor time in which a state is refused, or in which the batches after it are there."""
MEGABYTES = 200


def _several(folder: Path, config: WorkerConfig) -> Any:
    """Elements of a generator, which a state may stand between."""

    class Words(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            for letter in "xyz":
                yield replace(sample, text=sample.text + letter)

    return train("b", task_encoder=Words())(folder, config)


def _twice(stream: Iterator[Any]) -> Iterator[Any]:
    for batch in stream:
        yield batch
        yield batch


def _iter_mapped(folder: Path, config: WorkerConfig) -> Any:
    once = train("c", repeat=False, batch_size=5)(folder, config)
    return RepeatDataset(IterMapDataset(once, _twice))


NAMES = (
    "plain", "unshuffled", "with-replacement", "two", "many", "many-early", "nested", "epochized", "joined",
    "packed", "packed-parts", "grouped", "elastic", "virtual-epochs", "shuffled", "concatenated",
    "blended-batches",
)  # fmt: skip
CASES: dict[str, Saved] = {
    **{name: PIPELINES[name] for name in NAMES},
    "several": Saved(_several, steps=8),
    "iter-map": Saved(_iter_mapped, steps=9),
}


class Stuck(BaseException):
    """A restore took too long."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes more processor time."""

    def stop(*_: Any) -> None:
        raise Stuck

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass
class Result:
    """Numbers of a run.

    Attributes:
        counts: Outcomes, by kind of damage and mode.
        slowest: Longest processor time in seconds of a refusal, and of a continuation.
        wrong: Descriptions of what should not have happened.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    slowest: dict[str, tuple[float, str]] = field(default_factory=dict)
    grown: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def say(self) -> str:
        """The numbers in lines."""
        lines = [f"{kind:10} {mode:6} {outcome:10} {count:6}" for (kind, mode, outcome), count in
                 sorted(self.counts.items())]  # fmt: skip
        lines += [
            f"slowest {what}: {seconds:.3f} s ({case})" for what, (seconds, case) in self.slowest.items()
        ]
        lines += [
            f"peak memory grew by {self.grown:.0f} MB at a time, to {megabytes():.0f} MB in all",
            f"wrong: {len(self.wrong)}",
            *self.wrong[:10],
        ]
        return "\n".join(lines)


class Case:
    """One pipeline, with its undamaged states and what follows them."""

    def __init__(self, name: str, folder: Path) -> None:
        saved = self.saved = CASES[name]
        self.name = name
        self.states = []
        for rank in range(saved.world):
            with get_savable_loader(self._dataset(folder, rank, saved.world)) as loader:
                take(loader, saved.steps)
                self.states.append(plain(loader.save_state_rank()))
        self.dataset = self._dataset(folder, 0, saved.next_world)
        self.expected = self.go_on(self.states[0])

    def _dataset(self, folder: Path, rank: int, world: int) -> Any:
        return self.saved.build(folder, WorkerConfig(rank, world, 0, num_streams=self.saved.streams))

    def go_on(self, state: Any) -> list[list[str]]:
        """The batches after a state of the first rank; the others are undamaged."""
        with get_savable_loader(self.dataset) as loader:
            if self.saved.world == 1:
                loader.restore_state_rank(state)
            else:
                loader.restore_state_global([state, *self.states[1:]])
            return take(loader, BATCHES)

    def is_known(self, batch: list[str]) -> bool:
        """True if all texts are of the datasets."""
        return all(word[0] in "abcg" for text in batch for word in text.split())


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def restore(case: Case, kind: str, mode: str, state: Any, result: Result, seconds: float) -> None:
    """Restore one damaged state, and note what came of it."""
    memory, begin = megabytes(), time.process_time()
    outcome = what = "refused"
    try:
        with limited(seconds):
            found = case.go_on(state)
        what = "continuation"
        outcome = "same" if found == case.expected else "other place"
        if outcome == "other place" and (mode == "kept" or not all(map(case.is_known, found))):
            result.wrong.append(f"{case.name} {kind} {mode}: accepted {found[:2]} for {state!r:.2000}")
    except StateError as error:
        if not error.hint:
            result.wrong.append(f"{case.name} {kind} {mode}: no remedy: {error}")
    except Stuck:
        outcome = "stuck"
        result.wrong.append(f"{case.name} {kind} {mode}: stuck at {state!r:.3000}")
    except Exception as error:
        outcome = type(error).__name__
        trace = "".join(traceback.format_exception(error)[-3:])
        result.wrong.append(f"{case.name} {kind} {mode}: {error!r:.300} {trace} for {state!r:.1500}")
    result.counts[kind, mode, outcome] += 1
    spent, grown = time.process_time() - begin, megabytes() - memory
    result.slowest[what] = max(result.slowest.get(what, (0.0, "")), (spent, case.name))
    result.grown = max(result.grown, grown)
    if grown > MEGABYTES:
        result.wrong.append(f"{case.name} {kind} {mode}: {grown:.0f} MB for {state!r:.1000}")


def run(
    folder: Path, structures: int, strings: int, seed: int = 0, seconds: float = SECONDS, names: Any = None
) -> Result:
    """Damage states, so many in each way, over all pipelines and modes in turn."""
    cases = [Case(name, folder) for name in names or CASES]
    others = [state for case in cases for state in case.states]
    draw, result = random.Random(seed), Result()
    for number in range(structures + strings):
        case = cases[number % len(cases)]
        mode = MODES[number // len(cases) % len(MODES)]
        kind = "structured" if number < structures else "bytes"
        undamaged = case.states[0]
        try:
            if kind == "structured":
                state = structured(draw, undamaged, mode, others)
            else:
                state = by_bytes(draw, undamaged, mode)
        except StateError:  # it cannot even be written
            result.counts[kind, mode, "unwritable"] += 1
            continue
        restore(case, kind, mode, state, result, seconds)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Damage saved states and restore them.")
    parser.add_argument("--structured", type=int, default=2000, help="states with changed values")
    parser.add_argument("--bytes", type=int, default=5000, help="states with changed bytes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="pipelines")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        write_datasets(Path(folder))
        begin = time.monotonic()
        result = run(Path(folder), given.structured, given.bytes, given.seed, names=given.only)
    sys.stdout.write(result.say() + "\n")
    sys.stdout.write(f"{sum(result.counts.values())} damaged states in {time.monotonic() - begin:.0f} s\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
