"""Objects whose bytes are known, and a look at what a cache has on disk."""

import os
import random

from energon_stream.cache import ObjectIdentity

BLOCK = 256 << 10
"""Small blocks, so that small objects have several."""

PATIENCE = 600.0
"""Seconds in which anything happens, however busy the machine is: no test may depend on speed."""


class Origin:
    """An object, and who asks for which of its bytes."""

    def __init__(self, size, seed=0, root="s3://bucket/data", path="shard.tar", etag='"1"'):
        self.data = random.Random(seed).randbytes(size)
        self.identity = ObjectIdentity(root, path, etag, size)
        self.asked = []

    def get(self, start, stop):
        self.asked.append((start, stop))
        return memoryview(self.data)[start:stop]

    def read(self, cache, start=0, stop=None, **options):
        """Read through a cache, and compare."""
        stop = len(self.data) if stop is None else stop
        data = cache.fetch(self.identity, start, stop, self.get, **options)
        assert data == self.data[start:stop]
        return data

    @property
    def asked_bytes(self):
        return sum(stop - start for start, stop in self.asked)


def disk_bytes(config):
    """What the cache takes of the disk, as ``du`` counts."""
    found = 0
    for folder, _, names in os.walk(config.directory):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                found += 512 * os.lstat(path).st_blocks
            except FileNotFoundError:
                continue
    return found


def block_files(config):
    """Paths of all blocks."""
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(config.directory)
        for name in names
        if name.partition(".")[0].isdecimal()
    )


def counted(cache):
    """What the ledger says."""
    return cache.directory.ledger.usage()
