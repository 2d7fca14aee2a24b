"""The page over HTTP: who gets in, what data may do, ranges, search, filters, steps, mixtures."""

import io
import json
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from browse_client import HACK, HOSTILE_KEYS, HTML, SVG, Client, image_bytes, write_dataset, write_tar
from PIL import Image

from energon_stream import DefaultTaskEncoder, Limits, WorkerConfig, get_loader, get_train_dataset
from energon_stream.errors import ConfigError, NotPreparedError, ObjectNotFoundError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.testing.datasets import prepared_text_dataset
from energon_stream.testing.media_files import VideoFile
from energon_stream.tools.browse import serving
from energon_stream.tools.browse.memory_budget import MemoryBudget
from energon_stream.tools.browse.small_pictures import bytes_to_draw
from energon_stream.tools.browse.training import Run


@pytest.fixture(scope="module")
def client(captions):
    with serving(str(captions), run=Run(num_workers=0, options={"shuffle_buffer_size": 10})) as served:
        yield Client(served)


@pytest.fixture(scope="module")
def attacked(hostile):
    with serving(str(hostile)) as served:
        client = Client(served)
        client.ask("samples")
        yield client


@pytest.fixture(scope="module")
def player(media):
    with serving(str(media)) as served:
        client = Client(served)
        client.ask("samples")
        yield client


PATHS = [
    "",
    "browse.js",
    "browse.css",
    "api/catalog",
    "api/samples",
    "api/step",
    "api/search",
    "picture",
    "part",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["/", "/wrong/", "//", "/wrong%2f..%2f"])
def test_nothing_is_served_without_the_token(client, path, token):
    status, headers, body = client.get(path, token=token)
    assert status == 403
    assert headers["x-content-type-options"] == "nosniff"
    assert b"caption" not in body


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "169.254.169.254"])
def test_other_names_of_this_machine_are_refused(client, path, host):
    assert client.get(path, Host=host)[0] == 403
    assert client.get("", Host="localhost:1")[0] == 200  # a tunnel


def test_tokens_differ_and_are_long(captions, client):
    with serving(str(captions)) as other:
        assert other.token != client.served.token
        assert len(other.token) >= 32
        assert Client(other).get("", token=f"/{client.served.token}/")[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_reads(client, method):
    for path in PATHS:
        assert client.get(path, method=method)[0] == 405


def test_the_page_runs_its_own_script_alone(client):
    status, headers, body = client.get("")
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["img-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert b"style=" not in body
    assert b"onclick" not in body
    script = client.get("browse.js")[2].decode()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert word not in script
    assert b"://" not in body  # nothing comes from elsewhere
    assert "://" not in script


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "static/../../app.py",
        "browse.js/../app.py",
        "%00",
        "app.py",
    ],
)
def test_no_path_leads_to_a_file(client, path):
    status, headers, body = client.get(path)
    assert status == 404
    assert b"root:" not in body
    assert headers["content-security-policy"].endswith("sandbox")


def test_names_and_captions_are_data(attacked):
    found = attacked.ask("samples")
    keys = [sample["key"] for sample in found["samples"]]
    assert keys[:2] == HOSTILE_KEYS[:2]
    assert keys[2] == r"a\x1b]0;owned\x07\u202eb"
    for sample in found["samples"][:4]:
        text = next(part["text"] for part in sample["parts"] if part["name"] == "txt")
        assert f"<script>{HACK}</script>" in text
        assert r"\x1b[2J \u202e" in text
    _, headers, body = attacked.get("api/samples")
    assert headers["content-type"] == "application/json"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
    assert not {sign for sign in body if sign < 0x20 or sign == 0x7F}


def test_markup_is_shown_as_text_and_leaves_as_a_download(attacked):
    sample = attacked.ask("sample", source=0, number=0)
    by_name = {part["name"]: (number, part) for number, part in enumerate(sample["parts"])}
    for name, content in (("svg", SVG), ("html", HTML)):
        number, part = by_name[name]
        assert (part["kind"], part["text"]) == ("text", content.decode())
        status, headers, body = attacked.get("part", {"source": 0, "number": 0, "part": number})
        assert (status, body) == (200, content)
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"] == f'attachment; filename="part.{name}"'
        assert headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in headers["content-security-policy"]
        assert attacked.get("picture", {"source": 0, "number": 0, "part": number})[0] == 400


