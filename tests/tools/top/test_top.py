"""Loaders write their statistics to a folder, and `top` shows them."""

import asyncio
import gc
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import children
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError, ObjectNotFoundError
from energon_stream.loader.observe import metrics as publish
from energon_stream.loader.observe.metrics import STATS_DIR, SUFFIX
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.tools.top.board import COLUMNS, Board, Row, find_folder, read_board, row_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("top") / "data", shards=2, samples=100, payload_bytes=100
    )


@pytest.fixture
def stats(tmp_path, monkeypatch):
    monkeypatch.setenv(STATS_DIR, str(tmp_path / "stats"))
    monkeypatch.setattr(publish, "FILE_SECONDS", 0.02)
    return tmp_path / "stats"


def loader_of(folder, workers=0):
    dataset = get_train_dataset(
        folder,
        batch_size=10,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, workers),
    )
    return get_loader(dataset)


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def publishers():
    return [thread for thread in threading.enumerate() if "publisher" in thread.name]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_is_on_the_board_while_it_works(folder, stats, workers):
    with loader_of(folder, workers) as loader:
        batches = iter(loader)
        next(batches)
        wait_for(lambda: stats.exists() and read_board(stats).rows)
        (row,) = read_board(stats).rows
        assert (row.rank, row.pid, row.num_workers) == (0, os.getpid(), workers)
        assert not row.is_silent
    assert list(stats.iterdir()) == []
    assert publishers() == []


def test_a_loader_that_nobody_closes_is_forgotten(folder, stats):
    loader = loader_of(folder)
    next(iter(loader))
    wait_for(stats.exists)
    del loader
    gc.collect()
    wait_for(lambda: not publishers())
    assert list(stats.iterdir()) == []


def test_without_a_folder_nothing_is_written(folder, monkeypatch):
    monkeypatch.delenv(STATS_DIR, raising=False)
    with loader_of(folder) as loader:
        next(iter(loader))
        assert publishers() == []


def test_training_goes_on_where_nothing_can_be_written(folder, stats, caplog):
    stats.write_text("a file")
    with loader_of(folder) as loader:
        next(iter(loader))
        wait_for(lambda: "no statistics for energon-stream top" in caplog.text)
        next(iter(loader))
    assert caplog.text.count("no statistics") == 1


def content(rank=0, waiting=0.5, samples=100.0, when=1000.0, text="the store", **about):
    recent = {
        "seconds": 2.0,
        "samples_per_second": samples,
        "waiting": waiting,
        "bytes": 4_000_000,
        "requests": {"get": 6},
        "cache": {"hit_bytes": 30, "missed_bytes": 10},
        "verdict": {"cause": "store rate", "text": text},
    }
    whole = {"rank": rank, "num_workers": 2, "retries": 3}
    found = {"host": "node", "pid": 7, "time": when, "recent": recent, "whole": whole}
    return {**found, "history": list(range(8)), **about}


def test_a_row_has_rates_of_the_last_second():
    row = row_of(content(), 1001.0)
    line = " " * 12 + "▁▂▃▄▅▆▇█"
    assert row.cells() == ("0", "rate", "50%", "100", line, "2.0", "3.0", "75%", "3", "2", "node", "7")
    assert len(row.cells()) == len(COLUMNS)
    assert row_of(content(), 1020.0).cells()[1] == "silent"
    assert row_of({**content(), "history": [0, 0]}, 1001.0).cells()[4] == "▁▁".rjust(20)
    assert row_of({k: v for k, v in content().items() if k != "history"}, 1001.0).cells()[4].strip() == ""


LATENCY = "data-bound, waiting 61% of the time: the store's latency, 84 ms a request; raise max_in_flight"
TEXTS = {
    60: """\
2 loaders, 200 samples/s, 4.0 MB/s; slowest: rank 1 on node,
data-bound, waiting 61% of the time: the store's latency, 84
ms a request; raise max_in_flight

rank  limit  waiting  samples/s  last 20 s             MB/s
   0  rate       50%        100              ▁▂▃▄▅▆▇█   2.0
   1  rate       61%        100              ▁▂▃▄▅▆▇█   2.0""",
    80: """\
2 loaders, 200 samples/s, 4.0 MB/s; slowest: rank 1 on node, data-bound, waiting
61% of the time: the store's latency, 84 ms a request; raise max_in_flight

rank  limit  waiting  samples/s  last 20 s             MB/s  requests/s  cache
   0  rate       50%        100              ▁▂▃▄▅▆▇█   2.0         3.0    75%
   1  rate       61%        100              ▁▂▃▄▅▆▇█   2.0         3.0    75%""",
    120: """\
2 loaders, 200 samples/s, 4.0 MB/s; slowest: rank 1 on node, data-bound, waiting 61% of the time: the store's latency,
84 ms a request; raise max_in_flight

rank  limit  waiting  samples/s  last 20 s             MB/s  requests/s  cache  retries  workers  host  pid
   0  rate       50%        100              ▁▂▃▄▅▆▇█   2.0         3.0    75%        3        2  node    7
   1  rate       61%        100              ▁▂▃▄▅▆▇█   2.0         3.0    75%        3        2  node    7""",
}


