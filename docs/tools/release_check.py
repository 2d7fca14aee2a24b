"""Checks the archives of a release, and runs the demo from the wheel: ``make release-check``.

python docs/tools/release_check.py dist --tag v0.2.0
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = """
import importlib, pkgutil, energon_stream
assert "site-packages" in energon_stream.__file__, energon_stream.__file__
for name in energon_stream.__all__:
    getattr(energon_stream, name)
from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.testing.datasets import prepared_captioning_dataset
from energon_stream.testing.s3server import S3Server
prepared_captioning_dataset("data/captions", shards=2, samples_per_shard=20, size=(8, 8))
config = WorkerConfig(rank=0, world_size=1, num_workers=2)
options = {"batch_size": 4, "shuffle_buffer_size": 10, "max_samples_per_sequence": 10, "worker_config": config}
def loader():
    return get_savable_loader(get_train_dataset("s3://data/captions", storage_options=server.storage_options, **options))
if __name__ == "__main__":
    with S3Server(".") as server:
        first = loader()
        batches = iter(first)
        for _ in range(3):
            next(batches)
        state = first.save_state_rank()
        expected = [next(batches).__key__ for _ in range(3)]
        again = loader()
        again.restore_state_rank(state)
        resumed = iter(again)
        assert [next(resumed).__key__ for _ in range(3)] == expected
    print("smoke test: batches from S3, and the same after a resume")
"""


MEGATRON = """
import importlib.metadata, subprocess, sys
from megatron.energon import WorkerConfig, get_train_dataset
from megatron.energon.task_encoder.base import DefaultTaskEncoder
assert importlib.metadata.version("megatron-energon") == "7.4.1"
subprocess.run([sys.executable, "-c", "import megatron.energon.epathlib"], check=True)
"""


def check_archives(dist: Path, tag: str | None) -> Path:
    """Check that the archives are complete and agree; returns the wheel."""
    (wheel,), (sdist,) = dist.glob("energon_stream-*.whl"), dist.glob("*.tar.gz")
    (megatron,) = dist.glob("energon_stream_megatron-*.whl")
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "energon_stream/__init__.py").read_text(), re.M)[1]
    assert f"-{version}-" in wheel.name, (wheel.name, version)
    assert f"-{version}.tar" in sdist.name, (sdist.name, version)
    assert tag in (None, f"v{version}"), f"the tag is {tag}, the version {version}"
    assert f"## [{version}] - 2" in (ROOT / "CHANGELOG.md").read_text(), (
        f"CHANGELOG.md has no section {version}"
    )
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        tracked = subprocess.run(
            ["git", "ls-files", "energon_stream"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        missing = sorted(set(tracked.stdout.split()) - names)
        assert not missing, f"the wheel lacks {missing[:3]}"
        (metadata,) = (
            name for name in names if name.count("/") == 1 and name.endswith(".dist-info/METADATA")
        )
        about = message_from_bytes(archive.read(metadata))
    assert about["Version"] == version
    assert f"-{version}-" in megatron.name, (megatron.name, version)
    address = about["Project-URL"].partition(", ")[2]
    assert tag is None or not address.endswith(".invalid"), (
        "pyproject.toml has no public address of the project: write it there, wherever .invalid stands, before a release"
    )
    for picture, link in re.findall(r"(!?)\[[^]]*\]\((?!#)([^)]*)\)", str(about.get_payload())):
        inside = link.startswith(f"{address}/{'raw' if picture else 'blob'}/v{version}/")
        assert inside or (link.startswith("https://") and "energon-stream" not in link), (
            f"a link of the README leads nowhere on an index's page: {link}"
        )
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "energon_stream/__init__.py"} <= inside
    surplus = {name.partition("/")[0] for name in inside} & {"tests", "docs", "benchmarks"}
    assert not surplus, f"the sdist has {surplus}, which build no wheel"
    print(f"{wheel.name} and {sdist.name}: {len(names)} and {len(inside)} files")
    return wheel


def run_from(wheel: Path) -> None:
    """Run the smoke test and the demo from the wheel, in an empty environment, outside of the checkout."""
    with tempfile.TemporaryDirectory(prefix="energon-release-") as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "-c", ROOT / "constraints.txt", "torch"], check=True)
        subprocess.run([*install, "-c", ROOT / "constraints.txt", wheel], check=True)
        subprocess.run(
            [*install, "--no-deps", *wheel.parent.glob("energon_stream_megatron-*.whl")], check=True
        )
        (Path(folder) / "smoke.py").write_text(SMOKE)
        for name in ("demo.py", "train_captioning.py"):
            shutil.copy(ROOT / "examples" / name, folder)
        for command in (
            [python, "smoke.py"],
            [environment / "bin" / "energon-stream", "--version"],
            [python, "-m", "energon_stream", "info", "data/captions"],
            [python, "-c", MEGATRON],
            [python, "demo.py"],
        ):
            subprocess.run(command, check=True, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--tag", help="the tag of the release")
    options = parser.parse_args()
    run_from(check_archives(options.dist.resolve(), options.tag).resolve())
    print("The release can be published.")


if __name__ == "__main__":
    sys.exit(main())