def test_pictures_are_drawn_within_the_limits(attacked, hostile):
    status, headers, body = attacked.get("picture", {"source": 0, "number": 0, "part": 0})
    assert (status, headers["content-type"], body[:2]) == (200, "image/jpeg", b"\xff\xd8")
    status, _, body = attacked.get("picture", {"source": 0, "number": 4, "part": 0})
    assert status == 502
    assert "image_pixels" in json.loads(body)["error"]
    for part in (0, 1):  # damaged, and a program
        status, _, body = attacked.get("picture", {"source": 0, "number": 5, "part": part})
        assert status == 502
        assert "image" in json.loads(body)["error"]
    assert attacked.get("picture", {"source": 0, "number": 0, "part": 0, "side": 100_000})[0] == 400
    with serving(str(hostile), limits=Limits(image_pixels=100)) as served:
        bounded = Client(served)
        bounded.ask("samples")
        assert bounded.get("picture", {"source": 0, "number": 0, "part": 0})[0] == 502


@pytest.mark.parametrize(
    "query",
    [
        {"source": 9},
        {"source": -1},
        {"source": "../x"},
        {"number": 99},
        {"number": "1e3"},
        {"number": 10**13},
        {"part": 77},
        {"part": "../../etc/passwd"},
    ],
)
def test_wrong_numbers_are_refused(attacked, query):
    for path in ("part", "picture"):
        status, _, body = attacked.get(path, {"source": 0, "number": 0, "part": 0, **query})
        assert status == 400
        assert json.loads(body)["error"]


def test_an_unknown_entry_is_refused(client):
    assert client.get("api/samples", {"entry": 99})[0] == 400


def test_ranges_are_those_of_the_member(player, media):
    with tarfile.open(media / "data-000000.tar") as tar:
        content = tar.extractfile("0001.mp4").read()
    query = {"source": 0, "number": 1, "part": 1}
    status, headers, body = player.get("part", query)
    assert (status, body) == (200, content)
    assert (headers["content-type"], headers["accept-ranges"]) == ("video/mp4", "bytes")
    assert "content-disposition" not in headers
    for header, start, stop in (
        ("bytes=0-99", 0, 100),
        ("bytes=1000000-", 10**6, 3 * 10**6),
        ("bytes=-7", -7, None),
    ):
        status, headers, body = player.get("part", query, Range=header)
        assert (status, body) == (206, content[start:stop])
        assert headers["content-range"].endswith("/3000000")
        assert headers["content-length"] == str(len(body))
    status, headers, body = player.get("part", query, method="HEAD")
    assert (status, headers["content-length"], body) == (200, "3000000", b"")
    assert player.get("part", query, Range="bytes=3000000-")[0] == 416
    download = player.get("part", {**query, "download": 1}, Range="bytes=0-9")[1]
    assert download["content-type"] == "application/octet-stream"


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """A video of megabytes whose index is at its end, a small one, and files that are none."""
    pytest.importorskip("av")
    folder = tmp_path_factory.mktemp("films")
    VideoFile(frames=150, size=(320, 240), noise=200).write(folder / "large.mp4")
    VideoFile(codec="libvpx", frames=10).write(folder / "small.webm")
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"
    parts = [
        {"mp4": (folder / "large.mp4").read_bytes()},
        {"webm": (folder / "small.webm").read_bytes()},
        {"mp4": b"no video"},
        {"mp4": playlist},
    ]
    return write_dataset(folder / "data", [{f"{n:04d}": each} for n, each in enumerate(parts)])


