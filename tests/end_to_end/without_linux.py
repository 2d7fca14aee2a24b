"""A training job where nothing is there that Linux alone has, as on a laptop with macOS; run as a program.

The first argument is the number of workers of one part. They start by spawn, and so they run the first part
of this file as well.
"""

import builtins
import contextlib
import ctypes
import fcntl
import io
import os
import select
import selectors
import signal
import sys
import tempfile
from pathlib import Path

LINUX_ONLY = {
    os: """eventfd eventfd_read eventfd_write memfd_create posix_fadvise posix_fallocate sched_getaffinity
        sched_setaffinity copy_file_range splice pidfd_open getxattr setxattr RWF_NOWAIT RWF_HIPRI O_DIRECT O_TMPFILE""",
    fcntl: "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_GETPIPE_SZ F_SETPIPE_SZ",
    select: "epoll",
    signal: "sigtimedwait sigwaitinfo",
}


def take_away():
    """Remove names from modules, the C library and /proc; the library is imported without them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "energon_stream"]:
        del sys.modules[name]
    # What these have found out when they were imported.
    tempfile._O_TMPFILE_WORKS, selectors.DefaultSelector = False, selectors.PollSelector
    for module, names in LINUX_ONLY.items():
        for name in names.split():
            with contextlib.suppress(AttributeError):
                delattr(module, name)
    opened, loaded = builtins.open, ctypes.CDLL

    def open_file(file, *args, **kwargs):
        if str(file).startswith(("/proc", "/sys", "/dev/shm")):
            raise FileNotFoundError(file)
        return opened(file, *args, **kwargs)

    def load_library(name, *args, **kwargs):
        if name is None:
            raise OSError("no such library")
        return loaded(name, *args, **kwargs)

    builtins.open = io.open = open_file
    ctypes.CDLL = load_library


if sys.argv[-1] == "--take-away":
    take_away()

from energon_stream import CacheConfig, WorkerConfig, get_savable_loader, get_train_dataset  # noqa: E402
from energon_stream.testing.datasets import prepared_captioning_dataset  # noqa: E402
from energon_stream.testing.s3server import S3Server  # noqa: E402


def keys(loader, count):
    """Keys of the next batches."""
    return [batch.__key__ for _, batch in zip(range(count), loader, strict=False)]


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        prepared_captioning_dataset(root / "bucket/captions", shards=4, samples_per_shard=16)
        with S3Server(root) as server:

            def open_loader(url, workers=1, **options):
                dataset = get_train_dataset(
                    url,
                    batch_size=4,
                    shuffle_buffer_size=20,
                    max_samples_per_sequence=10,
                    worker_config=WorkerConfig(0, 1, workers, num_streams=2),
                    **options,
                )
                return get_savable_loader(dataset, start_method="spawn")

            with open_loader(root / "bucket/captions", 0) as loader:
                expected = keys(loader, 18)
            remote = {"url": "s3://bucket/captions", "storage_options": server.storage_options}
            cache = CacheConfig(root / "cache", max_bytes=1 << 30)
            at, state = 0, None
            for workers, count, more in ((0, 5, {}), (int(sys.argv[1]), 7, {"cache": cache}), (0, 6, {})):
                with open_loader(**remote, workers=workers, **more) as loader:
                    loader.restore_state_rank(state)
                    assert keys(loader, count) == expected[at : at + count]
                    at, state = at + count, loader.save_state_rank()
    sys.stdout.write("prepared, trained and resumed\n")


if __name__ == "__main__":
    main()
