"""Makes hostile indices, all from their numbers, and opens them in every way, where nothing may be touched.

``cases`` names what is changed in a good dataset; ``attack`` is for a child process.
"""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from in_order import read_in_order
from PIL import Image

from energon_stream import (
    DefaultTaskEncoder,
    add_media_table,
    compute_costs,
    list_tables,
    read_costs,
)
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import EnergonStreamError
from energon_stream.index.index_files import index_path
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.limits import Limits
from energon_stream.prepare.add_tables import add_table
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.tools.browse.catalog import Catalog
from energon_stream.tools.browse.pages import Pages
from energon_stream.tools.browse.training import Run, StepFinder
from energon_stream.tools.file_tree import FileTree
from energon_stream.tools.lint.check_dataset import lint_dataset

META = ".nv-meta"
SHARDS, EACH = 2, 4
SECONDS, MEMORY = 10, 1 << 30
TABLES = {
    "samples": ["tar_file_id", "sample_key", "sample_index", "byte_offset", "byte_size"],
    "sample_parts": ["tar_file_id", "sample_index", "part_name", "content_byte_offset", "content_byte_size"],
    "media_metadata": ["entry_key", "metadata_type", "metadata_json"],
    "media_filters": ["filter_id", "strategy", "patterns", "created_at_utc"],
    "media_layouts": ["entry_key", "layout_json"],
}
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c)"
COSTLY = [
    "printf('%.*c', 900000000, 'x')",
    "hex(zeroblob(500000000))",
    "instr(printf('%.*c', 3000000, 'a'), printf('%.*c', 2000000, 'a') || 'b')",
    "(printf('%.*c', 40000, 'a') LIKE printf('%.*c', 40000, '%a') || 'b')",
    "replace(printf('%.*c', 1000000, 'a'), 'a', printf('%.*c', 1000, 'b'))",
    "(SELECT count(*) FROM sqlite_master a, sqlite_master b, sqlite_master c, sqlite_master d, sqlite_master e, "
    "sqlite_master f, sqlite_master g, sqlite_master h, sqlite_master i)",
]
CELLS = [
    "NULL", "-1", "9223372036854775807", "-9223372036854775808", "1e308", "0.5", "'x'", "''", "x'ff00'", "99999",
    "CAST(x'ff00ff' AS TEXT)", "printf('%.*c', 5000000, 'k')", "'../../outside/x'", "1 << 40", "char(0) || 'a'",
    "'{\"width\": 1e999, \"height\": [], \"format\": {}, \"mode\": null}'", "printf('%.*c', 100000, '[')",
]  # fmt: skip
VALUES = [
    None, True, -1, 0, 1, 1 << 31, 1 << 53, 1 << 62, 1 << 63, 1 << 70, -(1 << 63), 10**400, 0.5, 1e308, float("nan"),
    "", "x", "../../outside/private.tar", "/etc/passwd", "outside.tar", "\ud800", "\x00", "a" * 500_000,
    "{0..999999999}.tar", "{a,b}" * 40 + ".tar", [], {}, [[]], [1], {"a": 1}, "http://127.0.0.1:{port}/x.tar",
    "s3://bucket/x.tar", "file:///etc/passwd", "canary_module", "os", "builtins", "__builtins__.eval", "canary_module.py",
    "../canary_module.py", "{dir}/outside/private.tar",
]  # fmt: skip
YAML = [
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{'*a' + str(n - 1 or '') + ', '}*a]\n" for n in range(1, 20)),
    "!!python/object/apply:os.system ['touch outside/flag']\n",
    "!!python/name:canary_module.f\n",
    "split_parts: !!python/object/new:canary_module.C []\n",
    "[" * 100_000,
    "{a: " * 50_000,
    "- " * 50_000 + "x",
    "split_parts: {train: ['{0..99999999999}.tar']}\n",
    "split_parts: {train: ['" + "{a,b}" * 60 + ".tar']}\n",
    "split_parts: {train: ['data-00000{0..1}.tar'], val: [], test: []}\nexclude: ['" + "{a,b}" * 60 + "']\n",
    "? [a, b]\n: c\n",
    "a: 1\na: 2\n",
    "--- a\n--- b\n",
    "%YAML 9.9\n---\na\n",
    "\ufeff{}\n",
    "a: " + "9" * 100_000 + "\n",
    "x" * (3 << 20),
    "a: b: c\n",
    "\x00\x01\x02",
    "__module__: canary_module\n__class__: C\n",
    "__module__: megatron.energon\n__class__: " + "C" * 500_000 + "\n",
    "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: &x {a: *x}\n",
    "sample_type: {__module__: canary_module, __class__: C}\nsample_loader: canary_module.py:f\npart_filter: canary_module.py:f\n",
    "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: 'txt[__import__(\"canary_module\")]'}\n",
    "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: 'json"
    + "[0]" * 20_000
    + "'}\n",
    "sample_type: {__module__: megatron.energon, __class__: TextSample}\nsample_loader: ../canary_module.py:f\n",
    "sample_type: {__module__: os, __class__: system}\nfield_map: {text: txt}\n",
    "'",
    "\t- a\n",
]
FLIPPED = {
    "sqlite": INDEX_SQLITE,
    "idx": index_path("data-000000.tar"),
    "info": f"{META}/.info.json",
    "split": f"{META}/split.yaml",
    "yaml": f"{META}/dataset.yaml",
    "table": f"{META}/tables/x.parquet",
    "checksums": f"{META}/checksums.xxh3",
    "uuid": f"{META}/index.uuid",
    "costs": f"{META}/costs/n.npy",
    "costs record": f"{META}/costs/n.json",
    "keys": "keys.txt",
}


