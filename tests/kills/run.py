"""Kill -9 at random moments of prepare, append and write: readers see the old dataset or the new one.

    python tests/kills/run.py --kills 200 --seed 1                          # in local folders
    python tests/kills/run.py --kills 200 --seed 1 --server s3              # on the S3 stand-in
    python tests/kills/run.py --kills 200 --seed 1 --server localstack      # on LocalStack
    python tests/kills/run.py --kills 50 --case append                      # one case only

Each run is a forked child. It is killed at a moment drawn from the time that a whole run takes, and started
again, until one ends by itself. After each kill the training loader reads all samples: they must be exactly
the old ones or the new ones. In the end nothing temporary is left, all files are those of a run that nobody
killed, byte for byte, and for each kill at most one shard may have been begun again. LocalStack's environment
is that of ``python localstack/run.py --install-only``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import xxhash  # noqa: E402

from energon_stream import (  # noqa: E402
    ShardWriter,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.errors import NotPreparedError, ObjectNotFoundError  # noqa: E402
from energon_stream.index.dataset import read_metadata  # noqa: E402
from energon_stream.prepare import scanning  # noqa: E402
from energon_stream.prepare.prepare import prepare_dataset  # noqa: E402
from energon_stream.storage import StoreSpec  # noqa: E402
from energon_stream.testing.datasets import random_bytes, write_shards  # noqa: E402

SHARDS, SAMPLES = 10, 8
OLD = (0, 2, 3, 5, 6)  # shards of the old dataset
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
RATIO = (2, 1, 0)
LATEST = 1.15
"""Latest moment of a kill, in lengths of a whole run."""


def parts(number: int) -> dict[str, bytes]:
    """Parts of a sample."""
    return {"bin": random_bytes(3000, number), "txt": b"%d" % number}


@dataclass(frozen=True)
class Place:
    """Where datasets are."""

    url: str
    options: Mapping[str, Any] | None
    log: str  # file that gets a line for each shard that is begun
    tmp: str  # folder for files under way

    def at(self, name: str) -> str:
        return f"{self.url}/{name}"


@dataclass(frozen=True)
class Case:
    """Something that is killed.

    Attributes:
        begin: Puts the files that there are before; gets the place and the name of the dataset.
        run: What is killed; gets the same.
        reads: Whether shards that are begun are noted in the log.
    """

    begin: Callable[[Place, str], None]
    run: Callable[[Place, str], None]
    reads: bool = True


def put(place: Place, name: str, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Prepare some shards, and add others, which are not prepared."""
    with tempfile.TemporaryDirectory(dir=place.tmp) as folder:
        tars = write_shards(folder, shards=SHARDS, samples_per_shard=SAMPLES, parts=parts, name="{:02d}.tar")
        store = StoreSpec(place.at(name), place.options).open()
        for number in old:
            store.put(tars[number].name, tars[number].read_bytes())
        if old:
            prepare(place, name, checksums=True, dataset_yaml=CRUDE)
        for number in new:
            store.put(tars[number].name, tars[number].read_bytes())


def prepare(place: Place, name: str, **options: Any) -> None:
    prepare_dataset(
        place.at(name),
        storage_options=place.options,
        tmp_path=place.tmp,
        workers=1,
        split_ratio=RATIO,
        **options,
    )


def write(place: Place, name: str) -> None:
    with ShardWriter(
        place.at(name), max_count=SAMPLES, storage_options=place.options, tmp_path=place.tmp
    ) as writer:
        for number in range(writer.written, SHARDS * SAMPLES):
            writer.write({"__key__": f"{number:06d}", **parts(number)})


ALL = tuple(range(SHARDS))
CASES = {
    "prepare": Case(
        lambda place, name: put(place, name, OLD, tuple({*ALL} - {*OLD})),
        lambda place, name: prepare(place, name, force=True, checksums=True, dataset_yaml=CRUDE),
    ),
    "shrink": Case(
        lambda place, name: put(place, name, ALL, ()),
        lambda place, name: prepare(place, name, force=True, exclude="[13579].tar", dataset_yaml=CRUDE),
    ),
    "first": Case(
        lambda place, name: put(place, name, (), ALL),
        lambda place, name: prepare(place, name, dataset_yaml=CRUDE),
    ),
    "append": Case(
        lambda place, name: put(place, name, OLD, tuple({*ALL} - {*OLD})),
        lambda place, name: prepare(place, name, append=True),
    ),
    "write": Case(lambda place, name: None, write, reads=False),
    # Conversions have a script of their own: tests/kills/convert.py
}


