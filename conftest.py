"""Runs the examples: docstrings of the library as doctests, code blocks of README and docs with sybil.

All they need is what ``energon-stream demo-data`` writes, and the environment that ``--serve`` prints, with
which ``s3://data`` is the same. Docstrings run in a copy of the folder ``data`` that it made. Pages run in
the folder above it, and begin with the line that makes the data and goes there: the copy is there already.

In pages, ``python`` and ``bash`` blocks run in order, as in one terminal: they share the folder, also after
``cd``, and Python blocks share their names. A ``yaml`` block must parse, and is written to the file that its
first line, a comment, names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import multiprocessing.forkserver
import os
import re
import shutil
import subprocess
import sys
import tempfile
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
from sybil import Document, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from energon_stream.cli.main import main
from energon_stream.testing.demo_data import serve_demo_data

if TYPE_CHECKING:
    from sybil.example import Example

ROOT = Path(__file__).parent

# A thread that outlives its test, and a store that is gone, must not write after the summary.
logging.getLogger().addHandler(logging.NullHandler())


@functools.cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


IMPORTED = (
    "lightning.pytorch",
    "transformers.trainer",
    "accelerate",
    "torchdata.nodes",
    "matplotlib.figure",
    "textual.app",
    "s3fs",
    "boto3",
    "av",
    "webdataset",
    "starlette.applications",
    "sybil",
    *["energon_stream.tools.top.screen"] * _is_there("textual"),
)
"""What test modules import, takes longest to import, and starts no thread, which a fork would lose."""


@functools.cache
def _has_torchvision() -> bool:
    if not _is_there("torchvision"):
        return False
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError):  # beside another PyTorch than its own
        return False
    return True


# Doctests import their modules. `make docs` runs the first elsewhere. The second makes its process ignore
# SIGTERM, and all programs that it starts.
collect_ignore = ["docs/tools", "energon_stream/loader/fork_server.py"]
if not _is_there("torchtitan"):  # `make frameworks` tests it
    collect_ignore += ["energon_stream/integrations/torchtitan.py"]
if not _has_torchvision():  # `make transforms` runs these
    collect_ignore += [f"energon_stream/transforms/{name}.py" for name in ("mappers", "merge")]
SHOWN = re.compile(r"\s*```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def example_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets that examples read; examples get copies."""
    folder = tmp_path_factory.mktemp("examples") / "data"
    main(["demo-data", str(folder)], standalone_mode=False)
    return folder