def good(folder):
    """Make the dataset that the cases change."""
    image = io.BytesIO()
    Image.new("L", (8, 6)).save(image, "PNG")
    data = folder / "data"
    write_shards(
        data,
        shards=SHARDS,
        samples_per_shard=EACH,
        parts=lambda n: {"png": image.getvalue(), "txt": b"%d" % n},
    )
    prepare_dataset(
        str(data),
        split_ratio=(1, 0, 0),
        dataset_yaml=CRUDE_YAML,
        checksums=True,
        media_filter=MediaFilter("EXTENSION"),
    )
    samples = SHARDS * EACH
    pq.write_table(pa.table({"n": list(range(samples)), "s": ["x"] * samples}), folder / "x.parquet")
    add_table(str(data), str(folder / "x.parquet"), name="x")
    compute_costs(str(data), "n", values=range(1, samples + 1))
    (data / "keys.txt").write_text("00000001\n00000002\n")
    (folder / "outside").mkdir()
    shutil.copy(data / "data-000000.tar", folder / "outside/private.tar")
    (folder / "canary_module.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n\n\nclass C: pass\n\n\ndef f(*_): return True\n"
    )
    return data


def cases():
    """Names of all cases: what is attacked, how, and a number."""
    found = [("sql view", name, n) for name in TABLES for n in range(len(COSTLY) + 1)]
    found += [("sql computed", name, n) for name in TABLES for n in range(len(COSTLY))]
    found += [
        ("sql cell", f"{name}.{column}", n)
        for name, each in TABLES.items()
        for column in each
        for n in range(0, len(CELLS), 2)
    ]
    found += [("sql schema", kind, n) for kind in SCHEMA for n in range(len(TABLES))]
    found += [("sql pages", name, 0) for name in TABLES]
    found += [("bytes", kind, n) for kind in FLIPPED for n in range(12)]
    found += [("json", kind, n) for kind in ("info", "costs record") for n in range(2 * len(VALUES))]
    found += [("yaml", kind, n) for kind in ("split", "yaml") for n in range(len(YAML))]
    found += [("yaml value", "split", n) for n in range(len(VALUES))]
    found += [
        ("idx", how, n) for how in ("huge", "negative", "order", "shift", "long", "same") for n in range(2)
    ]
    found += [("parquet", how, 0) for how in PARQUET]
    found += [("keys", "keys", n) for n in range(len(KEYS))]
    return found


