"""Folders and tables as people have them in their first hour: the right dataset, or a remedy."""

import csv
import io
import json
import subprocess
import tarfile
import tempfile
import zipfile
from itertools import accumulate, chain, repeat
from pathlib import Path

import pytest
from foreign import image_bytes

from energon_stream import LocalEngine, convert_dataset
from energon_stream.errors import ColumnError, ConfigError, LimitError, MissingFileError, SourceError
from energon_stream.write.sources.text import cut_list

PICTURES = [image_bytes(number) for number in range(6)]
TWO = {f"{name}/{number}.jpg": PICTURES[number] for name in ("dog", "cat") for number in range(3)}
CLASSES = {f"{name}/{number}": name for name in ("dog", "cat") for number in range(3)}


def write(folder, files):
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def convert(source, **options):
    """Parts of the samples by key, as tarfile reads the dataset."""
    found = {}
    with tempfile.TemporaryDirectory() as out:
        convert_dataset(source, out, engine=LocalEngine(0), **options)
        for path in Path(out).glob("*.tar"):
            with tarfile.open(path) as tar:
                for member in tar:
                    folder, _, name = member.name.rpartition("/")
                    key, _, part = name.partition(".")
                    found.setdefault(f"{folder}/{key}".lstrip("/"), {})[part] = tar.extractfile(member).read()
    return found


def classes(found):
    return {key: parts["class.txt"].decode() for key, parts in found.items()}


def coco(name="captions"):
    images = [{"id": 40 - n, "file_name": f"{n}.jpg"} for n in range(3)]
    return json.dumps({"images": images, "annotations": [{"image_id": 39, "caption": name}]})


IMAGES = {f"images/{number}.jpg": PICTURES[number] for number in range(3)}
FLAT = {f"{number}.jpg": PICTURES[number] for number in range(3)}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({**IMAGES, "annotations/captions.json": coco()}, "annotations/captions.json"),
        ({**FLAT, "annotations.json": coco()}, "annotations.json"),
        ({**IMAGES, "images/_annotations.coco.json": coco()}, "_annotations.coco.json"),
        ({**IMAGES, "images/metadata.jsonl": '{"file_name": "0.jpg", "text": "a"}\n'}, "metadata.jsonl"),
        ({**IMAGES, **{f"labels/{n}.txt": "0 .5 .5 .1 .1" for n in range(3)}}, "labels/0.txt"),
        ({**IMAGES, **{f"Annotations/{n}.xml": "<a/>" for n in range(3)}}, "Annotations/0.xml"),
    ],
)
def test_annotations_of_many_files_are_no_samples(tmp_path, files, named):
    source = write(tmp_path / "source", files)
    with pytest.raises(SourceError, match=rf"no picture or recording.*{named}.*table with a column"):
        convert(source)
    assert len(convert(source, classes=False)) == len(files)  # the other way out


