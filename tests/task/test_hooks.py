"""What a task encoder declares that would be ignored, or cannot work, is noticed when a dataset opens."""

import logging

import pytest
from told import told

from energon_stream import (
    AugmentTaskEncoder,
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.errors import ConfigError
from energon_stream.testing.datasets import prepared_text_dataset

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return prepared_text_dataset(tmp_path_factory.mktemp("texts"), split_ratio=(1, 1, 0))


def opened(texts, encoder):
    return get_train_dataset(texts, batch_size=2, worker_config=CONFIG, task_encoder=encoder)


def encoder_with(**members):
    return type("Mine", (DefaultTaskEncoder,), members)()


def keep(self, sample):
    return sample


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("encode_sampel", "encode_sample"),
        ("encode_sampl", "encode_sample"),
        ("encod_sample", "encode_sample"),
        ("encodesample", "encode_sample"),
        ("encodeSample", "encode_sample"),
        ("pre_encode_sample", "preencode_sample"),
        ("post_encode_sample", "postencode_sample"),
        ("select_sample_to_pack", "select_samples_to_pack"),
        ("pack_selected_sample", "pack_selected_samples"),
        ("bacth", "batch"),
        ("encode_bacth", "encode_batch"),
        ("batch_group_criteria", "batch_group_criterion"),
        ("cook_crude_samples", None),
        ("build_train_dataset", "build_train_datasets"),
    ],
)
def test_a_name_that_is_nearly_a_hooks_is_an_error_with_the_hook(texts, wrong, right, caplog):
    if right is None:  # a name that goes on after a hook's may be a function for several samples
        with caplog.at_level(logging.WARNING):
            opened(texts, encoder_with(**{wrong: keep}))
        assert "did you mean 'cook_crude_sample'?" in caplog.text
        return
    with pytest.raises(ConfigError, match=rf"Mine.{wrong} is no hook, .* [Dd]id you mean '{right}'\?"):
        opened(texts, encoder_with(**{wrong: keep}))
    opened(texts, encoder_with(**{f"_{wrong}": keep}))  # the remedies
    if right.startswith("encode"):
        opened(texts, encoder_with(**{right: keep}))


NAMES = """
encode_text encode_image encode_images encode_video encode_audio encode_sample_text
encode_vqa_sample encode_captioning encode_interleaved encode_multi_turn encode_pretrain
encode_llava_pretrain encode_any_single_turn_vqa encode_tokens encode_patch encode_patches
encode_prompt encode_single decode decode_sample decode_batch decode_batches decoder_for batch_pad
batch_size batch_images batch_stack batch_to_device make_batch to_batch collate pack pack_selected
pack_samples pack_sequences select select_samples process_samples cook cook_text cook_image
cook_sample tokenize tokenizer build_tokenizer build_model build_dataset is_packing_enabled
get_visual_transform process_vision find_best_packing postprocess preprocess preprocess_sample
filter_sample apply_mask apply_chat_template sample
"""
"""Methods and attributes of task encoders that are public: Megatron-LM's, Bridge's and NeMo's among them."""


def test_functions_of_ones_own_are_left_alone(texts, caplog):
    with caplog.at_level(logging.WARNING):
        opened(texts, encoder_with(**dict.fromkeys(NAMES.split(), keep)))
    assert not told(caplog)


def test_what_the_class_uses_or_has_beside_the_hook_is_left_alone(texts, caplog):
    class Used(TaskEncoder):
        @stateless(restore_seeds=True)
        def batch(self, samples):
            return [self.encode_smple(sample) for sample in samples]

        def encode_smple(self, sample):
            return sample.text

    class Beside(TaskEncoder):
        def encode_sample(self, sample):
            return sample

        def encode_samples(self, samples):
            return samples

    with caplog.at_level(logging.WARNING):
        opened(texts, Used())
        opened(texts, Beside())
    assert not told(caplog)
    assert len(next(iter(get_loader(opened(texts, Used()))))) == 2


def test_the_inner_encoder_is_checked_too(texts):
    with pytest.raises(ConfigError, match="encode_sampel"):
        opened(texts, AugmentTaskEncoder(encoder_with(encode_sampel=keep)))


async def later(self, sample):
    return sample


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"encode_sample": lambda self: None}, r"write def encode_sample\(self, sample\)"),
        ({"encode_sample": lambda sample: None}, r"write def encode_sample\(self, sample\)"),
        ({"batch": lambda self, samples, pad: None}, r"'pad'.*write def batch\(self, samples\)"),
        ({"batch": lambda self, *, samples: None}, r"write def batch\(self, samples\)"),
        ({"encode_batch": later}, "async"),
        ({"cookers": {"a": Cooker(dict)}}, r"cookers is .*\[Cooker\(cook\)\]"),
        ({"cookers": Cooker(dict)}, r"cookers is .*\[Cooker\(cook\)\]"),
        ({"cookers": [dict]}, r"cookers is .*\[Cooker\(cook\)\]"),
        ({"cooker": [Cooker(dict)]}, "did you mean 'cookers'"),
        ({"decoder": SampleDecoder}, r"decoder is .*SampleDecoder\("),
        ({"decoder": "pil"}, r"decoder is 'pil'.*SampleDecoder\("),
    ],
)
def test_hooks_that_cannot_work_are_errors(texts, members, message):
    with pytest.raises(ConfigError, match=f"(?i){message}"):
        opened(texts, encoder_with(**members))


def test_hooks_with_more_than_they_need_are_fine(texts):
    members = {"encode_sample": lambda self, sample, upper=True: sample, "batch": lambda self, *args: args[0]}
    assert len(next(iter(get_loader(opened(texts, encoder_with(**members)))))) == 2


@pytest.mark.parametrize(
    "wrong", [DefaultTaskEncoder, "encoder", lambda sample: sample], ids=["class", "text", "function"]
)
def test_what_is_no_encoder_is_said(texts, wrong):
    for function in (get_train_dataset, get_val_dataset):
        with pytest.raises(ConfigError, match="task_encoder is"):
            function(texts, batch_size=2, worker_config=CONFIG, task_encoder=wrong)


@pytest.mark.parametrize("wrong", [True, "restore_seeds", DefaultTaskEncoder])
def test_stateless_marks_functions_alone(wrong):
    with pytest.raises(ConfigError, match=r"@stateless\(restore_seeds=True\)"):
        stateless(wrong)


def test_stateless_goes_with_methods_of_all_kinds():
    class Marked(DefaultTaskEncoder):
        @stateless
        @staticmethod
        def encode_sample(sample):
            return sample

        @classmethod
        @stateless()
        def batch(cls, samples):
            return samples

    assert Marked().encode_sample(3) == 3
    assert Marked().batch([3]) == [3]