SCHEMA = {
    "gone": "DROP TABLE {t}",
    "columns gone": "DROP TABLE {t}; CREATE TABLE {t} (a)",
    "endless trigger": f"CREATE TRIGGER g AFTER INSERT ON {{t}} BEGIN SELECT count(*) FROM ({ENDLESS} SELECT x FROM c); END",
    "full text": "CREATE TABLE o AS SELECT * FROM {t}; DROP TABLE {t}; CREATE VIRTUAL TABLE {t} USING fts5({c})",
    "rtree": "DROP TABLE {t}; CREATE VIRTUAL TABLE {t} USING rtree(a, b, c)",
    "dbstat": "DROP TABLE {t}; CREATE VIEW {t} AS SELECT * FROM pragma_table_info('samples')",
    "no rowid": "CREATE TABLE o AS SELECT * FROM {t}; DROP TABLE {t}; CREATE TABLE {t} ({c}, PRIMARY KEY ({f})) WITHOUT ROWID; "
    "INSERT OR IGNORE INTO {t} SELECT * FROM o",
    "twice": "CREATE TABLE o AS SELECT * FROM {t}; DROP TABLE {t}; CREATE TABLE {t} ({c}); INSERT INTO {t} SELECT * FROM o; "
    "INSERT INTO {t} SELECT * FROM o",
    "many": "CREATE TABLE o AS SELECT * FROM {t}; DROP TABLE {t}; CREATE TABLE {t} ({c}); "
    "INSERT INTO {t} SELECT o.* FROM o, (WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c LIMIT 3000) SELECT x FROM c)",
    "utf-16": "DROP TABLE {t}",
    "no such type": "PRAGMA writable_schema = 1; UPDATE sqlite_master SET type = 'view' WHERE name = '{t}'",
    "garbage": "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = 'CREATE TABLE {t} (((((' WHERE name = '{t}'",
    "virtual": "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = 'CREATE VIRTUAL TABLE {t} USING fts5(a)' WHERE name = '{t}'",
    "root": "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 99999 WHERE name = '{t}'",
    "shared root": "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 1 WHERE name = '{t}'",
    "long": "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = sql || printf('%.*c', 3000000, ' ') WHERE name = '{t}'",
    "deep": "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = 'CREATE TABLE {t} (a DEFAULT ' || "
    "replace(printf('%.*c', 900, '('), '(', '(1+') || '1' || printf('%.*c', 900, ')') || ')' WHERE name = '{t}'",
    "write-ahead log": "PRAGMA journal_mode = WAL",
}  # fmt: skip
KEYS = [
    b"", b"\xff\xfe0\x000\x00", b"\x00" * 100_000, b"00000001\n" * 200_000, b"k" * (3 << 20), b"\n" * 1_000_000, "ü\n".encode("latin-1"),
    b"'; DROP TABLE samples; --\n", b"../../etc/passwd\n", b"00000001.txt\n\r\n", b"\xef\xbb\xbf00000001\n", b"{0..999999999}\n",
]  # fmt: skip
PARQUET = {
    "repeated": lambda rows: {"n": list(range(rows)), "s": ["a" * (40 << 20)] * rows},
    "nested": lambda rows: {"n": [[n] for n in range(rows)], "s": [{"a": 1}] * rows},
    "texts": lambda rows: {"n": ["x"] * rows, "s": list(range(rows))},
    "few": lambda rows: {"n": [1], "s": ["x"]},
    "none": lambda rows: {"n": pa.array([], pa.int64()), "s": pa.array([], pa.string())},
    "many": lambda rows: {"n": pa.array([0]).take(pa.array([0] * 3_000_000)), "s": pa.nulls(3_000_000)},
    "nothing": lambda rows: {"n": pa.nulls(rows), "s": pa.nulls(rows)},
    "columns": lambda rows: {f"c{n}": [1] * rows for n in range(5000)},
    "bytes": lambda rows: {"n": [b"\xff"] * rows, "s": [b"\xff\xfe"] * rows},
}