def test_cocos_captions_as_a_table(tmp_path):
    source = write(tmp_path / "coco", {**IMAGES, "annotations/captions.json": coco("a dog")})
    document = json.loads((source / "annotations/captions.json").read_text())
    names = {image["id"]: image["file_name"] for image in document["images"]}
    rows = [
        {"image": f"images/{names[a['image_id']]}", "text": a["caption"]} for a in document["annotations"]
    ]
    write(source, {"captions.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    assert convert(source / "captions.jsonl") == {"000000000": {"jpg": PICTURES[1], "txt": b"a dog"}}


@pytest.mark.parametrize("around", ["", "pics/", "a/b/"])
def test_folders_of_classes_wherever_they_are(tmp_path, around, caplog):
    source = write(tmp_path / "source", {f"{around}{path}": data for path, data in TWO.items()})
    write(
        source, {"README.md": "about", "LICENSE": "a", f"{around}dog/._0.jpg": "", "__MACOSX/pics/._dog": ""}
    )
    found = convert(source)
    assert classes(found) == {f"{around}{key}": name for key, name in CLASSES.items()}
    assert {parts["cls"] for key, parts in found.items() if "cat/" in key} == {b"0"}
    assert found[f"{around}dog/2"]["jpg"] == PICTURES[2]
    assert "left out 2 files, such as 'LICENSE'" in caplog.text


def test_classes_within_classes(tmp_path, caplog):
    files = {
        f"{a}/{b}/{n}.jpg": PICTURES[n] for a in ("animal", "toy") for b in ("cat", "dog") for n in (0, 1)
    }
    source = write(tmp_path / "source", files)
    assert {tuple(parts) for parts in convert(source).values()} == {("jpg",)}
    assert "4 folders are no classes" in caplog.text
    assert classes(convert(source, classes=True)) == {path[:-4]: path[:-6] for path in files}


def test_split_parts_below_a_folder_are_not_mixed(tmp_path):
    source = write(tmp_path / "source", {f"images/{name}/1.jpg": PICTURES[0] for name in ("train", "val")})
    with pytest.raises(SourceError, match="the folders train, val would be mixed"):
        convert(source)


def test_an_archive_that_windows_made(tmp_path):
    """Its names have backslashes, which zipfile takes over."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path, data in TWO.items():
            info = zipfile.ZipInfo()
            info.filename = "pics\\" + path.replace("/", "\\")
            archive.writestr(info, data)
    with pytest.raises(SourceError, match=r"a format that is not read.*unpack an archive"):
        convert(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "source")
    assert (tmp_path / "source" / "pics\\dog\\0.jpg").exists()
    assert classes(convert(tmp_path / "source")) == {f"pics/{key}": name for key, name in CLASSES.items()}


def test_a_table_that_windows_made(tmp_path):
    """Its paths have backslashes; files whose names have them, as archives leave them, come first."""
    rows = [r"imgs\0.jpg,zero", r".\imgs\1.jpg,one", "imgs/2.jpg,two"]
    table = "\n".join(["image,caption", *rows])
    source = write(tmp_path / "source", {f"imgs/{n}.jpg": PICTURES[n] for n in range(3)})
    write(source, {"t.csv": table, r"imgs\2.jpg": b"never"})
    expected = [{"jpg": PICTURES[n], "txt": text} for n, text in enumerate((b"zero", b"one", b"two"))]
    assert [*convert(source / "t.csv").values()] == expected
    write(source, {r"imgs\0.jpg": PICTURES[5]})
    assert next(iter(convert(source / "t.csv").values()))["jpg"] == PICTURES[5]
    write(source, {"t.csv": table.replace("imgs\\0", "imgs\\9")})
    with pytest.raises(MissingFileError, match="row 0: the file of the column 'image'"):
        convert(source / "t.csv")
    write(tmp_path, {"0.jpg": PICTURES[0]})
    write(source, {"t.csv": table.replace("imgs\\0", "..\\0")})
    with pytest.raises(ColumnError, match="not below the folder") as caught:
        convert(source / "t.csv")
    assert str(caught.value).count("files_root=") == 1


def test_links_that_lead_back(tmp_path):
    """A listing that follows links would go forty folders deep, and end with an error of the system."""
    source = write(tmp_path / "source", {**TWO, "a.jpg": PICTURES[0]})
    (tmp_path / "other").mkdir()
    for link, at in {"self": ".", "dog/up": "..", "over": "../other", "loop.jpg": "loop.jpg"}.items():
        (source / link).symlink_to(at)
    (tmp_path / "other" / "back").symlink_to(source)
    write(tmp_path / "other", {"1.jpg": PICTURES[1]})
    assert set(convert(source)) == {"a", "over/1", *(path[:-4] for path in TWO)}


def test_one_picture_and_none(tmp_path):
    source = write(tmp_path / "source", {"a.jpg": PICTURES[0]})
    assert convert(source) == {"a": {"jpg": PICTURES[0]}}
    with pytest.raises(SourceError, match="name the folder of a picture"):
        convert(source / "a.jpg")
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(SourceError, match="empty"):
        convert(tmp_path / "empty")
    with pytest.raises(SourceError, match="no files with an extension"):
        convert(write(tmp_path / "hidden", {".DS_Store": "x"}))


def test_a_table_that_names_no_file_beside_pictures(tmp_path):
    """As of Kaggle: identities without extension, and files of predictions beside those of training."""
    rows = "".join(f"{number},{number % 2}\n" for number in range(3))
    source = write(tmp_path / "source", {**IMAGES, "train.csv": f"id,label\n{rows}"})
    with pytest.raises(SourceError, match=r"names no file.*'images/\d.jpg'.*a column with their paths"):
        convert(source)
    assert len(convert(source / "train.csv")) == 3
    paths = "".join(f"{number}.jpg,{number % 2}\n" for number in range(3))
    write(source, {"train.csv": f"id,label\n{paths}"})
    with pytest.raises(MissingFileError, match="files_root="):
        convert(source)
    found = convert(source, files_root=str(source / "images"))
    assert [(parts["jpg"], parts["cls"]) for _, parts in sorted(found.items())] == [
        (PICTURES[n], b"%d" % (n % 2)) for n in range(3)
    ]
    write(source, {"more.csv": "id\n1.jpg\n"})
    with pytest.raises(SourceError, match=r"tables more.csv and train.csv have different columns"):
        convert(source, files_root=str(source / "images"))


@pytest.mark.parametrize("begin", ["sep={}\r\n", '"sep={}"\r\n', "sep={}\n", "\ufeffsep={}\r\n"])
@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_first_line_with_the_delimiter(tmp_path, begin, sign):
    text = io.StringIO()
    rows = [{"caption": f'a {sign} "dog"\n{n}', "n": str(n)} for n in range(510)]
    writer = csv.DictWriter(text, ["caption", "n"], delimiter=sign)
    writer.writeheader()
    writer.writerows(rows)
    source = write(tmp_path, {"a.csv": begin.format(sign) + text.getvalue()})
    found = convert(source / "a.csv")
    assert [
        {"caption": parts["txt"].decode(), **json.loads(parts["json"])} for _, parts in sorted(found.items())
    ] == rows


@pytest.mark.parametrize(
    ("encoding", "end", "problem", "cure"),
    [
        ("utf-16", "\r\n", "not UTF-8.*iconv -f UTF-16", "iconv -f UTF-16 -t UTF-8"),
        ("cp1252", "\r\n", "not UTF-8.*iconv -f WINDOWS-1252", "iconv -f WINDOWS-1252 -t UTF-8"),
        ("utf-8", "\r", "end with CR alone.*tr ", "tr '\\r' '\\n'"),
        ("utf-8-sig", "\r\n", "", ""),
    ],
)
def test_tables_that_excel_writes(tmp_path, encoding, end, problem, cure):
    source = (
        write(tmp_path, {"a.csv": f"caption;n{end}ein Hünd;1{end}zwei;2{end}".encode(encoding)}) / "a.csv"
    )
    if problem:
        with pytest.raises(SourceError, match=problem) as caught:
            convert(source)
        assert cure in str(caught.value)
        done = subprocess.run(f"{cure} < {source}", shell=True, capture_output=True, check=True)
        source.write_bytes(done.stdout)
    assert [parts["txt"].decode() for _, parts in sorted(convert(source).items())] == ["ein Hünd", "zwei"]


def llava_rows(kind):
    """Rows in the shape of public tables: some lack a picture, one names two."""
    turns = [{"from": "human", "value": '<image>\nWhat is "[{,\\ é'}, {"from": "gpt", "value": "a 中 ]}"}]
    if kind == "ShareGPT4V":
        return [{"id": str(n), "image": f"images/{n}.jpg", "conversations": turns} for n in range(3)]
    pictures = {"LLaVA-Instruct": ["2.jpg", None, "0.jpg"], "LLaVA-OneVision": [["1.jpg", "2.jpg"], "", None]}
    rows = [{"id": n, "image": name, "conversations": turns} for n, name in enumerate(pictures[kind])]
    return [{"id": "text", "conversations": turns}] * 20 + [
        {name: value for name, value in row.items() if value is not None} for row in rows
    ]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("kind", ["LLaVA-Instruct", "LLaVA-OneVision", "ShareGPT4V"])
def test_a_json_list_of_conversations(tmp_path, kind, indent):
    root = "" if kind == "ShareGPT4V" else "images/"
    write(
        tmp_path,
        {"t.json": json.dumps(llava_rows(kind), indent=indent, ensure_ascii=indent is None), **IMAGES},
    )
    found = convert(tmp_path / "t.json", **({"files_root": tmp_path / "images"} if root else {}))
    expected = json.loads((tmp_path / "t.json").read_text())
    assert len(found) == len(expected)
    for number, row in enumerate(expected):
        parts = dict(found[f"{number:09d}"])
        names = row.pop("image", None) or []
        assert json.loads(parts.pop("json")) == row
        paths = names if isinstance(names, list) else [names]
        assert list(parts.values()) == [(tmp_path / root / path).read_bytes() for path in paths]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_json_list_is_cut_in_pieces_of_any_size(size):
    rows = [{"a": "x" * (n % 40), "b": [n, {"]": "é}"}]} for n in range(60)]
    data = b"\xef\xbb\xbf" + json.dumps(rows, indent=1, ensure_ascii=False).encode() + b"\n"
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    cuts = list(cut_list(pieces, rows=25, size=800))
    assert [cut.first_row for cut in cuts] == [0, *accumulate(cut.rows for cut in cuts)][:-1]
    assert max(cut.rows for cut in cuts) <= 25
    assert [row for cut in cuts for row in json.loads(b"[%b]" % data[cut.start : cut.stop])] == rows


def test_lines_in_a_file_that_is_called_json(tmp_path):
    write(tmp_path, {"t.json": '{"text": "a"}\n\n{"text": "b"}'})
    assert [parts["txt"] for parts in convert(tmp_path / "t.json").values()] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'[{"a": 1}, {"a": 2} {"a": 3}]',
            r"does not follow a comma, or the list has no end \[.*t.json, row 2",
        ),
        (b'[{"a": 1}, {"a": 2},]', "Expecting value.*row 2"),
        (b'[{"a": 1}, {"a": ', "Expecting value.*row 1"),
        (b'[{"a": 1}] {}', "has no end.*row 1"),
        (b'[{"a": 1}[]', "has no end.*row 1"),
        (b'[{"a": 1}, 2]', "of type int, not an object.*row 1"),
        (b'[{"a": 1}, {"a": "\xff"}]', "utf-8.*row 1"),
        (b'[{"a": %b1' % (b"[" * 100_000), "row 0"),
        (b"[", "row 0"),
        (b'{"images": [], "annotations": [{}]}', "is no list with an object for each sample.*COCO"),
        (b'{\n"images": []}\n', "is no list with an object"),
        (b"\xff\xfe[\0", "is no list with an object"),
        (b"", "is no list"),
    ],
)
def test_json_that_is_no_list_of_objects_is_named(tmp_path, content, message):
    with pytest.raises(SourceError, match=message):
        convert(write(tmp_path, {"t.json": content}) / "t.json")


def test_a_json_list_takes_memory_for_an_object_only_and_has_a_bound(monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_LIMITS", "document_bytes=2000")
    endless = chain([b"["], repeat(b'{"a": "x"},'))
    assert next(cut_list(endless, rows=5)).rows == 5
    with pytest.raises(LimitError, match="document_bytes is 2,000"):
        list(cut_list(chain([b'[{"a": "'], repeat(b"x" * 100)), rows=5))


def test_a_column_that_no_row_has_is_refused(tmp_path):
    write(tmp_path, {"t.jsonl": '{"text": "a"}\n' * 30 + '{"text": "a", "more": 1}\n'})
    with pytest.raises(ColumnError, match=r"no column 'texts'. The columns are text, more"):
        convert(tmp_path / "t.jsonl", columns={"texts": "txt"})
    found = convert(tmp_path / "t.jsonl", columns={"text": "txt", "more": "cls"})
    assert [parts.get("cls") for parts in found.values()].count(b"1") == 1


def test_numbers_between_dots_are_of_the_key_unless_a_sample_has_other_files(tmp_path):
    """As Kaggle's cats and dogs, and times of day; pictures of one page stay together."""
    alone = {
        "train/cat.0.jpg": b"0",
        "train/cat.1.jpg": b"1",
        "train/dog.0.jpg": b"2",
        "train/10.15.30.jpg": b"3",
    }
    page = {"train/page.0.jpg": b"4", "train/page.1.jpg": b"5", "train/page.json": b"{}"}
    assert convert(write(tmp_path, {**alone, **page})) == {
        "train/cat_0": {"jpg": b"0"},
        "train/cat_1": {"jpg": b"1"},
        "train/dog_0": {"jpg": b"2"},
        "train/10_15_30": {"jpg": b"3"},
        "train/page": {"0.jpg": b"4", "1.jpg": b"5", "json": b"{}"},
    }


TRAIN, TEST = ('{"text": "a"}\n' * 3, '{"text": "b"}\n' * 2)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"),
        ("train/0.jsonl", "test/0.jsonl"),
        ("train_a.jsonl", "test.jsonl"),
        ("Train/part-0.jsonl", "Test/part-0.jsonl"),
    ],
)
def test_tables_of_several_split_parts_are_converted_one_by_one(tmp_path, train, test):
    """As Hugging Face's hub names them; silently mixed, the test rows would be trained on."""
    folder = write(tmp_path / "source", {train: TRAIN, test: TEST})
    with pytest.raises(SourceError, match=r"files of test, train would be mixed.*split='test'"):
        convert(folder, kind="jsonl")
    assert [*convert(folder, kind="jsonl", split="train").values()] == [{"txt": b"a"}] * 3
    assert [*convert(folder, kind="jsonl", split="test").values()] == [{"txt": b"b"}] * 2
    with pytest.raises(ConfigError, match=r"no split 'val'.*have test, train"):
        convert(folder, kind="jsonl", split="val")


def test_other_tables_of_a_folder_are_one_dataset(tmp_path):
    files = {"train-0.jsonl": TRAIN, "trainer.jsonl": TRAIN, "more/train-1.jsonl": TRAIN}
    assert len(convert(write(tmp_path / "source", files), kind="jsonl")) == 9
    with pytest.raises(ConfigError, match="a file has no splits"):
        convert(tmp_path / "source/train-0.jsonl", split="train")


@pytest.mark.parametrize("option", [{"split": "a"}, {"config": "a"}, {"files": ["a"]}, {"files_root": "a"}])
def test_options_that_a_source_has_no_use_for_are_refused(tmp_path, option):
    folder = write(tmp_path / "source", {"a.jpg": PICTURES[0]})
    with pytest.raises(ConfigError, match=rf"{next(iter(option))}= is given.*format folder"):
        convert(folder, **option)
