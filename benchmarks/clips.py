"""Clips of 2 seconds out of a mp4 of 1 GB on S3, alone and inside a tar, counted at the server.

    python benchmarks/clips.py FOLDER make                 # once: the file, the tar, and their indices
    python benchmarks/clips.py FOLDER single               # one clip at a time, and if the frames are equal
    python benchmarks/clips.py FOLDER batch                # 64 clips a batch, beside raw range GETs
    python benchmarks/clips.py FOLDER memory               # 1,000 clips in this process, and in a worker
    python benchmarks/clips.py FOLDER whole --energon PY   # whole downloads: here, and 7.4.1 in another venv

The video is one of noise (640 x 360, 25 frames a second, a key frame a second), whose packets are muxed again
and again until the file has the size. The server is that of the other benchmarks, at 50 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import av
import obstore
import torch
from nginx_s3 import PROFILES, Server, serve
from obstore.store import S3Store

from energon_stream import (
    Cooker,
    DecodeFileStore,
    DefaultTaskEncoder,
    SampleDecoder,
    SystemFileStore,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.media.av import AVDecoder, Clips, fetch_clips
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.testing.media_files import VideoFile

if TYPE_CHECKING:
    from energon_stream.media.file_store import FileStore

FPS = GROUP = 25
SECONDS = 2.0
IN_FLIGHT = 48  # as many as the library has for clips
MOMENTS = (100, 500, 1000)
PROFILE = PROFILES["H50"]
MIX = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train: {path: clips, aux: {videos: filesystem://files}}
"""


