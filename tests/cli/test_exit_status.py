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
    *(f"{PREPARE} --ray-address a --skip-dataset-yaml"),
    *("prepare-media data", "cost data --name x", "cost data --name -1 --function builtins:len"),
    *("cost data --name x --function nonsense", "cost data --name x --from-media -1", "cost data --name x --column a --table b --function c:d"),
    *("table data --name x", "table data --remove -1", "table data --remove nonsense", "top nowhere --once", "checkpoint info nowhere", "preview data --split-part nonsense", "preview tars --storage-option a"),
    *("lint data --split-part nonsense", "lint data --part 9", "lint data --ray-address a", "lint data --dataset-config nonsense"),
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
    *("info nowhere", "lint nowhere", "preview nowhere", "diff data nowhere", "convert nowhere new"),
    *("merge nowhere new", "prepare nowhere --non-interactive --split-ratio 1,0,0 --skip-dataset-yaml"),
    *("plan nowhere --batch-size 1 --steps 1", "which data --step 1", "bench data --run nowhere"),
    *("info data --split-config nonsense", f"{PREPARE} --skip-dataset-yaml --append", "convert photos new --key nonsense"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("status")
    prepared_captioning_dataset(place / "data", shards=2, samples_per_shard=3, split_ratio=(1, 1, 0))
    captioning_dataset(place / "tars", shards=1, samples_per_shard=2)
    (place / "photos").mkdir()
    (place / "photos" / "a.txt").write_text("a")
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


@pytest.mark.parametrize("line", FAILED)
def test_what_is_not_there_is_a_failure(place, monkeypatch, line):
    check(place, monkeypatch, line, 1)


def test_the_other_command_has_the_same_rule(place, monkeypatch):
    check(place, monkeypatch, "lint data --split-part nonsense", 2, energon)
    check(place, monkeypatch, "info nowhere", 1, energon)
