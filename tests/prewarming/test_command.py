"""The command: what it shows, and what it takes."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from warming import BATCH, asked, config, reads, train

from energon_stream.cli.main import main

URL = "s3://bucket/whole"
ORDER = ["--batch-size", str(BATCH), "--shuffle-buffer-size", "60", "--max-samples-per-sequence", "40"]
PLAIN = {"read_options": None, "batch_size": BATCH}


def command(server, *arguments):
    """Runs ``prewarm``; its result."""
    server.reset_counters()
    options = [
        part
        for key, value in server.storage_options.items()
        for part in ("--storage-option", f"{key}={json.dumps(value)}")
    ]
    return CliRunner().invoke(main, ["prewarm", *arguments, *options])


@pytest.mark.every(2)
@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_steps_of_a_node_are_warmed(server, cache, processes):
    said = command(
        server,
        *(URL, "--cache-dir", cache.directory, "--steps", "20", "--verify", *processes, *ORDER),
        *("--world-size", "3", "--rank", "0-1", "--num-workers", "2"),
    )
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert lines[0] == "Samples: 320 of 20 steps of 2 ranks"
    assert lines[1].startswith("Read ahead: ")
    assert [line.partition(":")[0] for line in lines[2:]] == ["Needed", "To fetch", "Fetched", "Verified"]
    assert said.stderr == ""  # no progress bar where nobody sees it
    for rank in (0, 1):
        train(server, URL, cache, 20, config(6, 2, rank, 3), **PLAIN)
        assert reads(server) == []


def test_a_dry_run_shows_the_cost(server, tmp_path):
    said = command(server, URL, "--dry-run", "--num-workers", "1", *ORDER)
    assert said.exit_code == 0, said.output
    assert "Samples: 1,800\nRead ahead: " in said.stdout
    assert "Needed: 13.8 MB of 6 objects; 0 B were in the cache" in said.stdout
    assert "$0.0004 for 1,000 GET and $0 for 1 GB: list prices of AWS S3 Standard" in said.stdout
    assert not [entry for entry in asked(server) if entry[1].endswith(".tar")]
    priced = command(server, URL, "--dry-run", "--num-workers", "1", "--price-per-gb", "1000", *ORDER)
    assert "Cost: $13." in priced.stdout
    assert "list prices" not in priced.stdout


def test_a_part_of_the_data_by_parts(server, cache):
    said = command(
        server,
        *(URL, "--cache-dir", cache.directory, "--subset", "0,600", "--parts", "json", "--fraction", "0.5"),
        *("--num-workers", "0", "--seed-offset", "3", *ORDER),
    )
    assert said.exit_code == 0, said.output
    assert "Samples: 300\n" in said.stdout


def test_a_full_cache_is_told(server, tmp_path):
    said = command(
        server,
        *(URL, "--cache-dir", str(tmp_path / "cache"), "--cache-size", "3MB", "--steps", "100"),
        *("--num-workers", "1", *ORDER),
    )
    assert said.exit_code == 0, said.output
    assert "The cache is full: it holds the first " in said.stderr
    assert " of 100 steps, " in said.stderr
    assert re.search(r"samples \(\d+\.\d%\), [12]\.\d MB of 13\.8 MB\. ", said.stderr)


def test_a_cache_that_is_too_small_is_told_before_it_is_filled(server, tmp_path):
    arguments = [URL, "--cache-dir", str(tmp_path / "cache"), "--num-workers", "1", "--dry-run", *ORDER]
    said = command(server, *arguments, "--cache-size", "3MB")
    assert said.exit_code == 0, said.output
    assert "\nDoes not fit: the cache has room for 3.0 MB of 13.8 MB\n" in said.stdout
    assert "Does not fit" not in command(server, *arguments, "--cache-size", "15MB").stdout


def test_damage_is_told(server, cache):
    arguments = [URL, "--cache-dir", cache.directory, "--verify", "--num-workers", "1", *ORDER]
    assert command(server, *arguments).exit_code == 0
    largest = max(Path(cache.directory).rglob("*.*"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(100_000)
        file.write(bytes(1000))
    said = command(server, *arguments)
    assert said.exit_code == 1
    assert "were damaged" in said.stdout
    assert "run the command again" in said.stderr
    assert command(server, *arguments).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "3-1"], "--rank is '3-1'"),
        (["--rank", "x"], "--rank is 'x'"),
        (["--rank", "1"], "rank 1 does not fit --world-size 1"),
        (["--rank", "0-4", "--world-size", "2"], "not ranks of --world-size 2"),
        (["--steps", "5"], "counted in samples"),
        (["--epochs", "1", "--fraction", "0.5"], "exclude each other"),
        (["--subset", "1"], "not a subset"),
    ],
)
def test_what_cannot_work_is_refused(server, cache, arguments, message):
    said = command(server, URL, "--cache-dir", cache.directory, *arguments)
    assert said.exit_code == 2
    assert said.stderr.startswith("Error: ")
    assert message in said.stderr


def test_a_cache_is_needed(server):
    said = command(server, URL)
    assert said.exit_code == 2
    assert "no cache directory" in said.stderr
