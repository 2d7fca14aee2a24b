"""The same loader with either library that has Energon's public names."""

from candidates import BATCH, WINDOW, collate_as

PASSED_ON = ("repeat", "dataset_config", "parallel_shard_iters")


def opener(lib, spec: dict, options: dict):
    """A function that opens the loader."""

    collate = collate_as(spec, lib.batch_stack)

    @lib.stateless
    def cook(sample: dict) -> dict:
        return dict(sample)

    class Encoder(lib.DefaultTaskEncoder):
        decoder = None
        cookers = [lib.Cooker(cook)]

        def batch(self, samples: list) -> dict:
            return collate(samples)

    savable = spec.get("restore") or spec.get("save_at")
    make_loader = lib.get_savable_loader if savable else lib.get_loader  # a lazy package imports here
    make_dataset, make_config = lib.get_train_dataset, lib.WorkerConfig

    def open_loader():
        streams = {"num_streams": spec["streams"]} if "streams" in spec else {}  # ours only
        dataset = make_dataset(
            spec["path"],
            worker_config=make_config(rank=0, world_size=1, num_workers=spec["workers"], **streams),
            batch_size=spec.get("batch", BATCH),
            shuffle_buffer_size=spec.get("window", WINDOW),
            max_samples_per_sequence=spec.get("sequence", WINDOW),
            task_encoder=Encoder(),
            **{name: spec[name] for name in PASSED_ON if name in spec},
            **options,
        )
        return make_loader(dataset)

    return open_loader
