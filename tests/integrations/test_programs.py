"""Programs that are written for Megatron-Energon, and know nothing of this library: the pages' quickstart and
tutorial.
"""

import os
from pathlib import Path

import children
import pytest
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICKSTART, TUTORIAL = EXAMPLES / "megatron_quickstart.py", EXAMPLES / "megatron_tutorial.py"
RUN = ("-m", "energon_stream.run_megatron")


@pytest.fixture(params=["local", "s3"])
def place(request):
    """Where the data lies: a function that brings a folder there, and the environment of the programs."""
    if request.param == "local":
        return str, {}
    server = request.getfixturevalue("s3_server")
    bucket = request.getfixturevalue("tmp_bucket")

    def upload(folder):
        server.upload_folder(folder, f"{bucket}/lake")
        return f"{bucket}/lake"

    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return upload, {**keys, "AWS_ENDPOINT_URL": server.endpoint_url}


@pytest.mark.parametrize("program", [QUICKSTART, TUTORIAL])
def test_they_do_not_name_this_library(program):
    code = program.read_text().rpartition('"""')[2]
    assert "from megatron.energon import" in code
    assert "energon_stream" not in code


@pytest.mark.every(2)
def test_the_quickstart(run, data, place):
    bring, environment = place
    printed = run(*RUN, QUICKSTART, bring(data), **environment)
    assert printed.startswith("CaptioningSample(__key__='0")
    assert "\nbatch of two: 2 (2, 3, 12, 16) 2\n" in printed
    assert printed.count("\nblend: 0") == 3
    assert printed.count("\nbefore: 0") == 10
    assert printed.endswith("restored as without restoring: True True\n")


@pytest.fixture
def pictures(tmp_path):
    """Pictures with captions of several lengths, one of them empty."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(40):
        Image.new("RGB", (16 + number % 3, 16), (number * 6, 80, 160)).save(folder / f"{number:06d}.png")
        text = "" if number == 7 else f"picture {number}" + " and more" * (number % 3)
        (folder / f"{number:06d}.txt").write_text(text)
    return folder


@pytest.mark.every(2)
def test_the_tutorial(run, pictures, place, tmp_path):
    bring, environment = place
    run(*RUN, TUTORIAL, "tars", pictures, tmp_path / "tars")
    tars = bring(tmp_path / "tars")
    command = "from energon_stream.cli.main import main; main()"
    answers = "10,0,0\n0\npng\ntxt\n"
    children.run("-c", command, "prepare", tars, input=answers, env={**os.environ, **environment}, check=True)
    saved = run(*RUN, TUTORIAL, "save", tars, tmp_path, **environment)
    restored = run(*RUN, TUTORIAL, "restore", tars, tmp_path, **environment)
    before, _, after = saved.partition("saved\n")
    assert (before.count("batch:"), after.count("batch:")) == (3, 5)
    assert " | " in before
    assert restored == after
    assert (tmp_path / "dataloader_state_rank0.pth").exists()


PYTHON = Path(__file__).resolve().parents[2] / ".venv-energon" / "bin" / "python"


@pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-energon (make interop)")
def test_megatron_energon_runs_the_quickstart_too(run, data):
    """So that it is known to be such a program."""
    run.python = str(PYTHON)
    assert "restored as without restoring: True True" in run(QUICKSTART, data)
