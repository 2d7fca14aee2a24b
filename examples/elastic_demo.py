"""A training job that loses a rank and goes on with fewer, and then with more: the same batches throughout.

Starts an embedded S3 server on loopback and ``torchrun`` on this machine (``examples/train_ddp.py``): three
ranks, one of which is killed with SIGKILL in the middle; then two ranks, which stop after some steps; then
four. Exits with 0 only if every step saw the batches that it has in a run of one rank that was never
interrupted.

    python examples/elastic_demo.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from energon_stream import prepare_dataset
from energon_stream.testing.datasets import captioning_dataset
from energon_stream.testing.s3server import S3Server

TRAIN = Path(__file__).with_name("train_ddp.py")
STEPS, KILL_AFTER, STEPS_OF_TWO = 24, 5, 3


def start(
    folder: Path, name: str, ranks: int, steps: int, env: dict[str, str], step_seconds: float = 0
) -> subprocess.Popen[bytes]:
    (folder / name).mkdir(exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    arguments = ["--data", "s3://demo/captions", "--checkpoint", str(folder / name)]
    arguments += ["--record", str(log_of(folder, name)), "--steps", str(steps)]
    arguments += ["--step-seconds", str(step_seconds)]
    return subprocess.Popen([sys.executable, *launcher, str(TRAIN), *arguments], env=env)


def log_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def read_steps(folder: Path, name: str) -> list[list[str]]:
    log = log_of(folder, name)
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def ranks_of(launcher: int) -> list[int]:
    """Processes that a launcher started."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True, text=True, check=True
    )
    return [int(pid) for pid in found.stdout.split()]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="energon-stream-elastic-") as scratch, S3Server() as server:
        folder = Path(scratch)
        captioning_dataset(folder / "tars", shards=8, samples_per_shard=48)
        prepare_dataset(
            str(folder / "tars"),
            split_ratio=(1, 0, 0),
            dataset_yaml={
                "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
                "field_map": {"image": "jpg", "caption": "txt"},
            },
        )
        server.upload_folder(folder / "tars", "s3://demo/captions")
        env = os.environ | {
            "AWS_ENDPOINT_URL": server.endpoint_url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "OMP_NUM_THREADS": "1",
        }
        if start(folder, "whole", 1, STEPS, env).wait() != 0:
            raise SystemExit("the run of one rank failed")

        # Slow enough that steps are left when the rank is killed.
        job = start(folder, "job", 3, STEPS, env, step_seconds=0.3)
        while job.poll() is None and len(read_steps(folder, "job")) < KILL_AFTER:
            time.sleep(0.02)
        victims = ranks_of(job.pid)
        if not victims:
            raise SystemExit("the run of three ranks ended before one was killed")
        os.kill(victims[-1], signal.SIGKILL)
        if job.wait() == 0:
            raise SystemExit("the run of three ranks did not notice that one was killed")
        print(
            f"one of 3 ranks killed with SIGKILL after step {len(read_steps(folder, 'job'))}; the launcher ended the others"
        )
        for ranks in (2, 4):
            done = len(read_steps(folder, "job"))
            until = done + STEPS_OF_TWO if ranks == 2 else STEPS
            if start(folder, "job", ranks, until, env).wait() != 0:
                raise SystemExit(f"the run of {ranks} ranks failed")
            some = read_steps(folder, "job")[done:]
            print(f"resumed on {ranks} ranks: steps {some[0][0]} to {some[-1][0]}")
        whole = {step: digest for step, _, digest, _ in read_steps(folder, "whole")}
        seen = read_steps(folder, "job")
    different = [f"{step} on {ranks} ranks" for step, ranks, digest, _ in seen if whole[step] != digest]
    if different or {step for step, *_ in seen} != set(whole):
        print(f"DIFFERENT: step {', '.join(different) or 'missing'}")
        return 1
    print(
        f"EQUAL: all {len(whole)} steps, on 3, 2 and 4 ranks, have the batches (keys, pixels, captions) of the run of one rank"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
