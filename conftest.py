"""Runs the examples: docstrings of the library as doctests, code blocks of README and docs with sybil.

Each docstring and each page runs in a folder of its own with small prepared datasets, which an S3 server
serves as ``s3://data`` as well:

* ``captions/``: 64 ``CaptioningSample`` of an 8 x 8 ``jpg`` and a ``txt``, in 8 shards; splits 6, 1 and 1
shards
* ``texts/``: 64 ``TextSample``
* ``crude/``: 64 samples of ``jpg`` and ``json`` without a type, for cookers
* ``tars/``: 4 WebDataset tars of ``jpg`` and ``txt``, not prepared
* ``clip.mp4``: 50 frames of 64 x 48 pixels and 2 seconds of sound
* ``lines.jsonl``: 32 JSON lines, prepared
* ``mix.yaml``: ``captions`` and ``texts``, blended 3 to 1; ``val`` has ``captions``

In pages, ``python`` and ``bash`` blocks run in order and share the folder; Python blocks share their names as
well. A ``yaml`` block must parse, and is written to the file that its first line, a comment, names.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
import multiprocessing.forkserver
import os
import shutil
import subprocess
import sys
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Small models gain nothing from a thread per core, and threads of OpenMP spin while they wait for each other,
# on cores that other tests need. Set before torch is imported; programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import children
import pytest
import yaml
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.testing.datasets import prepared_captioning_dataset, prepared_text_dataset
from energon_stream.testing.media_files import VideoFile
from energon_stream.testing.s3server import S3Server

if TYPE_CHECKING:
    from sybil.example import Example

ROOT = Path(__file__).parent

# A thread that outlives its test, and a store that is gone, must not write after the summary.
logging.getLogger().addHandler(logging.NullHandler())


def _has_torchvision() -> bool:
    if importlib.util.find_spec("torchvision") is None:
        return False
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError):  # beside another PyTorch than its own
        return False
    return True


# Doctests import their modules. `make docs` runs the first elsewhere. The second makes its process ignore
# SIGTERM, and all programs that it starts.
collect_ignore = ["docs/tools", "energon_stream/loader/fork_server.py"]
if not _has_torchvision():  # `make transforms` runs these
    collect_ignore += [f"energon_stream/transforms/{name}.py" for name in ("mappers", "merge")]
OWN_MODULE = "megatron.energon"
SECONDS = 300
"""After so long a command of a page is stuck, on the busiest of machines."""


def write_example_data(folder: Path) -> None:
    """Write the datasets that examples read."""
    options: dict[str, Any] = {"shards": 8, "samples_per_shard": 8, "size": (8, 8)}
    prepared_captioning_dataset(folder / "captions", split_ratio=(6, 1, 1), **options)
    prepared_text_dataset(folder / "texts", split_ratio=(6, 1, 1), shards=8, samples_per_shard=8)
    prepared_captioning_dataset(folder / "crude", split_ratio=(6, 1, 1), with_json=True, **options)
    (folder / "crude/.nv-meta/dataset.yaml").write_text(
        f"__module__: {OWN_MODULE}\n__class__: CrudeWebdataset\n"
    )
    prepared_captioning_dataset(folder / "tars", **{**options, "shards": 4, "samples_per_shard": 16})
    shutil.rmtree(folder / "tars/.nv-meta")
    for index in (folder / "tars").glob("*.idx"):
        index.unlink()
    VideoFile(audio_codec="aac").write(folder / "clip.mp4")
    (folder / "lines.jsonl").write_text("".join(f'{{"id": {i}, "text": "line {i}"}}\n' for i in range(32)))
    prepare_jsonl(str(folder / "lines.jsonl"))
    blend = [{"weight": 3, "path": "captions"}, {"weight": 1, "path": "texts"}]
    document = {
        "__module__": OWN_MODULE,
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": blend}, "val": {"path": "captions"}},
    }
    (folder / "mix.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.fixture(scope="session")
def example_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets that examples read; examples get copies."""
    folder = tmp_path_factory.mktemp("examples") / "data"
    folder.mkdir()
    write_example_data(folder)
    return folder


