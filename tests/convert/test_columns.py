"""Columns become parts as the user maps them, or as their types and names suggest."""

import datetime
import io
import json

import numpy as np
import pytest
from foreign import image_bytes
from PIL import Image

from energon_stream.errors import ColumnError, ConfigError
from energon_stream.write.columns import parse_columns
from energon_stream.write.guess import guess_columns, guess_dataset_yaml

JPEG = image_bytes(1)


def sample(columns, row, files=(), key=None, read=None):
    return parse_columns(columns, files=files, key=key).sample(row, "table, row 3", "000000003", read)


def guessed(row, **options):
    found = guess_columns([row], **{"hints": {}, "has_paths": False, **options})
    return {part.part: part.columns for part in found.parts}


@pytest.mark.parametrize(
    ("columns", "row", "parts"),
    [
        ({"a": "jpg"}, {"a": b"x"}, {"jpg": b"x"}),
        ({"a": "jpg"}, {"a": {"bytes": b"x", "path": None}}, {"jpg": b"x"}),
        ({"a.b": "txt"}, {"a": {"b": "x"}}, {"txt": b"x"}),
        ({"a.b": "txt"}, {"a.b": "x", "a": 1}, {"txt": b"x"}),
        ({"a.b": "txt", "c": "cls"}, {"a": None, "c": 7}, {"cls": b"7"}),
        ({"a,b": "json"}, {"a": 1, "b": None}, {"json": b'{"a": 1, "b": null}'}),
        ({"{a}/{b:03d}": "txt"}, {"a": "x", "b": 7}, {"txt": b"x/007"}),
        ({"a": "meta.json"}, {"a": {"d": datetime.date(2026, 1, 2)}}, {"meta.json": b'{"d": "2026-01-02"}'}),
        ({"a": "txt"}, {"a": datetime.date(2026, 1, 2)}, {"txt": b"2026-01-02"}),
        ({"a": "cls"}, {"a": "7"}, {"cls": b"7"}),
        ({"a": "jpg"}, {"a": [b"x", b"y"]}, {"0.jpg": b"x", "1.jpg": b"y"}),
        ({"a": "auto"}, {"a": JPEG}, {"jpg": JPEG}),
        ({"a": "auto"}, {"a": "text"}, {"txt": b"text"}),
        ({"a": "page.auto"}, {"a": {"bytes": b"?", "path": "x.SVG"}}, {"page.svg": b"?"}),
    ],
)
def test_a_map_makes_parts(columns, row, parts):
    assert sample(columns, row) == {"__key__": "000000003", **parts}


def test_files_are_read_by_their_path():
    found = sample({"b": "txt"}, {"a": "x.PNG", "b": "t"}, files=["a"], read=lambda path: path.encode())
    assert found == {"__key__": "000000003", "png": b"x.PNG", "txt": b"t"}


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (["a.PNG", "b c.jpg"], {"0.png": b"a.PNG", "1.jpg": b"b c.jpg"}),
        (["a.jpg"], {"0.jpg": b"a.jpg"}),
        ("a.jpg", {"jpg": b"a.jpg"}),
        ([], {}),
        (None, {}),
    ],
)
def test_a_list_of_paths_is_several_files(value, parts):
    """As LLaVA's tables name the pictures of a conversation."""
    row = {"image": value, "id": "c1", "turns": [1]}
    columns = guess_columns([{**row, "image": ["x.jpg"]}, row], hints={}, has_paths=True)
    found = columns.sample(row, "table, row 3", "000000003", lambda path: path.encode())
    assert found == {"__key__": "000000003", "json": b'{"id": "c1", "turns": [1]}', **parts}


def test_a_list_of_other_values_is_no_list_of_paths():
    with pytest.raises(ColumnError, match="not a path, or a list of paths"):
        sample({}, {"a": ["x.jpg", 7]}, files=["a"], read=lambda path: path.encode())
    with pytest.raises(ColumnError, match="f it has paths of files, give files="):
        sample({"a": "jpg"}, {"a": ["x.jpg"]})


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "I;16"])
def test_images_and_arrays_keep_their_pixels(mode):
    pixels = np.random.default_rng(0).integers(0, 255, (5, 4, 4), dtype=np.uint8)
    image = Image.fromarray(pixels, "RGBA").convert("L" if mode == "I;16" else mode)
    image = Image.fromarray(np.asarray(image).astype(np.uint16)) if mode == "I;16" else image
    found = Image.open(io.BytesIO(sample({"a": "png"}, {"a": image})["png"]))
    assert np.array_equal(np.asarray(found), np.asarray(image))
    array = np.load(io.BytesIO(sample({"a": "npy"}, {"a": pixels})["npy"]))
    assert np.array_equal(array, pixels)
    again = Image.open(io.BytesIO(sample({"a": "png"}, {"a": pixels})["png"]))
    assert np.array_equal(np.asarray(again), pixels)


def test_an_image_that_was_read_from_a_file_keeps_its_bytes():
    assert sample({"a": "jpg"}, {"a": Image.open(io.BytesIO(JPEG))})["jpg"] == JPEG


