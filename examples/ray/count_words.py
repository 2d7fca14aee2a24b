"""Counts the words of all captions, shard by shard, on a Ray cluster or in local processes.

python examples/ray/count_words.py s3://bucket/dataset --address 10.0.0.1:6379
python examples/ray/count_words.py captions
"""

import argparse
from collections import Counter

from energon_stream import LocalEngine, RayEngine, map_shards


def words(shard):
    """Words of one shard's captions, with their number."""
    found = Counter()
    for sample in shard.samples():
        found.update(bytes(sample.get("txt", b"")).decode().split())
    return found


def main():
    """Print the most frequent words."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--address", help="address of the cluster; local processes without it")
    options = parser.parse_args()
    engine = RayEngine(options.address) if options.address else LocalEngine()
    total = Counter()
    for found in map_shards(options.dataset, words, engine=engine):
        total.update(found)
    for word, count in total.most_common(10):
        print(f"{count:10,} {word}")


if __name__ == "__main__":
    main()
