"""Kills conversions at random moments, and checks what each leaves and that the next one goes on.

Usage::

    python tests/kills/convert.py --kills 200 --seed 1
    python tests/kills/convert.py --kills 50 --seed 2 --processes 2
    python tests/kills/convert.py --kills 50 --seed 3 --store s3

A conversion runs in a process of its own, which is killed by SIGKILL at a moment drawn from the length of a
whole run. Then the destination must be either no dataset or the whole one, and the same conversion goes on,
to be killed again or to end. What is complete must have the bytes of a conversion that nobody killed, and for
each kill each process may have read the rows of one part again, and no more. ``--store`` writes to the S3
stand-in or to LocalStack.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

ROWS, ROWS_A_SECTION, FILE_BYTES, MAX_SIZE = 400, 10, 20_000, 500_000


def child(arguments: list[str]) -> None:
    """Convert once; the number of rows that are read is the size of a file."""
    source, target, log, processes, options = arguments
    from energon_stream import LocalEngine, convert_dataset
    from energon_stream.write.sources import source as sources
    from energon_stream.write.sources import text

    sources.SECTION_ROWS = ROWS_A_SECTION  # small sections make many parts
    count_rows(text, log)
    print("ready", flush=True)
    report = convert_dataset(
        source,
        target,
        max_size=MAX_SIZE,
        storage_options=json.loads(options),
        engine=LocalEngine(int(processes)),
    )
    assert report is not None
    assert report.samples == ROWS


def count_rows(text, log: str) -> None:
    """Make the source of tables note each row that it delivers."""
    rows = text.TextSource.rows

    def noted(self, section, first, columns):
        for row in rows(self, section, first, columns):
            if columns is not None:  # not for the preview
                with open(log, "ab") as file:
                    file.write(b".")
            yield row

    text.TextSource.rows = noted


class Conversion:
    """A conversion that can be killed."""

    def __init__(self, source: Path, processes: int, options: dict, log: Path) -> None:
        self.source, self.processes, self.options, self.log = source, processes, options, log

    def run(self, target: str, seconds: float | None) -> tuple[bool, float]:
        """Run, and kill after so many seconds; returns whether it ended by itself, and after which time."""
        command = [sys.executable, __file__, "--child", str(self.source), target, str(self.log)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*command, str(self.processes), json.dumps(self.options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        begin = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        took = time.monotonic() - begin
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors
        return process.returncode == 0, took


def content(target: str, options: dict) -> dict[str, bytes]:
    """All files but the random one."""
    from energon_stream.storage import StoreSpec

    store = StoreSpec(target, options).open()
    paths = [entry.path for entry in store.list() if not entry.path.endswith("index.uuid")]
    return {path: bytes(store.get(path).data) for path in paths}


def is_dataset(target: str, options: dict) -> bool:
    """Whether the destination is a dataset; then it must have all samples."""
    from energon_stream.errors import NotPreparedError, ObjectNotFoundError
    from energon_stream.index.dataset import read_metadata
    from energon_stream.storage import StoreSpec

    try:
        metadata = read_metadata(StoreSpec(target, options))
    except (NotPreparedError, ObjectNotFoundError):
        return False
    assert sum(metadata.shard_counts.values()) == ROWS
    return True


def write_source(folder: Path) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for number in range(ROWS):
        name = f"{number:04d}.bin.jpg"
        (folder / name).write_bytes(random.Random(number).randbytes(FILE_BYTES))
        lines.append(json.dumps({"image": name, "caption": f"caption {number}"}))
    (folder / "table.jsonl").write_text("\n".join(lines))
    return folder / "table.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--processes", type=int, default=0, help="of the engine; 0 converts in the killed process"
    )
    parser.add_argument("--store", choices=["local", "s3", "localstack"], default="local")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kills-")))
        options: dict = {}
        base = str(folder)
        if arguments.store != "local":
            from energon_stream.testing.s3server import S3Server
            from energon_stream.testing.servers import LocalStack

            if arguments.store == "s3":
                server = stack.enter_context(S3Server())
            else:
                installer = [sys.executable, str(ROOT / "localstack" / "run.py"), "--install-only"]
                interpreter = subprocess.run(installer, check=True, stdout=subprocess.PIPE, text=True)
                server = stack.enter_context(LocalStack(interpreter.stdout.strip()))
            server.create_bucket("kills")
            options, base = dict(server.storage_options), "s3://kills"
        log = folder / "rows"
        log.touch()
        conversion = Conversion(write_source(folder / "source"), arguments.processes, options, log)
        ended, length = conversion.run(f"{base}/whole", None)
        assert ended
        whole = content(f"{base}/whole", options)
        tars = [path for path in whole if path.endswith(".tar")]
        kills = conversions = at_once = again = 0
        begun = time.monotonic()
        while kills < arguments.kills:
            target, killed = f"{base}/{conversions}", 0
            log.write_bytes(b"")
            while True:
                last = kills == arguments.kills
                ended, _ = conversion.run(target, None if last else chance.uniform(0, 1.1 * length))
                visible = is_dataset(target, options)
                assert visible or not ended
                if ended:
                    break
                kills, killed, at_once = kills + 1, killed + 1, at_once + visible
            found = content(target, options)
            different = [path for path in {*found, *whole} if found.get(path) != whole.get(path)]
            assert not different, different
            if not arguments.processes:
                read_again = log.stat().st_size - ROWS
                most = MAX_SIZE // FILE_BYTES + ROWS_A_SECTION
                assert read_again <= killed * most, (read_again, killed)
                again += read_again
            conversions += 1
            if arguments.store == "local":
                shutil.rmtree(target)
        print(
            f"{kills} kills of {conversions} conversions to {len(tars)} tars each, seed {arguments.seed}, "
            f"{arguments.store}, {arguments.processes} processes, in {time.monotonic() - begun:.0f} s: "
            f"{at_once} kills after publishing, {again} rows read again ({again / kills:.1f} a kill), "
            "all bytes equal"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
