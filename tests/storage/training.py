"""A script that trains from places listed on standard input (JSON), and prints digests of the batches.

It runs in a new process, because workers must be forked from one that has used no store.
"""

import hashlib
import json
import sys

import fsspec

from energon_stream import ReadOptions, WorkerConfig, get_savable_loader, get_train_dataset

BATCHES = 15  # more than one pass
STOP = 6


def open_loader(place):
    dataset = get_train_dataset(
        place["url"],
        storage_options=place.get("options"),
        transport=place.get("transport", "auto"),
        batch_size=3,
        shuffle_buffer_size=10,
        max_samples_per_sequence=5,
        read_options=ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
        worker_config=WorkerConfig(0, 1, place["workers"]),
    )
    return get_savable_loader(dataset)


def take(loader, count):
    """Return digests of batches, across the ends of passes."""
    found = []
    while len(found) < count:
        for batch in loader:
            seen = hashlib.sha1("\0".join([*batch.__key__, *batch.caption]).encode())
            seen.update(batch.image.numpy().tobytes())
            found.append(seen.hexdigest())
            if len(found) == count:
                break
    return found


def train(place):
    """Return the digests of one run, and of one that is stopped and restored."""
    whole = take(open_loader(place), BATCHES)
    loader = open_loader(place)
    begun = take(loader, STOP)
    state = loader.save_state_rank()
    loader = open_loader(place)
    loader.restore_state_rank(state)
    return whole, begun + take(loader, BATCHES - STOP)


def import_file_systems(places):
    """Import once, and not in each of the many children."""
    for place in places:
        if place.get("transport") != "obstore":
            for part in place["url"].split("::"):
                fsspec.get_filesystem_class(part.partition("://")[0])


if __name__ == "__main__":
    places = json.load(sys.stdin)
    import_file_systems(places)
    json.dump([train(place) for place in places], sys.stdout)
