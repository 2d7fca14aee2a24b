"""Stands in for programs that download: their options are checked, and what comes is the small copy.

``python downloads.py hf download …``; also ``wget`` and ``img2dataset``. ``hf`` is huggingface_hub's own
program, of which only the transfer is replaced, so that its options and patterns are the real ones.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from energon_stream.testing.demo_data import write_demo_data
from energon_stream.testing.public_data import write_like_img2dataset

REPOSITORIES = {
    "HuggingFaceFV/finevideo": "finevideo",
    "HuggingFaceM4/OBELICS": "obelics",
    "lmms-lab/LLaVA-OneVision-Data": "llava-onevision",
    "nvidia/Nemotron-VLM-Dataset-v2": "nemotron-vlm-v2",
}


def copy_of(name: str, folder: str) -> Path:
    (data,) = write_demo_data(folder, [name])
    assert data.missing is None, data.missing
    return Path(data.path)


def hf(arguments: list[str]) -> None:
    if arguments == ["auth", "login"]:  # which asks for a token
        return
    from huggingface_hub.cli import download
    from huggingface_hub.cli.hf import main
    from huggingface_hub.utils import filter_repo_objects

    def snapshot_download(repo_id: str, repo_type: str, local_dir: str, **options: object) -> str:
        assert repo_type == "dataset"
        patterns = {name: options[name] for name in ("allow_patterns", "ignore_patterns")}
        with tempfile.TemporaryDirectory() as place:
            copy = copy_of(REPOSITORIES[repo_id], place)
            names = [str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()]
            found = list(filter_repo_objects(names, **patterns))
            assert found, f"no file of the repository has a name like {patterns}"
            for name in found:
                Path(local_dir, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(copy / name, Path(local_dir, name))
        return local_dir

    download.snapshot_download = snapshot_download
    sys.argv = ["hf", *arguments]
    main()


def wget(arguments: list[str]) -> None:
    (url,) = arguments
    with tempfile.TemporaryDirectory() as place:
        if url == "https://www.openslr.org/resources/12/dev-clean.tar.gz":
            with tarfile.open("dev-clean.tar.gz", "w:gz") as tar:
                tar.add(copy_of("librispeech", place) / "LibriSpeech", "LibriSpeech")
        else:
            assert url == "https://storage.googleapis.com/conceptual_12m/cc12m.tsv"
            rows = (f"https://example.org/{number}.jpg\tpicture {number}\n" for number in range(56))
            Path("cc12m.tsv").write_text("".join(rows))


def img2dataset(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("url_list", "output_folder", "url_col"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--caption_col")
    parser.add_argument("--input_format", choices=("tsv", "parquet"), required=True)
    parser.add_argument("--output_format", choices=("webdataset",), required=True)
    parser.add_argument("--resize_mode", choices=("no", "border", "keep_ratio", "center_crop"))
    parser.add_argument("--resize_only_if_bigger", choices=("True", "False"))
    for name in ("image_size", "processes_count", "thread_count"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args(arguments)
    if options.input_format == "tsv":
        with open(options.url_list) as file:
            rows = csv.DictReader(file, delimiter="\t")
            assert {options.url_col, options.caption_col} <= set(rows.fieldnames or ())
            assert sum(1 for _ in rows) == 56
        shutil.move(copy_of("cc12m", ".writing"), options.output_folder)
        return
    import pyarrow.parquet

    tables = sorted(Path(options.url_list).glob("*.parquet"))
    urls = [url for table in tables for url in pyarrow.parquet.read_table(table)[options.url_col].to_pylist()]
    assert len(urls) == len(set(urls)) > 0
    write_like_img2dataset(Path(options.output_folder), urls, lambda number: number % 6 == 1, shard_size=10)


PROGRAMS: dict[str, Callable[[list[str]], None]] = {"hf": hf, "wget": wget, "img2dataset": img2dataset}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2:])
