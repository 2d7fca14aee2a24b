"""Repeats the first hour of three users, from an empty environment, with the commands of the documents.

``python docs/tools/first_weeks.py`` makes environments and installs PyTorch, then the clone, with the
extras that a user's data needs, by pip or ``--uv``; ``--venv`` and ``--mds-venv`` take existing ones. The
users have files in folders, Parquet and MDS; a program and a metadataset of Megatron-Energon 7.4.1;
webdataset tars. It prints the minutes, those of installing apart, and the commands of each to the first batch
of their own data, to a run that was resumed, and to S3, and fails beyond the goal. PyTorch is not counted,
nor is mosaicml-streaming, which wrote the shards of the user of MDS: what these took is printed apart. These
have a second environment, because streaming needs torchvision, and the PyTorch that fits it.
Commands and programs are the pages' own, with other paths: a page that changes without the others fails here.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINUTES, COMMANDS = 3.0, 5  # at most: minutes to the first batch, commands to S3
# What is converted, and the extra that this needs; the rest have none.
EXTRAS = {"pictures": "", "photos.parquet": "parquet", "photos-mds": "mds", "speech": "av", "videos": "av"}
S3 = "energon-stream demo-data . --serve -- "  # before a command that reads s3://data
HOUR, CONVERT, PREPARE = "docs/start/first-hour.md", "docs/guides/convert.md", "docs/guides/prepare.md"
# As users of Megatron-Energon 7.4.1 write it; their metadataset is mix.yaml.
OF_ENERGON = """
import sys
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless

class Encoder(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return sample

def open_loader():
    config = WorkerConfig.default_worker_config(2)
    options = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100, "task_encoder": Encoder()}
    return get_savable_loader(get_train_dataset(sys.argv[1], batch_size=1, worker_config=config, **options))

if __name__ == "__main__":
    loader = open_loader()
    batches = iter(loader)
    print(next(batches).__key__)
    again = open_loader()
    again.restore_state_rank(loader.save_state_rank())
    assert next(iter(again)).__key__ == next(batches).__key__
"""


KEY = "key = lambda batch: batch['__key__'] if isinstance(batch, dict) else batch.__key__"


def program(page: str, mark: str) -> str:
    """Return the program of a page that has a mark, also out of a command that writes it to a file."""
    blocks = re.findall(
        r"^```(?:python|bash)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    (found,) = (block for block in blocks if mark in block)
    file = re.search(r"<<'END'\n(.*?)^END$", found, re.MULTILINE | re.DOTALL)
    return file[1] if file else found


class User:
    """A user with a terminal, in a folder of data: counts the commands and their time."""

    late = False  # whether one was

    def __init__(self, name: str, data: Path, folder: Path, binaries: Path, seconds: float) -> None:
        self.name, self.folder = name, Path(shutil.copytree(data, folder / name.replace(" ", "-")))
        self.seconds, self.commands = 0.0, 1  # the command that installed
        self.installed = seconds
        self.used = cpu_minutes()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PYTHON", "ENERGON_"))}
        self.environment = {**clean, "PATH": f"{binaries}{os.pathsep}{clean['PATH']}"}

    def run(self, page: str | None, command: str, **words: str) -> str:
        """Run a command of a page, with some words replaced, and return its output."""
        assert page is None or command in (ROOT / page).read_text(), f"{page} has no {command!r}"
        for word, instead in words.items():
            command = command.replace(word, instead)
        self.commands, begin = self.commands + 1, time.monotonic()
        options = {"cwd": self.folder, "env": self.environment, "capture_output": True, "text": True}
        done = subprocess.run(command, shell=True, timeout=900, check=False, **options)
        self.seconds += time.monotonic() - begin
        if done.returncode:
            sys.exit(f"$ {command}\n{done.stdout}{done.stderr}\nended with status {done.returncode}")
        return done.stdout

    def ten_lines(self, dataset: str, before: str = "") -> None:
        """Run the README's program, which resumes a loader at its end, on another dataset."""
        text = program("README.md", "get_savable_loader").replace("photo-tars", dataset)
        text = re.sub(r"print\(.*\)", "print(step)", text)  # batches of some users are dicts
        text = re.sub(r"(next\(iter\(\w+\)\))\.__key__", r"key(\1)", text)
        (self.folder / "ten.py").write_text(f"{KEY}\n{text}")
        assert "9\n" in self.run(None, f"{before}python ten.py")

    def report(self, what: str) -> None:
        minutes = (self.installed + self.seconds) / 60
        many = what != "two processes" and self.commands > COMMANDS
        late = many or (what == "first batch" and minutes > MINUTES)
        shares = f"{self.installed / 60:6.2f} to install{self.seconds / 60:6.2f} in commands"
        print(
            f"{self.name:20}{what:16}{minutes:6.2f} min: {shares}{cpu_minutes() - self.used:6.2f} CPU"
            f"{self.commands:4} commands{late * ', late'}",
            flush=True,
        )
        User.late |= late


