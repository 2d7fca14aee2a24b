"""What commands say: counts, remedies that the command has, suggestions, and what they do not know."""

import ast
import json
import re
import shutil
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import leaves
from PIL import Image

import energon_stream
from energon_stream.cli.main import in_flags, main
from energon_stream.cli.words import WORDS
from energon_stream.testing.datasets import captioning_dataset, prepared_captioning_dataset

LOADER = """
def sample_loader(raw):
    return dict(__key__=raw["__key__"], image=raw["jpg"], caption=raw["text"])  # it is txt


def part_filter(part):
    return True
"""
CODE = """
__module__: megatron.energon
__class__: CaptioningWebdataset
sample_loader: sample_loader.py:sample_loader
part_filter: sample_loader.py:part_filter
"""


ORDER = ["--batch-size=1", "--shuffle-buffer-size=2", "--max-samples-per-sequence=2", "--num-workers=1"]


def run(*arguments, status=0, **options):
    done = CliRunner().invoke(main, [*map(str, arguments)], **options)
    assert done.exit_code == status, done.output
    return done


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return prepared_captioning_dataset(
        tmp_path_factory.mktemp("one") / "data", shards=1, samples_per_shard=1, split_ratio=(1, 0, 0)
    )


@pytest.mark.parametrize(
    "command",
    [
        ["info"],
        ["lint"],
        ["lint", "--no-decode"],
        ["sample", "TARGET", "--count", "1"],
        ["merge", "TARGET"],
        ["split", "all=TARGET", "--ratio", "all=1"],
        ["repair", "TARGET"],
        ["plan", "--steps", "1", *ORDER],
        ["explain", "--steps", "1", *ORDER],
        ["doctor", "--seconds", "0.01"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_one_is_no_plural(one, tmp_path, command):
    given = [
        word.replace("TARGET", str(tmp_path / "new")).replace("CACHE", str(tmp_path)) for word in command
    ]
    output = run(given[0], one, *given[1:]).output
    assert not re.search(
        r"\b1 (samples|shards|tars|files|objects|steps|ranks|rows|sections|requests)\b", output
    ), output


@pytest.mark.parametrize("typed", ["train", "Train", "fit", "trian"])
def test_training_is_no_command_but_a_page(typed):
    output = run(typed, status=2).output
    with open("pyproject.toml", "rb") as file:
        docs = tomllib.load(file)["project"]["urls"].get("Documentation", "docs")
    assert f"Training is a Python program, as in {docs}/start/first-hour.md." in " ".join(output.split())


def test_the_page_of_training_exists_and_trains():
    with open("docs/start/first-hour.md") as file:
        assert "get_train_dataset(" in file.read()


@pytest.mark.parametrize("typed", WORDS["elsewhere"])
def test_suggestions_are_commands(typed):
    text = WORDS["elsewhere"][typed].partition("DOCS")[0]
    assert typed not in main.list_commands(click.Context(main))
    named = re.findall(r"[a-z]+(?: [a-z]+)?", text.partition("Did you mean ")[2])
    if named:
        assert named[0].split()[0] in main.list_commands(click.Context(main))
    assert text[:40] in " ".join(run(typed, status=2).output.split())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pass force=True to replace it", "pass --force-overwrite to replace it"),
        ("or pass sample_type= and field_map=", "or pass sample_type= and field_map= in Python"),
        ("pass sample_type= (it builds)", "pass sample_type= in Python (it builds)"),
        (
            "pass limits=Limits(image_pixels=…) or set X=1",
            "pass limits=Limits(image_pixels=…) in Python or set X=1",
        ),
        ("pass allow_urls=['s3://a'], or set X", "pass allow_urls=['s3://a'] in Python, or set X"),
        ("pass overlong='drop' or 'split'", "pass overlong='drop' or 'split' in Python"),
        ("pass verify='sampled', which reads", "pass verify='sampled' in Python, which reads"),
        ("bypass x=1", "bypass x=1"),
        ("with force=False, all are one", "with --no-force-overwrite, all are one"),
        (
            "pass storage_options={'key': …, 'secret': …}, or storage_options={'anon': True} for",
            "pass --storage-option key=… --storage-option secret=…, or --storage-option anon=true for",
        ),
        (
            "give force=[COLUMN]; else force=3, force=",
            "give --force-overwrite COLUMN; else --force-overwrite 3, --force-overwrite",
        ),
    ],
)
def test_remedies_of_python_say_so(text, shown):
    flags = {"force": "--force-overwrite", "key": "--key", "storage_options": "--storage-option"}
    assert in_flags(text, flags) == shown


def test_tars_that_are_not_prepared(tmp_path):
    captioning_dataset(tmp_path, shards=1, samples_per_shard=2)
    output = run("preview", tmp_path, status=1).output
    assert "sample_type= in Python" in output
    run("prepare", tmp_path, "--split-ratio", "1,0,0", "--sample-type", "CaptioningSample", "--non-interactive",
        "--field-map", '{"image": "jpg", "caption": "txt"}')  # fmt: skip
    assert run("preview", tmp_path, "--count", "1").output.startswith("Sample 0")  # the remedy that it names


def test_a_typo_in_the_code_of_a_dataset_is_said_once(tmp_path, monkeypatch):
    folder = prepared_captioning_dataset(
        tmp_path / "data", shards=2, samples_per_shard=60, split_ratio=(1, 0, 0)
    )
    (folder / ".nv-meta" / "sample_loader.py").write_text(LOADER)
    (folder / ".nv-meta" / "dataset.yaml").write_text(CODE)
    refused = run("preview", folder, status=1).output
    (variable,) = re.findall(r"trust_dataset_code=True in Python or set (\w+)=1", refused)
    monkeypatch.setenv(variable, "1")
    lines = run("preview", folder, status=1).output.splitlines()
    assert Counter(line == "KeyError: 'text' (sample_loader.py:3)" for line in lines)[True] == 1
    assert lines[-1] == "Error: 100 samples cannot be made."
    assert len(lines) < 6
    checked = run("lint", folder, status=1).output
    assert checked.count("KeyError: 'text' [data-") == 120
    assert "/00000000, sample_loader.py:3]" in checked


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number:02}.png")
        (folder / f"{number:02}.txt").write_text("a picture")
    return folder


