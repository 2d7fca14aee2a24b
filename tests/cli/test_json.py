"""Every command prints one JSON document on request, has help, and completes in shells."""

import json
import os
import shutil
import subprocess

import children
import click
import pytest
from click.testing import CliRunner
from commands import leaves

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.cli.main import main
from energon_stream.state import dumps
from energon_stream.testing.datasets import captioning_dataset, prepared_captioning_dataset

COMMANDS = dict(leaves())


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_json(names):
    command = COMMANDS[names]
    assert command.help
    flags = {flag: option for option in command.params for flag in option.opts}
    assert flags["--json"].help
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, f"{option.name} has no help"
    result = CliRunner().invoke(main, [*names, "--help"])
    assert (result.exit_code, "--json" in result.output) == (0, True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what commands work on."""
    place = tmp_path_factory.mktemp("json")
    prepared_captioning_dataset(place / "data", shards=2, samples_per_shard=3, split_ratio=(1, 1, 0))
    captioning_dataset(place / "tars", shards=2, samples_per_shard=2)
    captioning_dataset(place / "more", shards=2, samples_per_shard=2)
    (place / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: data}}\n"
    )
    (place / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (place / "keys").write_text("00000000\n")
    logs = place / "logs"
    logs.mkdir()
    options = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    config = WorkerConfig(0, 1, 0, worker_debug_path=f"{logs}/{{worker_id}}.jsonl", worker_log_level=1)
    loader = get_savable_loader(get_train_dataset(place / "data", worker_config=config, **options))
    for _ in zip(range(3), loader, strict=False):
        pass
    (place / "state.msgpack").write_bytes(dumps(loader.save_state_rank()))
    (place / "cache").mkdir()
    return place


TRAINING = "--batch-size 1 --shuffle-buffer-size 4 --max-samples-per-sequence 4 --num-workers 0"
CALLS = [
    ("info data", 0, {"samples": 6, "shards": 2}),
    ("info tars", 0, {"kind": "tars", "tars": 2}),
    ("info mix.yaml", 0, {"kind": "metadataset"}),
    ("prepare lines.jsonl", 0, {"samples": 2}),
    ("info lines.jsonl", 0, {"kind": "jsonl", "samples": 2}),
    ("prepare more --split-ratio 1,0,0 --skip-dataset-yaml", 0, {"samples": 4}),
    ("prepare-media more --media-metadata-by-extension", 0, {"stored": 4}),
    ("lint data", 0, {"clean": True}),
    ("lint mix.yaml", 0, {"clean": True}),
    ("diff data data", 0, {}),
    ("diff data more", 1, {}),
    ("merge data target", 0, {"samples": 6}),
    ("split data a=one b=two --keys a=keys --rest b", 0, {"samples": {"a": 1, "b": 5}}),
    ("sample data small --count 2", 0, {"samples": 2}),
    ("convert tars converted --from folder --num-workers 0", 0, {"equal": True}),
    ("repair tars repaired --num-workers 0", 0, {"dropped": 0}),
    ("preview data --count 2", 0, {"failures": []}),
    (f"explain data --steps 0:1 {TRAINING}", 0, {}),
    (f"simulate data {TRAINING}", 0, {}),
    ("doctor data --seconds 0.01", 0, {}),
    ("checkpoint info state.msgpack", 0, {}),
    ("checkpoint redist state.msgpack dealt --new-world-size 1", 0, {}),
    ("analyze-debug logs", 0, {"logs": 1, "steps": 3}),
    ("cache path --cache-dir cache", 0, {}),
    ("completion bash", 0, {"shell": "bash"}),
]


@pytest.mark.parametrize(("call", "status", "expected"), CALLS, ids=[call for call, *_ in CALLS])
def test_standard_output_is_one_document(place, monkeypatch, call, status, expected):
    monkeypatch.chdir(place)
    result = CliRunner().invoke(main, [*call.split(), "--json"])
    assert result.exit_code == status, result.output
    found = json.loads(result.stdout)
    assert {name: found[name] for name in expected} == expected


def test_documents_of_a_cache(s3_server, tmp_bucket, place, tmp_path):
    s3_server.upload_folder(place / "data", f"{tmp_bucket}/data")
    options = [
        f"--storage-option={name}={json.dumps(value)}" for name, value in s3_server.storage_options.items()
    ]
    cache = ["--cache-dir", str(tmp_path), "--json"]

    def run(*arguments):
        result = CliRunner().invoke(main, [*arguments, *cache])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    warmed = run("prewarm", f"{tmp_bucket}/data", "--cache-size", "1GB", *TRAINING.split(), *options)
    assert (warmed["is_complete"], warmed["samples"]) == (True, 3)
    priced = run("prewarm", f"{tmp_bucket}/data", "--dry-run", *TRAINING.split(), *options)
    assert priced["plan"]["cached_bytes"] == warmed["plan"]["bytes"]
    assert priced["dollars"] >= 0
    assert run("cache", "path") == {"directory": str(tmp_path)}
    (dataset,) = run("cache", "ls")["datasets"]
    assert dataset["blocks"] > 0
    assert run("cache", "ls", dataset["url"])["objects"]
    assert run("cache", "stats")["blocks"] == dataset["blocks"]
    verified = run("cache", "verify")
    assert (verified["blocks"], verified["damaged"]) == (dataset["blocks"], 0)
    assert run("cache", "clear")["blocks"] == dataset["blocks"]


def test_an_error_leaves_standard_output_empty(tmp_path):
    result = CliRunner().invoke(main, ["info", str(tmp_path / "none"), "--json"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: " in result.stderr
    wrong = CliRunner().invoke(main, ["info", "--json"])
    assert (wrong.exit_code, wrong.stdout) == (2, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script(shell):
    script = CliRunner().invoke(main, ["completion", shell]).output
    assert f"_ENERGON_STREAM_COMPLETE={shell}_complete" in script
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("energon-stream pre", "pre", {"prepare", "prepare-media", "preview", "prewarm"}),
        ("energon-stream cache ", "", {"path", "ls", "stats", "verify", "clear"}),
        ("energon-stream info --j", "--j", {"--json"}),
        ("energon-stream info da", "da", {"da"}),  # a file, which the shell completes
    ],
)
def test_commands_and_options_complete(line, word, expected):
    environment = {
        **os.environ,
        "_ENERGON_STREAM_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    program = "import sys; sys.argv[0] = 'energon-stream'; from energon_stream.cli import run; run()"
    done = children.run("-c", program, env=environment, check=True)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == expected