def cpu_minutes() -> float:
    """Return what all commands so far have used of processors, on any machine however busy."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def pictures(user: User) -> None:
    user.run(HOUR, "energon-stream convert photos photo-tars")
    (user.folder / "train.py").write_text(program(HOUR, "def main(path, last)"))
    assert "step 1," in user.run(HOUR, "python train.py photo-tars 3")
    user.report("first batch")
    assert "step 4," in user.run(HOUR, "python train.py photo-tars 6")
    user.report("resumed")
    assert "step 7," in user.run(HOUR, f"{S3}python train.py s3://data/photo-tars 8")
    user.report("S3")
    assert "rank 1" in user.run(HOUR, f"{S3}torchrun --nproc-per-node 2 train.py s3://data/photo-tars 10")
    user.report("two processes")


def converted(user: User, command: str, made: str) -> None:
    user.run(CONVERT, command)
    user.ten_lines(made)
    user.report("first batch")
    user.report("resumed")
    user.ten_lines(f"s3://data/{made}", S3)
    user.report("S3")


def megatron(user: User) -> None:
    (user.folder / "train.py").write_text(OF_ENERGON)
    page, line = "docs/migration/megatron-energon.md", "python -m energon_stream.run_megatron train.py …"
    assert line in (ROOT / page).read_text(), f"{page} has no {line!r}"
    user.run(None, line.replace("…", "mix.yaml"))
    user.report("first batch")
    user.report("resumed")
    user.run(None, S3 + line.replace("…", "s3://data/mix.yaml"))
    user.report("S3")


def webdataset(user: User) -> None:
    text = program("docs/guides/plain-tars.md", "sample_type=CaptioningSample")
    (user.folder / "tars.py").write_text(text.replace("s3://data/", ""))
    user.run(None, "python tars.py")
    user.report("first batch")
    command = re.search(r"energon-stream prepare pairs (?:.*\\\n)*.*", (ROOT / PREPARE).read_text())[0]
    user.run(PREPARE, command, pairs="tars")
    user.ten_lines("tars")
    user.report("resumed")
    user.ten_lines("s3://data/tars", S3)
    user.report("S3")


def install(folder: Path, uv: bool, data: dict[str, list[str]], extras: set[str]) -> dict[str, float]:
    """Make an environment, and return the seconds for the library with each extra, without what users have.

    ``data`` has the arguments of pip that install what they have, by name.
    """
    seconds = {}

    def timed(what: str, *command: object) -> None:
        begin, used = time.monotonic(), cpu_minutes()
        subprocess.run(list(map(str, command)), check=True)
        seconds[what] = time.monotonic() - begin
        used = cpu_minutes() - used
        print(
            f"{what or 'energon_stream':20}{'installed':16}{seconds[what] / 60:6.2f} min{used:6.2f} CPU",
            flush=True,
        )

    python = folder / "bin/python"
    pip: tuple[object, ...] = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    timed("environment", sys.executable, "-m", "venv", folder)
    for what, packages in data.items():
        timed(what, *pip, *packages)
    if uv:
        pip = ("uv", "pip", "install", "-q", "--cache-dir", folder.parent / "uv", "--python", python)
    library = min(extras)
    for extra in sorted(extras):  # one after another, though a user would name it at once
        timed(extra, *pip, f"{ROOT}[{extra}]" if extra else ROOT)
        seconds[extra] += seconds["environment" if extra == library else library]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="the first hour of three users")
    parser.add_argument("--venv", type=Path, help="an environment that has the library; default: new ones")
    parser.add_argument("--mds-venv", type=Path, help="the same, which has mosaicml-streaming as well")
    parser.add_argument("--uv", action="store_true", help="install with uv, from an empty cache")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-weeks-") as name:
        folder = Path(name)
        environments = dict.fromkeys(EXTRAS.values(), options.venv or folder / "venv")
        environments["mds"] = options.mds_venv or environments["mds"]
        seconds = dict.fromkeys(environments, 0.0)
        if not options.venv:
            torch = {"PyTorch": ["-c", str(ROOT / "constraints.txt"), "torch"]}
            seconds |= install(folder / "venv", options.uv, torch, {"", "parquet", "av"})
            pins = re.findall(r"torch\S*==\S+", (ROOT / "Makefile").read_text())[:2]  # that fit each other
            written = {"PyTorch": pins, "mosaicml-streaming": [*pins, "mosaicml-streaming"]}
            environments["mds"] = folder / "venv-mds"
            seconds |= install(environments["mds"], options.uv, written, {"mds"})

        def user(name: str) -> User:
            used = environments[EXTRAS.get(name, "")]
            data = folder / f"data of {used.name}"
            if not data.exists():
                make = [used / "bin/energon-stream", "demo-data", data]
                subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
            return User(name, data, folder, (used / "bin").absolute(), seconds[EXTRAS.get(name, "")])

        pictures(user("pictures"))
        commands = re.findall(
            r"^energon-stream convert (\S+) (\S+)(.*)$", (ROOT / CONVERT).read_text(), re.MULTILINE
        )
        for source in list(EXTRAS)[1:]:
            target, rest = next((found, rest) for first, found, rest in commands if first == source)
            its_user = user(source)
            if not (its_user.folder / source).exists():
                print(f"{source:20}left out: the environment has no mosaicml-streaming")
                continue
            converted(its_user, f"energon-stream convert {source} {target}{rest}", target)
        megatron(user("Megatron-Energon"))
        webdataset(user("webdataset"))
    print(f"{cpu_minutes():.1f} minutes of one processor in all")
    if User.late:
        sys.exit(f"the goal is {MINUTES} minutes to the first batch, and {COMMANDS} commands to S3")


if __name__ == "__main__":
    main()
