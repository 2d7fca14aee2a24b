"""The page in a headless browser: what it shows, and that nothing of a dataset runs."""

from __future__ import annotations

import asyncio
import html
import re
from urllib.parse import urlencode

import pytest
from browse_client import HACK, HOSTILE_KEYS, image_bytes, write_dataset
from chromium import CHROMIUM, start_browser

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energon_stream.testing.media_files import VideoFile
from energon_stream.tools.browse import serving
from energon_stream.tools.browse.training import Run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    """One for all tests, and what runs its coroutines."""
    with asyncio.Runner() as runner:
        starting = start_browser("--autoplay-policy=no-user-gesture-required")
        yield runner, runner.run(starting.__aenter__())
        runner.run(starting.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def dom(browser):
    """Return the text of the page when its scripts have run and its data has come."""
    runner, started = browser
    opening = started.open_tab()
    tab = runner.run(opening.__aenter__())

    def read(served, **state):
        url = f"{served.url}#{urlencode(state)}" if state else served.url
        return runner.run(tab.text(url))

    yield read
    runner.run(opening.__aexit__(None, None, None))


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
    states = ({}, {"open": "0.0"}, {"open": "0.2"}, {"search": "<"}, {"field": "txt", "value": "<script>"})
    with serving(str(hostile)) as served:
        texts = [dom(served, **state) for state in states]
    for text in texts:
        assert "<title>" in text
        assert "– browse</title>" in text
        assert "HACKED</title>" not in text
        assert f"<script>{HACK}" not in text
        assert "<img src=x" not in text.replace('"', "")
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert titles(texts[0])[:2] == HOSTILE_KEYS[:2]
    assert html.escape(f"<script>{HACK}</script></svg>", quote=False) in texts[1]


READY = (
    "document.querySelector('#status')?.textContent !== 'Reading …' && document.querySelector('nav button')"
)


@pytest.fixture
def asked(browser):
    """Runs ``look(tab, url)`` in a page of its own on a served dataset."""
    runner, started = browser

    def ask(path, run, look):
        async def shown():
            with serving(str(path), run=run) as served:
                async with started.open_tab() as tab:
                    await tab.show(served.url, ready=READY)
                    await look(tab, served.url)

        runner.run(shown())

    return ask


def is_open(number):
    return f"document.querySelector('#about').textContent.startsWith('sample {number} ')"


def test_arrows_lead_through_samples_and_pages(asked, captions):
    async def look(tab, url):
        shown = "document.querySelector('#place').textContent"
        await tab.show(f"{url}#first=40&open=0.40", ready=f"{READY} && {is_open(40)}")
        for key, number in (("ArrowLeft", 39), ("ArrowLeft", 38), ("ArrowRight", 39), ("ArrowRight", 40)):
            await tab.press(key)
            await tab.until(is_open(number))
        assert await tab.run("location.hash") == "#first=0&open=0.40"
        await tab.show(f"{url}#open=0.0", ready=f"{READY} && {is_open(0)}")
        assert await tab.run("document.querySelector('#previous').disabled")
        await tab.run("document.querySelector('#next').focus()")
        await tab.press("Enter")
        await tab.until(is_open(1))
        assert await tab.run("document.activeElement.id") == "next"
        await tab.press("Escape")
        await tab.until("!document.querySelector('#sample').open")
        await tab.until("document.querySelectorAll('#parts > *').length == 0")
        await tab.run("document.querySelector('#search input').focus()")
        await tab.press("ArrowRight")  # within a field, it moves the cursor
        assert await tab.run(shown) == "0–47 of 48"

    asked(captions, Run(num_workers=0), look)


@pytest.mark.slow  # test_browse_http.py asks for the same without a browser
def test_a_page_names_sizes_the_ends_of_keys_and_other_searches(asked, tmp_path):
    key = "crawl/" + "x" * 60 + "/0000042"
    write_dataset(tmp_path / "data", [{key: {"txt": b"a red dog"}, "b": {"txt": b"cat", "bin": b"0" * 2000}}])

    async def look(tab, url):
        assert await tab.run("[...document.querySelectorAll('.about small')].map(e => e.textContent)") == [
            "txt · 9 B",
            "txt, bin · 2.0 kB",
        ]
        parts = await tab.run(
            "[...document.querySelectorAll('.about b')].map(e => [...e.children].map(c => c.textContent))"
        )
        assert parts == [[key[:-14], key[-14:]], ["b"]]
        inside = (
            "[...document.querySelectorAll('.card')].every(card => card.querySelector('b span:last-child')"
            ".getBoundingClientRect().right <= card.getBoundingClientRect().right)"
        )
        for width in (390, 1100):
            await tab.show(url, width, ready=READY)
            assert await tab.run(inside)
            assert await tab.run("document.documentElement.scrollWidth") <= width
        await tab.show(f"{url}#search=000004", ready=READY)
        assert (await tab.run("document.querySelector('#status').textContent")).startswith(
            "0 keys begin with “000004”, 0 shards have it in the path."
        )
        await tab.run("document.querySelector('#status button').click()")
        await tab.until("document.querySelectorAll('.card').length === 1")
        assert await tab.run("location.hash") == "#operator=contains&value=000004&field=key"

    asked(tmp_path / "data", Run(num_workers=0), look)


@pytest.mark.slow  # test_browse_http.py asks for the same without a browser
def test_steps_keep_their_options(asked, captions):
    given = {"shuffle_buffer_size": 20, "max_samples_per_sequence": 4}

    async def look(tab, url):
        keys = "[...document.querySelectorAll('.card')].map(card => card.title)"
        field = "document.querySelector('#step [name={}]').value"
        for step in (2, 3):
            await tab.until(f"document.querySelector('#status').textContent.startsWith('Step {step} of')")
            found = await tab.run(keys)
            assert found == expected[step]
            assert await tab.run("document.querySelector('[aria-current]').innerText") == "train 48 samples"
            assert await tab.run(field.format("shuffle_buffer_size")) == "20"
            await tab.run("document.querySelector('#step-after').click()")
        await tab.until("document.querySelector('#status').textContent.startsWith('Step 4 of')")
        await tab.run("document.querySelector('#step-before').click()")
        await tab.until("document.querySelector('#status').textContent.startsWith('Step 3 of')")
        assert "batch_size=4" in await tab.run("location.hash")

    config = WorkerConfig(0, 1, 0)
    dataset = get_train_dataset(
        captions, batch_size=4, worker_config=config, task_encoder=DefaultTaskEncoder(), **given
    )
    with get_loader(dataset) as loader:
        batches = iter(loader)
        expected = [[key.partition("/")[2] for key in next(batches).__key__] for _ in range(4)]
    asked(captions, Run(step=2, batch_size=4, num_workers=0, options=given), look)


@pytest.mark.slow
def test_paging_through_many_samples_takes_bounded_memory(asked, tmp_path):
    image = image_bytes((64, 64))
    write_dataset(
        tmp_path / "data",
        [
            {f"{shard}{number:04d}": {"png": image, "txt": b"text " * 50} for number in range(250)}
            for shard in range(4)
        ],
    )

    async def look(tab, url):
        async def held():
            await tab.call("HeapProfiler.collectGarbage")
            counts = await tab.call("Memory.getDOMCounters")
            return (
                counts["nodes"],
                counts["jsEventListeners"],
                (await tab.call("Runtime.getHeapUsage"))["usedSize"],
            )

        found = []
        for first in range(0, 1000, 50):
            await tab.run(f"location.hash = 'first={first}'")
            await tab.until(
                f"document.querySelector('#place').textContent === '{first}–{first + 49} of 1,000'"
            )
            await tab.run(f"location.hash = 'first={first}&open=0.{first + 9}'")
            await tab.until(is_open(first + 9))
            await tab.run(f"location.hash = 'first={first}'")
            await tab.until("!document.querySelector('#sample').open")
            found.append(await held())
        early, late = (list(map(max, zip(*part, strict=True))) for part in (found[2:6], found[-4:]))
        assert all(after <= 1.2 * before for before, after in zip(early, late, strict=True)), f"{found}"

    asked(tmp_path / "data", Run(num_workers=0), look)


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
