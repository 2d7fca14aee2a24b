"""WebDataset over plain HTTP (with curl, as it does by itself) or local files."""

from candidates import BATCH, WINDOW, collate_as


def prepare(spec: dict):
    """Import, and return what opens the loader."""
    import torch
    import webdataset as wds

    def open_loader():
        urls = [f"{spec['path']}/{name}" for name in spec["shards"]]
        dataset = wds.WebDataset(urls, shardshuffle=len(urls), seed=1, empty_check=False)
        if spec.get("repeat", True):
            dataset = dataset.repeat()
        dataset = dataset.shuffle(WINDOW).batched(BATCH, collation_fn=collate_as(spec))
        return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=spec["workers"])

    return open_loader
