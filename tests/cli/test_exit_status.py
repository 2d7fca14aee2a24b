"""The exit status of each command by what went wrong, as the table of ``docs/reference/commands.md`` says."""

import shutil

import click
import pytest
from click.testing import CliRunner
from commands import leaves

from energon_stream.cli.main import energon, main
from energon_stream.testing.datasets import captioning_dataset, prepared_captioning_dataset

COMMANDS = dict(leaves())
GROUPS = [(), *sorted({names[:-1] for names in COMMANDS if len(names) > 1})]
TEXTS = type(click.STRING), click.Path, type(click.BOOL)
ORDER = "data --batch-size 1 --steps 1 --num-workers 0"
BENCH = "bench data --batch-size 1 --seconds 0.01 --num-workers 0"
PREPARE = "prepare tars --non-interactive --split-ratio 1,0,0"
WRONG = [
    *("top nowhere --interval nonsense", "completion nonsense", "demo-data new --like nonsense"),
    *("convert photos new --map nonsense", "convert photos new --split-ratio nonsense", "convert photos new --part 9"),
    *("convert photos new --sample-type nonsense", "convert photos new --field-map {}", "convert photos new --file a"),
    *("convert photos new --files-root a", "convert photos new --source-split a", "convert photos new --source-config a"),
    *("convert photos new --max-size 0", "convert photos new --ray-address a"),
    *("prepare tars --non-interactive", "prepare tars --non-interactive --split-ratio 8,1", f"{PREPARE} --part 9"),
    *(f"{PREPARE} --sample-type nonsense", f"{PREPARE} --sample-type TextSample --field-map nonsense"),
    *(f"{PREPARE} --sample-type TextSample --field-map -1", f"{PREPARE} --sample-type TextSample --field-map {{\"a\":1}}"),
    f"{PREPARE} --ray-address a --skip-dataset-yaml",
    *("prepare-media data", "cost data --name x", "cost data --name -1 --function builtins:len"),
    *("cost data --name x --function nonsense", "cost data --name x --from-media -1", "cost data --name x --column a --table b --function c:d"),
    *("table data --name x", "table data --remove -1", "table data --remove nonsense", "preview data --split-part nonsense", "preview tars --storage-option a"),
    *("lint data --split-part nonsense", "lint data --part 9", "lint data --ray-address a", "analyze-debug"),
    *("browse data --subset nonsense", "browse data --split-part nonsense", "browse data --rank 1"),
    *("diff data data --ray-address a", "merge data new --ray-address a", "split data a=new --ratio nonsense"),
    *("split data a=new b=new2 --ratio a=1,c=1", "split data a=new --rest a", "split data a=new", "split data new --ratio new=1"),
    *("sample data new", "sample data new --count 1 --share 0.5", "sample data new --count 1 --max-size 0"),
    *("repair tars new --encoding nonsense", "repair tars new --split-ratio 1", "browse"),
    *("plan data", "plan", "plan data --batch-size 1", f"plan {ORDER} --subset nonsense", f"plan {ORDER} --parts nonsense"),
    *(f"plan {ORDER} --split-part nonsense", f"plan {ORDER} --world-size 2 --rank 2", f"plan {ORDER} --pack-cost a"),
    *(f"plan {ORDER} --price-per-gb -1", f"plan {ORDER} --num-streams 3 --world-size 2", f"plan {ORDER} --picture a.doc"),
    *(f"plan {ORDER} --shuffle-over-epochs-multiplier 0", f"plan {ORDER} --parallel-shard-iters nonsense"),
    *(f"explain {ORDER} --split-part nonsense", "explain data --batch-size 1 --steps 5-2", f"simulate {ORDER} --subset a"),
    *(f"simulate {ORDER} --rank 9", f"prewarm {ORDER}", f"prewarm {ORDER} --cache-dir cache --rank a"),
    *(f"{BENCH} --subset a", f"{BENCH} --split-part nonsense", f"{BENCH} --picture a.doc", "bench data"),
    *("cache ls", "cache clear", "cache stats", "when data", "which data", "which data --step a"),
]  # fmt: skip
FAILED = [
    *("diff data nowhere", "which data --step 1", "bench data --run nowhere", "lint nowhere/a.tar"),
    *(f"{PREPARE} --skip-dataset-yaml --append", "convert photos new --key nonsense", "analyze-debug tars"),
    *("info data --split-config nonsense", "info data --dataset-config nonsense", "lint data --dataset-config nonsense"),
    *("cost data --name x --column a --table nowhere", "split data a=new --keys a=nowhere", "sample data new --keys nowhere"),
    *("convert photos.jsonl new --file file --files-root nowhere", "table data --name x nowhere.csv", "demo-data tars/data-000000.tar"),
]  # fmt: skip
NOWHERE = {
    "checkpoint redist": "nowhere new --new-world-size 1", "convert": "nowhere new", "cost": "nowhere --name x --column a",
    "diff": "nowhere data", "merge": "nowhere new", "mount": "nowhere new", "prepare": "nowhere --non-interactive --split-ratio 1,0,0 --skip-dataset-yaml",
    "prepare-media": "nowhere --media-metadata-by-header", "repair": "nowhere new", "sample": "nowhere new --count 1",
    "split": "nowhere a=new --ratio a=1", "table": "nowhere --name x --media", "top": "nowhere --once", "when": "nowhere --sample a",
    "which": "nowhere --step 0", "bench": "nowhere --batch-size 1 --seconds 0.01", "browse": "nowhere",
    **{f"cache {name}": "--cache-dir nowhere" for name in ("clear", "ls", "stats", "verify")},
    **dict.fromkeys(("analyze-debug", "checkpoint info", "doctor", "info", "lint", "preview"), "nowhere"),
    **dict.fromkeys(("explain", "plan", "prewarm", "simulate"), "nowhere --batch-size 1 --steps 1 --cache-dir new"),
}  # fmt: skip
"""The arguments of each command that reads a path, with one at which nothing is."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("status")
    prepared_captioning_dataset(place / "data", shards=2, samples_per_shard=3, split_ratio=(1, 1, 0))
    captioning_dataset(place / "tars", shards=1, samples_per_shard=2)
    (place / "photos").mkdir()
    (place / "photos" / "a.txt").write_text("a")
    (place / "photos.jsonl").write_text('{"file": "a.jpg"}')
    return place


def run(line, group=main):
    words = line if isinstance(line, list) else line.split(" ")
    return CliRunner().invoke(group, words)


def check(place, monkeypatch, line, status, group=main):
    """Run a command that ends with a status and a message, without a traceback, and leaves nothing behind."""
    monkeypatch.chdir(place)
    before = sorted(path.relative_to(place) for path in place.rglob("*"))
    done = run(line, group)
    assert isinstance(done.exception, SystemExit), (line, done.exception)
    assert (done.exit_code, "Error: " in done.stderr) == (status, True), done.output
    found = sorted(path.relative_to(place) for path in place.rglob("*"))
    shutil.rmtree(place / "new", ignore_errors=True)
    return [path for path in found if path not in before]


@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_an_unknown_command_or_option_is_a_wrong_line(names):
    for word in ("nonsense", "--nonsense"):
        assert run([*names, word]).exit_code == 2


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_arguments_that_no_parser_takes_are_a_wrong_line(names):
    """Missing arguments, too many of them, unknown options, and values of a wrong kind."""
    params = COMMANDS[names].params
    arguments = [param for param in params if isinstance(param, click.Argument)]
    given = ["x" for param in arguments for _ in range(max(1, param.nargs))]
    lines = [["--nonsense"]]
    lines += [[]] if any(param.required for param in arguments) else []
    lines += [[*given, "y"]] if all(param.nargs == 1 for param in arguments) else []
    for param in params:
        if isinstance(param, click.Option) and not param.is_flag and not isinstance(param.type, TEXTS):
            lines += [[*given, f"{param.opts[0]}=nonsense"], [*given, param.opts[0]]]
    for line in lines:
        done = run([*names, *line])
        assert (done.exit_code, "Error: " in done.output) == (2, True), (line, done.output)


@pytest.mark.parametrize("line", WRONG)
def test_values_that_cannot_work_are_a_wrong_line(place, monkeypatch, line):
    assert not check(place, monkeypatch, line, 2)


@pytest.mark.parametrize(
    "name", sorted({*map(" ".join, COMMANDS)} - {"cache path", "completion", "demo-data"})
)
def test_a_path_at_which_nothing_is_is_a_failure_of_each_command(place, monkeypatch, name):
    line = f"{name} {NOWHERE[name]}"
    if "--cache-dir" not in {
        option for param in COMMANDS[(*name.split(" "),)].params for option in param.opts
    }:
        line = line.removesuffix(" --cache-dir new")
    line = line.replace(" --steps", " --count") if name == "simulate" else line
    if name == "doctor":  # which says what it found, as where it goes on
        monkeypatch.chdir(place)
        assert run(line).exit_code == 1
        return
    assert not check(place, monkeypatch, line, 1)


@pytest.mark.parametrize("line", FAILED)
def test_what_is_not_there_is_a_failure(place, monkeypatch, line):
    check(place, monkeypatch, line, 1)


def test_the_other_command_has_the_same_rule(place, monkeypatch):
    check(place, monkeypatch, "lint data --split-part nonsense", 2, energon)
    for line in ("info nowhere", "analyze-debug nowhere", "checkpoint info nowhere"):
        check(place, monkeypatch, line, 1, energon)
