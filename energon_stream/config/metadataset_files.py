"""Reads metadataset files: each once, and all files of a level of nesting at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any

from energon_stream.cache.cached_store import read_again
from energon_stream.config.metadataset import MetadatasetDocument, parse_metadataset
from energon_stream.config.reach import allowed_urls, check_reach
from energon_stream.config.references import (
    LeafRef,
    MetadatasetRef,
    MixtureItem,
    Reference,
    check_references,
    inherit,
    mixture_items,
    references,
)
from energon_stream.config.subset import Subset
from energon_stream.errors import ConfigError, LimitError
from energon_stream.index.info_files import load_document
from energon_stream.index.yaml_io import read_document
from energon_stream.limits import Limits
from energon_stream.storage import Body, StoreLayer, StoreSpec, Transport, shared_fetcher
from energon_stream.urls import absolute_path, is_local, join_url, parent_url, plain_or_dataset


class PlacedDocument(dict[str, Any]):
    """The parsed content of a file that need not be there; its paths are relative to where it would be."""

    def __init__(self, url: str, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.url = url


@dataclass
class MetadatasetFiles:
    """The metadataset files that one root names, directly or through other files, and how to reach them."""

    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    transport: Transport = "auto"
    through: StoreLayer | None = None  # such as the disk cache
    retry_deadline: float | None = None
    limits: Limits = field(default_factory=Limits.from_environment)
    allow_urls: Sequence[str] | None = None
    skip_bad: bool = False  # whether bad tars are left out that are not prepared
    ranks: int = 1  # number of ranks, whose batches some schedules of weights count
    _documents: dict[str, MetadatasetDocument] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._allowed = allowed_urls(self.allow_urls)

    def spec(self, url: str) -> StoreSpec:
        """Return the location of a URL. Local paths become absolute, and have no storage options."""
        if is_local(url):
            return StoreSpec(plain_or_dataset(url), None, self.transport, self.through)
        return StoreSpec(url, self.storage_options, self.transport, self.through, self.retry_deadline)

    def document(self, root: str | Mapping[str, Any]) -> MetadatasetDocument:
        """Read a file, or take its parsed content, in which paths are relative to the working directory, or
        to the place of a :class:`PlacedDocument`.

        Raises StorageError, LimitError, MetadataError, or UntrustedUrlError for a place outside its store.
        """
        if isinstance(root, Mapping):
            place = root.url if isinstance(root, PlacedDocument) else None
            return parse_metadataset(
                root,
                where=place or "the given dict",
                spec_of=partial(self._beside, parent_url(place) if place else absolute_path(""), None),
                file=None,
                ranks=self.ranks,
            )
        spec = self.spec(root)
        self._read([spec])
        return self._documents[spec.url]

    def items(self, root: Reference) -> list[MixtureItem]:
        """Read all files that a reference names, and return its datasets with their shares.

        Raises what :meth:`document` raises, ConfigError if a file lacks a split, or ranges of samples of one
        dataset overlap, and LimitError if there are too many references.
        """
        seen: set[tuple[str, str]] = set()
        level = [root]
        while level:
            named = [ref for node in level for ref in references(node) if isinstance(ref, MetadatasetRef)]
            new = list({_name(ref): ref for ref in named if _name(ref) not in seen}.values())
            seen.update(map(_name, new))
            if len(seen) > self.limits.references:
                problem = f"a metadataset names {len(seen):,} others"
                raise LimitError(**self.limits.exceeded("references", problem), where=new[0].spec.url)
            self._read([ref.spec for ref in new])
            level = [self._documents[ref.spec.url].split(ref.split) for ref in new]
        check_references(root, self._raw_content, self.limits)
        items = mixture_items(root, self._content)
        _check_overlaps(items)
        return items

    def _raw_content(self, ref: MetadatasetRef) -> Reference:
        return self._documents[ref.spec.url].split(ref.split)

    def _content(self, ref: MetadatasetRef) -> Reference:
        return inherit(self._raw_content(ref), ref.subflavors, ref.subset, ref.multiplier)

    def _read(self, specs: list[StoreSpec]) -> None:
        stores = {spec.url: spec.open() for spec in specs if spec.url not in self._documents}
        bodies = {
            url: shared_fetcher().ask(store, partial(read_document, "", limits=self.limits), deadline=-1)
            for url, store in stores.items()
        }
        for url, body in bodies.items():
            ask: Callable[[], Body] = partial(read_document, "", stores[url], self.limits)
            answers: Iterator[Callable[[], Body]] = chain((body.result,), repeat(ask))
            self._documents[url] = read_again(stores[url], [""], partial(self._parse, url, answers))

    def _parse(self, url: str, answers: Iterator[Callable[[], Body]]) -> MetadatasetDocument:
        return parse_metadataset(
            load_document(next(answers)().data, url, self.limits),
            where=url,
            spec_of=partial(self._beside, parent_url(url), url),
            file=self.spec(url),
            ranks=self.ranks,
        )

    def _beside(self, folder: str, file: str | None, path: str) -> StoreSpec:
        url = join_url(folder, path)
        if file is not None:
            check_reach(url, named_by=file, allowed=self._allowed)
        return self.spec(url)


def _name(ref: MetadatasetRef) -> tuple[str, str]:
    return ref.spec.url, ref.split


def _check_overlaps(items: list[MixtureItem]) -> None:
    """Refuse ranges of sample numbers of one dataset that share samples, which are always a slip."""
    numbered: dict[tuple[str, ...], list[Subset]] = {}
    for item in items:
        ref = item.ref
        if not isinstance(ref, LeafRef) or not ref.subset.in_samples:
            continue
        others = numbered.setdefault((ref.spec.url, ref.split_part, ref.split_config, str(ref.view)), [])
        for other in others:
            if ref.subset.overlaps(other):
                raise ConfigError(
                    f"the subsets {other} and {ref.subset} overlap",
                    where=f"{ref.spec.url} [{ref.split_part}]",
                    hint="use ranges without common samples, or weights to read samples more often",
                )
        others.append(ref.subset)