def write_commands(folder: Path) -> Path:
    """Write the library's commands and ``python`` as programs that need not import PyTorch again."""
    for name in ("energon", "energon-stream", "python"):
        script = () if name == "python" else (Path(sys.executable).parent / name,)
        words = " ".join(f"'{word}'" for word in (children.launcher(), *script))
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def example_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder in which examples run, and the environment in which ``s3://data`` is that folder.

    Folder and server stay the same for all examples of a process, because the process keeps open stores.
    """
    root = tmp_path_factory.mktemp("served")
    commands = write_commands(tmp_path_factory.mktemp("commands"))
    with S3Server(root) as server:
        binaries = os.pathsep.join(
            [str(commands), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        )
        environment = {
            "AWS_ENDPOINT_URL": server.endpoint_url,
            "AWS_ACCESS_KEY_ID": "example",
            "AWS_SECRET_ACCESS_KEY": "example",
            "AWS_REGION": "us-east-1",
            "PATH": binaries,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        yield root / "data", environment


@contextlib.contextmanager
def inside(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run what follows in a folder and with environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        yield


def fresh(request: pytest.FixtureRequest) -> tuple[Path, dict[str, str]]:
    """The folder with new copies of the datasets, and the environment."""
    folder, environment = request.getfixturevalue("example_server")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(request.getfixturevalue("example_data"), folder)
    return folder, environment


@pytest.fixture(scope="session", autouse=True)
def _preloaded_fork_server() -> Iterator[None]:
    """Let fork servers import what test modules import, once: without it, each process that they start spends
    a third of a second on hypothesis, pytest and the library.

    Which modules a server imports is decided by who needs it first, a loader or an engine.
    """
    set_preload = multiprocessing.forkserver.set_forkserver_preload

    def set_more(modules: list[str], **options: Any) -> None:
        set_preload([*modules, *children.PRELOADED], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing.forkserver, "set_forkserver_preload", set_more)
        yield


@pytest.fixture(autouse=True)
def _example_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run doctests of the library where the datasets are."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with inside(*fresh(request)):
        yield


class Page:
    """A page whose blocks run: its folder, and the lines of the blocks that have run."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.done: set[int] = set()
        self.names: dict[str, Any] = {}


@pytest.fixture(scope="module")
def example_page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page of this process's blocks; they share the folder. Their names go at the end, and loaders with
    them, so that no worker is left.
    """
    page = Page(*fresh(request))
    yield page
    page.names.clear()
    gc.collect()


@pytest.fixture
def in_example_page(request: pytest.FixtureRequest, example_page: Page) -> Iterator[None]:
    """Run one block of a page in the page's folder, and the blocks before it if another process has run
    them.
    """
    current = request.node.example
    example_page.names = current.document.namespace
    with inside(example_page.folder, example_page.environment):
        for example in current.document.examples():
            if example.line < current.line and example.line not in example_page.done:
                # A block that the page skips must not skip this one too, and must not run for the next one.
                with contextlib.suppress(unittest.SkipTest):
                    example.evaluate()
            if example.line <= current.line:
                example_page.done.add(example.line)
        yield


def run_bash(example: Example) -> None:
    """Run a ``bash`` block; its lines may begin with ``$``, and then the others are output, which is not
    compared.
    """
    text = str(example.parsed)
    if any(line.startswith("$ ") for line in text.splitlines()):
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise AssertionError(f"{text}\nended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")


def run_yaml(example: Example) -> None:
    """Parse a ``yaml`` block, and write it to the file that its first line names."""
    text = str(example.parsed)
    assert yaml.safe_load(text) is not None, "the block is empty"
    first = text.splitlines()[0]
    if first.startswith("# ") and first.endswith((".yaml", ".yml")):
        path = Path(first.removeprefix("# ").strip())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


pytest_collect_file = Sybil(
    parsers=[
        CodeBlockParser(language="python", evaluator=PythonEvaluator()),
        CodeBlockParser(language="bash", evaluator=run_bash),
        CodeBlockParser(language="yaml", evaluator=run_yaml),
        SkipParser(),
    ],
    patterns=["README.md", "docs/**/*.md"],
    path=str(ROOT),
    fixtures=["in_example_page"],
).pytest()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests did not run, and why: ``make suites`` runs all of them."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ").split("\n")[0] for report in skipped)
    if reasons:
        terminalreporter.section(f"{len(skipped)} tests did not run here")
        for reason, number in reasons.most_common():
            terminalreporter.write_line(f"{number:5} {reason}")
