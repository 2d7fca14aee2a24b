"""Servers and isolation for all tests. The servers run in CI: what is missing is installed, not skipped."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import uuid
import weakref
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session
import certifi
import children
import pytest
from huge_pages import take_huge_pages
from prepared import prepare_once
from repetitions import register_profiles
from shared_servers import shared_server

from energon_stream.storage.fetcher import HEDGED_SHARE, Fetcher, shared_fetcher
from energon_stream.testing.s3server import S3Server
from energon_stream.testing.servers import LocalStack, SeaweedFS

register_profiles()
prepare_once()

ROOT = Path(__file__).resolve().parent.parent

# gcsfs asks Google what kind a bucket is, for a minute, unless this was set when it was imported first.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Let tests interrupt what they start.

    A shell starts background jobs with this signal ignored, and what they start inherits that; processes of
    pytest-xdist too, which import nothing again.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Collect nothing from what the tests share."""
    is_helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_helper else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in the library alone, and not in modules of tests."""
    found = yield
    return [each for each in found if type(each) is pytest.Module]


# A fork costs more in a large process, so tests that start many workers run first.
ORDER = {"metadataset": 0, "state": 0, "loader": 1, "end_to_end": 2, "read": 3, "docs": 5}
MIDDLE = 4
FRAMEWORKS = {"integrations", "frameworks"}  # folders


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the modules by directory, and deal them to the parts of the list with which the processes begin.

    Cells that the marker ``every`` leaves out are slow.

    Large frameworks take long to import, so the last process alone runs the tests of them, and begins with
    these: others take over from the end of its part.
    """
    modules: dict[Path, list[pytest.Item]] = {}
    cells: Counter[str] = Counter()  # seen so far, by the test that they are of
    for item in items:
        modules.setdefault(item.path, []).append(item)
        if (every := item.get_closest_marker("every")) is not None:
            test = item.nodeid.partition("[")[0]
            if cells[test] % every.args[0]:
                item.add_marker("slow")
            cells[test] += 1

    def rank(path: Path) -> int:
        parts = path.relative_to(ROOT).parts
        return -1 if FRAMEWORKS & {*parts} else next((ORDER[part] for part in parts if part in ORDER), MIDDLE)

    dealt: list[list[pytest.Item]] = [
        [] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    ]
    for path in sorted(modules, key=rank):
        (dealt[-1] if rank(path) < 0 else min(dealt, key=len)).extend(modules[path])
    items[:] = [item for part in dealt for item in part]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which would look at what is imported again and again: a
    fourth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collection, with the little garbage that importing left, and
    collect less often than a program does: a fiftieth of the time. Let PyTorch's forty loggers pass on
    what they get, which saves each phase of each test 80 µs.
    """
    for logger in logging.root.manager.loggerDict.values():  # pytest adds handlers to each that does not
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    if "PYTEST_XDIST_WORKER" in os.environ:
        take_huge_pages()


_usual_environment = {**os.environ}


def trust_one_authority(folder: Path) -> dict[str, Path]:
    """Return variables for OpenSSL, obstore, boto3 and requests, with which they trust one authority.

    Each client parses the 150 of a system when it is made, also for a server without TLS: 8 to 40 ms. Servers
    of tests have certificates of their own.
    """
    end = "-----END CERTIFICATE-----\n"
    (file := folder / "one.pem").write_text(certifi.contents().partition(end)[0] + end)
    (none := folder / "none").mkdir()
    return {"SSL_CERT_FILE": file, "SSL_CERT_DIR": none, "REQUESTS_CA_BUNDLE": file}


@pytest.fixture(scope="session", autouse=True)
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What holds for all tests of a process; each fixture that runs by itself costs each test some time.

    The developer's AWS settings are kept out of the tests, and the tests off the metadata service. Loaders
    are noted as they are made. Tests make hundreds of clients of stores, and what each does anew takes most
    of its time, so all trust one authority, share the JSON that botocore's loader has parsed, and know its
    names of events and which of its handlers take any argument.
    """
    empty = tmp_path_factory.mktemp("aws") / "empty"
    empty.touch()
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", str(empty))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(empty))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name, path in trust_one_authority(tmp_path_factory.mktemp("authority")).items():
            patch.setenv(name, str(path))
        patch.setattr("botocore.session.create_loader", functools.cache(botocore.loaders.create_loader))
        if module := sys.modules.get("energon_stream.loader.loader"):
            make = module.BasicDataLoader.__init__

            @functools.wraps(make)
            def note(self: Any, *args: Any, **options: Any) -> None:
                _loaders.add(self)
                make(self, *args, **options)

            patch.setattr(module.BasicDataLoader, "__init__", note)
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_memory_left() -> Iterator[None]:
    """Return freed memory to the system after each module: a large process forks slowly."""
    yield
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


_loaders: weakref.WeakSet[Any] = weakref.WeakSet()  # those that this process made


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Close loaders that a test leaves open, and a cycle or a traceback keeps alive: they would go on asking
    a server that is gone, and count for this process beside those of other tests.

    And let go of file systems that fsspec keeps for good, 30 MB of client each: forks of a large process are
    slow.
    """
    before = weakref.WeakSet(_loaders)
    yield
    for loader in list(_loaders):
        if loader not in before:
            loader.close()
    if "s3fs" in sys.modules:
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's, which looks at the folders of all tests before: a millisecond, after a thousand."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_numbers)}"
    path.mkdir(mode=0o700)
    return path


_numbers = itertools.count()


def _send_late_requests_again(share: float) -> None:
    for function in (Fetcher.__init__, shared_fetcher):
        function.__kwdefaults__["hedged_share"] = share


# A busy machine makes requests late, and tests count requests. Forked workers inherit this; those of a fork
# server do not.
_send_late_requests_again(0.0)


@pytest.fixture
def late_requests() -> Iterator[None]:
    """Send late requests again, as by default outside of tests."""
    _send_late_requests_again(HEDGED_SHARE)
    yield
    _send_late_requests_again(0.0)


@pytest.fixture
def forked_spawn() -> Iterator[None]:
    """Make ``spawn`` and ``forkserver`` of multiprocessing start processes that have imported torch
    already.
    """
    with children.starting_processes():
        yield


@pytest.fixture
def s3_server() -> Iterator[S3Server]:
    """A stand-in server of the test's own: empty, counters at zero (it starts in milliseconds)."""
    with S3Server() as server:
        yield server


@pytest.fixture
def tmp_bucket(s3_server: S3Server) -> str:
    """URL of a new bucket on ``s3_server``."""
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    s3_server.create_bucket(bucket)
    return f"s3://{bucket}"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of this run of pytest share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def localstack(run_folder: Path) -> LocalStack:
    """LocalStack, installed on first use; shared, so take a bucket of your own."""
    installer = [sys.executable, str(ROOT / "localstack" / "run.py"), "--install-only"]
    done = subprocess.run(installer, check=True, stdout=subprocess.PIPE, text=True, env=_usual_environment)
    interpreter = done.stdout.strip()
    return shared_server(LocalStack(interpreter), run_folder, interpreter)


@pytest.fixture(scope="session")
def seaweedfs(run_folder: Path) -> SeaweedFS:
    """SeaweedFS, which checks signatures; shared, so take a bucket of your own."""
    return shared_server(SeaweedFS(), run_folder)
