"""Datasets of other formats become equal samples, whatever stops the work, and bad input changes nothing."""

import csv
import importlib.util
import io
import json
import shutil
import tarfile

import foreign
import pytest
from click.testing import CliRunner
from foreign import expected, image_bytes
from hooked_store import hooked
from hypothesis import given
from hypothesis import strategies as st

from energon_stream import LocalEngine, WorkerConfig, convert_dataset, get_savable_loader, get_train_dataset
from energon_stream.cli.main import main
from energon_stream.engine.tasks import Part
from energon_stream.errors import (
    AccessDeniedError,
    ChecksumError,
    ColumnError,
    ConfigError,
    DuplicateKeyError,
    EmptyDatasetError,
    MissingFileError,
    MissingPackageError,
    NotPreparedError,
    ObjectChangedError,
    SampleError,
    SourceError,
    StorageError,
    UntrustedPickleError,
)
from energon_stream.index.dataset import read_metadata
from energon_stream.storage import StoreSpec
from energon_stream.write.convert import CONVERSION
from energon_stream.write.sources.text import cut_records

PACKAGES = {"mds": "streaming", "litdata": "litdata", "parquet": "pyarrow", "huggingface": "datasets"}
ROWS = 30
INLINE = LocalEngine(0)


def needs(kind):
    """A parameter that is skipped without the package that reads the format."""
    is_missing = kind in PACKAGES and importlib.util.find_spec(PACKAGES[kind]) is None
    return pytest.param(kind, marks=pytest.mark.skipif(is_missing, reason=f"needs {PACKAGES.get(kind)}"))


def write_source(kind, folder, rows=ROWS):
    path = folder / "table.parquet" if kind == "parquet" else folder
    getattr(foreign, f"write_{kind}")(path, rows)
    return path