def change(folder, case, port):
    """Do to a copy of the dataset what a case names."""
    kind, what, number = case
    rng = random.Random(repr(case))
    if kind.startswith("sql"):
        change_sqlite(folder / INDEX_SQLITE, kind, what, number)
        return
    path = folder / FLIPPED.get(what, index_path("data-000000.tar") if kind == "idx" else FLIPPED["table"])
    data = path.read_bytes()
    if kind == "bytes":
        path.write_bytes(flipped(data, rng, number))
    elif kind == "json":
        path.write_text(
            json.dumps(put_value(json.loads(data), rng, filled(VALUES[number % len(VALUES)], folder, port)))
        )
    elif kind == "yaml":
        path.write_text(YAML[number].replace("{port}", str(port)))
    elif kind == "yaml value":
        value = filled(VALUES[number], folder, port)
        path.write_text(
            json.dumps(
                put_value(
                    {
                        "split_parts": {"train": ["data-00000{0..1}.tar"], "val": [], "test": []},
                        "exclude": [],
                    },
                    rng,
                    value,
                )
            )
        )
    elif kind == "keys":
        path.write_bytes(KEYS[number])
    elif kind == "idx":
        numbers = list(struct.unpack(f"<{len(data) // 8}Q", data))
        at = rng.randrange(len(numbers))
        numbers = {
            "huge": lambda: [*numbers[:at], (1 << 63) + 512, *numbers[at + 1 :]],
            "negative": lambda: [*numbers[:at], (1 << 64) - 512, *numbers[at + 1 :]],
            "order": lambda: numbers[::-1],
            "shift": lambda: [each + 512 for each in numbers],
            "long": lambda: numbers * 300_000,
            "same": lambda: [numbers[-1]] * len(numbers),
        }[what]()
        path.write_bytes(struct.pack(f"<{len(numbers)}Q", *numbers))
    else:
        mark = pq.read_schema(path).metadata
        pq.write_table(
            pa.table(PARQUET[what](SHARDS * EACH)).replace_schema_metadata(mark), path, use_dictionary=True
        )


def filled(value, folder, port):
    return (
        value.replace("{port}", str(port)).replace("{dir}", str(folder.parent))
        if isinstance(value, str)
        else value
    )


