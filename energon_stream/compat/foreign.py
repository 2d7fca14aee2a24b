"""Reads dataset classes of other packages, which derive from :mod:`energon_stream.compat.dataset_classes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_stream.compat.building import CalledMethods, describe_object, foreign_bases
from energon_stream.compat.dataset_classes import DefaultGenericWebdatasetFactory
from energon_stream.compat.epath import EPath
from energon_stream.config.named_code import import_class
from energon_stream.decode import FileStoreDecoder
from energon_stream.errors import MetadataError
from energon_stream.samples import Sample

_HOOKS = ("build", "shard_workers", "slice_workers", "split_samples_to_workers")


def describe_foreign(
    module: str,
    name: str,
    document: Mapping[str, Any],
    *,
    path: str,
    decoder: FileStoreDecoder | None,
    trust: bool | None,
    where: str,
) -> tuple[Mapping[str, Any], FileStoreDecoder | None, type[Sample] | None, CalledMethods | None]:
    """Create an object of the dataset class that ``dataset.yaml`` names, and read its attributes.

    The keys of the file, ``document``, are the keyword arguments of the class. ``trust`` says whether classes
    that the user's program has not imported may be imported; None asks the environment.

    Returns:
        The attributes by the keys of ``dataset.yaml``, where functions stand for themselves; the decoder,
        None to leave bytes; the sample type, None for crude samples; and the overridden methods, None without
        any.

    Raises UntrustedCodeError if the class is not imported, and the dataset not trusted; and MetadataError if
    it is no dataset class, does not take these arguments, or overrides methods that are not called here.
    """
    found = import_class(module, name, trust=trust, where=where, base=DefaultGenericWebdatasetFactory)
    if not (isinstance(found, type) and issubclass(found, DefaultGenericWebdatasetFactory)):
        raise MetadataError(
            f"{module}.{name} is not a dataset class",
            where=where,
            hint="derive it from DefaultDecoderWebdatasetFactory, or use sample_type",
        )
    for hook in _HOOKS:
        if any(hook in vars(cls) for cls in foreign_bases(found)):
            raise MetadataError(
                f"{module}.{name} overrides {hook}, which is not called here",
                where=where,
                hint="make samples in a sample_loader, a cooker or the task encoder",
            )
    try:
        made = found(EPath(path), **{"decoder": decoder, **document})
    except TypeError as error:
        raise MetadataError(f"{module}.{name} does not take these keys: {error}", where=where) from error
    described, own_decoder, sample_type, custom = describe_object(made, where)
    return {**made.options, **described}, own_decoder, sample_type, custom