def test_a_video_shows_its_first_frame_by_ranges(films, s3_server, tmp_bucket):
    s3_server.upload_folder(films, f"{tmp_bucket}/films")
    size = (films / "data-000000.tar").stat().st_size
    assert size > 2_000_000
    with serving(f"{tmp_bucket}/films", storage_options=s3_server.storage_options) as served:
        client = Client(served)
        assert client.ask("catalog")["frames"] is True
        client.ask("samples")
        s3_server.reset_counters()
        for number, wide in ((0, (256, 192)), (1, (64, 48))):
            status, headers, body = client.get("picture", {"source": 0, "number": number, "part": 0})
            assert (status, headers["content-type"]) == (200, "image/jpeg")
            assert Image.open(io.BytesIO(body)).size == wide
        assert s3_server.counters().bytes_sent < size / 2
        for number in (2, 3):
            status, _, body = client.get("picture", {"source": 0, "number": number, "part": 0})
            assert status == 502
            assert "cannot be decoded" in json.loads(body)["error"]
    with serving(str(films), limits=Limits(image_pixels=1000)) as served:
        bounded = Client(served)
        bounded.ask("samples")
        status, _, body = bounded.get("picture", {"source": 0, "number": 1, "part": 0})
        assert status == 502
        assert "image_pixels" in json.loads(body)["error"]


@pytest.mark.parametrize("has_index", [True, False])
def test_large_samples_show_their_texts(media, tmp_path, has_index):
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "data-000000.tar").symlink_to(media / "data-000000.tar")
    (folder / "data-000000.tar.idx").symlink_to(media / "data-000000.tar.idx")
    (folder / ".nv-meta").mkdir()
    for path in (media / ".nv-meta").iterdir():
        if has_index or path.name != "index.sqlite":
            (folder / ".nv-meta" / path.name).symlink_to(path)
    with serving(str(folder)) as served:
        client = Client(served)
        first = client.ask("samples")["samples"][2]
        assert [part["name"] for part in first["parts"]] == ["txt", "mp4", "json", "npy"]
        assert first["parts"][0]["text"] == "before 2"
        assert client.ask("sample", source=0, number=2)["parts"][2]["text"] == '{\n  "after": 2\n}'
        status, _, body = client.get("api/search", {"text": "0002"})
        assert (status == 200) is has_index
        if not has_index:
            assert "no index" in json.loads(body)["error"]


def test_pages_and_filters(client):
    catalog = client.ask("catalog")
    assert [(entry["split"], entry["samples"]) for entry in catalog["entries"]] == [("train", 48), ("val", 8)]
    page = client.ask("samples", first=40, count=20)
    assert (page["first"], page["loaded"], page["total"]) == (40, 8, 48)
    assert [sample["number"] for sample in page["samples"]] == list(range(40, 48))
    assert client.ask("samples", first=999)["first"] == 47
    found = client.ask("samples", field="json.index", operator="equals", value="7")
    assert [sample["key"] for sample in found["samples"]] == ["00000007"]
    found = client.ask("samples", field="txt", value="CAPTION 1")
    assert [sample["number"] for sample in found["samples"]] == [1, *range(10, 20)]
    assert found["loaded"] == 48
    assert client.get("api/samples", {"value": "x", "operator": "runs"})[0] == 400
    assert client.ask("samples", entry=1)["samples"][0]["key"] == "00000048"


def test_filters_look_on(tmp_path, monkeypatch):
    write_dataset(
        tmp_path / "data", [{f"{number:04d}": {"txt": f"{number % 7}".encode()} for number in range(1000)}]
    )
    with serving(str(tmp_path / "data")) as served:
        client = Client(served)
        found, first = [], 0
        while first < 1000:
            answer = client.ask("samples", first=first, count=20, field="txt", operator="equals", value="3")
            assert len(answer["samples"]) == 20 or first + answer["loaded"] == 1000
            found += [sample["number"] for sample in answer["samples"]]
            first += answer["loaded"]
        assert found == list(range(3, 1000, 7))
        answer = client.ask("samples", field="txt", value="none")
        assert (answer["loaded"], answer["samples"]) == (1000, [])
        for limit, most, loaded in (("MOST_LOOKED", 120, 120), ("MOST_HELD", 10, 50)):
            monkeypatch.setattr(f"energon_stream.tools.browse.pages.{limit}", most)
            assert client.ask("samples", first=30, field="txt", value="none")["loaded"] == loaded


