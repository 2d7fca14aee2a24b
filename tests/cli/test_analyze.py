"""``analyze-debug`` reads debug logs and pictures the order of samples."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from energon_stream.cli.main import main
from energon_stream.testing.datasets import prepared_captioning_dataset

BLACK, WHITE, RED, CYAN = (0, 0, 0), (255, 255, 255), (255, 0, 0), (0, 255, 255)
SAMPLE = "WebdatasetSampleLoaderDataset._slices_iter.yield"


def loader_lines(rank, batches, number=0, training=True):
    """Lines of a loader, as Megatron-Energon writes them."""
    common = {"r": rank, "w": None, "id": number}
    source = {"training": training, "_path": f"/data/{number}"}
    config = {"type": "BatchDataset", "dataset": {"datasets": [{"map_fn_config": source}]}}
    yield {"t": "SavableLoader.__init__", **common, "config": config}
    yield {"t": "SavableDataLoader.iter", **common, "iter_id": number + 1}
    for place, keys in enumerate(batches):
        yield {"t": "SavableDataLoader.yield", **common, "idx": place, "global_idx": place, "keys": [*keys]}
    yield {"t": "SavableDataLoader.StopIteration", **common, "iter_id": number}


def worker_lines(rank, batches, read_first=(), mode="train"):
    """Lines of the only worker of a rank."""
    for key in read_first:
        yield {"t": SAMPLE, "r": rank, "w": 0, "key": key}
    for place, keys in enumerate(batches):
        for key in keys:
            yield {"t": SAMPLE, "r": rank, "w": 0, "key": key}
        yield {"t": "yield_batch", "r": rank, "w": 0, "m": mode, "idx": place, "keys": [*reversed(keys)]}


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


@pytest.fixture
def two_ranks(tmp_path):
    return write(
        tmp_path / "two",
        main0=loader_lines(0, ["ab", "cd", "ae"]),
        main1=loader_lines(1, ["xy", "az", "qe"]),
        worker0=worker_lines(0, ["ab", "cd", "ae"], read_first="s"),
        worker1=worker_lines(1, ["xy", "az", "qe"]),
    )


@pytest.fixture
def analyze(tmp_path):
    """Runs the command; returns its output and the picture, by pixels."""

    def run(*arguments, code=0, text=None):
        picture = tmp_path / "picture.png"
        command = ["analyze-debug", "--heatmap-path", str(picture), *map(str, arguments)]
        ended = CliRunner().invoke(main, command, input=text)
        assert ended.exit_code == code, ended.output
        if not picture.exists():
            return ended.output, None
        return ended.output, [
            [tuple(pixel) for pixel in row] for row in np.array(Image.open(picture)).tolist()
        ]

    return run


@pytest.mark.energon("cli: analyze-debug", "cli: analyze-debug --heatmap-path")
def test_rows_are_samples_and_columns_are_steps(two_ranks, analyze):
    output, picture = analyze(two_ranks)
    assert picture == [
        [RED, CYAN, RED],  # a
        [RED, BLACK, BLACK],  # b
        [CYAN, BLACK, BLACK],  # x
        [CYAN, BLACK, BLACK],  # y
        [BLACK, RED, BLACK],  # c
        [BLACK, RED, BLACK],  # d
        [BLACK, CYAN, BLACK],  # z
        [BLACK, BLACK, WHITE],  # e, of both ranks
        [BLACK, BLACK, CYAN],  # q
    ]
    assert "9 unique sample keys, 3 steps" in output
    assert "2 samples came more than once, 2 of them on more than one rank" in output
    assert "loader 0: train /data/0, 3 steps" in output


@pytest.mark.energon("cli: analyze-debug")
def test_files_may_be_named_and_others_in_a_folder_are_left_out(two_ranks, analyze):
    (two_ranks / "notes.txt").write_text("no log")
    assert "4 logs" in analyze(two_ranks)[0]
    _output, picture = analyze(two_ranks / "main0.jsonl")
    assert (len(picture), len(picture[0])) == (5, 3)
    assert {pixel for row in picture for pixel in row} == {WHITE, BLACK}  # a single rank is white


@pytest.mark.energon("cli: analyze-debug --no-colors")
def test_no_colors(two_ranks, analyze):
    assert {pixel for row in analyze("--no-colors", two_ranks)[1] for pixel in row} == {WHITE, BLACK}


@pytest.mark.energon("cli: analyze-debug --heatmap-gain")
def test_gain(two_ranks, analyze):
    picture = analyze("--heatmap-gain", 0.5, two_ranks)[1]
    assert picture[0][0] == (127, 0, 0)
    assert picture[7][2] == (127, 127, 127)


@pytest.mark.energon("cli: analyze-debug --heatmap-steps", "cli: analyze-debug --heatmap-samples")
def test_long_runs_are_scaled_down(tmp_path, analyze):
    keys = [chr(ord("a") + number) for number in range(12)]
    folder = write(tmp_path / "long", main=loader_lines(0, keys))
    output, picture = analyze("--heatmap-steps", 4, "--heatmap-samples", 3, "--heatmap-gain", 1, folder)
    # Four samples a row and three steps a column: the diagonal has three, one, two, two, one and three.
    bright, dim, middle = WHITE, (85, 85, 85), (170, 170, 170)
    assert picture == [
        [bright, dim, BLACK, BLACK],
        [BLACK, middle, middle, BLACK],
        [BLACK, BLACK, dim, bright],
    ]
    assert "12 steps, 3 for each column" in output
    assert "12 samples, 4 for each row" in output


@pytest.mark.energon("cli: analyze-debug --skip")
def test_skipped_steps_are_left_out(two_ranks, analyze):
    _output, picture = analyze("--skip", 2, two_ranks)
    assert picture == [[RED], [WHITE], [CYAN]]  # a, e, q
    assert "skip fewer" in analyze("--skip", 3, two_ranks, code=2)[0]


@pytest.mark.energon(
    "cli: analyze-debug --force-loading-order", differs="7.4.1 ends with a TypeError; here it works"
)
def test_loading_order(two_ranks, analyze):
    _output, picture = analyze("--force-loading-order", two_ranks / "worker0.jsonl")
    assert picture == [
        [WHITE, BLACK, BLACK],  # s, which was read first, and dropped by a filter
        [WHITE, BLACK, WHITE],  # a
        [WHITE, BLACK, BLACK],  # b
        [BLACK, WHITE, BLACK],  # c
        [BLACK, WHITE, BLACK],  # d
        [BLACK, BLACK, WHITE],  # e
    ]


def test_batches_without_keys_show_the_loading_order(tmp_path, analyze):
    main = [
        {name: value for name, value in line.items() if name != "keys"} for line in loader_lines(0, ["ab"])
    ]
    folder = write(tmp_path / "logs", main=main, worker=worker_lines(0, ["ab"]))
    output, picture = analyze(folder)
    assert picture == [[WHITE], [WHITE]]
    assert "have no keys" in output


@pytest.mark.energon("cli: analyze-debug --include-modality")
def test_modalities(tmp_path, analyze):
    lines = [*loader_lines(0, ["ab"]), *loader_lines(0, ["c"], 5, training=False)]
    folder = write(tmp_path / "logs", main=lines)
    assert len(analyze(folder)[1]) == 2
    assert len(analyze("--include-modality", "val", folder)[1]) == 1
    output, picture = analyze("--include-modality", "train,val", folder, text="5\n")
    assert "loader 0: train" in output
    assert "loader 5: val" in output
    assert len(picture) == 1
    assert "unknown modality 'test'" in analyze("--include-modality", "test", folder, code=2)[0]
    only = write(tmp_path / "only", main=loader_lines(0, ["ab"]))
    assert "no loader of val" in analyze("--include-modality", "val", only, code=2)[0]


def test_lines_that_were_cut_are_counted(two_ranks, analyze):
    with (two_ranks / "main0.jsonl").open("a") as file:
        file.write('{"t": "SavableDataLoader.yi')
    assert "4 logs, 1 lines cannot be read" in analyze(two_ranks)[0]


def test_without_logs(tmp_path, analyze):
    assert "no log files found" in analyze(tmp_path, code=1)[0]
    assert "no log files found" in analyze(code=2)[0]


def test_logs_of_a_run(tmp_path, analyze):
    prepared_captioning_dataset(tmp_path / "data", shards=3, samples_per_shard=8, split_ratio=(1, 0, 0))
    for rank in (0, 1):
        config = WorkerConfig(
            rank=rank,
            world_size=2,
            num_workers=2,
            worker_debug_path=str(tmp_path / "logs" / "{worker_id}.jsonl"),
            worker_log_level=2,
        )
        validation = get_val_dataset(
            tmp_path / "data", split_part="train", batch_size=2, worker_config=config
        )
        with get_savable_loader(validation) as loader:
            assert len(list(loader)) == 6
        options = {"shuffle_buffer_size": 4, "max_samples_per_sequence": 4, "virtual_epoch_length": 8}
        dataset = get_train_dataset(tmp_path / "data", batch_size=2, worker_config=config, **options)
        with get_savable_loader(dataset) as loader:
            assert len(list(loader)) == 8
    # Both ranks have numbered their loaders in one process here, so each has two of its own.
    numbers = sorted(
        line["id"]
        for name in ("0.jsonl", "3.jsonl")
        for line in map(json.loads, (tmp_path / "logs" / name).read_text().splitlines())
        if line["t"] == "SavableLoader.__init__"
    )
    output, _ = analyze("--include-modality", "val", tmp_path / "logs", text=f"{numbers[2]}\n")
    assert "12 unique sample keys, 6 steps" in output
    assert "0 samples came more than once" in output
    output, _picture = analyze("--force-loading-order", tmp_path / "logs")
    assert "24 unique sample keys" in output