def write_commands(folder: Path) -> Path:
    """Write the library's commands and ``python`` as programs that need not import PyTorch again.

    What pages download comes from stand-ins, and nothing is installed.
    """
    downloads = Path(__file__).parent / "tests" / "support" / "downloads.py"
    programs = {
        name: (Path(sys.executable).parent / name,) for name in ("energon", "energon-stream", "torchrun")
    }
    programs |= {name: (downloads, name) for name in ("hf", "wget", "img2dataset")} | {"python": ()}
    for name, script in programs.items():
        words = " ".join(f"'{word}'" for word in (children.launcher(), *script))
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    python = (folder / "python").read_text().removeprefix("#!/bin/sh\n")
    (folder / "python").write_text(
        f'#!/bin/sh\n[ "$1 $2" != "-m venv" ] || set -- "$@" --without-pip\n{python}'
    )
    (folder / "pip").write_text('#!/bin/sh\ntest "$1" = install\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def example_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder of the data, and the environment in which ``s3://data`` is that folder.

    Folder and server stay the same for all examples of a process, because the process keeps open stores.
    """
    data = tmp_path_factory.mktemp("served") / "data"
    commands = write_commands(tmp_path_factory.mktemp("commands"))
    with serve_demo_data(data) as environment:
        paths = {
            "PATH": (str(commands), str(Path(sys.executable).parent), os.environ.get("PATH", "")),
            "PYTHONPATH": (str(ROOT), os.environ.get("PYTHONPATH", "")),
        }
        joined = {name: os.pathsep.join(filter(None, parts)) for name, parts in paths.items()}
        yield data, environment | joined


@contextlib.contextmanager
def inside(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run what follows in a folder and with environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        yield


def fresh(request: pytest.FixtureRequest) -> tuple[Path, dict[str, str]]:
    """The folder with new copies of the datasets, and the environment.

    Most examples only read. Copies that are as they were made stay for the next one.
    """
    folder, environment = request.getfixturevalue("example_server")
    if _copies.get(folder) != files_in(folder.parent):
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(request.getfixturevalue("example_data"), folder)
        for name in ("examples", "localstack"):  # as in a clone
            (folder.parent / name).symlink_to(ROOT / name)
        _copies[folder] = files_in(folder.parent)
    return folder, environment


_copies: dict[Path, dict[str, tuple[int, ...]]] = {}


def files_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return times and sizes, which tell that files and folders were not touched."""
    found = {}
    for place, folders, files in os.walk(folder):
        for path in (os.path.join(place, name) for name in (*folders, *files)):
            status = os.lstat(path)
            found[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no module of the library that has no examples."""
    is_module = collection_path.suffix == ".py" and ROOT / "energon_stream" in collection_path.parents
    return True if is_module and ">>> " not in collection_path.read_text() else None


def pytest_configure(config: pytest.Config) -> None:
    """Start the server of child processes that the processes of pytest-xdist share, and let these be forks of
    a process that has imported what test modules import.
    """
    if config.getoption("numprocesses", None):
        everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        # Test modules that are imported already have taken how much they try from the profile of every run.
        everything &= config.getoption("--hypothesis-profile") is None
        python = children.interpreter(*filter(_is_there, IMPORTED), *["import_tests"] * everything)
        config.option.tx = [f"popen//python={python}"] * len(config.option.tx)


@pytest.fixture(scope="session", autouse=True)
def _preloaded_fork_server() -> Iterator[None]:
    """Let fork servers import once what test modules import. The fork servers are forks themselves.

    Without it, each process that they start spends a third of a second on hypothesis, pytest and the library.

    Which modules a server imports is decided by who needs it first, a loader or an engine.
    """
    set_preload = multiprocessing.forkserver.set_forkserver_preload

    def set_more(modules: list[str], **options: Any) -> None:
        set_preload([*modules, *children.PRELOADED], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing.forkserver, "set_forkserver_preload", set_more)
        with children.starting_processes() if children.is_shared() else contextlib.nullcontext():
            yield


@pytest.fixture
def _example_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run doctests of the library where the datasets are."""
    with inside(*fresh(request)):
        yield


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let doctests alone use this fixture."""
    if isinstance(item, pytest.DoctestItem):
        item.fixturenames.append("_example_folder")


class Page:
    """A page whose blocks run: its folder, and the lines of the blocks that have run."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment  # the folder may change
        self.done: set[int] = set()
        self.names: dict[str, Any] = {}


@pytest.fixture(scope="module")
def example_page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page of this process's blocks; they share the folder, and their names go at the end."""
    data, environment = fresh(request)
    page = Page(data.parent, environment)
    yield page
    page.names.clear()


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
        example_page.folder = Path.cwd()


def in_any_order(printed: str) -> list[str]:
    """Return the lines, sorted: ranks print in any order, and one may end its line behind another's."""
    return sorted(line for line in re.split(r"\n|(?=step \d+, rank)", printed) if line)


def run_bash(example: Example) -> None:
    """Run a ``bash`` block, and stay in the folder in which it ends.

    Its lines may begin with ``$``, and then the others are output, which is not compared. In Get started, a
    block of text right behind it is its output.
    """
    text = str(example.parsed)
    if any(line.startswith("$ ") for line in text.splitlines()):
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    with tempfile.NamedTemporaryFile("r") as end:
        command = ["bash", "-euo", "pipefail", "-c", f"trap 'pwd > {end.name}' EXIT\n{text}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        os.chdir(end.read().strip())
    if done.returncode:
        raise AssertionError(f"{text}\nended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
    shown = SHOWN.match(example.document.text, example.end)
    if shown and "docs/start" in example.path:
        printed = done.stdout.replace(os.getcwd(), "/home/me/data")
        assert in_any_order(printed) == in_any_order(shown[1])


def run_yaml(example: Example) -> None:
    """Parse a ``yaml`` block, and write it to the file that its first line names."""
    text = str(example.parsed)
    assert yaml.safe_load(text) is not None, "the block is empty"
    first = text.splitlines()[0]
    if first.startswith("# ") and first.endswith((".yaml", ".yml")):
        path = Path(first.removeprefix("# ").strip())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Skips(SkipParser):
    """Skips blocks, but not a block that needs a package alone and finds it, as in `make convert`."""

    def __call__(self, document: Document) -> Iterator[Region]:
        modules = {"mosaicml-streaming": "streaming", "nemo-automodel": "nemo_automodel"}
        names = (*modules, "litdata", "datasets", "torchtitan")
        here = [name for name in names if _is_there(modules.get(name, name))]
        here += ["torchvision"] * _has_torchvision()
        runs = [("next", f'"needs the package {name}"') for name in here]
        for region in super().__call__(document):
            if region.parsed not in runs:
                yield region


def show_traceback(
    item: SybilItem, error: pytest.ExceptionInfo[BaseException], shorten: Any = SybilItem._traceback_filter
) -> Any:
    """Return the traceback of an example that failed, without the frames of pytest and sybil.

    sybil takes the second frame, which a cause that was caught where it was raised does not have. Its
    IndexError ended the whole run, and hid the error.
    """
    try:
        return shorten(item, error)
    except IndexError:
        return error.traceback


SybilItem._traceback_filter = show_traceback
pytest_collect_file = Sybil(
    parsers=[
        CodeBlockParser(language="python", evaluator=PythonEvaluator()),
        CodeBlockParser(language="bash", evaluator=run_bash),
        CodeBlockParser(language="yaml", evaluator=run_yaml),
        Skips(),
    ],
    patterns=[
        "README.md",
        "docs/**/*.md",
        "energon_stream/skills/*/*.md",
        "energon_stream/skills/*/references/*.md",
    ],
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
