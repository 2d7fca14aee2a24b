"""Runs examples whole, interrupted and resumed, and compares what they recorded of each step."""

from pathlib import Path

# The frameworks that the examples use: each takes seconds to import.
FRAMEWORKS = ("lightning.pytorch", "accelerate", "transformers.trainer", "torchdata.nodes")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Example:
    """An example that records a line for each step: what tells the batch, then the loss.

    Args:
        run: Runs programs.
        name: File of the example.
        option: Its option for the place of checkpoints.
        data: A prepared dataset.
        folder: Where checkpoints and records go.
    """

    def __init__(self, run, name, option, data, folder):
        self.run, self.program, self.option = run, EXAMPLES / name, option
        run.preload = FRAMEWORKS
        self.data, self.folder = data, folder

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

    def record(self, name, rank=0):
        """The lines that a rank has recorded."""
        path = self.folder / name
        return (path if path.exists() else path.with_suffix(f".{rank}")).read_text().splitlines()

    def whole(self):
        """The lines of a run of ten steps that does not stop."""
        self("whole", 10)
        lines = self.record("whole")
        assert len({line.split()[-2] for line in lines}) == 10
        return lines

    def check_resuming(self, whole):
        """A run that stops after step 7 and goes on at the checkpoint of step 5 is like the whole one, losses
        included.
        """
        self("cut", 7)
        self("cut", 10)
        assert self.record("cut") == whole[:7] + whole[5:]

    def check_other_ranks(self, whole, digest, *options, launcher=()):
        """Two ranks for three steps, then one, see the batches that one rank sees; ``digest`` is the field
        that tells.
        """
        self("ranks", 3, *options, launcher=launcher, save_every=3)
        two = [self.record("ranks", rank) for rank in range(2)]
        assert [len(lines) for lines in two] == [3, 3]
        together = [line for step in zip(*two, strict=True) for line in step]
        self("ranks", 6, save_every=3)
        seen = together + self.record("ranks")[3:]
        assert [line.split()[digest] for line in seen] == [line.split()[digest] for line in whole[:9]]
