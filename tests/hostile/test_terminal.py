"""Names that come from data: no command writes their control characters to the terminal."""

import json
import logging
import re
import tarfile
import threading
import warnings
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from energon_stream import WorkerConfig, get_val_dataset
from energon_stream.cli.main import main
from energon_stream.cli.terminal import echo, echo_text, printable_messages
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.printable import printable, printable_line
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

ESCAPE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
ALONE = WorkerConfig(0, 1, 0)


def shown(*arguments, answers=None):
    """All that a command writes, and its exit code."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], input=answers)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert not RAW.search(done.output), done.output
    return done.output, done.exit_code


@pytest.fixture
def hostile(tmp_path):
    """A dataset whose shards, keys, parts and split part have escape sequences in their names."""
    folder = tmp_path / "data"
    write_shards(
        folder,
        shards=2,
        samples_per_shard=2,
        parts=lambda i: {f"txt{ESCAPE}": b"text", f"a{ESCAPE}.json": b"{"},
        name=f"{ESCAPE}-{{}}.tar",
        key=f"{ESCAPE}{{}}",
        tar_format=tarfile.PAX_FORMAT,
    )
    return folder


def test_prepare_info_lint_and_preview_write_them_out(hostile):
    found, code = shown("prepare", hostile, answers="1,0,0\nn\n")
    assert code == 0
    assert found.count(r"\x1b]0;owned\x07") >= 3  # the first tar, the last tar, and the parts
    prepare_dataset(str(hostile), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML, force=True)
    split = hostile / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("train:", json.dumps(f"train{ESCAPE}") + ":"))
    found, code = shown("info", hostile)
    assert code == 0
    assert r"train\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e: 4 samples" in found
    assert r"txt\x1b]0;owned" in found
    found, code = shown("lint", hostile)
    assert code == 1  # the JSON is damaged
    assert r"\x1b]0;owned\x07" in found
    found, code = shown("preview", hostile, answers="n\n")
    assert code == 1
    assert r"\x1b]0;owned\x07" in found


def test_errors_of_commands_are_written_out(hostile, tmp_path):
    found, code = shown("info", tmp_path / "none", "--split-config", f"x{ESCAPE}")
    assert code == 1
    found, code = shown(
        "prepare", hostile, "--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"
    )
    assert code == 0
    (next(hostile.glob("*-1.tar"))).write_bytes(b"no tar" * 200)
    found, code = shown("lint", hostile)
    assert code == 1
    assert r"\x1b]0;owned\x07" in found
    mix = tmp_path / "mix.yaml"
    mix.write_text(json.dumps({f"key{ESCAPE}": 1}))
    found, code = shown("info", mix)
    assert code == 1
    assert "unknown key" in found


def test_metadatasets_are_written_out(tmp_path):
    mix = tmp_path / "mix.yaml"
    header = {"__module__": "energon_stream", "__class__": "MetadatasetV2"}
    mix.write_text(json.dumps({**header, "splits": {f"train{ESCAPE}": {"path": f"data{ESCAPE}"}}}))
    found, code = shown("info", mix)
    assert code == 0
    assert found.count(r"\x1b]0;owned\x07") == 3  # split, path and split part


def test_a_name_cannot_pass_for_another_line():
    assert printable_line("a\nINFO: all is well\t") == r"a\nINFO: all is well\t"
    assert printable("a\n\tb") == "a\n\tb"
    assert printable("日本語 é \u200d") == "日本語 é \u200d"
    assert printable("\udcff") == r"\udcff"


def test_errors_of_the_library_are_written_out_wherever_they_are_shown():
    error = MetadataError(f"a{ESCAPE}", where=f"b{ESCAPE}", hint=f"c{ESCAPE}")
    assert not RAW.search(str(error))
    assert error.where == f"b{ESCAPE}"  # programs get it as it is


def test_lines_texts_warnings_and_logs_are_written_out(capsys):
    echo(f"a{ESCAPE}\nb")
    echo_text(f"a{ESCAPE}\nb", err=True)
    before = warnings.formatwarning, logging.lastResort.formatter
    with printable_messages():
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            text = warnings.formatwarning(f"a{ESCAPE}", UserWarning, "file.py", 1)
        record = logging.LogRecord("x", logging.WARNING, "file.py", 1, "%s", (f"a{ESCAPE}",), None)
        assert not RAW.search(text)
        assert not RAW.search(logging.lastResort.format(record))
    assert (warnings.formatwarning, logging.lastResort.formatter) == before
    written = capsys.readouterr()
    assert written.out.count("\n") == 1
    assert written.err.count("\n") == 2
    assert not RAW.search(written.out + written.err)


def test_prepare_names_a_member_that_is_not_utf8(tmp_path, caplog):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(b"caf\xe9.txt".decode("utf-8", "surrogateescape")))
    found, code = shown(
        "prepare", tmp_path, "--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"
    )
    assert code == 0
    assert r"caf\udce9" in found + caplog.text


@contextmanager
def no_more_threads():
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_a_system_without_threads_is_named(tmp_path):
    write_shards(tmp_path, shards=2, samples_per_shard=2, parts=lambda i: {"txt": b"text"})
    with no_more_threads(), pytest.raises(ConfigError, match="starts no more threads"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    with no_more_threads(), pytest.raises(ConfigError, match="starts no more threads") as caught:
        get_val_dataset(str(tmp_path), split_part="train", batch_size=1, worker_config=ALONE)
    assert caught.value.where == str(tmp_path)
