"""The main job with ``kill -9`` in the middle, and what importing costs."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def processes_with(mark):
    """Living processes whose environment holds a mark that nobody else has."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_the_demo_resumes_exactly_and_leaves_nothing_behind(tmp_path):
    mark, scratch = uuid.uuid4().hex, tmp_path / "scratch"
    scratch.mkdir()
    own = {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"), "TEST_MARK": mark}
    env = os.environ | own
    done = subprocess.run([sys.executable, str(DEMO)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("killed with SIGKILL", "resumed in a new process", "EQUAL", "samples/s", "requests", "MB"):
        assert word in done.stdout
    assert list(scratch.iterdir()) == []
    if Path("/proc").is_dir():
        assert processes_with(mark) == []


@pytest.mark.parametrize("arguments", ["--version", "--help"])
def test_importing_and_the_command_line_do_without_torch(arguments):
    script = f"""
import sys
import energon_stream
assert not {{"torch", "numpy", "fsspec"}} & set(sys.modules), "import energon_stream"
from energon_stream.cli.main import main
main([{arguments!r}], standalone_mode=False)
assert not {{"torch", "s3fs", "obstore"}} & set(sys.modules), "energon-stream {arguments}"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "energon-stream" in done.stdout or "prepare" in done.stdout