def put_value(value, rng, new):
    """Put a value somewhere into a tree, as a key in one of four cases."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.2:
        return new
    if isinstance(value, dict) and isinstance(new, str) and rng.random() < 0.25:
        return {**value, new: 1}
    key = rng.choice([*value] if isinstance(value, dict) else range(len(value)))
    copy = value.copy()
    copy[key] = put_value(value[key], rng, new)
    return copy


def flipped(data, rng, number):
    data = bytearray(data or b"x")
    for _ in range(1 + number % 4):
        at = rng.randrange(len(data))
        how = rng.choice(["flip", "cut", "zero", "copy", "random", "end"])
        if how == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif how == "cut":
            del data[at : at + rng.randrange(2000)]
        elif how == "zero":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        elif how == "copy":
            other = rng.randrange(len(data))
            data[at : at + 64] = data[other : other + len(data[at : at + 64])]
        elif how == "random":
            data[at : at + 8] = rng.randbytes(len(data[at : at + 8]))
        else:
            data[-1 - at % min(len(data), 64)] ^= 0xFF
        data = data or bytearray(b"x")
    return bytes(data)


def change_sqlite(path, kind, what, number):
    columns = TABLES.get(what) or [*TABLES.values()][number % len(TABLES)]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        if kind == "sql view":
            costly = f"{[*COSTLY, 'x'][number]} || x"  # a constant would be computed once
            of_text = {
                column: costly for column in columns if not column.endswith(("id", "index", "offset", "size"))
            }
            rows = ", ".join(f"{of_text.get(column, 'x')} AS {column}" for column in columns)
            database.executescript(f"DROP TABLE {what}; CREATE VIEW {what} AS {ENDLESS} SELECT {rows} FROM c")
        elif kind == "sql computed":
            # The file is written with a cheap expression, and is changed after.
            *plain, last = columns
            database.executescript(
                f"DROP TABLE {what}; CREATE TABLE {what} ({', '.join(plain)}, {last} AS (1))"
            )
            marks = ", ".join(["0"] * len(plain))
            database.executescript(f"INSERT INTO {what} VALUES ({marks}); PRAGMA writable_schema = 1")
            database.execute(
                "UPDATE sqlite_master SET sql = ? WHERE name = ?",
                (f"CREATE TABLE {what} ({', '.join(plain)}, {last} AS ({COSTLY[number]}))", what),
            )
        elif kind == "sql cell":
            table, column = what.split(".")
            with contextlib.suppress(sqlite3.IntegrityError):
                database.execute(
                    f"UPDATE OR IGNORE {table} SET {column} = {CELLS[number]} WHERE rowid % 3 = {number % 3}"
                )
        elif kind == "sql schema":
            table = [*TABLES][number]
            script = SCHEMA[what].format(t=table, c=", ".join(columns), f=columns[0])
            if what == "utf-16":
                path.unlink()
                with contextlib.closing(sqlite3.connect(path)) as other:
                    other.executescript("PRAGMA encoding = 'UTF-16le'; CREATE TABLE samples (sample_key)")
            else:
                database.executescript(script)
    if kind == "sql pages":
        make_endless(path, what)


def make_endless(path, table):
    """Let the pages of a table refer to one page so often that no one can read all rows."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (count,) = database.execute("PRAGMA page_count").fetchone()
    data = bytearray(path.read_bytes()[: count * size])
    data += data[(root - 1) * size : root * size]  # all rows, on one page
    for below in range(count + 1, count + 7):
        data += inner_page(size, below)
    data[(root - 1) * size : root * size] = inner_page(size, count + 7)
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)


def inner_page(size, child, cells=300):
    cell = struct.pack(">I", child) + b"\x05"
    first = size - cells * len(cell)
    pointers = b"".join(struct.pack(">H", first + at * len(cell)) for at in range(cells))
    return (struct.pack(">BHHHBI", 5, 0, cells, first, 0, child) + pointers).ljust(
        first, b"\0"
    ) + cell * cells