def make(folder: Path, megabytes: int) -> None:
    """Write the file, a tar with it, a crude dataset that names 1,000 clips, and the indices."""
    data = folder / "s3" / "data"
    for name in ("files", "tars"):
        (data / name).mkdir(parents=True)
    write_large(data / "files" / "large.mp4", megabytes, folder / "seed.mp4")
    video = (data / "files" / "large.mp4").read_bytes()
    write_shards(data / "tars", shards=1, samples_per_shard=1, parts=lambda _: {"mp4": video}, key="{:04d}")
    rng = random.Random(0)
    last = length(folder) - SECONDS - 1
    lines = [json.dumps({"at": rng.uniform(0, last)}).encode() for _ in range(1024)]
    write_shards(
        data / "clips", shards=4, samples_per_shard=256, parts=lambda n: {"json": lines[n]}, key="{:06d}"
    )
    for name in ("tars", "clips"):
        prepare_dataset(str(data / name), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    for name in ("tars", "files"):
        prepare_media(str(data / name), MediaFilter("EXTENSION"))
    (data / "mix.yaml").write_text(MIX)


def write_large(path: Path, megabytes: int, seed: Path) -> None:
    """Mux the packets of a short video until the file has a size."""
    VideoFile(frames=250, size=(640, 360), group=GROUP, b_frames=0, noise=64).write(seed)
    with av.open(str(seed)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        step = packets[1].pts - packets[0].pts
        size = sum(packet.size for packet in packets)
        for number in range(len(packets) * max(1, megabytes * 1_000_000 // size)):
            packet = av.Packet(bytes(packets[number % len(packets)]))
            packet.pts = packet.dts = number * step
            packet.time_base = source.streams.video[0].time_base
            packet.is_keyframe = packets[number % len(packets)].is_keyframe
            packet.stream = stream
            target.mux(packet)


def large(folder: Path) -> Path:
    return folder / "s3" / "data" / "files" / "large.mp4"


def length(folder: Path) -> float:
    with large(folder).open("rb") as file:
        return AVDecoder(file).get_video_duration()[0] or 0.0


def groups(folder: Path) -> list[tuple[int, int]]:
    """First byte, and the byte after the last one, of each group of pictures."""
    with av.open(str(large(folder))) as container:
        entries = container.streams.video[0].index_entries
        found = []
        for first in range(0, len(entries), GROUP):
            last = entries[min(first + GROUP, len(entries)) - 1]
            found.append((entries[first].pos, last.pos + last.size))
        return found


def group_bytes(found: list[tuple[int, int]], begin: float) -> int:
    """Bytes of the groups of pictures that a clip touches."""
    return found[int(begin + SECONDS)][1] - found[int(begin)][0]


@contextmanager
def served(folder: Path) -> Iterator[tuple[Server, dict[str, object]]]:
    with serve(folder / "s3") as server:
        options = {
            "endpoint_url": server.endpoints[PROFILE.name],
            "key": "key",
            "secret": "secret",
            "client_kwargs": {"region_name": "us-east-1"},
        }
        print(f"{server.kind}, {PROFILE.latency * 1000:.0f} ms, {large(folder).stat().st_size / 1e6:.0f} MB")
        yield server, options


def stores(options: dict[str, object]) -> dict[str, tuple[FileStore, str]]:
    files = SystemFileStore("s3://data/files", storage_options=options)
    tars = WebdatasetFileStore(StoreSpec("s3://data/tars", options))
    return {
        "alone": (DecodeFileStore(files, SampleDecoder()), "large.mp4"),
        "in a tar": (DecodeFileStore(tars, SampleDecoder()), "0000.mp4"),
    }


def media_gets(server: Server) -> list[int]:
    """Bytes of each GET of media since the last call."""
    time.sleep(0.1)  # the server writes its log when an answer has ended
    return [r.nbytes for r in server.take() if r.method == "GET" and r.path.endswith((".mp4", ".tar"))]


def single(folder: Path, clips: int) -> None:
    """One clip at a time."""
    last, found = length(folder) - SECONDS - 1, groups(folder)
    rng = random.Random(1)
    begins = [rng.uniform(0, last) for _ in range(clips)]
    with served(folder) as (server, options):
        frames: dict[float, torch.Tensor] = {}
        for name, (store, key) in stores(options).items():
            rows = []
            for begin in begins:
                server.take()
                start = time.perf_counter()
                (clip,), _ = store.get(key).get_video_clips([(begin, begin + SECONDS)])
                spent = time.perf_counter() - start
                assert torch.equal(clip, frames.setdefault(begin, clip))
                gets = media_gets(server)
                rows.append((spent, len(gets), sum(gets), sum(gets) / group_bytes(found, begin)))
            print(f"{name}, from a fresh node: {rows[0][1]} GETs, {rows[0][0]:.3f} s")
            spent, gets, nbytes, share = zip(*rows[1:], strict=True)
            print(
                f"{name}, then {len(rows) - 1} clips: at most {max(gets)} GETs, {max(nbytes) / 1e6:.2f} MB, "
                f"{max(share):.2f} of its groups, {max(spent):.3f} s; median {sorted(spent)[len(spent) // 2]:.3f} s"
            )
    local = AVDecoder(large(folder).open("rb"))
    start = time.perf_counter()
    local.get_video_clips([(begins[0], begins[0] + SECONDS)])
    print(f"decoding a clip of the local file: {time.perf_counter() - start:.3f} s")
    print(f"equal to the whole file, decoded from begin to end: {equal_to_whole(folder, frames)}")


def equal_to_whole(folder: Path, clips: dict[float, torch.Tensor]) -> bool:
    """Decode the whole file with PyAV, without seeking, and compare the frames of clips."""
    wanted = {int(begin * FPS) + n: (begin, n) for begin in clips for n in range(len(clips[begin]))}
    same, seen = True, 0
    with av.open(str(large(folder))) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                begin, place = wanted[number]
                expected = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
                same &= bool(torch.equal(clips[begin][place], expected))
                seen += 1
    return same and seen == len(wanted)


def batch(folder: Path, size: int, rounds: int) -> None:
    """Clips of a batch together, beside raw range GETs of the same bytes: as many connections, no library.

    Both sides have warm connections. The first round of each is left out.
    """
    last, rng = length(folder) - SECONDS - 1, random.Random(2)
    with served(folder) as (server, options), ThreadPoolExecutor(IN_FLIGHT) as pool:
        store, key = stores(options)["alone"]
        store.get(key).get_video_clips([(0, 0.1)])
        raw = S3Store(
            "data",
            endpoint=server.endpoints[PROFILE.name],
            access_key_id="key",
            secret_access_key="secret",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        rows: list[tuple[float, ...]] = []
        for number in range(rounds + 1):
            begins = sorted(rng.uniform(0, last) for _ in range(size))
            decoders = [store.get(key) for _ in begins]
            wanted = [Clips([(begin, begin + SECONDS)]) for begin in begins]
            server.take()
            start, used = time.perf_counter(), time.process_time()
            fetch_clips(list(zip(decoders, wanted, strict=True)))
            for decoder in decoders:
                decoder.stream.wait()
            spent, cpu = time.perf_counter() - start, time.process_time() - used
            gets = media_gets(server)
            requests = {
                (piece._bytes.start, piece._bytes.start + len(piece.body.data))
                for decoder in decoders
                for piece in decoder.stream._ahead
            }
            start, used = time.perf_counter(), time.process_time()
            answers = [
                pool.submit(obstore.get_range, raw, f"files/{key}", start=first, end=stop)
                for first, stop in sorted(requests)
            ]
            total = sum(len(answer.result()) for answer in answers)
            raw_spent, raw_cpu = time.perf_counter() - start, time.process_time() - used
            del answers
            start = time.perf_counter()
            for decoder, clips in zip(decoders, wanted, strict=True):
                decoder.get_video_clips(clips.video)
            decoding = time.perf_counter() - start
            distinct = sum(stop - first for first, stop in requests)
            assert total == distinct
            row = (len(gets), sum(gets) / 1e6, spent, cpu, raw_spent, raw_cpu, raw_spent / spent, decoding)
            if number:
                rows.append(row)
                print(
                    f"{row[0]} GETs, {row[1]:.0f} MB in {spent:.2f} s ({cpu:.2f} CPU-s); raw {len(requests)} GETs, "
                    f"{total / 1e6:.0f} MB in {raw_spent:.2f} s ({raw_cpu:.2f} CPU-s); share {row[6]:.2f}; "
                    f"decoding {decoding:.1f} s",
                    flush=True,
                )
        count, megabytes, spent, cpu, raw_spent, raw_cpu, share, decoding = map(
            statistics.median, zip(*rows, strict=True)
        )
        print(
            f"medians of {rounds}: {size} clips in {count:.0f} GETs, {megabytes:.0f} MB, {megabytes / spent:.0f} MB/s; "
            f"raw {megabytes / raw_spent:.0f} MB/s; share {share:.2f}; CPU-s {cpu:.2f}, raw {raw_cpu:.2f}; "
            f"decoding {decoding:.1f} s"
        )


def cook(crude, videos):
    at = crude["json"]["at"]
    (clip,), _ = videos.get("large.mp4", crude).get_video_clips([(at, at + 0.2)])
    return {**basic_sample_keys(crude), "clip": clip.float().mean(), "memory": memory()}


cook = cooker(
    parts=["json"],
    clips=lambda crude: {"videos": {"large.mp4": Clips([(crude["json"]["at"], crude["json"]["at"] + 0.2)])}},
)(cook)


class Task(DefaultTaskEncoder):
    cookers = [Cooker(cook)]


def flat(folder: Path, count: int) -> None:
    """Memory after 100 and after all clips."""
    rng, last = random.Random(3), length(folder) - SECONDS - 1
    with served(folder) as (_, options):
        store, key = stores(options)["alone"]
        seen = {}
        for number in range(count):
            begin = rng.uniform(0, last)
            store.get(key).get_video_clips([(begin, begin + 0.2)])
            seen[number + 1] = memory()
        print(f"one process: {_memory_text(seen, count)}", flush=True)
        dataset = get_train_dataset(
            "s3://data/mix.yaml",
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=1),
            task_encoder=Task(),
            repeat=False,
            storage_options=options,
        )
        for number, found in enumerate(get_savable_loader(dataset)):
            seen[number + 1] = int(found["memory"][0])
            if number + 1 == count:
                break
        print(f"a worker, ahead: {_memory_text(seen, count)}")


def _memory_text(seen: dict[int, int], count: int) -> str:
    """MiB at some moments, and the most after the first of them."""
    moments = [*(number for number in MOMENTS if number < count), count]
    most = max(seen[number] for number in range(moments[0], count + 1))
    at = ", ".join(f"{seen[number]} MiB after {number}" for number in moments)
    return f"{at} clips; at most {most} from then on"


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


ENERGON = """
import io, sys, time
import boto3
from megatron.energon.av import AVDecoder
endpoint, begin = sys.argv[1], float(sys.argv[2])
client = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1")
start = time.perf_counter()
data = client.get_object(Bucket="data", Key="files/large.mp4")["Body"].read()
fetched = time.perf_counter() - start
clips, times = AVDecoder(io.BytesIO(data)).get_video_clips([(begin, begin + 2.0)])
print(f"7.4.1: whole download {fetched:.2f} s, with a clip {time.perf_counter() - start:.2f} s, {tuple(clips[0].shape)}")
"""
TORCHCODEC = """
import io, sys, time
import boto3
from torchcodec.decoders import VideoDecoder
endpoint, begin = sys.argv[1], float(sys.argv[2])
client = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1")
start = time.perf_counter()
data = client.get_object(Bucket="data", Key="files/large.mp4")["Body"].read()
VideoDecoder(data, num_ffmpeg_threads=1).get_frames_played_in_range(begin, begin + 2.0)
print(f"torchcodec: whole download with a clip {time.perf_counter() - start:.2f} s")
"""


def whole(folder: Path, python: str | None) -> None:
    """Whole downloads, from which a clip is decoded."""
    with served(folder) as (server, options):
        start = time.perf_counter()
        data = SystemFileStore("s3://data/files", storage_options=options).get("large.mp4")
        fetched = time.perf_counter() - start
        SampleDecoder().decode("mp4", data).get_video_clips([(100.3, 100.3 + SECONDS)])
        print(f"here: whole download {fetched:.2f} s, with a clip {time.perf_counter() - start:.2f} s")
        for code in (ENERGON, TORCHCODEC) if python else ():
            command = [python, "-c", code, server.endpoints[PROFILE.name], "100.3"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(done.stdout.strip() or f"failed: {done.stderr.strip().splitlines()[-1]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("row", choices=["make", "single", "batch", "memory", "whole"])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--clips", type=int)
    parser.add_argument("--rounds", type=int, default=5, help="of batches")
    parser.add_argument("--energon", help="Python of a virtual environment with Megatron-Energon 7.4.1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as node:
        os.environ["XDG_CACHE_HOME"] = node
        if options.row == "make":
            make(options.folder, options.megabytes)
        elif options.row == "single":
            single(options.folder, options.clips or 21)
        elif options.row == "batch":
            batch(options.folder, options.clips or 64, options.rounds)
        elif options.row == "memory":
            flat(options.folder, options.clips or 1000)
        else:
            whole(options.folder, options.energon)


if __name__ == "__main__":
    sys.exit(main())