def test_a_dry_run_says_that_the_type_is_a_guess(pictures, tmp_path):
    guess = "dataset.yaml, if all samples have the parts of these:"
    command = ["convert", pictures, tmp_path / "out", "--no-shuffle"]
    (pictures / "11.txt").unlink()  # after the rows of the preview
    output = run(*command, "--dry-run").output
    assert guess in output
    assert "CaptioningSample" in output
    assert json.loads(run(*command, "--dry-run", "--json").output)["dataset_yaml_is_guess"] is True
    written = run(*command, "--split-ratio", "1,0,0", "--no-progress").output
    assert "Samples:   CrudeWebdataset" in written
    given = ["--sample-type", "CaptioningSample", "--field-map", '{"image": "png", "caption": "txt"}']
    assert "dataset.yaml:\n" in run(*command, "--dry-run", *given).output
    for path in sorted(pictures.iterdir())[6:]:
        path.unlink()
    assert "dataset.yaml:\n" in run(*command, "--dry-run").output  # it saw all rows


def test_a_repeated_conversion_says_what_it_read_back(pictures, tmp_path):
    command = ["convert", pictures, tmp_path / "out", "--split-ratio", "1,0,0", "--no-progress"]
    first, second = run(*command).output, run(*command).output
    assert "Read back: 12 samples, all with the checksums of what was written\n" in first
    assert "Read back: nothing in this run\n" in second
    shutil.rmtree(tmp_path / "out")
    assert "Read back: nothing in this run\n" in run(*command, "--no-check").output


def test_the_program_that_draws_the_pages_uses_the_words_of_the_commands():
    """An older spelling would print a note into the pictures."""
    with open("docs/tools/looks.py") as file:
        text = re.sub(r" else .*older words", "", file.read())
    used = set(re.findall(r'"(--[a-z-]+)[="]', text))
    old = {
        option for command in ("plan", "bench", "doctor", "top") for option in WORDS["old"].get(command, {})
    }
    assert used
    assert not used & old


def test_one_picture_and_one_key_are_no_plural(one, tmp_path):
    (tmp_path / "deep").mkdir()
    Image.new("I;16", (4, 4), 9).save(tmp_path / "deep/a.png")
    run("convert", tmp_path / "deep", tmp_path / "tars", "--processes", "0")
    assert "1 picture has grey values" in run("lint", tmp_path / "tars").output
    (tmp_path / "keys").write_text("none\n")
    few = ["sample", one, tmp_path / "few", "--keys", tmp_path / "keys"]
    assert "1 key is not in the dataset" in run(*few, status=2).output
    assert "there is no such tar" in run("lint", one / "no.tar", status=1).output


OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+\w)")
OF_OTHERS = {"shadow", "states", "shm-size"}  # of run_megatron, and of what starts containers


def texts_of(path):
    """The texts of a module, but for its docstrings; braces stand for values."""
    tree = ast.parse(path.read_text())
    inner = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (inner | docs)
        ):
            yield node.value


def test_hints_name_options_that_the_command_has():
    """Python's users see the texts of the library: these name arguments, or a whole command."""
    package = Path(energon_stream.__file__).parent
    options, by_module = {}, defaultdict(lambda: {"--help"})
    for names, command in leaves():
        words = {word for each in command.params for word in (*each.opts, *each.secondary_opts)}
        options[" ".join(names)] = words
        by_module[command.callback.__module__.rpartition(".")[2]] |= words
    every = set().union(*by_module.values())
    seen = 0
    for path in sorted(package.rglob("*.py")):
        if not OPTION.search(path.read_text()):  # parsing takes long
            continue
        own = by_module.get(path.stem, every) if path.parent.name == "cli" else set()
        for text in filter(lambda text: " " in text, texts_of(path)):
            for found in OPTION.finditer(text):
                if found[1] in OF_OTHERS:
                    continue
                seen += 1
                asked = re.findall(r"energon-stream ([a-z-]+)", text[: found.start()])
                known = options[asked[-1]] if asked else own
                assert any(word.startswith(found[0]) for word in known), (path.name, text)
    assert seen > 40
