"""One rank of the chaos run, in a process of its own: restores, delivers, notes each batch, saves its state.

The argument is a JSON file with the rank's settings. A failure is written to ``error`` beside the notes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from workload import indices, note, open_dataset

from energon_stream import CacheConfig, ReadOptions, get_savable_loader
from energon_stream.errors import EnergonStreamError
from energon_stream.state import dumps, loads


def write(path: Path, content: bytes) -> None:
    """Replace a file, whenever this process is killed."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def opened() -> tuple[int, int]:
    """Return the numbers of open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def train(settings: dict) -> None:
    folder = Path(settings["folder"])
    options = {"read_options": ReadOptions(**settings["read_options"]), "cache": False}
    if settings["cache"]:
        options["cache"] = CacheConfig(**settings["cache"])
    if settings["storage_options"]:
        options["storage_options"] = settings["storage_options"]
    names = ("rank", "world_size", "workers", "seed")
    dataset = open_dataset(settings["path"], **{name: settings[name] for name in names}, **options)
    saved = folder / "state"
    with (
        (folder / "notes").open("ab", buffering=0) as notes,
        get_savable_loader(dataset, **settings["loader_options"]) as loader,
    ):
        number = 0
        if saved.exists():
            raw = saved.read_bytes()
            number = int.from_bytes(raw[:8], "little")
            if number == settings["batches"]:  # killed after the last batch was saved
                return
            loader.restore_state_rank(loads(raw[8:]))
        delivered = 0
        for batch in loader:
            gate = settings.get("gate")
            while gate and number >= settings["gate_at"] and not Path(gate).exists():
                time.sleep(0.01)  # attacks are still to come
            found = indices(batch)
            notes.write(note(number, found))
            number, delivered = number + 1, delivered + len(found)
            if delivered == len(found):
                write(folder / "workers", json.dumps(loader.worker_pids).encode())
            if number % settings["save_every"] == 0:
                write(saved, number.to_bytes(8, "little") + dumps(loader.save_state_rank()))
            if number == settings["batches"] or (settings["samples"] and delivered >= settings["samples"]):
                break


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(settings["folder"])
    before = opened()
    try:
        train(settings)
    except EnergonStreamError as error:
        chain, cause = [], error
        while cause is not None:
            chain.append(type(cause).__name__)
            cause = cause.__cause__
        write(folder / "error", json.dumps({"named": chain, "text": traceback.format_exc()}).encode())
        sys.exit(3)
    except BaseException:
        write(folder / "error", json.dumps({"named": [], "text": traceback.format_exc()}).encode())
        raise
    after = opened()
    write(folder / "end", json.dumps({"before": before, "after": after}).encode())


if __name__ == "__main__":
    main()
