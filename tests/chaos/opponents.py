"""Attacks of the chaos run: kills, replaced objects, damaged caches; and the servers that it reads from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import workload

from energon_stream.testing.s3server import S3Server
from energon_stream.testing.servers import LocalStack, SeaweedFS

if TYPE_CHECKING:
    import random


class Opponents:
    """Attacks a run, at random."""

    def __init__(self, chaos: Any, server: Any) -> None:
        self.chaos, self.server = chaos, server
        self.dice: random.Random = chaos.dice
        self.counts = chaos.counts
        self.kinds = {"kill main": 30, "kill worker": 20, "kill machine": 15, "damage": 25}
        if replaceable(server):
            self.kinds["replace"] = 10
        self.first = sorted(self.kinds, key=lambda kind: self.dice.random())  # each kind at least once

    def attack(self, running: list[Any]) -> None:
        """Do one attack."""
        (kind,) = self.first[:1] or self.dice.choices(list(self.kinds), list(self.kinds.values()))
        if kind == "damage":
            done = self.damage()
        elif kind == "replace":
            done = self.replace(running)
        elif kind == "kill machine":  # the ranks share a node
            done = sum([rank.kill("machine") for rank in running]) > 0
        else:
            done = self.dice.choice(running).kill(kind.removeprefix("kill "))
        self.counts[kind] += int(done)
        if done and self.first:
            self.first.pop(0)

    def damage(self) -> bool:
        """Damage files of the cache: flip bytes, cut them off, write garbage, remove them."""
        folder = self.chaos.root / "cache"
        paths = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
        for path in self.dice.sample(paths, min(len(paths), 1 + len(paths) // 10)):
            with suppress(OSError):
                size, kind = path.stat().st_size, self.dice.choice(["flip", "cut", "garbage", "remove"])
                if kind == "remove":
                    path.unlink()
                elif kind == "cut":
                    os.truncate(path, self.dice.randrange(size + 1))
                else:
                    with path.open("r+b") as file:
                        file.seek(self.dice.randrange(size + 1))
                        file.write(self.dice.randbytes(1 if kind == "flip" else 4096))
        return bool(paths)

    def replace(self, running: list[Any]) -> bool:
        """Replace a shard by one with other payloads, until a rank notices; then restore it.

        Only while all ranks are at work: a run that begins with the new object may deliver the new samples.
        """
        if not all(rank.is_delivering for rank in running):
            return False
        tars = sorted((self.chaos.root / "buckets" / "data").glob("*/*.tar"))
        chosen = self.dice.sample(tars, max(1, len(tars) // 3))
        for tar in chosen:
            first = int(tar.read_bytes()[:8])
            members = (tar.stat().st_size - 1024) // 1024
            other = tar.with_suffix(".other")
            other.write_bytes(workload.tar(range(first, first + members), "other"))
            os.rename(tar, tar.with_suffix(".kept"))  # inode and time stay, and with them the ETag
            os.rename(other, tar)
        deadline, noticed = time.monotonic() + self.chaos.options.hold, 0
        waiting = list(running)
        while waiting and time.monotonic() < deadline:
            time.sleep(0.05)
            for rank in list(waiting):
                if rank.child is not None and rank.child.poll() is not None:
                    waiting.remove(rank)
                    noticed += 1
        for tar in chosen:
            os.rename(tar.with_suffix(".kept"), tar)
        self.counts["replaced objects noticed"] += noticed > 0
        return True


def replaceable(server: Any) -> bool:
    """Return True for the server whose objects are files here."""
    return isinstance(server, S3Server)


@contextmanager
def serve(name: str, buckets: Path) -> Iterator[Any]:
    """Start an S3 server with the dataset in the bucket ``data``."""
    if name == "stand-in":
        with S3Server(buckets, own_process=True) as server:
            yield server
        return
    with SeaweedFS() if name == "seaweedfs" else localstack() as server:
        server.create_bucket("data")
        with closing(server.client()) as client:
            for path in sorted((buckets / "data").rglob("*")):
                if path.is_file():
                    key = path.relative_to(buckets / "data").as_posix()
                    client.put_object(Bucket="data", Key=key, Body=path.read_bytes())
        yield server


def localstack() -> LocalStack:
    """Return LocalStack, which has an environment of its own."""
    installer = Path(__file__).resolve().parents[2] / "localstack" / "run.py"
    command = [sys.executable, str(installer), "--install-only"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return LocalStack(done.stdout.strip())
