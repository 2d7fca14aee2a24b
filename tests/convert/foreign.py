"""Small datasets of other formats, written by their own libraries, and what their rows are."""

import io
import json
import warnings

import numpy as np
from PIL import Image


def image_bytes(number, kind="JPEG", size=(12, 8)):
    """A file of an image that depends on the number."""
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def expected(count):
    """The samples of ``count`` rows: bytes by part, by key."""
    return {
        f"{number:09d}": {
            "jpg": image_bytes(number),
            "txt": f"caption {number} ☃".encode(),
            "json": json.dumps({"number": number, "score": number / 4, "tags": ["a", str(number)]}).encode(),
        }
        for number in range(count)
    }


def row(number):
    """A row with the columns from which the automatic map makes :func:`expected`."""
    return {
        "image": image_bytes(number),
        "caption": f"caption {number} ☃",
        "number": number,
        "score": number / 4,
        "tags": ["a", str(number)],
    }


def declare_operators():
    """Let torchvision be imported beside a build of torch that it was not made for: streaming imports it."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    declare_operators.library = library  # it ends with its object
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def write_mds(folder, count, **options):
    """Shards of MosaicML, of 7 rows or so each."""
    declare_operators()
    from streaming import MDSWriter

    columns = {"image": "jpeg", "caption": "str", "number": "int", "score": "float64", "tags": "json"}
    with MDSWriter(
        out=str(folder), columns=columns, size_limit=6000, progress_bar=False, **options
    ) as writer:
        for number in range(count):
            values = row(number)
            file = folder.parent / "image.jpg"
            file.write_bytes(values["image"])
            writer.write({**values, "image": Image.open(file)})  # it takes the bytes of an image with a name


def write_litdata(folder, count):
    """Chunks of LitData, of 7 rows each, by its writer for one process."""
    from litdata.streaming.writer import BinaryWriter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = BinaryWriter(str(folder), chunk_size=7)
        for number in range(count):
            writer[number] = row(number)
        writer.done()
        writer.merge()


def write_parquet(path, count, rows=7):
    """One file, of row groups of so many rows."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist([row(number) for number in range(count)])
    pyarrow.parquet.write_table(table, path, row_group_size=rows)


def write_huggingface(folder, count):
    """A dataset saved to a folder, with the types of images and classes."""
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "caption": datasets.Value("string"),
            "number": datasets.Value("int64"),
            "score": datasets.Value("float64"),
            "tags": datasets.List(datasets.Value("string")),
        }
    )
    rows = [{**row(n), "image": {"bytes": image_bytes(n), "path": f"{n}.jpg"}} for n in range(count)]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(folder))


def write_jsonl(folder, count):
    """JSON lines beside a folder of images."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        name = f"images/{number:04d}.jpg"
        (folder / name).write_bytes(image_bytes(number))
        lines.append(json.dumps({**row(number), "image": name}))
    (folder / "table.jsonl").write_text("\n".join(lines) + "\n")


def write_folder(folder, count):
    """Files by key: the parts themselves."""
    for key, parts in expected(count).items():
        target = folder / key[:8] / key
        target.parent.mkdir(parents=True, exist_ok=True)
        for part, content in parts.items():
            (target.parent / f"{key}.{part}").write_bytes(content)