def note_scans(log: str) -> None:
    """Write the path of each shard that is begun to a file."""
    scan = scanning.scan_shard

    def noted(store: Any, entry: Any, **options: Any) -> Any:
        with open(log, "ab", buffering=0) as file:
            file.write(f"{entry.path}\n".encode())
        return scan(store, entry, **options)

    scanning.scan_shard = noted


def read(place: Place, name: str) -> dict[str, list[str]] | None:
    """Digests of all samples by split part, as training delivers them; None if there is no dataset."""
    try:
        split = read_metadata(StoreSpec(place.at(name), place.options)).split
    except (NotPreparedError, ObjectNotFoundError):
        return None
    found = {}
    for part, shards in split.split_parts.items():
        if shards:
            dataset = get_train_dataset(
                place.at(name), split_part=part, batch_size=1, repeat=False, shuffle_buffer_size=None,
                max_samples_per_sequence=None, worker_config=WorkerConfig(0, 1, 0),
                storage_options=place.options,
            )  # fmt: skip
            found[part] = sorted(map(digest, get_savable_loader(dataset)))
    return found


def digest(batch: Any) -> str:
    values = [(name, value) for name, value in sorted(batch.items()) if not name.startswith("__")]
    return f"{batch['__key__'][0]} {xxhash.xxh3_64_hexdigest(repr(values).encode())}"


def content(place: Place, name: str) -> dict[str, str]:
    """Digest of each file of a dataset."""
    store = StoreSpec(place.at(name), place.options).open()
    return {
        entry.path: xxhash.xxh3_64_hexdigest(bytes(store.get(entry.path).data))
        for entry in store.list()
        if not entry.path.startswith((".nv-staging/", ".nv-meta/writing/"))
    }


def leftovers(place: Place, name: str) -> list[Path]:
    """Temporary files and folders on the local disk that nobody removes any more."""
    folders = [Path(place.at(name)), Path(place.tmp)]
    return [
        path
        for folder in folders
        for pattern in ("*.energon-tmp", "energon-*")
        for path in folder.rglob(pattern)
    ]


def is_publishing(place: Place, name: str) -> bool:
    """Whether the next run has something to complete."""
    return call(place, _is_publishing, place, name)


def _is_publishing(place: Place, name: str) -> bool:
    store = StoreSpec(place.at(name), place.options).open()
    return any(entry.path == ".nv-staging/publishing.json" for entry in store.list(".nv-staging"))


def fork(function: Callable[..., Any], *arguments: Any, result: str = "", log: str = "") -> int:
    """Run a function in a child; what it returns is pickled to a file."""
    pid = os.fork()
    if pid == 0:
        _child(function, arguments, result, log)
    return pid


