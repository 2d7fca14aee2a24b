"""The conventions: this library's own, or those of Megatron-Energon."""

import logging

import pytest
from told import told

from energon_stream import (
    DefaultTaskEncoder,
    FatalSampleError,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.conventions import CONVENTIONS_VARIABLE, conventions
from energon_stream.errors import ConfigError, MetadataError
from energon_stream.index.yaml_io import load_yaml
from energon_stream.integrations.megatron import install_alias, uninstall_alias
from energon_stream.testing.datasets import prepared_captioning_dataset

TWICE = b"a: 1\na: 2\n"


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    """A prepared dataset of 12 samples in 3 shards, all in ``train``."""
    folder = tmp_path_factory.mktemp("captions")
    prepared_captioning_dataset(folder, shards=3, samples_per_shard=4, split_ratio=(1, 0, 0))
    return str(folder)


@pytest.fixture
def alias():
    """The alias, for one test."""
    install_alias(shadow=True)
    yield
    uninstall_alias()


def config(**options):
    return WorkerConfig(rank=0, world_size=1, num_workers=0, **options)


def train(path, followed, encoder=None, workers=0):
    return get_train_dataset(
        path,
        batch_size=2,
        shuffle_buffer_size=10,
        max_samples_per_sequence=2,
        task_encoder=encoder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers, conventions=followed),
    )


def keys(path, **options):
    dataset = get_val_dataset(path, split_part="train", batch_size=None, worker_config=config(**options))
    return [sample.__key__ for sample in dataset]


def test_the_alias_sets_the_default_for_its_time():
    assert (conventions(), config().conventions) == ("own", "own")
    install_alias(shadow=True)
    assert (conventions(), config().conventions) == ("energon", "energon")
    uninstall_alias()
    assert (conventions(), config().conventions) == ("own", "own")


def test_the_environment_overrides_it(monkeypatch, alias):
    monkeypatch.setenv(CONVENTIONS_VARIABLE, "own")
    assert config().conventions == "own"
    monkeypatch.setenv(CONVENTIONS_VARIABLE, "theirs")
    with pytest.raises(ConfigError, match=f"{CONVENTIONS_VARIABLE} is 'theirs'.*Use 'own' or 'energon'"):
        config()


def test_a_configuration_names_its_own():
    assert config(conventions="energon").conventions == "energon"
    with pytest.raises(ConfigError, match="conventions is 'mine'"):
        config(conventions="mine")


def test_keys(captions):
    plain, own = keys(captions, conventions="energon"), keys(captions)
    assert plain == [f"{number:08d}" for number in range(12)]
    assert [key.rpartition("/")[2] for key in own] == plain
    assert len({key.partition("/")[0] for key in own}) == 3


class Misspelt(DefaultTaskEncoder):
    """Uses a name that does not exist."""

    @stateless
    def encode_sample(self, sample):
        return undefined_name  # noqa: F821


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_program_in_a_hook(captions, workers):
    with pytest.raises(
        FatalSampleError, match="encode_sample raised NameError: name 'undefined_name'"
    ) as caught:
        next(iter(get_savable_loader(train(captions, "energon", Misspelt(), workers))))
    assert "sample 0" in str(caught.value)
    with pytest.raises(NameError, match="undefined_name"):
        next(iter(get_savable_loader(train(captions, "own", Misspelt(), workers))))


def test_duplicate_keys_in_yaml(alias):
    with pytest.warns(UserWarning, match=r"split\.yaml: the key 'a' appears twice.*the last one counts"):
        assert load_yaml(TWICE, "split.yaml") == {"a": 2}
    uninstall_alias()
    with pytest.raises(MetadataError, match=r"the key 'a' appears twice.*Remove one of the two"):
        load_yaml(TWICE, "split.yaml")


@pytest.mark.parametrize(("before", "after"), [("own", "energon"), ("energon", "own")])
def test_a_state_goes_on_under_other_conventions_and_says_so(captions, caplog, before, after):
    loader = get_savable_loader(train(captions, before))
    batches = iter(loader)
    next(batches)
    state = loader.save_state_rank()
    expected = [key.rpartition("/")[2] for key in next(batches).__key__]
    assert state.get("conventions", "own") == before

    same = get_savable_loader(train(captions, before))
    with caplog.at_level(logging.WARNING):
        same.restore_state_rank(state)
    assert not told(caplog)

    other = get_savable_loader(train(captions, after))
    with caplog.at_level(logging.WARNING):
        other.restore_state_rank(state)
    assert f"saved with conventions='{before}' and goes on with '{after}'" in caplog.text
    found = next(iter(other)).__key__
    assert [key.rpartition("/")[2] for key in found] == expected
    assert ("/" in found[0]) == (after == "own")
