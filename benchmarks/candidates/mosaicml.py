"""mosaicml-streaming over its MDS shards, written from the same samples by ``prepare_peers.py``."""

import os

from candidates import BATCH, collate, passes


def import_streaming():
    """Import the package where its torchvision was built for another torch: two operators are declared for
    it.
    """
    import torch

    global _operators
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import streaming

    return streaming


def prepare(spec: dict):
    """Import, and return what opens the loader."""
    if spec.get("endpoint"):
        os.environ["S3_ENDPOINT_URL"] = spec["endpoint"]
        os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    streaming = import_streaming()
    where = (
        {"remote": spec["path"], "local": spec["cache"]} if spec.get("endpoint") else {"local": spec["path"]}
    )

    def open_loader():
        dataset = streaming.StreamingDataset(**where, shuffle=True, batch_size=BATCH)
        loader = streaming.StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=spec["workers"], collate_fn=collate
        )
        return passes(loader, spec.get("repeat", True))

    return open_loader