def _child(function: Callable[..., Any], arguments: tuple[Any, ...], result: str, log: str) -> NoReturn:
    status = 1
    try:
        if log:
            note_scans(log)
        value = function(*arguments)
        if result:
            Path(result).write_bytes(pickle.dumps(value))
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def call(place: Place, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a child, because clients of stores do not survive forks; return what it returns."""
    result = f"{place.tmp}/result"
    if os.waitstatus_to_exitcode(os.waitpid(fork(function, *arguments, result=result), 0)[1]):
        raise RuntimeError(f"{function.__name__} failed, see above")
    return pickle.loads(Path(result).read_bytes())


def wait(pid: int, seconds: float) -> int | None:
    """Wait for a child; return its exit code, or None if it still runs."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.001)


@dataclass
class Result:
    """What the kills of one case have shown."""

    kills: int = 0
    chains: int = 0
    old: int = 0  # kills after which the old dataset was read
    new: int = 0
    begun_again: int = 0  # shards
    problems: list[str] = field(default_factory=list)


def run_case(name: str, place: Place, kills: int, dice: random.Random) -> Result:
    """Kill one case so many times."""
    case, result = CASES[name], Result()
    call(place, case.begin, place, f"{name}-clean")
    old = call(place, read, place, f"{name}-clean")
    begin = time.monotonic()
    call(place, case.run, place, f"{name}-clean")
    length = time.monotonic() - begin
    new, expected = call(place, read, place, f"{name}-clean"), call(place, content, place, f"{name}-clean")
    while result.kills < kills:
        dataset, killed = f"{name}-{result.chains}", 0
        result.chains += 1
        call(place, case.begin, place, dataset)
        Path(place.log).write_bytes(b"")
        while True:
            pid = fork(case.run, place, dataset, log=place.log)
            moment = dice.random() * LATEST * length if result.kills < kills else 1e9
            code = wait(pid, moment)
            if code is None:
                os.kill(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            where = f"{name}, chain {result.chains}, after kill {killed + 1}"
            if code == 0:
                result.problems += [f"{where}: {path} is left over" for path in leftovers(place, dataset)]
                break
            if code != -signal.SIGKILL:
                result.problems.append(f"{where}: the run ended with status {code}")
                return result
            killed += 1
            result.kills += 1
            found = call(place, read, place, dataset)
            if found not in (old, new):
                result.problems.append(f"{where}: neither the old nor the new dataset")
            result.old += found == old
            result.new += found == new and new != old
            if found == new != old and not is_publishing(place, dataset):
                break  # it was killed while it removed what nobody needs any more
        if call(place, content, place, dataset) != expected:
            result.problems.append(f"{name}, chain {result.chains}: other files than those of a clean run")
        begun = Counter(Path(place.log).read_text().split())
        again = sum(begun.values()) - len(begun)
        result.begun_again += again
        if case.reads and again > killed:
            result.problems.append(
                f"{name}, chain {result.chains}: {again} shards begun again, {killed} kills"
            )
    return result


@contextmanager
def open_place(server: str, folder: Path) -> Iterator[Place]:
    """Yield a place of a kind: ``local``, ``s3`` or ``localstack``."""
    log, tmp = str(folder / "log"), str(folder / "tmp")
    (folder / "tmp").mkdir()
    if server == "local":
        (folder / "data").mkdir()
        yield Place(str(folder / "data"), None, log, tmp)
        return
    with contextlib.ExitStack() as stack:
        if server == "s3":
            from energon_stream.testing.s3server import S3Server

            (folder / "buckets").mkdir()
            running: Any = stack.enter_context(S3Server(folder / "buckets", own_process=True))
        else:
            from energon_stream.testing.servers import LocalStack

            command = [sys.executable, str(ROOT / "localstack/run.py"), "--install-only"]
            python = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            running = stack.enter_context(LocalStack(python))
        running.create_bucket("kills")
        yield Place("s3://kills", running.storage_options, log, tmp)


def run(server: str, cases: list[str], kills: int, seed: int, folder: Path) -> bool:
    """Run cases, print what they show, and return True if nothing is wrong."""
    begin, good = time.monotonic(), True
    with open_place(server, folder) as place:
        for number, name in enumerate(cases):
            share = kills // len(cases) + (number < kills % len(cases))
            found = run_case(name, place, share, random.Random(f"{seed} {name}"))
            print(
                f"{server} {name}: {found.kills} kills in {found.chains} chains; read then: the old dataset "
                f"{found.old} times, the new one {found.new} times; {found.begun_again} shards begun again",
                flush=True,
            )
            for problem in found.problems:
                good = False
                print(f"  {problem}", flush=True)
            shutil.rmtree(place.tmp)
            os.mkdir(place.tmp)
    print(f"seed {seed}, {kills} kills, {time.monotonic() - begin:.0f} s: {'good' if good else 'BAD'}")
    return good


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", choices=["local", "s3", "localstack"], default="local")
    parser.add_argument("--case", choices=list(CASES), action="append", help="repeatable; all without it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        good = run(options.server, options.case or list(CASES), options.kills, options.seed, Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