def test_keys_are_searched_everywhere(client):
    found = client.ask("search", text="0000004")
    assert [(match["key"], match["number"]) for match in found["samples"]][:2] == [
        ("00000040", 40),
        ("00000041", 41),
    ]
    assert [match["number"] for match in found["samples"]][8:] == [None, None]  # of val
    exact = client.ask("search", text="data-000005.tar/00000041")["samples"]
    assert [match["number"] for match in exact] == [41]
    assert client.ask("search", text="data-000001.tar/00000041")["samples"] == []
    assert client.ask("search", text="-000002")["shards"][0]["number"] == 16
    for text in ("' OR 1=1 --", "%", "\ud800".encode("utf-8", "surrogatepass"), "\x00", ""):
        client.get("api/search", {"text": text})


@pytest.mark.parametrize(("workers", "world_size", "rank"), [(0, 1, 0), (2, 2, 1)])
def test_steps_are_those_of_training(captions, workers, world_size, rank):
    order = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 5}
    config = WorkerConfig(rank, world_size, workers, seed_offset=3)

    class Keys(DefaultTaskEncoder):
        def batch(self, samples):
            return [sample.__key__ for sample in samples]

    dataset = get_train_dataset(captions, batch_size=4, worker_config=config, task_encoder=Keys(), **order)
    with get_loader(dataset) as loader:
        batches = iter(loader)
        expected = [next(batches) for _ in range(9)]
    run = Run(None, 4, rank, world_size, workers, seed_offset=3, options=order)
    with serving(str(captions), run=run) as served:
        client = Client(served)
        for step, keys in enumerate(expected):
            found = client.ask("step", step=step)["samples"]
            assert [f"{sample['shard']}/{sample['key']}" for sample in found] == keys
        assert client.ask("step", step=10**4, batch_size=7, seed_offset=1)["total"] == 7
        assert client.get("api/step", {"step": 10**9})[0] == 400
        assert client.get("api/step", {"step": 0, "rank": 9})[0] == 400
        assert client.get("api/step", {"step": 0, "batch_size": 0})[0] == 400


def test_a_metadataset_shows_its_weights(captions, tmp_path):
    prepared_text_dataset(tmp_path / "texts", shards=2, samples_per_shard=4)
    blend = [{"weight": 3, "path": str(captions)}, {"weight": 1, "path": str(tmp_path / "texts")}]
    epochs = [{"repetitions": 2, "path": str(tmp_path / "texts")}]
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": blend}, "val": {"blend_epochized": epochs}},
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(document))
    with serving(str(tmp_path / "mix.yaml"), run=Run(num_workers=0)) as served:
        client = Client(served)
        entries = client.ask("catalog")["entries"]
        assert [(entry["split"], entry["share"]) for entry in entries] == [
            ("train", "75.0%"),
            ("train", "25.0%"),
            ("val", "2 times"),
        ]
        assert client.ask("samples", entry=1)["samples"][0]["parts"][0]["text"] == "text 0"
        options = {"step": 2, "batch_size": 40}
        parts = {sample["parts"][0]["name"] for sample in client.ask("step", **options)["samples"]}
        assert parts == {"jpg", "txt"}


def test_plain_tars_and_json_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "cache"))
    write_tar(tmp_path / "plain" / "a.tar", {"x": {"txt": b"one"}, "y": {"txt": b"two"}})
    with serving(str(tmp_path / "plain")) as served:
        client = Client(served)
        assert [sample["key"] for sample in client.ask("samples")["samples"]] == ["x", "y"]
        assert client.get("api/search", {"text": "x"})[0] == 502
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    prepare_jsonl(str(tmp_path / "lines.jsonl"))
    with serving(str(tmp_path / "lines.jsonl")) as served:
        found = Client(served).ask("samples", field="json.a", operator="equals", value="2")["samples"]
        assert [sample["number"] for sample in found] == [1]


