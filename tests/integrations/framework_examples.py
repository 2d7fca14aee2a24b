"""Runs examples whole, interrupted and resumed, and compares what they recorded of each step."""

import importlib.util
import os
import random
import signal
import socket
import time
from pathlib import Path

import children
from forked_ranks import HANG

# The frameworks that the examples use, and file systems that Lightning imports if they are there: each takes
# seconds to import.
FRAMEWORKS = ("lightning.pytorch", "accelerate", "transformers.trainer", "torchdata.nodes")
FRAMEWORKS += tuple(filter(importlib.util.find_spec, ("adlfs", "gcsfs")))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


TEN_KILLS = (2, 3, 1, 2, 1, 3, 2, 3, 1, 3, 2)


class Example:
    """An example that records a line for each step: what tells the batch, then the loss.

    Args:
        run: Runs programs.
        name: File of the example.
        option: Its option for the place of checkpoints.
        data: A prepared dataset.
        folder: Where checkpoints and records go.
        alone: Its options for a run without workers.
    """

    def __init__(self, run, name, option, data, folder, alone=("--workers", 0)):
        self.run, self.program, self.option = run, EXAMPLES / name, option
        run.preload = FRAMEWORKS
        self.data, self.folder, self.alone = data, folder, alone

    def __call__(self, name, steps, *options, launcher=(), save_every=5):
        """Train to a step, in the checkpoints of ``name``."""
        self.run(
            *launcher,
            self.program,
            "--data",
            self.data,
            self.option,
            self.folder / f"{name}-checkpoints",
            "--record",
            self.folder / name,
            "--steps",
            steps,
            "--save-every",
            save_every,
            *options,
        )

    def record(self, name):
        """The recorded lines."""
        path = self.folder / name
        return path.read_text().splitlines()

    def whole(self, steps=10, *options):
        """The lines of a run that does not stop, without workers."""
        self("whole", steps, *options, *self.alone)
        lines = self.record("whole")
        assert len({line.split()[-2] for line in lines}) == steps
        return lines

    def check_resuming(self, whole):
        """A run that stops after step 7 and goes on at the checkpoint of step 5 is like the whole one, losses
        included.
        """
        self("cut", 7, *self.alone)
        self("cut", 10)
        assert self.record("cut") == whole[:7] + whole[5:]

    def check_kills(self, whole, ranks, *options, devices=None):
        """A run that begins with ``ranks[0]`` ranks, which are all killed after some step, goes on with
        ``ranks[1]``, and so on, has the steps of the whole one, those that it repeats included.

        ``devices`` is the option that names the number of ranks.
        """
        draw = random.Random(len(ranks))
        expected = [line.split()[-2] for line in whole]
        record = self.folder / "killed"
        for kill, number in enumerate(ranks, 1):
            more = () if devices is None else (devices, number)
            processes = self._start(number, len(whole), *options, *more)
            if kill < len(ranks):
                _wait_for(record, len(_lines(record)) + draw.randint(2, 4), processes)
                for child, _ in processes:
                    child.send_signal(signal.SIGKILL)
            for child, output in processes:
                code = child.wait(HANG)
                # A rank may end by an error, before its signal comes, because the one before it was killed.
                assert code == 0 or kill < len(ranks), (code, output.read_text())
        lines = [line.split() for line in _lines(record)]
        assert {int(number) for _, number, *_ in lines} == {*ranks}
        assert {int(step) for step, *_ in lines} == {*range(1, len(whole) + 1)}
        for step, _, digest, _ in lines:
            assert digest == expected[int(step) - 1], step
        return lines

    def _start(self, ranks, steps, *options):
        """Start the ranks, as torchrun does; returns processes and what they print."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = []
        for rank in range(ranks):
            known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            known |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0, "NODE_RANK": 0}
            environment = {name: str(value) for name, value in known.items()} if ranks > 1 else {}
            output = self.folder / f"output.{rank}"
            with output.open("w") as file:
                child = children.start(
                    *(self.program, "--data", self.data, self.option, self.folder / "killed-checkpoints"),
                    *("--record", self.folder / "killed", "--steps", steps, "--save-every", 1, *options),
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment},
                    stdout=file,
                    stderr=file,
                    preload=self.run.preload,
                )
            processes.append((child, output))
        return processes


def _lines(path):
    return path.read_text().splitlines() if path.exists() else []


def _wait_for(record, count, processes):
    """Wait until a record has so many lines, while all processes run."""
    for _ in range(HANG * 50):
        if len(_lines(record)) >= count:
            return
        for child, output in processes:
            assert child.poll() is None, output.read_text()
        time.sleep(0.02)
    raise AssertionError([output.read_text() for _, output in processes])
