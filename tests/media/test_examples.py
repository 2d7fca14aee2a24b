"""The examples of media run, learn, and go on exactly from their checkpoints."""

import runpy
import shutil
from pathlib import Path

import pytest
from repetitions import is_nightly

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["video_qa", "audio"])
def test_an_example_trains(name, example_data):
    main = runpy.run_path(str(EXAMPLES / name / "train.py"))["main"]
    first = main(example_data / name)
    assert first > 0
    assert main(example_data / name) == first


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["clip", "vlm"])
def test_an_example_learns_and_resumes_exactly(name, tmp_path):
    def train(folder, steps):
        return runpy.run_path(str(EXAMPLES / name / "train.py"))["main"](folder, steps)

    steps = 26 if is_nightly() else 17
    whole = train(tmp_path / "whole", steps)
    assert sum(whole[-5:]) < 0.7 * sum(whole[:5])
    shutil.copytree(tmp_path / "whole" / "data", tmp_path / "again" / "data")
    assert train(tmp_path / "again", 12) == whole[:12]
    assert train(tmp_path / "again", steps) == whole  # from the checkpoint of step 10
