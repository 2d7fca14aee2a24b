"""Paths beside Megatron-Energon 7.4.1: the same expressions have the same results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("ENERGON_STREAM_INTEROP_PYTHON", ROOT / ".venv-energon" / "bin" / "python"))

EXPRESSIONS = [
    "EPath('/a/b').url",
    "repr(EPath('/a/b'))",
    "EPath('/a/../b')",
    "EPath('/a/b') / '../c'",
    "EPath('/a/b') / '/c'",
    "EPath('/').parent",
    "EPath('/a.b/c').with_suffix('.x')",
    "EPath('/a/b.tar').with_suffix('.tar.idx')",
    "EPath('/a/b').internal_path",
    "EPath('/a/b').profile",
    "EPath('/a/b').display_name",
    "EPath('msc://__filesystem__/a/../b')",
    "EPath('dss://cap@v1/x')",
    "EPath('dss://cap@v1/x').internal_path",
    "EPath('dss://cap@v1/x').display_name",
    "EPath('dss://cap@v1/x').profile",
    "EPath('dss://cap@v1/x').is_local()",
    "EPath('dss://cap@v1/x').parent",
    "EPath('dss://cap@v1/x') / '../y'",
    "EPath('dss://cap@v1/x/z').relative_to(EPath('dss://cap@v1'))",
    "EPath('dss://a.b_c-d@1.2.3/x/y.tar').local_path()",
    "EPath('dss://cap@v1/x') == EPath('dss://cap@v1') / 'x'",
    "EPath(folder).is_dir(), EPath(folder).is_file()",
    "EPath(folder + '/s1.tar').stat().content_length",
    "EPath(folder + '/s1.tar').stat().last_modified",
    "EPath(folder + '/s1.tar').stat().key",
    "EPath(folder).stat().type",
    "names(EPath(folder).walk())",
    *(
        f"names(EPath(folder).glob({pattern!r}))"
        for pattern in (
            "s[0-2].tar",
            "s[!0-2].tar",
            "s[03].tar",
            "*",
            "*.tar",
            "**/*.tar",
            "su*/*",
            "s{0,1}.tar",
        )
    ),
]
PROGRAM = """
import json, sys
from megatron.energon.epathlib import EPath
folder, expressions = json.load(sys.stdin)
names = lambda paths: sorted(path.relative_to(EPath(folder)) for path in paths)
print("RESULT" + json.dumps([str(eval(expression)) for expression in expressions]))
"""
ALIAS = "from energon_stream.integrations.megatron import install_alias; install_alias()"


def results(python, program, folder):
    environment = {**os.environ, "NVDATASET_CACHE_DIR": "/datasets", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", program],
        input=json.dumps([str(folder), EXPRESSIONS]),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(EXPRESSIONS, json.loads(done.stdout.rpartition("RESULT")[2]), strict=True))


@pytest.mark.energon("EPath", "dss://name@version/path")
@pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon")
def test_paths_are_those_of_megatron_energon(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("s0.tar", "s1.tar", "s3.tar", "sub/s9.tar", ".hidden.tar"):
        (tmp_path / name).write_text(name)
    here = results(sys.executable, ALIAS + PROGRAM, tmp_path)
    assert here == results(PYTHON, PROGRAM, tmp_path)
