"""Reads a dataset once, in the order of its tars, in this process."""

from energon_stream import WorkerConfig, get_train_dataset


def read_in_order(path, encoder, **options):
    """Samples as the encoder batches them, in lists."""
    dataset = get_train_dataset(
        str(path),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=encoder,
        **options,
    )
    return [sample for batch in dataset for sample in batch]
