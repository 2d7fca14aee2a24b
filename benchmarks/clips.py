"""Clips of 2 seconds out of a large mp4 on the S3 stand-in, by range and by whole downloads.

    python benchmarks/clips.py --megabytes 1000 --clips 1000

The video is a short one of noise, whose packets are muxed again and again until the file has the size.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import time
from pathlib import Path

import av

from energon_stream import DecodeFileStore, SampleDecoder, SystemFileStore
from energon_stream.media.av import AVDecoder
from energon_stream.testing.media_files import VideoFile
from energon_stream.testing.s3server import S3Server

FPS, GROUP = 25, 50


def write_large(path: Path, megabytes: int, seed: Path) -> None:
    """Mux the packets of a short video until the file has a size."""
    VideoFile(frames=500, size=(960, 540), group=GROUP, b_frames=0, noise=48).write(seed)
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


def group_bytes(path: Path, begin: float, end: float) -> int:
    """Bytes of the groups of pictures that a clip touches."""
    with av.open(str(path)) as container:
        entries = container.streams.video[0].index_entries
        first = int(begin * FPS) // GROUP * GROUP
        last = min((int(end * FPS) // GROUP + 1) * GROUP, len(entries)) - 1
        return entries[last].pos + entries[last].size - entries[first].pos


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--latency", type=float, default=0.05)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ENERGON_STREAM_CACHE_DIR"] = f"{folder}/node"
        root = Path(folder, "s3", "data")
        root.mkdir(parents=True)
        write_large(root / "large.mp4", options.megabytes, Path(folder, "seed.mp4"))
        local = SystemFileStore(str(root)).open("large.mp4")[0]
        local = AVDecoder(local)
        seconds = local.get_video_duration()[0] or 0.0
        print(f"{(root / 'large.mp4').stat().st_size / 1e6:.0f} MB, {seconds:.0f} s")
        with S3Server(root.parent, own_process=True) as server:
            server.shape(first_byte_latency=options.latency)
            store = DecodeFileStore(
                SystemFileStore("s3://data", storage_options=server.storage_options), SampleDecoder()
            )
            random.seed(0)
            for number in range(options.clips):
                begin = random.uniform(0, seconds - 3)
                server.reset_counters()
                start = time.perf_counter()
                clips, _ = store.get("large.mp4").get_video_clips([(begin, begin + 2)])
                spent = time.perf_counter() - start
                if number < 6 or number % 100 == 99:
                    log = server.log()
                    total, need = sum(e.bytes for e in log), group_bytes(root / "large.mp4", begin, begin + 2)
                    same = bool((local.get_video_clips([(begin, begin + 2)])[0][0] == clips[0]).all())
                    memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
                    print(
                        f"clip {number}: {spent:.3f} s, {len(log)} requests, {total / 1e6:.2f} MB, "
                        f"{total / need:.2f} of its groups, equal {same}, {memory >> 20} MiB"
                    )
            start = time.perf_counter()
            data = SystemFileStore("s3://data", storage_options=server.storage_options).get("large.mp4")
            fetched = time.perf_counter() - start
            SampleDecoder().decode("mp4", data).get_video_clips([(5, 7)])
            print(f"whole download: {fetched:.2f} s, with a clip {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
