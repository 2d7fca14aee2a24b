"""Commands start fast, end cleanly, and speak of flags; progress does not disturb pipes."""

import json
import re
import runpy
import signal
import subprocess
import sys
import threading
from contextlib import redirect_stderr

import children
import pytest
import torch
from click.testing import CliRunner
from commands import leaves
from hooked_store import hooked

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.cli.main import in_flags, main
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.progress import Progress
from energon_stream.state import dumps
from energon_stream.testing.datasets import captioning_dataset, prepared_captioning_dataset

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "s3fs", "aiobotocore", "botocore"}:
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Blocked())
from energon_stream.cli import run
run()
"""


FORKS = """
import json, os
import energon_stream.cli.main, energon_stream.index.dataset, energon_stream.pipeline
ended = []
for command in json.loads(sys.argv[1]):
    if not (pid := os.fork()):
        sys.argv[1:] = command
        os.dup2(1, 2)
        run()
        os._exit(0)
    ended.append([command, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])])
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_captioning_dataset(tmp_path_factory.mktemp("cli") / "data", shards=4, samples_per_shard=3)


def test_commands_need_neither_torch_nor_s3fs(folder, tmp_path):
    """A process each, because what an earlier command imported would hide what a later one imports; all are
    forks of one that has imported what they share, where torch and s3fs cannot be imported either.
    """
    options = {"batch_size": 1, "shuffle_buffer_size": 4, "max_samples_per_sequence": 4}
    loader = get_savable_loader(get_train_dataset(folder, worker_config=WorkerConfig(0, 1, 0), **options))
    next(iter(loader))
    state = tmp_path / "state.msgpack"
    state.write_bytes(dumps(loader.save_state_rank()))
    by_torch = tmp_path / "state.pt"
    torch.save({"dataloader_state_dict": loader.save_state_rank(), "iteration": 1}, by_torch)
    (tmp_path / "cache").mkdir()
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: "
        + str(folder)
        + "}}\n"
    )
    commands = [
        ["info", str(folder)],
        ["info", str(mix)],
        ["lint", "--no-decode", str(folder)],
        ["checkpoint", "info", str(state)],
        ["checkpoint", "info", str(by_torch)],
        ["cache", "path", "--cache-dir", str(tmp_path / "cache")],
    ]
    program = BLOCKED.replace("run()\n", FORKS)
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    ended = json.loads(done.stdout.splitlines()[-1])
    assert ended == [[command, 0] for command in commands], done.stdout


