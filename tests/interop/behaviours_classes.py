"""Classes of a program for Megatron-Energon, which datasets name."""

from megatron.energon import DefaultDecoderWebdatasetFactory, Sample, TextSample, edataclass


@edataclass
class Pair(Sample):
    left: str
    right: str

    @staticmethod
    def from_joined(a, b):
        return make_pair(a, b)


def make_pair(a, b):
    return Pair.derive_from(a, left=a.text, right=b.text)


class OddTexts(DefaultDecoderWebdatasetFactory[TextSample]):
    """Samples of even numbers are left out; the others are in capitals."""

    __sample_type__ = TextSample

    def __init__(self, path, **options):
        super().__init__(path, **options)

    def sample_filter(self, key):
        shard, name = key.split("/")
        return shard.startswith("shard-") and int(name) % 2 == 1

    def load_sample(self, sample):
        size = len(sample["txt"])
        loaded = super().load_sample(sample)
        loaded.text = f"{loaded.text.upper()} of {size}"
        return loaded
