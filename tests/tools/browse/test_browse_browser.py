"""The page in a headless browser: what it shows, and that nothing of a dataset runs."""

from __future__ import annotations

import contextlib
import html
import os
import re
import shutil
import signal
import subprocess
from urllib.parse import urlencode

import pytest
from browse_client import HACK, HOSTILE_KEYS, write_dataset

from energon_stream.testing.media_files import VideoFile
from energon_stream.tools.browse import serving
from energon_stream.tools.browse.training import Run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium")
SECONDS = 240


@pytest.fixture
def dom(tmp_path):
    """Return the text of the page when its scripts have run and its data has come."""

    def read(served, **state):
        url = f"{served.url}#{urlencode(state)}" if state else served.url
        command = [
            CHROMIUM,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={tmp_path}/profile",
        ]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        command += [
            "--autoplay-policy=no-user-gesture-required",
            "--virtual-time-budget=20000",
            "--dump-dom",
            url,
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        ) as browser:
            try:
                return browser.communicate(timeout=SECONDS)[0]
            finally:  # its children too
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(browser.pid, signal.SIGKILL)

    return read


def titles(text):
    return [html.unescape(found) for found in re.findall(r'<button class="card" title="([^"]*)"', text)]


def test_it_shows_samples_filters_steps_and_search(dom, captions):
    run = Run(num_workers=0, batch_size=4, options={"shuffle_buffer_size": None})
    with serving(str(captions), run=run) as served:
        text = dom(served, first=8)
        assert len(titles(text)) == 40
        assert "caption 8" in text
        assert "8–47 of 48" in text
        assert text.count("<img") == 40
        assert titles(dom(served, field="json.index", operator="equals", value="7")) == ["00000007"]
        assert "Step 1 of rank 0." in dom(served, step=1, batch_size=4)
        assert "00000041 · data-000005.tar" in dom(served, search="00000041")
        opened = dom(served, open="0.3", first=0)
        assert "<dialog" in opened
        assert "caption 3" in opened[opened.index("<dialog") :]


def test_nothing_of_a_dataset_runs(dom, hostile):
    with serving(str(hostile)) as served:
        for state in (
            {},
            {"open": "0.0"},
            {"open": "0.2"},
            {"search": "<"},
            {"field": "txt", "value": "<script>"},
        ):
            text = dom(served, **state)
            assert "<title>" in text
            assert "– browse</title>" in text
            assert "HACKED</title>" not in text
            assert f"<script>{HACK}" not in text
            assert "<img src=x" not in text.replace('"', "")
            assert "\x1b" not in text
            assert "\u202e" not in text
        assert titles(dom(served))[:2] == HOSTILE_KEYS[:2]
        shown = dom(served, open="0.0")
        assert html.escape(f"<script>{HACK}</script></svg>", quote=False) in shown


def test_players_get_their_ranges(dom, tmp_path):
    pytest.importorskip("av")
    VideoFile(codec="libvpx", audio_codec="libopus", audio_rate=48_000, frames=50).write(tmp_path / "a.webm")
    VideoFile(frames=0, audio_codec="pcm_s16le", audio_seconds=1.5).write(tmp_path / "a.wav")
    parts = {name: (tmp_path / f"a.{name}").read_bytes() for name in ("webm", "wav")}
    write_dataset(tmp_path / "data", [{"a": parts}])
    players = (r'<video[^>]*data-seconds="2(\.\d+)?"', r'<audio[^>]*data-seconds="1.5"')
    with serving(str(tmp_path / "data")) as served:
        for _ in range(10):  # the browser does not wait for its decoder, which is late on a busy machine
            text = dom(served, open="0.0")
            if all(re.search(player, text) for player in players):
                return
    pytest.fail(f"the players of this page have not loaded: {text}")
