"""The main job, end to end: prepare a dataset on S3, stream it, train, kill -9, resume, compare.

Without arguments an embedded S3 server is started on loopback. With ``--endpoint-url`` (LocalStack, say)
or ``--bucket`` alone (a real bucket, credentials from the environment) the same runs there:

    python examples/demo.py
    python examples/demo.py --endpoint-url http://127.0.0.1:4566 --bucket demo
    python examples/demo.py --bucket my-bucket --prefix energon-demo

Exits with 0 only if the resumed run saw exactly the batches, and had exactly the losses, of a run that was
never interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from energon_stream import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import captioning_dataset
from energon_stream.testing.s3server import S3Server

TRAIN = Path(__file__).with_name("train_captioning.py")
STEPS, KILL_AFTER, SAVE_EVERY = 60, 37, 10


def train(
    folder: Path, data: str, env: dict[str, str], name: str, *, kill_after: int | None = None
) -> list[str]:
    """Run the training script; returns its log lines."""
    log = folder / f"{name}.log"
    checkpoint = folder / f"{name}.pth"
    command = [sys.executable, str(TRAIN), "--data", data, "--log", str(log), "--checkpoint", str(checkpoint)]
    command += ["--steps", str(STEPS), "--save-every", str(SAVE_EVERY)]
    process = subprocess.Popen(command, env=env)
    if kill_after is None:
        if process.wait() != 0:
            raise SystemExit(f"training '{name}' failed with status {process.returncode}")
    else:
        while process.poll() is None and lines(log) < kill_after:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise SystemExit(f"training '{name}' ended before it was killed")
        print(f"killed with SIGKILL after step {lines(log)}")
    return log.read_text().splitlines()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--endpoint-url", help="S3 endpoint; default: an embedded server, or AWS if --bucket is given"
    )
    parser.add_argument(
        "--bucket", help="an existing bucket (created on an endpoint that lets anybody create it)"
    )
    parser.add_argument("--prefix", default="captions")
    parser.add_argument("--samples", type=int, default=600)
    args = parser.parse_args()

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="energon-stream-demo-")))
        env = dict(os.environ)
        server = None
        if args.endpoint_url is None and args.bucket is None:
            server = stack.enter_context(S3Server())
            args.endpoint_url = server.endpoint_url
        if args.endpoint_url is not None:
            env["AWS_ENDPOINT_URL"] = args.endpoint_url
            env.setdefault("AWS_ACCESS_KEY_ID", "test")
            env.setdefault("AWS_SECRET_ACCESS_KEY", "test")
            env.setdefault("AWS_REGION", "us-east-1")
            os.environ.update(env)
        bucket = args.bucket or "demo"
        if args.endpoint_url is not None:
            import s3fs

            s3 = s3fs.S3FileSystem(endpoint_url=args.endpoint_url)
            if not s3.exists(bucket):
                s3.call_s3("create_bucket", Bucket=bucket)

        data = f"s3://{bucket}/{args.prefix}"
        local = folder / "tars"
        captioning_dataset(local, shards=8, samples_per_shard=args.samples // 8)
        store = StoreSpec(data).open()
        for shard in sorted(local.glob("*.tar")):
            store.put_file(shard.name, str(shard))
        print(f"wrote {args.samples // 8 * 8} image-caption samples in 8 shards to {data}")

        report = prepare_dataset(
            data,
            split_ratio=(1, 0, 0),
            dataset_yaml={
                "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
                "field_map": {"image": "jpg", "caption": "txt"},
            },
        )
        print(f"prepared over S3: {sum(report.shard_counts.values())} samples indexed")

        if server is not None:
            server.reset_counters()
        whole = train(folder, data, env, "uninterrupted")
        if server is not None:
            counted = server.counters()
            print(f"  the server counted {counted.total} requests, {counted.bytes_sent / 1e6:.1f} MB in all")
        before = train(folder, data, env, "interrupted", kill_after=KILL_AFTER)
        after = train(folder, data, env, "interrupted")[len(before) :]

    first = int(after[0].split()[0])
    print(f"resumed in a new process at step {first}")
    if before != whole[: len(before)] or after != whole[first - 1 :] or not before:
        print("DIFFERENT: the resumed run did not see the batches of the uninterrupted one")
        return 1
    print(
        f"EQUAL: steps {first} to {STEPS} after the kill have the batches (keys, pixels, captions) and the losses"
        " of the uninterrupted run, bit for bit"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
