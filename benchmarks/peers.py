"""The peers that have interpreters of their own: which are there, and their datasets in their own formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from datasets import BUCKET

HERE = Path(__file__).parent
PACKAGES = {
    "energon": "megatron-energon",
    "mosaicml": "mosaicml-streaming",
    "litdata": "litdata",
    "s3torch": "s3torchconnector",
}
ENERGON = "energon"
OWN_FORMAT = ("mosaicml", "litdata")
SLOW = frozenset(PACKAGES)  # remote they run once, not once a round
PROBE = """\
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def find() -> tuple[dict[str, str], dict[str, str]]:
    """Interpreters of the peers that are installed, by candidate, and the version of each package.

    Looked for in ``.venv-energon`` (or the interpreter named by ENERGON_STREAM_PEER_PYTHON) and
    ``.venv-peers``.
    """
    root = HERE.parent
    energon = os.environ.get("ENERGON_STREAM_PEER_PYTHON", str(root / ".venv-energon" / "bin" / "python"))
    others = str(root / ".venv-peers" / "bin" / "python")
    pythons, versions = {}, {}
    for python, names in ((energon, [ENERGON]), (others, [n for n in PACKAGES if n != ENERGON])):
        if shutil.which(python) is None:
            continue
        command = [python, "-c", PROBE, *(PACKAGES[name] for name in names)]
        found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        versions |= found
        pythons |= {name: python for name in names if PACKAGES[name] in found}
    return pythons, versions


def folder(candidate: str, dataset: str) -> str:
    """Name of a dataset's folder in the form that a candidate reads."""
    return f"{dataset}-{candidate}" if candidate in OWN_FORMAT else dataset


def write(root: Path, pythons: dict[str, str], names: list[str]) -> list[str]:
    """Write datasets in the peers' own formats, beside the tars; returns what went wrong."""
    failed = []
    for candidate in (c for c in OWN_FORMAT if c in pythons):
        for name in names:
            bucket = root / BUCKET
            out = str(bucket / folder(candidate, name))
            command = [
                pythons[candidate],
                str(HERE / "prepare_peers.py"),
                candidate,
                str(bucket / name),
                out,
            ]
            with tempfile.TemporaryDirectory(dir=root) as left_behind:
                env = os.environ | {"TMPDIR": left_behind}
                done = subprocess.run(command, capture_output=True, check=False, text=True, env=env)
            if done.returncode:
                sys.stderr.write(done.stderr[-2000:])
                failed.append(f"{candidate}: {name} could not be written in its format")
    return failed
