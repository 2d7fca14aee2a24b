"""The first 50 pictures of `browse`: requests at the store, and seconds, on a dataset of 100,000 shards.

    python benchmarks/browse_speed.py [--shards 100000] [--samples 10] [--latency 0.05] [--repeat 5]

The metadata is what `prepare` would write for all shards, without `index.sqlite`: sizes are not known ahead.
The first 50 shards are links to one tar. The page reads no others, so these do not exist. The store is the
counting stand-in in a process of its own. Each round is a new process, whose clock begins when everything
is imported. It opens the dataset, asks for the page as a browser does, by six connections, and ends with the
last byte of the last picture. With `--listed`, split.yaml names each shard.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from datasets import linked_dataset
from PIL import Image

from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.testing.s3server import S3Control, S3Server
from energon_stream.tools.browse import serving

CONNECTIONS = 6  # of a browser to one host
SIDE = 512  # pixels of an image


def parts(number):
    """A picture of about 50 kB, and its caption."""
    buffer = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((SIDE, SIDE)).save(buffer, "JPEG", quality=90)
    return {"jpg": buffer.getvalue(), "txt": f"caption {number}".encode()}


def measure(url: str, endpoint: str) -> dict[str, float]:
    """In this process: open the dataset, and get the page with 50 pictures."""
    import obstore  # noqa: F401
    import starlette.applications  # noqa: F401
    import uvicorn.protocols.http.h11_impl  # noqa: F401
    from uvicorn import Server  # noqa: F401

    begin, cpu = time.perf_counter(), time.process_time()
    with serving(url, storage_options=S3Control(endpoint).storage_options) as served:
        opened = time.perf_counter()

        def get(path: str, connection: http.client.HTTPConnection) -> bytes:
            connection.request("GET", f"/{served.token}/{path}")
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            return body

        first = http.client.HTTPConnection("127.0.0.1", served.port)
        for path in ("", "browse.js", "browse.css", "api/catalog"):
            get(path, first)
        found = json.loads(get("api/samples", first))["samples"]
        listed = time.perf_counter()
        wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        for sample in found:
            wanted.put(f"picture?source={sample['source']}&number={sample['number']}&part=0&side=256")
        sizes = []

        def fetch() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", served.port)
            while True:
                try:
                    path = wanted.get_nowait()
                except queue.Empty:
                    return
                sizes.append(len(get(path, connection)))

        threads = [threading.Thread(target=fetch) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = time.perf_counter()
        assert len(sizes) == 50
        return {
            "open": opened - begin,
            "page": listed - opened,
            "pictures": done - listed,
            "all": done - begin,
            "CPU seconds of all": time.process_time() - cpu,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=10, help="of a shard")
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--listed", action="store_true", help="split.yaml names each shard, without braces")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="browse-speed-") as tmp:
        root = Path(tmp) / "root"
        one = root / "bucket" / "one"
        write_shards(one, shards=1, samples_per_shard=options.samples, parts=parts)
        prepare_dataset(str(one), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
        linked_dataset(
            one, root / "bucket" / "data", options.shards, options.samples, listed=options.listed, links=50
        )
        with S3Server(root, own_process=True, first_byte_latency=options.latency) as server:
            rounds, requests = [], []
            for _ in range(options.repeat):
                server.reset_counters()
                command = [sys.executable, __file__, "--measure", "s3://bucket/data", server.endpoint_url]
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                rounds.append(json.loads(answer))
                requests.append(server.counters().total)
    print(
        f"{options.shards:,} shards of {options.samples} samples, {options.latency * 1000:.0f} ms, {options.repeat} rounds"
    )
    print("| | median s | least | most |\n|---|--:|--:|--:|")
    for name in rounds[0]:
        found = [each[name] for each in rounds]
        print(f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |")
    print(f"requests at the store: {min(requests)} to {max(requests)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(*sys.argv[2:4])))
    else:
        main()