def samples(folder):
    """The parts of each sample by key, without the folders of keys."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, part = member.name.rpartition("/")[2].partition(".")
                found.setdefault(key, {})[part] = tar.extractfile(member).read()
    return found


def tars(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def write_table(folder, rows, name="table.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(count):
    return [{"id": f"{number:03d}", "text": f"text {number}"} for number in range(count)]


@pytest.fixture(autouse=True)
def _small_sections(monkeypatch):
    monkeypatch.setattr("energon_stream.write.sources.source.SECTION_ROWS", 4)


@pytest.mark.parametrize("kind", [*map(needs, PACKAGES), "jsonl", "folder"])
def test_samples_are_the_rows(tmp_path, kind):
    source = write_source(kind, tmp_path / "source")
    report = convert_dataset(source, tmp_path / "new", max_size=30_000, shuffle=False, engine=INLINE)
    found = samples(tmp_path / "new")
    assert found == expected(ROWS)
    assert list(found) == sorted(found)
    assert (report.rows, report.samples, report.rows_read, report.samples_checked) == (ROWS,) * 4
    assert report.shards == len(tars(tmp_path / "new")) > 2


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"compression": "gz", "hashes": ["sha1"]}])
def test_compressed_shards(tmp_path, options):
    pytest.importorskip("streaming")
    foreign.write_mds(tmp_path / "source", 12, **options)
    convert_dataset(tmp_path / "source", tmp_path / "new", engine=INLINE)
    assert samples(tmp_path / "new") == expected(12)
    assert not [path for path in (tmp_path / "source").iterdir() if path.suffix == ".mds"]


def test_the_dataset_loads_and_has_a_sample_type(tmp_path):
    rows = [{"image": f"{i}.jpg", "caption": f"caption {i}"} for i in range(10)]
    write_table(tmp_path / "source", rows)
    for number in range(10):
        (tmp_path / "source" / f"{number}.jpg").write_bytes(image_bytes(number))
    convert_dataset(tmp_path / "source", tmp_path / "new", max_count=4, shuffle=False, engine=INLINE)
    options = {
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "repeat": False,
        "batch_size": 1,
    }
    dataset = get_train_dataset(tmp_path / "new", worker_config=WorkerConfig(0, 1, 0), **options)
    assert sorted(batch.caption[0] for batch in get_savable_loader(dataset)) == [
        f"caption {i}" for i in range(10)
    ]


def test_any_number_of_processes_writes_the_same_bytes(tmp_path):
    write_source("jsonl", tmp_path / "source")
    for processes in (0, 2):
        convert_dataset(
            tmp_path / "source", tmp_path / str(processes), max_size=30_000, engine=LocalEngine(processes)
        )
    assert tars(tmp_path / "0") == tars(tmp_path / "2")


def test_jobs_beside_each_other_share_the_work(tmp_path):
    write_source("jsonl", tmp_path / "source")
    options = {"max_size": 30_000, "engine": INLINE}
    for number in range(2):
        assert (
            convert_dataset(tmp_path / "source", tmp_path / "new", share=Part(number, 2), **options) is None
        )
        with pytest.raises(NotPreparedError):
            read_metadata(StoreSpec(str(tmp_path / "new")))
    report = convert_dataset(tmp_path / "source", tmp_path / "new", **options)
    assert (report.samples, report.rows_read) == (ROWS, 0)
    assert samples(tmp_path / "new") == expected(ROWS)


def test_a_run_that_was_stopped_goes_on_after_its_last_tar(tmp_path):
    write_source("jsonl", tmp_path / "source")
    options = {"max_size": 30_000, "engine": INLINE}
    convert_dataset(tmp_path / "source", tmp_path / "whole", **options)
    stops = [True]

    def stopped(get, path, **rest):
        if stops and path.endswith("0022.jpg"):
            raise ZeroDivisionError
        return get(path, **rest)

    source = hooked(tmp_path / "source", get=stopped)
    with pytest.raises(ZeroDivisionError):
        convert_dataset(source, tmp_path / "cut", **options)
    with pytest.raises(NotPreparedError):
        read_metadata(StoreSpec(str(tmp_path / "cut")))
    stops.clear()
    kept = tars(tmp_path / "cut")
    report = convert_dataset(source, tmp_path / "cut", **options)
    most = max(len(samples(tmp_path / "cut")) // len(kept), 8)
    assert 0 < report.rows_read <= ROWS - 22 + most
    assert tars(tmp_path / "cut") == tars(tmp_path / "whole")
    again = convert_dataset(source, tmp_path / "cut", **options)
    assert (again.rows_read, again.samples, again.digest) == (0, ROWS, report.digest)


def test_folders_of_classes(tmp_path):
    for name in ("dog", "cat"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "source" / name / f"{number}.JPG").write_bytes(image_bytes(number))
    (tmp_path / "source" / ".DS_Store").write_bytes(b"x")
    report = convert_dataset(tmp_path / "source", tmp_path / "new", shuffle=False, engine=INLINE)
    with tarfile.open(tmp_path / "new" / "data-000000.tar") as tar:
        assert tar.getnames()[:4] == ["cat/0.class.txt", "cat/0.cls", "cat/0.jpg", "cat/1.class.txt"]
        found = [tar.extractfile(f"{name}/0.cls").read() for name in ("cat", "dog")]
    assert found == [b"0", b"1"]
    assert report.dataset_yaml["field_map"] == {"image": "jpg", "label": "cls", "label_name": "class.txt"}
    convert_dataset(tmp_path / "source", tmp_path / "plain", classes=False, shuffle=False, engine=INLINE)
    with tarfile.open(tmp_path / "plain" / "data-000000.tar") as tar:
        assert tar.getnames()[:2] == ["cat/0.jpg", "cat/1.jpg"]


def test_what_windows_and_a_nas_leave_is_no_sample_and_other_files_without_a_sample_are_named(
    tmp_path, caplog
):
    source = tmp_path / "source"
    for name in (
        "0.jpg",
        "0.txt",
        "1.PNG",
        "Thumbs.db",
        "sub/Desktop.ini",
        "sub/@eaDir/0.jpg",
        ".DS_Store",
        "README",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"x")
    report = convert_dataset(source, tmp_path / "new", shuffle=False, engine=INLINE)
    with tarfile.open(tmp_path / "new" / "data-000000.tar") as tar:
        assert tar.getnames() == ["0.jpg", "0.txt", "1.png"]
    assert report.shapes == {"jpg, txt": 1, "png": 1}
    assert "left out 1 file, such as 'README'" in caplog.text


@pytest.mark.parametrize("inner", ["cat/", ""])
def test_folders_of_split_parts_are_not_mixed(tmp_path, inner):
    for path in (f"train/{inner}1.jpg", f"validation/{inner}1.jpg"):
        (tmp_path / "source" / path).parent.mkdir(parents=True)
        (tmp_path / "source" / path).write_bytes(b"x")
    with pytest.raises(SourceError, match=r"the folders train, validation would be mixed.*classes=False"):
        convert_dataset(tmp_path / "source", tmp_path / "new")
    assert convert_dataset(tmp_path / "source" / "train", tmp_path / "train").samples == 1
    report = convert_dataset(tmp_path / "source", tmp_path / "all", classes=False)
    assert report.samples == 2


def test_a_table_may_name_files_with_spaces(tmp_path):
    (tmp_path / "my images").mkdir()
    (tmp_path / "my images" / "IMG 1 (2).jpg").write_bytes(b"the picture")
    (tmp_path / "a.csv").write_text("file_name,caption\nmy images/IMG 1 (2).jpg,see the e.jpg\n")
    convert_dataset(tmp_path / "a.csv", tmp_path / "new")
    with tarfile.open(tmp_path / "new" / "data-000000.tar") as tar:
        found = {m.name.partition(".")[2]: tar.extractfile(m).read() for m in tar.getmembers()}
    assert found == {"jpg": b"the picture", "txt": b"see the e.jpg"}


def test_the_command_says_why_samples_are_crude(tmp_path):
    for number, names in enumerate([("jpg", "txt"), ("jpg", "txt"), ("png", "txt"), ("jpg",)]):
        for name in names:
            (tmp_path / f"source/{number}.{name}").parent.mkdir(exist_ok=True)
            (tmp_path / f"source/{number}.{name}").write_bytes(image_bytes(number))
    said = command(tmp_path / "source", tmp_path / "new").output
    assert "CrudeWebdataset" in said
    assert (
        "Parts:     2 have jpg, txt; 1 have jpg; 1 have png, txt\n" in said
        or "1 have png, txt; 1 have jpg" in said
    )


def test_a_field_map_may_name_parts_that_the_first_samples_lack(tmp_path):
    (tmp_path / "source").mkdir()
    for number in range(60):
        (tmp_path / f"source/{number:02}.png").write_bytes(image_bytes(number))
    (tmp_path / "source/59.txt").write_text("the last one")
    fields = ["--sample-type", "CaptioningSample", "--no-shuffle", "--field-map"]
    wrong = command(tmp_path / "source", tmp_path / "new", *fields, '{"image": "png", "caption": "json"}')
    assert "have no part 'json'" in wrong.output
    assert "They have: png, txt." in wrong.output
    done = command(tmp_path / "source", tmp_path / "new", *fields, '{"image": "png", "caption": "txt"}')
    assert done.exit_code == 0, done.output
    rows = [{"text": None} for _ in range(60)] + [{"text": "a"}]
    table = write_table(
        tmp_path / "table", [{"id": f"{n:02}", "label": 1, **row} for n, row in enumerate(rows)]
    )
    fields = ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}', "--no-shuffle", "--map"]
    done = command(table, tmp_path / "texts", *fields, "text=txt", "--map", "label=cls")
    assert done.exit_code == 0, done.output


def test_from_a_store_to_a_store(tmp_path, s3_server):
    pytest.importorskip("pyarrow")
    s3_server.create_bucket("bucket")
    options = s3_server.storage_options
    store = StoreSpec("s3://bucket/source", options).open()
    foreign.write_parquet(tmp_path / "table.parquet", ROWS)
    store.put("part/table.parquet", (tmp_path / "table.parquet").read_bytes())
    report = convert_dataset(
        "s3://bucket/source",
        "s3://bucket/new",
        max_size=30_000,
        storage_options=options,
        source_storage_options=options,
        engine=INLINE,
    )
    convert_dataset(tmp_path / "table.parquet", tmp_path / "new", max_size=30_000, engine=INLINE)
    new = StoreSpec("s3://bucket/new", options).open()
    assert {path: bytes(new.get(path).data) for path in tars(tmp_path / "new")} == tars(tmp_path / "new")
    assert report.samples_checked == ROWS


RECORDS = st.lists(st.lists(st.text('a",;\t\n\r é', max_size=6), min_size=2, max_size=2), max_size=30)
SIGNS = st.sampled_from(",;\t")


@given(
    records=RECORDS,
    delimiter=SIGNS,
    piece=st.integers(1, 40),
    rows=st.integers(1, 5),
    size=st.integers(1, 60),
)
def test_a_table_is_cut_between_its_records(records, delimiter, piece, rows, size):
    def written(value):  # a quotation mark within a value that needs none is left as it is
        quoted = value.startswith('"') or set(value) & {delimiter, "\r", "\n"}
        return '"{}"'.format(value.replace('"', '""')) if quoted else value

    records = [["h", "i"], *records]
    text = "".join(f"{written(first)}{delimiter}{written(second)}\r\n" for first, second in records)
    data = text.encode()

    def read(part):
        return list(csv.reader(io.StringIO(part, newline=""), delimiter=delimiter))

    assert read(text) == records
    pieces = (data[start : start + piece] for start in range(0, len(data), piece))
    cuts = list(cut_records(pieces, delimiter=delimiter, rows=rows, size=size))
    assert "".join(data[cut.start : cut.stop].decode() for cut in cuts) == text
    found = [read(data[cut.start : cut.stop].decode()) for cut in cuts]
    assert [row for group in found for row in group] == records
    assert [cut.rows for cut in cuts] == [len(group) for group in found]
    assert [cut.first_row for cut in cuts] == [sum(map(len, found[:n])) for n in range(len(found))]


def test_a_table_with_semicolons_and_marks_of_inches(tmp_path):
    text = '\ufeffcaption;größe\r\n"a ""b"", c";5" wide\r\n\r\nd;6\r\n  ;7\r\n'
    for name, sign in (("a.CSV", ";"), ("b.csv", "\t"), ("c.tsv", "\t"), ("d.tsv", ";")):
        (tmp_path / name).write_bytes(text.replace(";", sign).encode())
        convert_dataset(
            tmp_path / name,
            tmp_path / f"new-{name}",
            columns={"größe": "n.txt", "caption": "txt"},
            shuffle=False,
            engine=INLINE,
        )
        found = samples(tmp_path / f"new-{name}").values()
        assert [parts["n.txt"].decode() for parts in found] == ['5" wide', "6", "7"]
        assert [parts["txt"].decode() for parts in found] == ['a "b", c', "d", "  "]


def test_csv_and_tsv(tmp_path):
    for name, text in (("a.csv", 'text,n\r\n"a ""b"",\r\nc",1\r\n\r\nd,2'), ("b.tsv", "text\tn\nx\t3\n")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    convert_dataset(tmp_path / "a.csv", tmp_path / "a", engine=INLINE)
    convert_dataset(tmp_path / "b.tsv", tmp_path / "b", columns={"text": "txt", "n": "cls"}, engine=INLINE)
    assert [parts["txt"] for parts in samples(tmp_path / "a").values()] == [b'a "b",\r\nc', b"d"]
    assert samples(tmp_path / "b") == {"000000000": {"txt": b"x", "cls": b"3"}}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b'{"a": 1}\n{"a"\n', SourceError, r"table.jsonl, row 1\]"),
        (b'{"a": "x"}\n[1]\n', SourceError, "of type list, not an object"),
        (b'{"a": "\xff"}\n', SourceError, "row 0"),
        (b"\n\n", EmptyDatasetError, "no rows"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, error, message):
    (tmp_path / "table.jsonl").write_bytes(content)
    with pytest.raises(error, match=message):
        convert_dataset(tmp_path / "table.jsonl", tmp_path / "new", engine=INLINE)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n1,2,3\n", r"3 values, and the header 2 columns \[.*table.csv, row 1\]"),
        (b"a;b,c\n1\n", "1 value, and the header 2 columns"),
        (b"a,b\n1,\xff\n", r"byte 6 of the table is not UTF-8 \[.*table.csv.*iconv"),
        (b"a,b,a\n1,2,3\n", "two columns are called 'a'"),
        (b"", "no header"),
    ],
)
def test_bad_rows_of_csv_are_named(tmp_path, content, message):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        convert_dataset(tmp_path / "table.csv", tmp_path / "new", engine=INLINE)
    assert not (tmp_path / "new").exists()


def test_a_column_that_does_not_fit_later_on_is_named_and_the_run_may_be_repeated(tmp_path):
    path = write_table(tmp_path, [*texts(20), {"id": "x", "text": {"b": 1}}])
    with pytest.raises(
        ColumnError, match=r"table.jsonl, row 20: the column 'text' does not fit the part 'txt'"
    ):
        convert_dataset(path, tmp_path / "new", columns={"text": "txt"}, max_count=4, engine=INLINE)
    with pytest.raises(NotPreparedError):
        read_metadata(StoreSpec(str(tmp_path / "new")))


def test_duplicate_keys_are_named(tmp_path):
    path = write_table(tmp_path, [*texts(10), texts(1)[0]])
    with pytest.raises(DuplicateKeyError, match="'000' appears twice"):
        convert_dataset(path, tmp_path / "new", key="id", max_count=4, engine=INLINE)
    with pytest.raises(NotPreparedError):
        read_metadata(StoreSpec(str(tmp_path / "new")))


def test_files_must_exist_and_be_below_their_folder(tmp_path):
    path = write_table(tmp_path / "source", [{"image": "no.jpg"}])
    with pytest.raises(MissingFileError, match="row 0: the file of the column 'image' does not exist"):
        convert_dataset(path, tmp_path / "new", engine=INLINE)
    (tmp_path / "no.jpg").write_bytes(image_bytes(0))
    for name in ("../no.jpg", str(tmp_path / "no.jpg")):
        path = write_table(tmp_path / "source", [{"image": name}])
        with pytest.raises(ColumnError, match=r"not below the folder of the files.*by files_root="):
            convert_dataset(path, tmp_path / "new", engine=INLINE)
    assert not (tmp_path / "new").exists()
    convert_dataset(path, tmp_path / "new", files_root=str(tmp_path), engine=INLINE)
    assert samples(tmp_path / "new")["000000000"]["jpg"] == image_bytes(0)


@pytest.mark.parametrize("kind", [*map(needs, PACKAGES), "jsonl", "folder"])
def test_a_source_that_changes_while_it_is_read_is_named(tmp_path, kind):
    source = write_source(kind, tmp_path / "source")

    def change(put, path, data):
        put(path, data)
        if path == CONVERSION:  # the plan is made
            for file in source.rglob("*") if source.is_dir() else [source]:
                if file.is_file() and file.suffix not in (".json",):
                    with open(file, "ab") as appended:
                        appended.write(b"\n")

    with pytest.raises(ObjectChangedError):
        convert_dataset(source, hooked(tmp_path / "new", put=change), engine=INLINE)
    with pytest.raises(NotPreparedError):
        read_metadata(StoreSpec(str(tmp_path / "new")))


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_pickles_are_not_loaded_unless_trusted(tmp_path, kind):
    if kind == "mds":
        pytest.importorskip("streaming")
        foreign.declare_operators()
        from streaming import MDSWriter

        with MDSWriter(out=str(tmp_path / "source"), columns={"a": "pkl", "b": "str"}) as writer:
            writer.write({"a": {1: 2}, "b": "text"})
    else:
        pytest.importorskip("litdata")
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(tmp_path / "source"), chunk_size=2)
        writer[0] = {"a": {1, 2}, "b": "text"}
        writer.done()
        writer.merge()
    with pytest.raises(UntrustedPickleError, match="trust"):
        convert_dataset(tmp_path / "source", tmp_path / "new", columns={"b": "txt"}, engine=INLINE)
    convert_dataset(tmp_path / "source", tmp_path / "new", columns={"b": "txt"}, trust=True, engine=INLINE)
    assert samples(tmp_path / "new") == {"000000000": {"txt": b"text"}}


def test_damaged_parquet_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    path = write_source("parquet", tmp_path / "source")
    content = path.read_bytes()
    for damaged in (
        b"",
        content[:-100],
        content[: len(content) // 2] + bytes(2000) + content[len(content) // 2 + 2000 :],
    ):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"table\.parquet"):
            convert_dataset(path, tmp_path / "new", engine=INLINE)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingPackageError, match=r"pip install 'energon-stream\[parquet\]'"):
        convert_dataset(tmp_path / "table.parquet", tmp_path / "new", engine=INLINE)


def test_a_destination_of_others_is_not_touched(tmp_path):
    path = write_table(tmp_path / "source", texts(5))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="not empty: it has 'notes'"):
        convert_dataset(path, tmp_path / "new", engine=INLINE)
    assert [path.name for path in (tmp_path / "new").rglob("*")] == ["notes"]
    convert_dataset(path, tmp_path / "done", engine=INLINE)
    before = {file: file.read_bytes() for file in (tmp_path / "done").rglob("*") if file.is_file()}
    for changed in ({"columns": {"id": "txt"}}, {"max_count": 2}, {"key": "id"}):
        with pytest.raises(ConfigError, match=r"another conversion, of .*table.jsonl|max_count was None"):
            convert_dataset(path, tmp_path / "done", **changed, engine=INLINE)
    write_table(tmp_path / "source", texts(6))
    with pytest.raises(ConfigError, match="another conversion"):
        convert_dataset(path, tmp_path / "done", engine=INLINE)
    assert {file: file.read_bytes() for file in (tmp_path / "done").rglob("*") if file.is_file()} == before
    with pytest.raises(ConfigError, match="in the folder of the source"):
        convert_dataset(tmp_path / "source", tmp_path / "source" / "new", engine=INLINE)


def test_names_that_are_not_utf8_are_named(tmp_path):
    (tmp_path / "source").mkdir()
    try:
        with open(bytes(tmp_path / "source") + b"/\xff.jpg", "wb") as file:
            file.write(b"x")
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    with pytest.raises(SampleError, match=r"is not UTF-8.*Rename it"):
        convert_dataset(tmp_path / "source", tmp_path / "new", engine=INLINE)
    assert not (tmp_path / "new").exists()


def test_two_files_for_one_part_and_folders_without_samples(tmp_path):
    (tmp_path / "source").mkdir()
    with pytest.raises(SourceError, match="it is empty"):
        convert_dataset(tmp_path / "source", tmp_path / "new", engine=INLINE)
    (tmp_path / "a.zip").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"a file of a format that is not read.*unpack"):
        convert_dataset(tmp_path / "a.zip", tmp_path / "new", engine=INLINE)
    (tmp_path / "source" / "noextension").write_bytes(b"x")
    with pytest.raises(SourceError, match="no files with an extension"):
        convert_dataset(tmp_path / "source", tmp_path / "new", engine=INLINE)
    for name in ("a.jpg", "a.JPG"):
        (tmp_path / "source" / name).write_bytes(b"x")
    with pytest.raises(SourceError, match="two files for the part 'jpg'"):
        convert_dataset(tmp_path / "source", tmp_path / "new", engine=INLINE)
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "a.tar").write_bytes(b"x")
    with pytest.raises(SourceError, match="energon-stream prepare"):
        convert_dataset(tmp_path / "tars", tmp_path / "new", engine=INLINE)


def test_a_full_disk_and_no_permission_are_named_and_the_next_run_goes_on(tmp_path):
    path = write_table(tmp_path / "source", texts(20))
    options = {"max_count": 4, "engine": INLINE}

    def full(put_file, name, local, **how):
        if name.endswith("2-000000.tar"):
            raise StorageError("reading or writing failed: No space left on device", where=name)
        put_file(name, local, **how)

    with pytest.raises(StorageError, match="No space left"):
        convert_dataset(path, hooked(tmp_path / "new", put_file=full), **options)

    def refuse(put, name, data):
        raise AccessDeniedError("the file system refused access", where=name)

    with pytest.raises(AccessDeniedError):
        convert_dataset(path, hooked(tmp_path / "other", put=refuse), **options)
    report = convert_dataset(path, tmp_path / "new", **options)
    assert (report.samples, report.rows_read) == (20, 12)


def test_bytes_that_changed_on_their_way_are_found(tmp_path):
    path = write_table(tmp_path / "source", texts(20))

    def damage(put_file, name, local, **how):
        if name.endswith("3-000000.tar"):
            with open(local, "r+b") as file:
                file.seek(2048 + 512)
                file.write(b"T")
        put_file(name, local, **how)

    with pytest.raises(ChecksumError, match="sample 1 of the shard"):
        convert_dataset(path, hooked(tmp_path / "new", put_file=damage), max_count=4, engine=INLINE)
    with pytest.raises(NotPreparedError):
        read_metadata(StoreSpec(str(tmp_path / "new")))


def command(*arguments):
    return CliRunner().invoke(main, ["convert", *map(str, arguments), "--processes", "0"])


def test_the_command(tmp_path):
    path = write_table(tmp_path / "source", [{**row, "n": 1} for row in texts(20)])
    shown = command(path, tmp_path / "new", "--dry-run", "--map", "text=txt")
    assert shown.exit_code == 0, shown.output
    assert "text → txt" in shown.output
    assert "left out: id, n" in shown.output
    assert "TextSample" in shown.output
    plan = json.loads(
        command(path, tmp_path / "new", "--dry-run", "--json", "--key", "id", "--no-shuffle").output
    )
    assert plan["preview"][3] == {"__key__": "003", "txt": "text 3", "json": '{"n": 1}'}
    assert not (tmp_path / "new").exists()
    options = ["--map", "text=txt", "--max-count", "5", "--split-ratio", "1,1,0"]
    done = command(path, tmp_path / "new", *options)
    assert done.exit_code == 0, done.output
    assert "20 samples in 10 tars" in done.output
    assert "as many as rows" in done.output
    found = json.loads(command(path, tmp_path / "new", *options, "--json").output)
    assert (found["equal"], found["split"], found["rows_read"]) == (
        True,
        {"train": 10, "val": 10, "test": 0},
        0,
    )
    again = command(path, tmp_path / "new")
    assert again.exit_code == 2
    assert "--max-count was 5" in again.output
    wrong = command(path, tmp_path / "x", "--sample-type", "TextSample", "--field-map", '{"text": "jpg"}')
    assert "the tars have no part 'jpg'" in wrong.output
    assert command(path, tmp_path / "x", "--map", "text").exit_code == 2
    typed = command(
        path,
        tmp_path / "x",
        "--sample-type",
        "TextSample",
        "--field-map",
        '{"text": "json[text]"}',
        "--map",
        "text,id=json",
    )
    assert typed.exit_code == 0, typed.output
    assert read_metadata(StoreSpec(str(tmp_path / "x"))).dataset_yaml["field_map"] == {"text": "json[text]"}


def test_files_that_a_single_parquet_file_names_are_beside_it(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "one.jpg").write_bytes(image_bytes(1))
    table = pa.table({"image": ["one.jpg"], "caption": ["a"]})
    path = tmp_path / "source" / "rows.parquet"
    parquet.write_table(table, path)
    columns = {"image": "jpg", "caption": "txt"}
    convert_dataset(path, tmp_path / "a", columns=columns, files=["image"], engine=INLINE)
    assert samples(tmp_path / "a") == {"000000000": {"jpg": image_bytes(1), "txt": b"a"}}


@pytest.mark.parametrize("work", [["convert"], ["convert", "--dry-run"], ["repair"]], ids=" ".join)
def test_the_options_of_the_source_are_named(tmp_path, s3_server, work):
    endpoint = f"endpoint_url={s3_server.endpoint_url}"
    words = [*work, "s3://bucket/source", str(tmp_path / "new"), "--source-storage-option", endpoint]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "--source-storage-option anon=true" in done.output
    assert " --storage-option" not in done.output


def test_times_beyond_those_of_python(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    numbers = pa.array([1_234_567_891, 2_000, None], pa.int64())
    kinds = {
        "time": pa.timestamp("ns"),
        "zoned": pa.timestamp("ns", "Europe/Berlin"),
        "of_day": pa.time64("ns"),
    }
    parquet.write_table(
        pa.table({name: numbers.view(kind) for name, kind in kinds.items()}), tmp_path / "table.parquet"
    )
    columns = {",".join(kinds): "json"}
    convert_dataset(tmp_path / "table.parquet", tmp_path / "new", columns=columns, engine=INLINE)
    assert [json.loads(sample["json"]) for _, sample in sorted(samples(tmp_path / "new").items())] == [
        {
            "time": "1970-01-01T00:00:01.234567891",
            "zoned": "1970-01-01T01:00:01.234567891+0100",
            "of_day": "00:00:01.234567891",
        },
        {"time": "1970-01-01T00:00:00.000002", "zoned": "1970-01-01T01:00:00.000002+01:00", "of_day": "00:00:00.000002"},
        dict.fromkeys(kinds),
    ]  # fmt: skip
    parquet.write_table(pa.table({"late": pa.array([10**15], pa.timestamp("s"))}), tmp_path / "late.parquet")
    with pytest.raises(SourceError, match="a value of the column 'late' has no form in Python") as raised:
        convert_dataset(tmp_path / "late.parquet", tmp_path / "late", columns={"late": "txt"}, engine=INLINE)
    assert "cast the column" in raised.value.hint
