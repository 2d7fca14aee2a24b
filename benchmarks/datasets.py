"""The benchmark's datasets: D40 (cut into 8 and into 64 shards) and the three-part samples of P12."""

from __future__ import annotations

from pathlib import Path

from energon_stream.testing.datasets import binary_dataset, random_bytes, write_shards
from energon_stream.testing.reference import write_reference_dataset

BUCKET = "bench"
SAMPLES = 4000
CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def write_all(root: Path) -> None:
    """Write the datasets as folders of the bucket below ``root``, indexed by the stdlib-only reference writer."""
    for shards in (8, 64):
        folder = root / BUCKET / f"d40x{shards}"
        write_reference_dataset(folder, binary_dataset(folder, shards=shards), dataset_yaml=CRUDE)
        (folder / ".nv-meta" / "json_only.yaml").write_text(CRUDE + "part_filter:\n- json\n")

    def three_parts(index: int) -> dict[str, bytes]:
        data = random_bytes(36_000, index)
        return {"a": data[:20_000], "b": data[20_000:], "json": b"{}".ljust(80)}

    folder = root / BUCKET / "p12"
    tars = write_shards(folder, shards=8, samples_per_shard=SAMPLES // 8, parts=three_parts)
    write_reference_dataset(folder, tars, dataset_yaml=CRUDE)
