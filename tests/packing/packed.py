"""Datasets with known lengths, and training on their planned packs."""

from energon_stream import (
    DefaultTaskEncoder,
    PlannedPacking,
    ReadOptions,
    ShardWriter,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.pipeline.stream_runner import StreamRunner

SAMPLES, CAPACITY, STREAMS = 200, 100, 4
ORDER = {"shuffle_buffer_size": 20, "max_samples_per_sequence": 8}


def tokens(sample):
    return len(sample["txt"])


class Packs(DefaultTaskEncoder):
    @stateless
    def pack_selected_samples(self, samples):
        texts = [s.text[part] for s, part in zip(samples, samples.parts, strict=True)]
        assert [len(text) for text in texts] == samples.lengths.tolist()
        assert samples.cu_seqlens[-1] <= samples.capacity
        return [(s.__key__, part.start, part.stop) for s, part in zip(samples, samples.parts, strict=True)]

    @stateless
    def batch(self, samples):
        return samples


def write(path, lengths, shard=32, first=0):
    described = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}
    described["field_map"] = {"text": "txt"}
    ratio = {"train": 1.0, "val": 0.0, "test": 0.0}
    with ShardWriter(str(path), max_count=shard, split_ratio=ratio, dataset_yaml=described) as out:
        for number, length in enumerate(lengths, first):
            out.write({"__key__": f"{number:05}", "txt": b"x" * int(length)})
    return str(path)


def opened(
    path,
    rank=0,
    world=1,
    workers=0,
    encoder=Packs,
    repeat=True,
    read=None,
    cache=False,
    storage=None,
    view=None,
    pack=True,
    **options,
):
    packing = {"cost": "tokens", "capacity": CAPACITY, "window": 2, "overlong": "split"} | options
    streams = packing.pop("num_streams", STREAMS)
    order = {name: packing.pop(name, default) for name, default in ORDER.items()}
    config = WorkerConfig(rank, world, workers, num_streams=streams)
    return get_train_dataset(
        path,
        batch_size=1,
        worker_config=config,
        task_encoder=encoder(),
        packing=PlannedPacking(**packing) if pack else None,
        repeat=repeat,
        read_options=read or ReadOptions(max_ahead=64),
        cache=cache,
        storage_options=storage,
        **order,
        **(view or {}),
    )


def taken(dataset, count):
    loader = get_savable_loader(dataset)
    batches = iter(loader)
    return [next(batches)[0] for _ in range(count)]


def with_states(dataset, count):
    """The first packs of all streams, in turn, and the states and the rotation after each."""
    runner, states, values = StreamRunner(dataset, range(STREAMS)), [], []
    current = dict.fromkeys(range(STREAMS))
    for _ in range(count):
        step = runner.step()
        values.append(step.value[0])
        current[step.stream] = step.state
        states.append((dict(current), runner.rotation.copy()))
    runner.close()
    return values, states