def test_neither_help_nor_a_wrong_option_of_any_command_imports_what_is_heavy():
    """Modules are counted, not seconds: a command imports what it needs when it runs."""
    program = (
        "import sys\n"
        "before = {*sys.modules}\n"
        "from click.testing import CliRunner\n"
        "from energon_stream.cli.main import main, energon\n"
        "for command in sys.argv[1:]:\n"
        "    for option, status in (('--help', 0), ('--wrong', 2)):\n"
        "        ended = CliRunner().invoke(main, [*command.split(), option])\n"
        "        assert ended.exit_code == status, (command, ended.output)\n"
        "        heavy = {name.partition('.')[0] for name in {*sys.modules} - before} - sys.stdlib_module_names\n"
        "        heavy -= {name for name in heavy if name[:1] == '_'} | {'click', 'energon_stream', 'lazy_loader'}\n"
        "        assert not heavy, (command, heavy)\n"
        "own = {name for name in sys.modules if name.startswith('energon_stream.')}\n"
        "assert len([name for name in own if '.cli.' not in name]) < 25, own\n"
    )
    names = [" ".join(names) for names, _ in leaves()]
    done = subprocess.run([sys.executable, "-c", program, *names, ""], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(names) > 30


def test_the_package_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["energon-stream", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("energon_stream", run_name="__main__")
    assert (ended.value.code, "energon-stream" in capsys.readouterr().out) == (0, True)


def test_prepare_needs_no_torch(tmp_path):
    captioning_dataset(tmp_path, shards=2, samples_per_shard=2)
    arguments = [
        "prepare",
        str(tmp_path),
        "--non-interactive",
        "--split-ratio",
        "1,1,0",
        "--skip-dataset-yaml",
    ]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout + done.stderr


def test_errors_name_flags(folder):
    result = CliRunner().invoke(
        main, ["prepare", str(folder), "--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    )
    assert result.exit_code == 2
    assert "--force-overwrite" in result.output
    assert "force=" not in result.output


def test_plain_words_stay_as_they_are():
    flags = {"cache": "--cache-dir", "split_config": "--split-config", "parts": "--parts", "force": "--force"}
    text = "no parts in the cache; pass split_config= or force=True, see cache.parts of split_config"
    assert in_flags(text, flags) == (
        "no parts in the cache; pass --split-config or --force, see cache.parts of --split-config"
    )


@pytest.mark.parametrize(
    ("command", "options", "hint"),
    [
        ("prewarm", ["--cache-dir", "cache"], True),
        ("prepare", [], True),
        ("prepare-media", ["--media-metadata-by-extension"], True),
        ("info", [], False),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(tmp_path, monkeypatch, command, options, hint):
    monkeypatch.chdir(tmp_path)
    once = threading.Lock()  # a second signal might come when the command is over

    def interrupt(method, *arguments, **options):
        if once.acquire(blocking=False):
            signal.raise_signal(signal.SIGINT)
        return method(*arguments, **options)

    url = hooked(tmp_path, **dict.fromkeys(("get", "get_range", "get_suffix", "head", "list"), interrupt))
    result = CliRunner().invoke(main, [command, url, *options])
    assert result.exit_code == 130
    assert "Interrupted." in result.output
    assert ("Run the command again" in result.output) is hint


def test_an_interruption_while_modules_are_imported_shows_no_traceback():
    interrupt = BLOCKED.replace('raise ImportError(f"{name} is imported")', "raise KeyboardInterrupt")
    program = interrupt.replace('{"torch", "s3fs", "aiobotocore", "botocore"}', '{"click"}')
    done = subprocess.run([sys.executable, "-c", program, "info", "x"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nInterrupted.\n")


def test_questions_that_get_no_answer_change_nothing(tmp_path):
    captioning_dataset(tmp_path, shards=2, samples_per_shard=2)
    # A program: the CliRunner of older clicks answers with empty lines at the end of its input.
    done = children.run("-m", "energon_stream", "prepare", tmp_path, input="8,1,1\n")
    assert done.returncode == 1
    assert "Nothing was changed" in done.stderr
    assert "Aborted" not in done.stdout + done.stderr
    assert not (tmp_path / ".nv-meta").exists()


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_RETRY_DEADLINE", "0.5")
    endpoint = "http://127.0.0.1:9"  # the discard port, which nothing listens on
    options = [f"--storage-option={option}" for option in (f"endpoint_url={endpoint}", "key=a", "secret=b")]
    result = CliRunner().invoke(main, ["info", "s3://bucket/data", *options])
    assert result.exit_code == 1
    for text in ("the connection failed", "attempts", "s3://bucket/data/.nv-meta/.info.json", endpoint):
        assert text in result.output


class Terminal:
    def __init__(self, is_terminal):
        self.is_terminal, self.text = is_terminal, ""

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_begins_with_the_first_unit():
    with redirect_stderr(Terminal(True)) as shown, Progress(3, unit="tar") as progress:
        assert not shown.text
        progress.reach(3)
    assert re.search(r"100%.*3/3", shown.text)


@pytest.mark.parametrize(
    ("log", "enabled", "shown"),
    [(False, None, 0), (False, False, 0), (False, True, 1), (True, None, 1), (True, False, 0)],
)
def test_progress_is_lines_in_a_log_and_nothing_in_a_pipe(tmp_path, log, enabled, shown):
    now = [0.0]
    with open(tmp_path / "log", "w") as file:
        with (
            redirect_stderr(file if log else Terminal(False)) as pipe,
            Progress(1000, unit="tar", enabled=enabled, clock=lambda: now[0]) as progress,
        ):
            progress.keep(400)
            progress.advance(10)
            now[0] = 60.0
            progress.advance(20)
            progress.advance(10)
            now[0] = 120.0
            progress.advance(260)
        text = "" if log else pipe.text
    text += (tmp_path / "log").read_text()
    assert text.splitlines() == shown * [
        "430 of 1000 tar,  0.50tar/s, 19:00 left",
        "700 of 1000 tar,  4.50tar/s, 01:06 left",
    ]


def test_what_was_done_before_does_not_count_in_the_rate():
    with redirect_stderr(Terminal(True)) as shown, Progress(1000, unit="tar") as progress:
        progress.keep(400)
        progress.advance(10)
    assert re.search(r"410/1000", shown.text)
    assert "41%" in shown.text


def test_preparing_again_keeps_the_preparation_on_no(tmp_path):
    captioning_dataset(tmp_path, shards=2, samples_per_shard=2)
    prepare_dataset(str(tmp_path), split_ratio=(1, 1, 0))
    result = CliRunner().invoke(main, ["prepare", str(tmp_path)], input="n\n")
    assert result.exit_code == 1
    assert "was kept" in result.output