def test_damaged_and_excluded_samples_say_so(tmp_path):
    shards = [{f"{shard}{number}": {"txt": b"text"} for number in range(3)} for shard in "ab"]
    folder = write_dataset(tmp_path / "data", shards)
    split = folder / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: ['data-000000.tar/a1']"))
    with (folder / "data-000001.tar").open("r+b") as file:
        file.seek(1024)  # the second sample's header
        file.write(b"\xff" * 512)
    with serving(str(folder)) as served:
        found = Client(served).ask("samples")["samples"]
        assert "excludes" in found[1]["problem"]
        assert found[0]["parts"][0]["text"] == "text"
        assert [bool(sample["problem"]) for sample in found] == [False, True, False, False, True, False]
        (folder / "data-000001.tar").unlink()
    with serving(str(folder)) as served:
        found = Client(served).ask("samples")["samples"]
        assert [bool(sample["problem"]) for sample in found] == [False, True, False, True, True, True]


def test_what_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(ObjectNotFoundError), serving(str(tmp_path / "none")):
        pass
    (tmp_path / "empty").mkdir()
    with pytest.raises((NotPreparedError, ObjectNotFoundError)), serving(str(tmp_path / "empty")):
        pass


def test_a_port_in_use_is_an_error(captions, client):
    with pytest.raises(ConfigError, match="port"), serving(str(captions), port=client.served.port):
        pass


LARGE = [10**10, 1 << 40, (1 << 40) - 1, 10**12, 1 << 64, "9" * 5000, "٣", "1" * 13]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize(
    "name", ["step", "batch_size", "rank", "world_size", "num_workers", "num_streams", "seed_offset"]
)
def test_numbers_of_steps_are_bounded(client, name, number):
    """One that is accepted has an answer of the samples that were asked for."""
    status, _, body = client.get("api/step", {"step": 1, "count": 3, name: number})
    if status == 200:
        assert name == "seed_offset"
        assert len(json.loads(body)["samples"]) <= 3
    else:
        assert status == 400
        assert json.loads(body)["error"]


def test_jobs_of_too_many_streams_are_refused(client):
    status, _, body = client.get("api/step", {"world_size": 100_000, "num_workers": 1000})
    assert status == 400
    assert "100,000,000 streams" in json.loads(body)["error"]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("name", ["entry", "first", "count"])
def test_numbers_of_pages_are_bounded(client, name, number):
    status, _, body = client.get("api/samples", {name: number})
    assert status in (200, 400)
    assert (len(json.loads(body)["samples"]) <= 200) if status == 200 else json.loads(body)["error"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("json." + "9" * 5000, "x"),
        ("json." + "0." * 3000 + "0", "x"),
        ("json.\u0663", "x"),
        ("txt", "\ud800"),
        ("\x00", "\x00"),
        ("x" * 30_000, "x" * 30_000),
    ],
)
def test_fields_of_any_form_find_nothing(tmp_path, field, value):
    nested = b"[" * 900 + b"1" + b"]" * 900
    write_tar(tmp_path / "a.tar", {"0": {"json": b'{"json": [[1]]}', "txt": b"x"}, "1": {"json": nested}})
    with serving(str(tmp_path / "a.tar")) as served:
        query = {
            "field": field.encode("utf-8", "surrogatepass"),
            "value": value.encode("utf-8", "surrogatepass"),
        }
        status, _, body = Client(served).get("api/samples", query)
    assert status == 200
    assert json.loads(body)["samples"] == []


def test_answers_share_a_budget():
    """No moment has more than the budget, and a wish beyond it waits until it is alone."""
    budget, held, most = MemoryBudget(100), [], []

    def answer(amount):
        with budget.taken(amount):
            held.append(min(amount, 100))
            most.append(sum(held))
            time.sleep(0.001)
            held.remove(min(amount, 100))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(answer, [30, 60, 500, 10, 100, 1, 70] * 10))
    assert max(most) <= 100
    assert budget.free == 100


@pytest.mark.parametrize("form", ["WEBP", "PNG", "JPEG"])
def test_what_a_picture_takes_is_known_before_it_is_drawn(form):
    data = image_bytes((300, 200), form)
    expected = Limits().image_pixels if form == "WEBP" else 300 * 200
    assert bytes_to_draw(data, Limits()) == len(data) + 20 * expected
    assert bytes_to_draw(b"no image", Limits()) == 8 + 20 * Limits().image_pixels
