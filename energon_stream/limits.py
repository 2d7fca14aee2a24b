"""Limits on what data from strangers may cost, and trust in datasets that name code or have pickles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from energon_stream.errors import ConfigError

LIMITS_VARIABLE = "ENERGON_STREAM_LIMITS"
"""Environment variable with limits, as ``name=number`` separated by commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds on what a dataset may cost before its data is refused.

    The defaults leave room for all datasets that we know. A dataset beyond one of them is refused by a
    ``LimitError``, and a single part by a ``PartLimitError``, which error handlers may skip. Both name the
    limit. The environment variable ``ENERGON_STREAM_LIMITS`` sets limits where no argument does:
    ``image_pixels=200_000_000,names=5_000_000``.

    Attributes:
        document_bytes: Bytes of a metadata file, YAML or JSON, or of an object in a JSON list to convert.
        document_values: Values in such a file.
        document_depth: Lists and mappings inside each other in such a file.
        names: Names that the brace patterns of a file or a path expand to. A long name counts as one for
            each 128 characters.
        references: Datasets and metadatasets that a metadataset names, directly or through others, itself
            included. Each mention counts.
        reference_depth: Metadatasets that name each other in a chain.
        shard_samples: Samples that metadata may claim for one shard.
        table_bytes: Bytes that the columns of a view may have in one group of a table's rows.
        part_bytes: Bytes that a part may have after it is unpacked: ``.gz``, ``.npz`` and ``.pth``. A part
            that does not grow may have any size.
        image_pixels: Pixels of an image, width times height. The decoded image takes up to 20 bytes for each
            of them.

    Raises:
        ConfigError: A limit is not a positive integer.

    Example:
        >>> from energon_stream import Limits, get_val_dataset
        >>> limits = Limits(image_pixels=200_000_000)
        >>> dataset = get_val_dataset("captions", batch_size=4, limits=limits)
    """

    document_bytes: int = 64 << 20
    document_values: int = 4_000_000
    document_depth: int = 64
    names: int = 2_000_000
    references: int = 20_000
    reference_depth: int = 32
    shard_samples: int = 10_000_000
    table_bytes: int = 256 << 20
    part_bytes: int = 256 << 20
    image_pixels: int = 64 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"the limit {field.name} is {value!r:.80}", hint="use a positive integer")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Limits:
        """Return the defaults, changed by ``ENERGON_STREAM_LIMITS``.

        Raises:
            ConfigError: The variable has another form, or names an unknown limit.

        Example:
            >>> Limits.from_environment({"ENERGON_STREAM_LIMITS": "names=5_000"}).names
            5000
        """
        return _parse(environment.get(LIMITS_VARIABLE, ""))

    def exceeded(self, name: str, problem: str) -> dict[str, str]:
        """Return the arguments of an error: ``problem``, the limit, and the ways to raise it."""
        return {
            "what": f"{problem}; the limit {name} is {getattr(self, name):,}",
            "hint": f"if you trust the data, pass limits=Limits({name}=…) or set {LIMITS_VARIABLE}={name}=…",
        }


@lru_cache(8)
def _parse(text: str) -> Limits:
    found: dict[str, int] = {}
    known = [field.name for field in fields(Limits)]
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, number = (piece.strip() for piece in item.partition("="))
        if not equals or name not in known or not number.replace("_", "").isdecimal():
            raise ConfigError(
                f"{LIMITS_VARIABLE} has {item!r:.80}",
                hint=f"write name=number, separated by commas; the limits are {', '.join(known)}",
            )
        found[name] = int(number)
    return Limits(**found)


TRUST_VARIABLE = "ENERGON_STREAM_TRUST_DATASET_CODE"
"""Environment variable that trusts all datasets if it is 1 and no argument says otherwise."""


def is_trusted(argument: bool | None) -> bool:
    """Return the argument, or, if it is None, whether the environment trusts datasets."""
    return os.environ.get(TRUST_VARIABLE) == "1" if argument is None else argument
