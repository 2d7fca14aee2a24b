"""``preview --pictures``: half blocks, JSON and texts laid out, media; no control character of the data."""

import json
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from energon_stream.cli.main import main
from energon_stream.cli.pictures import draw_value, half_blocks
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, captioning_dataset, write_shards
from energon_stream.testing.media_files import VideoFile

COLOURS = re.compile(r"\x1b\[(38;2;\d+;\d+;\d+;48;2;\d+;\d+;\d+|0)m")
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"


def shown(folder, *options):
    result = CliRunner().invoke(main, ["preview", str(folder), *options], input="n\n", color=True)
    assert result.exit_code == 0, result.output
    return result.output


def prepared(folder):
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return folder


def test_two_pixels_share_a_character():
    pixels = np.zeros((3, 2, 3), np.uint8)
    pixels[0] = 255
    rows = list(half_blocks(pixels))
    assert rows[0] == "\x1b[38;2;255;255;255;48;2;0;0;0m▀" * 2 + "\x1b[0m"
    assert len(rows) == 2


@pytest.mark.parametrize(
    "image",
    [
        Image.new("L", (200, 100)),
        np.zeros((100, 200, 4), np.uint8),
        torch.rand(3, 100, 200),
        torch.full((3, 100, 200), float("nan")),
    ],
)
def test_images_of_all_forms_are_scaled(image):
    rows = list(draw_value(image, 48))
    assert len(rows) == 12
    assert {row.count("▀") for row in rows} == {48}


@pytest.mark.parametrize(
    "value",
    [b"123", 7, None, torch.zeros(5), torch.zeros(0, 3, 4), np.zeros((2, 2, 9)), "short", {}, {"a": b"1"}],
)
def test_other_values_are_not_drawn(value):
    assert list(draw_value(value)) == []


def test_preview_draws_on_request(tmp_path):
    captioning_dataset(tmp_path, shards=1, samples_per_shard=1, with_json=True)
    plain = shown(prepared(tmp_path))
    drawn = shown(tmp_path, "--pictures")
    assert "▀" not in plain
    assert drawn.count("▀") == 16 * 6
    assert '       "index": 0' not in drawn
    assert '     "index": 0,' in drawn


def test_no_control_character_of_the_data_is_printed(tmp_path):
    text = f"two\nlines {ESCAPE}"
    parts = {"txt": text.encode(), "json": json.dumps({f"a{ESCAPE}": [text]}).encode()}
    write_shards(tmp_path, shards=1, samples_per_shard=1, parts=lambda i: parts)
    found = shown(prepared(tmp_path), "--pictures")
    assert r"lines \x1b]0;owned\x07\x1b[2J\u202e" in found
    rest = COLOURS.sub("", found)
    assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", rest)


def test_media_say_length_and_codecs(tmp_path):
    pytest.importorskip("av")
    VideoFile(audio_codec="aac").write(tmp_path / "a.mp4")
    VideoFile(frames=0, audio_codec="pcm_s16le", audio_seconds=1.5).write(tmp_path / "a.wav")
    parts = {name: (tmp_path / f"a.{name}").read_bytes() for name in ("mp4", "wav")}
    write_shards(tmp_path / "data", shards=1, samples_per_shard=1, parts=lambda i: parts)
    found = shown(prepared(tmp_path / "data"), "--pictures")
    assert "2.00 s, video h264, audio aac" in found
    assert "1.50 s, audio pcm_s16le" in found
    assert found.count("▀") == 48 * 18
