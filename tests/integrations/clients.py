"""Small stand-ins of the task encoders that clients have, written as they write them. Import it under the
alias.
"""

import dataclasses
import json
from abc import ABC
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.energon import (
    Batch,
    CaptioningSample,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    VQASample,
    WorkerConfig,
    batch_list,
    batch_pad_stack,
    generic_batch,
)
from megatron.energon.flavors.base_dataset import Sample as SampleOfFlavors
from megatron.energon.task_encoder.base import get_stateless, stateless
from megatron.energon.task_encoder.cooking import basic_sample_keys

assert SampleOfFlavors is Sample


def metadata_of(cls, **values):
    """Keyword arguments for what a sample or batch class of this version has: some versions lack some
    fields.
    """
    names = {entry.name for entry in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}


# Megatron-Bridge: crude samples, cooked to a dataclass, packed, batched to a dict


@dataclass
class ChatSample(Sample):
    """A standard dataclass derived from the library's, with fields that have no default."""

    conversation: str
    images: list[torch.Tensor] | None = None


@dataclass
class EncodedSample:
    """Not a Sample at all."""

    __key__: str
    __subflavors__: dict[str, Any]
    tokens: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    __restore_key__: tuple = ()


@dataclass
class ChatBatch(Batch):
    """A batch with fields of its own, in a standard dataclass."""

    tokens: torch.Tensor = None
    lengths: list[int] | None = None


def cook_chat(sample: dict) -> ChatSample:
    """Members by extension, and the keys of the sample."""
    return ChatSample(
        **basic_sample_keys(sample), conversation=json.dumps(sample["json"]), images=[sample["jpg"]]
    )


class BridgeEncoder(DefaultTaskEncoder[ChatSample, EncodedSample, ChatBatch, dict]):
    """Packs, and flushes what is left at the end."""

    cookers = [Cooker(cook_chat)]

    def __init__(self, noise: float = 0.0):
        super().__init__()
        self.noise = noise

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: ChatSample) -> EncodedSample:
        if not sample.conversation:
            raise SkipSample()
        number = json.loads(sample.conversation)["index"]
        tokens = number + self.noise * torch.rand(1 + number % 3)
        return EncodedSample(sample.__key__, sample.__subflavors__, tokens, sample.__restore_key__)

    @stateless
    def select_samples_to_pack(self, samples: list[EncodedSample]) -> list[list[EncodedSample]]:
        return [samples[begin : begin + 3] for begin in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[EncodedSample]) -> EncodedSample:
        return EncodedSample(
            "|".join(sample.__key__ for sample in samples),
            samples[0].__subflavors__,
            torch.cat([sample.tokens for sample in samples]),
        )

    @stateless
    def batch(self, samples: list[EncodedSample]) -> ChatBatch:
        return ChatBatch(
            **metadata_of(
                ChatBatch,
                __key__=[sample.__key__ for sample in samples],
                __keys__=["of an older version"],
                __restore_key__=tuple(sample.__restore_key__ for sample in samples),
                __subflavors__=[sample.__subflavors__ for sample in samples],
            ),
            tokens=batch_pad_stack([sample.tokens for sample in samples]),
            lengths=[len(sample.tokens) for sample in samples],
        )

    @stateless
    def encode_batch(self, batch: ChatBatch) -> dict:
        raw = dataclasses.asdict(batch)
        raw.pop("__sources__", None)
        del raw["__subflavors__"]
        return raw


# Megatron-LM: positional dataclasses, un-decorated hooks


@dataclass
class ImageTaskSample:
    """Plain values; metadata comes first."""

    __key__: str
    __restore_key__: tuple
    __subflavors__: dict
    imgs: list[torch.Tensor]
    total_len: int
    labels: torch.Tensor = None


@dataclass
class ImageTaskBatch(Batch):
    """Fields of its own only."""

    imgs: torch.Tensor = None
    labels: torch.Tensor = None


class MegatronLMEncoder(DefaultTaskEncoder[CaptioningSample, ImageTaskSample, ImageTaskBatch, dict]):
    """No hook is marked as pure."""

    def encode_sample(self, sample):
        labels = torch.tensor([int(sample.caption.split()[1])])
        return ImageTaskSample(
            sample.__key__, sample.__restore_key__, sample.__subflavors__, [sample.image], len(labels), labels
        )

    def batch(self, samples):
        return ImageTaskBatch(
            __key__=[sample.__key__ for sample in samples],
            __restore_key__=[sample.__restore_key__ for sample in samples],
            __subflavors__=samples[0].__subflavors__,
            imgs=torch.stack([image for sample in samples for image in sample.imgs]),
            labels=torch.cat([sample.labels for sample in samples]),
        )

    def encode_batch(self, batch):
        raw = dataclasses.asdict(batch)
        del raw["__subflavors__"]
        return raw


# NeMo: mixed with a class that records constructor arguments; nested dicts of a batch


class IOMixin:
    """Records the arguments that an object was made with, before it is made."""

    def __new__(cls, *args, **kwargs):
        made = super().__new__(cls)
        made.io = (args, kwargs)
        return made

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        original = cls.__init__

        def recorded(self, *args, **kwargs):
            self.io = (args, kwargs)
            original(self, *args, **kwargs)

        cls.__init__ = recorded


class NeMoEncoder(DefaultTaskEncoder[VQASample, dict, dict, dict], IOMixin, ABC):
    """Samples are dicts, batched by the library's helpers."""

    def __init__(self, tokenizer, *, scale=1.0):
        super().__init__(batch_type=dict)
        self.tokenizer, self.scale = tokenizer, scale

    @stateless(restore_seeds=True, failure_tolerance=100)
    def encode_sample(self, sample):
        return {
            "__key__": sample.__key__,
            "prompt_tokens": self.tokenizer(sample.caption),
            "media": {"image": sample.image * self.scale},
        }

    @stateless()
    def batch(self, samples):
        keys = batch_list([sample.pop("__key__") for sample in samples])
        tokens = batch_pad_stack([sample.pop("prompt_tokens") for sample in samples])
        return {"keys": keys, "tokens": tokens, **generic_batch(samples)}

    def encode_batch(self, batch):
        return batch


def tokenize(text):
    """One token for each character."""
    return torch.tensor([ord(sign) for sign in text])


# Others: randomness of the worker, and marks that are looked at


class SeedReader(DefaultTaskEncoder):
    """Looks the configuration up when it is called."""

    def encode_sample(self, sample):
        config = WorkerConfig.active_worker_config
        sample.caption = f"{config.worker_seed()} {config.active_worker_sample_index} {config.rank}"
        return sample


assert get_stateless(BridgeEncoder.encode_sample)
assert not get_stateless(MegatronLMEncoder.encode_sample)
assert NeMoEncoder.encode_sample.__failure_tolerance__ == 100