@pytest.mark.parametrize("width", TEXTS)
def test_a_text_fits_its_width_and_cuts_no_sentence(width):
    rows = row_of(content(), 1001.0), row_of(content(1, 0.61, text=LATENCY), 1001.0)
    text = Board(rows).text(width)
    assert text == TEXTS[width]
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="only Linux says which processes are there")
def test_processes_that_ended_are_no_loaders(stats):
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    here, now = socket.gethostname(), time.time()
    found = {
        "ended": content(1, 0.9, when=now - 5, host=here, pid=over.pid),
        "silent": content(2, when=now - 20, host=here, pid=os.getpid()),
        "elsewhere": content(3, when=now - 5, pid=over.pid),
        "of another container": content(4, when=now, host=here, pid=over.pid),
        "forgotten": content(6, when=now - 400, host=here, pid=over.pid),
    }
    stats.mkdir()
    for name, each in found.items():
        (stats / f"{name}{SUFFIX}").write_text(json.dumps(each))
    board = read_board(stats)
    assert [row.rank for row in board.rows] == [2, 3, 4]
    assert [row.rank for row in board.ended] == [1]
    assert f"; ended without closing: rank 1 (process {over.pid})" in board.summary
    assert board.slowest.rank == 2
    assert [row["rank"] for row in board.as_json()["ended"]] == [1]


def test_a_program_that_ends_leaves_no_file(folder, stats):
    """Neither at its end, nor after an error, although nobody closes the loader."""
    code = f"""
import os, time
from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.loader.observe import metrics
metrics.FILE_SECONDS = 0.02
dataset = get_train_dataset({str(folder)!r}, batch_size=10, shuffle_buffer_size=None,
                            max_samples_per_sequence=None, worker_config=WorkerConfig(0, 1, 0))
loader = get_loader(dataset)
batches = iter(loader)
next(batches)
while not os.path.isdir({str(stats)!r}) or not os.listdir({str(stats)!r}):
    time.sleep(0.01)
1 / 0
"""
    found = children.run("-c", code, finalize=True)
    assert "ZeroDivisionError" in found.stderr
    assert list(stats.iterdir()) == []


def test_the_slowest_is_the_one_that_waits_longest_or_is_silent():
    rows = [row_of(content(rank, waiting), 1001.0) for rank, waiting in enumerate([0.1, 0.9, 0.2])]
    board = Board(tuple(rows))
    assert board.slowest.rank == 1
    assert board.summary.startswith("3 loaders, 300 samples/s, 6.0 MB/s; slowest: rank 1 on node")
    assert Board((*rows, row_of(content(3, 0.0), 1050.0))).slowest.rank == 3
    assert re.split(r"  +", board.text().splitlines()[2]) == list(COLUMNS)
    assert Board(()).summary == "no loader"


def test_text_of_strangers_cannot_steer_the_terminal():
    row = row_of(content(text="\x1b[2J" + "x" * 1000), 1001.0)
    assert "\x1b" not in row.verdict
    assert len(row.verdict) <= 500


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(["host", "pid", "time", "recent", "whole", "history"]), json_values)
def test_files_that_make_no_sense_are_left_out(tmp_path_factory, name, value):
    place = tmp_path_factory.mktemp("odd")
    (place / f"a{SUFFIX}").write_text(json.dumps(content(when=time.time())))
    (place / f"b{SUFFIX}").write_text(json.dumps({**content(when=time.time()), name: value}))
    (place / f"c{SUFFIX}").write_bytes(b"\xff{")
    board = read_board(place)
    assert 1 <= len(board.rows) <= 2
    assert board.text()
    assert all(isinstance(row, Row) for row in board.rows)


def test_the_command_prints_once(tmp_path):
    (tmp_path / f"a{SUFFIX}").write_text(json.dumps(content(when=time.time())))
    shown = CliRunner().invoke(main, ["top", str(tmp_path), "--once"])
    assert shown.exit_code == 0
    assert "1 loader, " in shown.output
    found = json.loads(CliRunner().invoke(main, ["top", str(tmp_path), "--json"]).output)
    assert [row["rank"] for row in found["loaders"]] == [0]


def test_wrong_use_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv(STATS_DIR, raising=False)
    with pytest.raises(ConfigError, match=STATS_DIR):
        find_folder(None)
    with pytest.raises(ObjectNotFoundError, match="no such folder"):
        read_board(tmp_path / "nothing")
    shown = CliRunner().invoke(main, ["top", str(tmp_path), "--web", "--json"])
    assert shown.exit_code != 0
    assert "--web" in shown.output


def test_the_screen_shows_rows_and_follows_them():
    textual = pytest.importorskip("textual.widgets")
    from energon_stream.tools.top.screen import TopApp

    boards = [
        Board((row_of(content(0, text="[bold]not markup[/]"), 1001.0),)),
        Board(tuple(row_of(content(rank), 1050.0) for rank in range(3))),
    ]

    async def look():
        app = TopApp(lambda: boards[0], "folder")
        async with app.run_test(size=(160, 20)) as pilot:
            table = app.query_one(textual.DataTable)
            assert table.row_count == 1
            assert [str(column.label) for column in table.ordered_columns] == list(COLUMNS)
            assert "[bold]not markup[/]" in str(app.query_one("#summary").content)
            for width, last in ((60, "last 20 s"), (80, "requests/s"), (160, "pid")):
                await pilot.resize_terminal(width, 20)
                await pilot.pause()
                assert str(table.ordered_columns[-1].label) == last
                assert table.virtual_size.width <= width
            del boards[0]
            app.refresh_board()
            assert table.row_count == 3
            assert str(app.query_one("#summary").content).startswith("3 loaders")
            await pilot.press("q")
        return app.return_code

    assert asyncio.run(look()) == 0
