"""One word for a thing: options of commands, their texts, and other spellings of them."""

import json
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from commands import leaves

import energon_stream
from energon_stream import lint_dataset
from energon_stream.cli.dataset_yaml_wizard import chosen_dataset_yaml
from energon_stream.cli.main import energon, main
from energon_stream.errors import ConfigError
from energon_stream.tools.simulate import Prices, StoreModel

WORDS = tomllib.loads((Path(energon_stream.__file__).parent / "cli" / "words.toml").read_text())
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "words.md"
BANNED = [
    "--parallel",
    "--workers",
    "--split",
    "--split-parts",
    "--request-price",
    "--gb-price",
    "--in-flight",
    "--connections",
    "--sample-rate",
    "--samples",
    "--request-mib",
    "--dataset-yaml-name",
    "--keys/--no-keys",
    "--nproc",
    "--jobs",
    "--num-processes",
    "--concurrency",
    "--max-bytes",
    "--price-per-gib",
    "--price-per-request",
    "--number",
    "--limit",
    "--fraction-of-samples",
    "--seed-value",
]
FORMS = {  # options that take several values, or a range, in some commands
    "--keys", "--max-in-flight", "--num-workers", "--rank", "--split-part", "--steps",
}  # fmt: skip


COMMANDS = dict(leaves())
OPTIONS = {
    (names, flag): option
    for names, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
    for flag in option.opts
    if flag.startswith("--")
}
OLD = [(command, old, word) for command, words in WORDS["old"].items() for old, word in words.items()]
THEIRS = [(command, old, word) for command, words in WORDS["energon"].items() for old, word in words.items()]


def run(*arguments, group=main):
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def test_an_option_means_one_thing():
    texts, kinds = defaultdict(set), defaultdict(set)
    for (_, flag), option in OPTIONS.items():
        texts[flag].add(option.help)
        kinds[flag].add((option.type.name, option.metavar, option.is_flag))
    assert {flag for flag, found in texts.items() if len(found) > 1} == {
        flag
        for flag, text in WORDS["options"].items()
        if isinstance(text, dict) and len(set(text.values())) > 1
    }
    assert {flag for flag, found in kinds.items() if len(found) > 1} <= FORMS


def test_each_text_is_real_and_used():
    assert {flag for _, flag in OPTIONS} == set(WORDS["options"])
    for (names, flag), option in OPTIONS.items():
        assert len(option.help.split()) > 1, (names, flag)
        assert "As in" not in option.help
        text = WORDS["options"][flag]
        assert option.help in (text if isinstance(text, str) else text.values())


def test_no_option_has_a_banned_spelling():
    spelled = {f"{'/'.join([*option.opts, *option.secondary_opts])}" for option in OPTIONS.values()}
    assert not spelled & set(BANNED)
    for command, old, _ in OLD + THEIRS:
        assert ((command,), old) not in OPTIONS


def test_the_page_has_the_table():
    lines = ["| option | meaning | commands |", "|---|---|---|"]
    for flag, text in sorted(WORDS["options"].items()):
        by_text = defaultdict(list)
        for (names, other), option in OPTIONS.items():
            if other == flag:
                by_text[option.help].append(" ".join(names))
        for text, commands in sorted(by_text.items(), key=lambda item: min(item[1])):
            shown = text.replace("|", "\\|")
            named = ", ".join(sorted(commands)) if len(commands) < 12 else "most"
            lines.append(f"| `{flag}` | {shown} | {named} |")
    old = ["| older | the word | commands |", "|---|---|---|"]
    by_word = defaultdict(list)
    for command, spelling, word in OLD:
        by_word[spelling, word].append(command)
    old += [f"| `{a}` | `{b}` | {', '.join(sorted(each))} |" for (a, b), each in sorted(by_word.items())]
    page = PAGE.read_text()
    assert "\n".join(lines) in page, "\n".join(lines)
    assert "\n".join(old) in page, "\n".join(old)


@pytest.mark.parametrize(("command", "old", "word"), OLD)
def test_older_spellings_work_with_a_note(command, old, word):
    value = [] if old in ("--keys", "--no-keys") else ["1"]
    result = run(command, old, *value, old, *value, "--help")
    assert result.exit_code == 0, result.output
    assert result.stderr == f"Note: {old} is deprecated, and energon_stream 1.0 removes it: use {word}.\n"
    assert old not in re.findall(r"--[\w-]+", result.stdout) or ((command,), old) in OPTIONS


