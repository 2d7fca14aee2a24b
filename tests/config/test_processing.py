"""``get_processing_dataset``: each sample once, in the order of the tars, which ``tarfile`` lists."""

import tarfile

import pytest

from energon_stream import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_processing_dataset,
    get_processing_datasets,
    get_savable_loader,
    stateless,
)
from energon_stream.errors import ConfigError
from energon_stream.testing.datasets import prepared_text_dataset


class Encoder(DefaultTaskEncoder):
    """All hooks: those that pack, group and batch have nothing to do here."""

    def preencode_sample(self, sample):
        sample.text = f"pre {sample.text}"
        return sample

    @stateless
    def postencode_sample(self, sample):
        sample.text += " post"
        return sample

    def select_samples_to_pack(self, samples):
        raise AssertionError

    pack_selected_samples = batch = encode_batch = batch_group_criterion = select_samples_to_pack


class TakesEach(Encoder):
    def build_cook_crude_sample(self, dataset, *, worker_config, subflavors, get_primary_aux, aux):
        return dataset


@pytest.fixture
def mix(tmp_path):
    for name, shards in (("a", 3), ("b", 2)):
        prepared_text_dataset(tmp_path / name, shards=shards, samples_per_shard=5, text=f"{name} {{}}")
    return tmp_path


def document(mix, kind):
    share = "weight" if kind == "blend" else "repetitions"
    entries = [(name, number) for name, number in (("b", 0.001), ("a", 7), ("b", 2))]
    node = {kind: [{"path": str(mix / name), share: number} for name, number in entries]}
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    return {**head, "splits": {"train": node}}


def texts(folder):
    found = []
    for tar in sorted(folder.glob("*.tar")):
        with tarfile.open(tar) as members:
            found += [members.extractfile(member).read().decode() for member in members]
    return found


ALONE = WorkerConfig(0, 1, 0)


@pytest.mark.parametrize("kind", ["blend", "blend_epochized"])
@pytest.mark.parametrize("encoder", [Encoder, TakesEach])
def test_each_leaf_is_read_once_and_in_order(mix, kind, encoder):
    wanted = [f"pre {text} post" for name in "bab" for text in texts(mix / name)]
    dataset = get_processing_dataset(document(mix, kind), worker_config=ALONE, task_encoder=encoder())
    assert [sample.text for sample in dataset] == wanted
    assert len(dataset) == len(wanted)
    each = get_processing_datasets(document(mix, kind), worker_config=ALONE, task_encoder=encoder())
    assert [ref.path for _, ref in each] == [str(mix / name) for name in "bab"]
    assert [sample.text for dataset, _ in each for sample in dataset] == wanted


def test_workers_ranks_and_resume(mix):
    wanted = sorted(texts(mix / "a"))
    ranks = []
    for rank in range(2):
        config = WorkerConfig(rank, 2, 2)
        ranks.append(
            [each.text for each in get_loader(get_processing_dataset(mix / "a", worker_config=config))]
        )
    assert sorted(ranks[0] + ranks[1]) == wanted
    loader = get_savable_loader(get_processing_dataset(mix / "a", worker_config=ALONE))
    each = iter(loader)
    first = [next(each).text for _ in range(4)]
    after = get_savable_loader(get_processing_dataset(mix / "a", worker_config=ALONE))
    after.restore_state_rank(loader.save_state_rank())
    assert first + [sample.text for sample in after] == texts(mix / "a")


def test_options_of_training_are_unknown(mix):
    with pytest.raises(ConfigError, match="shuffle_buffer_size"):
        get_processing_dataset(mix / "a", shuffle_buffer_size=3)
