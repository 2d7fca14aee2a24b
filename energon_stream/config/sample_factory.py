"""Makes samples of their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from energon_stream.arrays import as_bytes, as_view, as_views
from energon_stream.config.fields import FieldAccess, Parts, parts_of
from energon_stream.decode import SampleDecoder
from energon_stream.errors import (
    ConfigError,
    EnergonStreamError,
    FieldError,
    SampleError,
    UntrustedPickleError,
)
from energon_stream.pipeline.decode_ahead import AheadParts, Decode
from energon_stream.read.part_ranges import PartSelection
from energon_stream.samples import METADATA_FIELDS, CrudeSample, OnDemandSample, Sample, SourceInfo

if TYPE_CHECKING:
    from energon_stream.decode import FileStoreDecoder


CustomBuild: TypeAlias = Callable[..., Any]
"""Makes samples in place of a factory, for a dataset class of another package: called with the factory's
``build`` and its arguments."""


@dataclass(frozen=True, slots=True)
class SampleFactory:
    """Makes the samples of one dataset. It is a value, and travels to other processes."""

    decoder: FileStoreDecoder | None  # decodes parts; None leaves them as bytes
    sample_type: type[Sample] | None = None  # None for crude samples
    fields: tuple[FieldAccess, ...] = ()  # empty for crude samples, and if ``loader`` makes the fields
    loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None  # of decoded parts
    part_filter: Parts | None = None  # parts that are used; None for all
    declared: bool = False  # True if the user named the parts that are used
    on_demand: bool = False  # True if parts of crude samples are decoded where someone looks at them
    memoryviews: bool = False  # True if parts that are not decoded are memoryviews instead of bytes
    custom: CustomBuild | None = None  # makes the samples, and may look at all parts; None for this factory
    selection: PartSelection | None = field(init=False)  # parts that are read; None for all
    _plain: SampleFactory = field(init=False, repr=False, compare=False)  # the factory without ``custom``
    _is_raw: bool = field(init=False, repr=False, compare=False)  # True if samples have all parts, as bytes

    def __post_init__(self) -> None:
        wanted = parts_of(self.fields) if self.fields and self.custom is None else self.part_filter
        declared = self.declared or not self.fields
        selection = None if wanted is None else PartSelection(wanted, declared)
        object.__setattr__(self, "selection", selection)
        if self.memoryviews and isinstance(self.decoder, SampleDecoder):
            object.__setattr__(self, "decoder", self.decoder.with_memoryviews())
        object.__setattr__(self, "_is_raw", self.decoder is None and self.part_filter is None)
        object.__setattr__(self, "_plain", self if self.custom is None else replace(self, custom=None))

    @property
    def is_crude(self) -> bool:
        return self.sample_type is None

    def within(self, parts: Parts, where: str) -> SampleFactory:
        """Return a factory that uses only these parts. Raises ConfigError if a field comes from others."""
        if self.fields:
            if not isinstance(parts, frozenset):
                parts = frozenset(filter(parts, parts_of(self.fields)))
            fields = tuple(access.within(parts, where) for access in self.fields)
            return replace(self, fields=fields, declared=True)
        known = self.part_filter
        if known is None:
            return replace(self, part_filter=parts)
        if isinstance(known, frozenset) and isinstance(parts, frozenset):
            return replace(self, part_filter=known & parts)
        return replace(self, part_filter=partial(_pass_both, parts, known))

    def build(
        self,
        key: str,
        parts: Mapping[str, bytes | memoryview],
        *,
        restore_key: tuple[Any, ...],
        subflavors: dict[str, Any] | None,
        source: SourceInfo,
    ) -> Sample | CrudeSample:
        """Decode and assemble one sample, which keeps no reference to ``parts`` or ``subflavors``.

        Raises DecodeError if a part is damaged, and FieldError if a part or a field is missing.
        """
        if self.custom is not None:
            made: Sample | CrudeSample = self.custom(
                self._plain.build, key, parts, restore_key=restore_key, subflavors=subflavors, source=source
            )
            return made
        own = None if subflavors is None else dict(subflavors)
        sample_type = self.sample_type
        try:
            if sample_type is not None and self.loader is None:
                return sample_type(
                    __key__=key,
                    __restore_key__=restore_key,
                    __subflavors__=own,
                    __sources__=(source,),
                    **self._mapped(parts),
                )
            if self._is_raw:  # without a call that can be spared: this runs for each sample
                crude = CrudeSample(as_views(parts)) if self.memoryviews else CrudeSample()
                for part, data in () if self.memoryviews else parts.items():
                    crude[part] = data if isinstance(data, bytes) else data.tobytes()
            else:
                crude = self._crude(key, parts, source)
            crude["__key__"] = key
            crude["__restore_key__"] = restore_key
            crude["__subflavors__"] = own
            crude["__sources__"] = (source,)
            crude["__shard__"] = source.shard_name
            if sample_type is None or self.loader is None:
                return crude
            return _loaded(sample_type, self.loader, crude)
        except SampleError as error:
            raise _of_sample(error, key, source) from error.__cause__

    def _undecoded(self, part: str, data: bytes | memoryview) -> bytes | memoryview:
        return as_view(data) if self.memoryviews else as_bytes(data)

    def _mapped(self, parts: Mapping[str, bytes | memoryview]) -> dict[str, Any]:
        decoded: dict[str, Any] = {}
        decoder = self.decoder
        decode_part: Decode = self._undecoded if decoder is None else _decode_of(decoder, parts)

        def decode(part: str) -> Any:
            if part not in decoded:
                data = parts[part]
                try:
                    decoded[part] = decode_part(part, data)
                except SampleError as error:
                    error.part = part
                    raise
            return decoded[part]

        return {access.field: access.read(parts.keys(), decode) for access in self.fields}

    def _crude(self, key: str, parts: Mapping[str, bytes | memoryview], source: SourceInfo) -> CrudeSample:
        """Make a crude sample of its parts. Pickles that are not trusted fail where they are looked up."""
        wanted = self.part_filter
        given = parts
        if wanted is not None:
            accepts = PartSelection(wanted).__contains__ if isinstance(wanted, frozenset) else wanted
            parts = {part: data for part, data in parts.items() if accepts(part)}
        crude, refused = CrudeSample(), {}
        decoder = self.decoder
        if decoder is None:
            crude.update((part, self._undecoded(part, data)) for part, data in parts.items())
            return crude
        decode = _decode_of(decoder, given)
        if self.on_demand:
            undecoded: dict[str, bytes | memoryview] = {}
            for part, data in parts.items():
                refusal = decoder.refusal(part)
                if refusal is None:
                    undecoded[part] = self._undecoded(part, data)
                else:
                    refused[part] = _of_sample(refusal, key, source)
            crude = OnDemandSample(undecoded, partial(_decode_part, decode, key, source))
        else:
            for part, data in parts.items():
                try:
                    crude[part] = decode(part, data)
                except UntrustedPickleError as error:
                    refused[part] = _of_sample(error, key, source)
                except SampleError as error:
                    error.part = part
                    raise
        if refused:
            crude.refused = refused
        return crude


def _pass_both(first: Parts, second: Parts, part: str) -> bool:
    return all(part in each if isinstance(each, frozenset) else each(part) for each in (first, second))


def _decode_of(decoder: FileStoreDecoder, parts: Mapping[str, bytes | memoryview]) -> Decode:
    """Return what decodes the parts of a sample: the decoder, or what a thread may have begun of it."""
    return partial(parts.decoding.value, decoder.decode) if isinstance(parts, AheadParts) else decoder.decode


def _decode_part(decode: Decode, key: str, source: SourceInfo, part: str, data: bytes | memoryview) -> Any:
    try:
        return decode(part, data)
    except (SampleError, ConfigError) as error:
        raise _of_sample(error, key, source, part) from error.__cause__


def _of_sample(
    error: EnergonStreamError, key: str, source: SourceInfo, part: str | None = None
) -> EnergonStreamError:
    found = type(error)(error.what, where=f"{source.dataset_path}: sample {key}", hint=error.hint)
    if isinstance(error, SampleError) and isinstance(found, SampleError):
        found.part = part or error.part
    return found


def _loaded(
    sample_type: type[Sample], loader: Callable[[dict[str, Any]], Mapping[str, Any]], crude: CrudeSample
) -> Sample:
    metadata = {name: crude[name] for name in METADATA_FIELDS}
    fields = loader(crude)
    try:
        return sample_type(**{**metadata, **fields})
    except TypeError as error:
        raise FieldError(
            f"sample_loader did not return the fields of {sample_type.__name__}: {error}",
            hint="return a dict with exactly the fields of the sample type",
        ) from error
