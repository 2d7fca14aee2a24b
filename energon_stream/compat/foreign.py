"""Reads dataset classes of other packages, which derive from :mod:`energon_stream.compat.factories`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from energon_stream.compat.epath import EPath
from energon_stream.compat.factories import DefaultGenericWebdatasetFactory
from energon_stream.errors import MetadataError, SkipSample
from energon_stream.read.decode import FileStoreDecoder
from energon_stream.recipe.named_code import import_class
from energon_stream.samples import CrudeSample, Sample, SourceInfo

_HOOKS = ("build", "shard_workers", "slice_workers", "split_samples_to_workers")


@dataclass(frozen=True, slots=True)
class _CalledDecoder(FileStoreDecoder):
    """Wraps a decoder that takes a dict of encoded parts, such as ``webdataset.autodecode.Decoder``."""

    function: Callable[[dict[str, Any]], Mapping[str, Any]]

    def decode(self, name: str, data: bytes | memoryview) -> Any:
        """Decode one part; see ``FileStoreDecoder``."""
        return self.function({"__key__": "", name: bytes(data)})[name]


@dataclass(frozen=True, slots=True)
class _CalledMethods:
    """Calls ``sample_filter`` and ``load_sample`` of a dataset class for each sample."""

    made: DefaultGenericWebdatasetFactory[Any]

    def __call__(
        self,
        build: Callable[..., Any],
        key: str,
        parts: Mapping[str, bytes | memoryview],
        *,
        restore_key: tuple[Any, ...],
        subflavors: dict[str, Any] | None,
        source: SourceInfo,
    ) -> Any:
        """Make one sample; raise SkipSample if the filter rejects it."""
        shard = f"{source.shard_name}/"
        if not self.made.sample_filter(key if key.startswith(shard) else shard + key):
            raise SkipSample
        raw = {
            "__key__": key,
            "__shard__": source.shard_name,
            "__restore_key__": restore_key,
            "__sources__": (source,),
            **{name: bytes(data) for name, data in parts.items()},
        }
        self.made.build_sample = build
        sample = self.made.load_sample(raw)
        if subflavors is not None and isinstance(sample, dict):
            sample["__subflavors__"] = dict(subflavors)
        elif subflavors is not None and hasattr(sample, "__subflavors__"):
            sample.__subflavors__ = dict(subflavors)
        return sample


def describe_foreign(
    module: str,
    name: str,
    document: Mapping[str, Any],
    *,
    path: str,
    decoder: FileStoreDecoder | None,
    trust: bool | None,
    where: str,
) -> tuple[Mapping[str, Any], FileStoreDecoder | None, type[Sample] | None, _CalledMethods | None]:
    """Create an object of the dataset class that ``dataset.yaml`` names, and read its attributes.

    Args:
        module: Module of the class.
        name: Name of the class.
        document: The keys of the file, which are the keyword arguments of the class.
        path: Path or URL of the dataset.
        decoder: Argument ``decoder`` of the class.
        trust: Whether classes that the user's program has not imported may be imported; None asks the
            environment.
        where: The file, for messages.

    Returns:
        The attributes by the keys of ``dataset.yaml``, where functions stand for themselves; the decoder,
        None to leave bytes; the sample type, None for crude samples; and the overridden methods, None without
        any.

    Raises:
        UntrustedCodeError: The class is not imported, and the dataset not trusted.
        MetadataError: The class is no dataset class, does not take these arguments, or overrides methods that
            are not called here.
    """
    found = import_class(module, name, trust=trust, where=where, base=DefaultGenericWebdatasetFactory)
    if not (isinstance(found, type) and issubclass(found, DefaultGenericWebdatasetFactory)):
        raise MetadataError(
            f"{module}.{name} is not a dataset class",
            where=where,
            hint="derive it from DefaultDecoderWebdatasetFactory, or use sample_type",
        )
    own = [cls for cls in found.__mro__ if not cls.__module__.startswith("energon_stream.")]
    for hook in _HOOKS:
        if any(hook in vars(cls) for cls in own):
            raise MetadataError(
                f"{module}.{name} overrides {hook}, which is not called here",
                where=where,
                hint="make samples in a sample_loader, a cooker or the task encoder",
            )
    try:
        made = found(EPath(path), **{"decoder": decoder, **document})
    except TypeError as error:
        raise MetadataError(f"{module}.{name} does not take these keys: {error}", where=where) from error
    keys = ("field_map", "sample_loader", "part_filter", "subflavors")
    described = {key: value for key in keys if (value := getattr(made, key)) is not None}
    overridden = any(hook in vars(cls) for cls in own for hook in ("load_sample", "sample_filter"))
    custom = _CalledMethods(made) if overridden else None
    return {**made.options, **described}, _decoder(made), _sample_type(made, where), custom


def _sample_type(made: DefaultGenericWebdatasetFactory[Any], where: str) -> type[Sample] | None:
    found = made.__sample_type__
    if isinstance(found, type) and issubclass(found, CrudeSample):
        return None
    if not (isinstance(found, type) and issubclass(found, Sample)):
        raise MetadataError(
            f"{type(made).__qualname__}.__sample_type__ is {found!r}",
            where=where,
            hint="set it to a sample type",
        )
    return found


def _decoder(made: DefaultGenericWebdatasetFactory[Any]) -> FileStoreDecoder | None:
    found = getattr(made, "_decoder", None)
    return found if found is None or isinstance(found, FileStoreDecoder) else _CalledDecoder(found)
