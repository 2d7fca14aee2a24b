"""Writes a dataset's samples in the formats of peers that have their own; runs in those peers' interpreter.

    python prepare_peers.py FORMAT FOLDER-OF-TARS OUTPUT

FORMAT is ``mosaicml`` (MDS) or ``litdata`` (chunks); a shard of theirs holds the samples of a tar.
"""

import sys
import tarfile
from pathlib import Path

SAMPLES: list = []


def read(folder: str) -> int:
    """Load all samples; returns those of a tar."""
    tars = sorted(Path(folder).glob("*.tar"))
    found: dict = {}
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, part = member.name.partition(".")
                found.setdefault(key, {"__key__": key})[part] = tar.extractfile(member).read()
    SAMPLES.extend(found.values())
    return len(found) // len(tars)


def sample(index: int) -> dict:
    """One sample in the form that LitData writes."""
    return SAMPLES[index]


def main() -> None:
    kind, folder, out = sys.argv[1:]
    per_shard = read(folder)
    if kind == "litdata":
        import litdata

        litdata.optimize(
            sample,
            list(range(len(SAMPLES))),
            output_dir=out,
            chunk_size=per_shard,
            num_workers=1,
            start_method="fork",
            verbose=False,
        )
        return
    from candidates.mosaicml import import_streaming

    streaming = import_streaming()
    columns = {name: "str" if name == "__key__" else "bytes" for name in SAMPLES[0]}
    size = sum(len(value) for value in SAMPLES[0].values()) + 64
    with streaming.MDSWriter(out=out, columns=columns, size_limit=per_shard * size) as writer:
        for one in SAMPLES:
            writer.write(one)


if __name__ == "__main__":
    main()