@pytest.mark.parametrize(
    ("key", "row", "expected"),
    [
        ("id", {"id": "x/1", "a": "t"}, "x/1"),
        ("id", {"id": 12, "a": "t"}, "12"),
        ("{d}/{f:stem}", {"d": "x", "f": "y/z.tar.gz", "a": "t"}, "x/y/z"),
        (None, {"__key__": "own", "a": "t"}, "own"),
    ],
)
def test_keys(key, row, expected):
    assert sample({"a": "txt"}, row, key=key)["__key__"] == expected


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ({"a": "jpg"}, {"a": "x.jpg"}, r"table, row 3: the column 'a' does not fit the part 'jpg'.*files="),
        ({"a": "txt"}, {"a": {"b": 1}}, "of type dict.*Map it to json"),
        ({"a": "json"}, {"a": {"b": b"x"}}, "it cannot hold a value of type bytes"),
        ({"a": "cls"}, {"a": "cat"}, "does not fit the part 'cls'"),
        ({"a": "txt"}, {"a": "\udcff"}, "does not fit the part 'txt'"),
        ({"b": "txt"}, {"a": "x"}, "there is no column 'b'. The columns are a"),
        ({"a.c": "txt"}, {"a": {"b": 1}}, "there is no column 'a.c'"),
        ({"a": "txt"}, {"a": None}, "no column has a value"),
        ({"a": "auto", "b": "jpg"}, {"a": JPEG, "b": JPEG}, "two columns are the part 'jpg'"),
        ({"a": "jpg"}, {"a": Image.new("RGBA", (2, 2))}, "cannot hold the image"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_row_and_column(columns, row, message):
    with pytest.raises(ColumnError, match=message):
        sample(columns, row)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("a", "has a dot.*stem"),
        ("n", "the key 'n' is None"),
        ("{a:08d}", "cannot be filled"),
        ("no", "no column"),
    ],
)
def test_a_key_that_cannot_be_one(key, message):
    with pytest.raises(ColumnError, match=message):
        sample({"a": "txt"}, {"a": "x.jpg", "n": None}, key=key)


def test_a_template_reads_no_attributes():
    with pytest.raises(ColumnError, match=r"there is no column 'a.__class__'"):
        sample({"{a.__class__}": "txt"}, {"a": "x"})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": "jpg", "b": "jpg"}, "two columns are mapped to the part 'jpg'"),
        ({"a": "x/y"}, "cannot be a part"),
        ({"a,b": "txt"}, "several columns cannot be 'txt'"),
        ({"{a": "txt"}, "is not a template"),
        ({"a": ""}, "no column is mapped"),
    ],
)
def test_a_wrong_map(columns, message):
    with pytest.raises(ConfigError, match=message):
        parse_columns(columns)


def test_guesses():
    row = {"id": "7", "image": JPEG, "caption": "a dog", "n": 3, "tags": ["a"]}
    assert guessed(row, key="id") == {"jpg": ("image",), "txt": ("caption",), "json": ("n", "tags")}
    assert guessed({"image": JPEG, "label": 3}) == {"jpg": ("image",), "cls": ("label",)}
    assert guessed({"image": JPEG, "kind": 3}, hints={"kind": "cls"}) == {"jpg": ("image",), "cls": ("kind",)}
    assert guessed({"a": JPEG, "b": JPEG}) == {"a.jpg": ("a",), "b.jpg": ("b",)}
    assert guessed({"a": "x", "b": "y"}) == {"json": ("a", "b")}
    assert guessed({"words": "x"}) == {"txt": ("words",)}
    assert guessed({"image": JPEG, "photo_id": "x"}) == {"jpg": ("image",), "json": ("photo_id",)}
    assert guessed({"p": ["a/b.jpg", "c.jpg"]}, has_paths=True) == {"jpg": ("p",)}
    assert guessed({"tags": ["a", "b.jpg"]}, has_paths=True) == {"json": ("tags",)}
    assert guessed({"p": "a/b.jpg", "t": "text"}, has_paths=True) == {"jpg": ("p",), "txt": ("t",)}
    assert guessed({"p": "a/b", "t": "text"}, files=["p"]) == {"auto": ("p",), "txt": ("t",)}
    assert guessed({"a": np.zeros(3), "b": Image.new("L", (2, 2))}) == {"npy": ("a",), "png": ("b",)}
    assert guessed({"pages": [{"bytes": JPEG, "path": None}]}) == {"jpg": ("pages",)}


@pytest.mark.parametrize(
    ("shapes", "kind", "fields"),
    [
        ([("jpg", "txt")], "CaptioningSample", {"image": "jpg", "caption": "txt"}),
        ([("cls", "png"), ("cls", "jpg")], "ImageClassificationSample", {"image": "jpg,png", "label": "cls"}),
        ([("txt",)], "TextSample", {"text": "txt"}),
        ([("webp",)], "ImageSample", {"image": "webp"}),
        ([("jpg", "json", "txt")], None, None),
        ([("jpg", "txt"), ("jpg",)], None, None),
        ([("jpg", "png", "txt")], None, None),
        ([("json",)], None, None),
    ],
)
def test_the_sample_type_fits_all_samples(shapes, kind, fields):
    found = json.loads(json.dumps(guess_dataset_yaml(shapes)))
    assert found.get("field_map") == fields
    assert found.get("sample_type", {}).get("__class__") == kind