class Raw(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return [(str(sample["__key__"]), bytes(sample["txt"])) for sample in samples]


def train(path, **view):
    found = read_in_order(path, Raw(), batch_size=3, **view)
    for key, text in found:
        if text != b"%d" % int(key.rpartition("/")[2]):
            raise AssertionError(f"{key} has {text!r:.80}")
    return found


def browse(path):
    run, limits = Run(num_workers=0), Limits()
    catalog = Catalog(str(path))
    pages = Pages(
        catalog,
        StepFinder(str(path), {"shuffle_buffer_size": None, "max_samples_per_sequence": None}),
        run,
        limits,
    )
    pages.catalog()
    for question, query in (
        (pages.samples, {"count": "5"}),
        (pages.samples, {"count": "5", "field": "txt", "value": "1"}),
        (pages.search, {"text": "0000"}),
        (pages.sample, {"number": "1"}),
        (pages.step, {"step": "1", "batch_size": "2"}),
    ):
        with contextlib.suppress(EnergonStreamError):
            question(query)


def append(path):
    with tarfile.open(path / "data-000002.tar", "w") as tar:
        member = tarfile.TarInfo("new.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"7"))
    prepare_dataset(str(path), append=True, split_ratio=(1, 0, 0))


WAYS = {
    "train": train,
    "where": lambda path: train(path, where="n >= 2 and s != 'y'"),
    "exclude": lambda path: train(path, exclude=str(path / "keys.txt")),
    "browse": browse,
    "lint": lambda path: lint_dataset(str(path)),
    "by name": lambda path: WebdatasetFileStore(path)["00000001.txt"],
    "metadata": lambda path: WebdatasetFileStore(path).get_media_metadata("00000001.png"),
    "tree": lambda path: list(FileTree(StoreSpec(str(path))).names("")),
    "tables": lambda path: list_tables(str(path)),
    "costs": lambda path: read_costs(str(path), "n"),
    "media costs": lambda path: compute_costs(str(path), "pixels", media="width * height"),
    "media table": lambda path: add_media_table(str(path), name="media"),
    "media again": lambda path: prepare_media(str(path), MediaFilter("EXTENSION")),
    "append": append,
}
NOT_TOUCHED = (
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
)


def prepared(folder, home, chosen, port):
    """Make a dataset for each case and way. A process keeps what it knows of a path, so each has its own."""
    for number, case in enumerate(chosen):
        changed = home / f"case{number}"
        shutil.copytree(folder / "data", changed)
        change(changed, case, port)
        for way in WAYS:
            copy = home / f"{number} {way}/data"
            shutil.copytree(changed, copy)
            yield case, way, copy


def attack(folder, home, chosen, log):
    """Open datasets, each with case and way; returns what is wrong, and figures. For a process of its own."""
    wrong, current = [], ["", ""]
    before = read_status("VmSize"), read_status("VmRSS")
    most = before[0] + 4 * MEMORY  # Arrow reserves addresses without memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    sys.path.append(str(folder))
    os.environ |= {"ENERGON_STREAM_CACHE_DIR": str(home / "cache"), "TMPDIR": str(home)}
    tempfile.tempdir = str(home)
    libraries = {str(Path(each).resolve()) for each in (sys.prefix, sys.base_prefix, *sys.path[:-1]) if each}
    allowed = (str(home), *libraries, "/proc", "/sys", "/dev", "/usr", log)

    def watch(event, arguments):
        if not current[0]:
            return
        if event in NOT_TOUCHED:
            wrong.append((*current, f"{event} {arguments!r:.200}"))
        if event == "open" and isinstance(arguments[0], str | bytes):
            opened = os.path.realpath(os.fsdecode(arguments[0]))
            if not opened.startswith(allowed):
                wrong.append((*current, f"opened {opened:.200}"))

    sys.addaudithook(watch)
    figures = {"seconds": 0.0, "slowest": "", "errors": {}}
    for case, way, copy in chosen:
        Path(log).write_text(f"{case} {way}\n")
        current[:] = [str(case), way]
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            WAYS[way](copy)
        except EnergonStreamError as error:
            name = type(error).__name__
            figures["errors"][name] = figures["errors"].get(name, 0) + 1
            if len(str(error)) > 30_000:
                wrong.append((*current, f"a message of {len(str(error)):,} characters"))
        except BaseException as error:
            trace = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(
                (*current, f"{type(error).__name__}: {error!s:.200} ({trace.filename}:{trace.lineno})")
            )
        signal.setitimer(signal.ITIMER_PROF, 0)
        current[0] = ""
        seconds = time.process_time() - begin
        if seconds > figures["seconds"]:
            figures |= {"seconds": seconds, "slowest": f"{case} {way}"}
    figures["memory"] = read_status("VmHWM") - before[1]
    if figures["memory"] > MEMORY:
        wrong.append((str(chosen[0]), "", f"it took {figures['memory']:,} bytes"))
    if (folder / "ran").exists():
        wrong.append((str(chosen[0]), "", "code of the dataset ran"))
    return wrong, figures


def read_status(field):
    """Bytes that the kernel counts for this process."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) << 10
