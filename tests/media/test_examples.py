"""The examples of video and audio run, and give the same data again."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["video_qa", "audio"])
def test_an_example_trains(name, tmp_path):
    main = runpy.run_path(str(EXAMPLES / name / "train.py"))["main"]
    first = main(tmp_path / "data")
    assert first > 0
    assert main(tmp_path / "data") == first