@pytest.mark.parametrize(("command", "theirs", "word"), THEIRS)
def test_spellings_of_energon_stay(command, theirs, word):
    result = run(command, theirs, "1", "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert theirs not in re.findall(r"--[\w-]+", result.stdout)
    for spelling in (theirs, word):
        result = run(command, spelling, "1", "--help", group=energon)
        assert (result.exit_code, result.stderr) == (0, "")
    assert f"{theirs}, {word}" in result.stdout


def test_values_of_older_spellings_mean_the_same(tmp_path):
    """A mebibyte stays one; what follows -- is no option."""
    for given in (["--request-mib", "0.5,x"], ["--request-mib=0.5,x"]):
        result = run("bench", tmp_path, *given)
        assert "'xMiB' is not a size" in result.stderr
    result = run("info", "--", "--split")
    assert "Note" not in result.stderr
    result = run("plan", "--steps", "1", "--split", "--split-part")  # a value that looks like an option
    assert result.stderr.count("Note") == 1


def test_shells_complete_the_words_alone():
    shell = ShellComplete(main, {}, "energon-stream", "_X")

    def completed(*line):
        return {item.value for item in shell.get_completions(list(line[:-1]), line[-1])}

    assert completed("convert", "--p") == {"--processes", "--part", "--progress"}
    assert not completed("convert", "--num")
    assert completed("lint", "--num-workers", "3", "--sp") == {"--split-part", "--split-config"}
    assert completed("bench", "--in-flight", "3", "--max-r") == {"--max-request"}
    assert completed("demo") == {"demo-data"}


@pytest.mark.parametrize("name", ["CrudeSample", "CrudeWebdataset", "Crude"])
def test_both_names_of_crude_samples_are_taken(name):
    assert chosen_dataset_yaml(name, None, [])["__class__"] == "CrudeWebdataset"


def test_commands_stand_in_sections():
    result = run("--help")
    assert re.findall(r"(?m)^(\w+):$", result.output) == [
        "Options", "Make", "Look", "Reshape", "Plan", "Run", "Shell",
    ]  # fmt: skip
    text = result.output.split("\n\n", 2)[1]
    assert "Start: convert → browse → train → top" in text
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"Documentation: {project['urls'].get('Documentation', 'docs')}" in result.output
    assert "Reshape" not in run("--help", group=energon).output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("prepair", "prepare"), ("convret", "convert"), ("brows", "browse"), ("bnech", "bench"), ("chekpoint", "checkpoint"),
        ("prewam", "prewarm"), ("linter", "lint"), ("explan", "explain"), ("toop", "top"), ("Prepare", "prepare"),
    ],
)  # fmt: skip
def test_a_typo_in_a_command_gets_a_suggestion(typed, meant):
    result = run(typed, "x")
    assert result.exit_code == 2
    assert f"Did you mean {meant}" in result.stderr


def test_other_typos_get_suggestions():
    assert "--split-ratio" in run("prepare", "x", "--split-ration", "1").stderr
    assert "--max-size" in run("convert", "a", "b", "--maxsize", "1").stderr
    assert "It is a command of energon-stream" in run("convert", group=energon).stderr
    assert "--help lists the commands" in run("zzzzzz").stderr


@pytest.mark.parametrize(
    ("call", "old", "new"),
    [
        (lambda **given: StoreModel(**given).max_in_flight, {"connections": 7}, {"max_in_flight": 7}),
        (lambda **given: Prices(**given).per_1000_get, {"per_1000_requests": 7}, {"per_1000_get": 7}),
    ],
)
def test_older_arguments_work_with_a_warning(call, old, new):
    with pytest.warns(FutureWarning, match="energon_stream 1.0 removes it: use "):
        assert call(**old) == call(**new) == 7
    with pytest.warns(FutureWarning), pytest.raises(ConfigError, match="both"):
        call(**old, **new)


def test_lint_takes_its_older_argument(tmp_path):
    from energon_stream.testing.datasets import prepared_captioning_dataset

    prepared_captioning_dataset(tmp_path, shards=1, samples_per_shard=40)
    with pytest.warns(FutureWarning, match="sample_rate= is deprecated"):
        older = lint_dataset(str(tmp_path), sample_rate=0.2)
    assert older.made == lint_dataset(str(tmp_path), share=0.2).made
    result = run("lint", tmp_path, "--sample-rate", "0.2", "--json")
    assert json.loads(result.stdout)["made"] == older.made
