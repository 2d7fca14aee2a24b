"""The place of a dataset or metadataset, and the datasets that it names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.reach import allowed_urls
from energon_stream.config.references import LeafRef, MetadatasetRef, MixtureItem, Reference, inherit
from energon_stream.config.subset import Subset
from energon_stream.errors import ConfigError
from energon_stream.index.dataset import dataset_kind
from energon_stream.index.info_files import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.limits import Limits
from energon_stream.storage import StoreLayer, StoreSpec, Transport
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.threads import thread_errors
from energon_stream.urls import is_local

if TYPE_CHECKING:
    from energon_stream.config.sample_types import DeclaredSamples
    from energon_stream.config.view import View

PathOption = str | os.PathLike[str] | Mapping[str, Any]
"""Path or URL of a dataset or metadataset, or a metadataset's parsed content."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatasetLocation:
    """A dataset or metadataset, and how to reach it."""

    root: str | Mapping[str, Any]  # path or URL, or a metadataset's parsed document
    split_part: str  # part of the dataset's split, or split of the metadataset
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # credentials and the like
    transport: Transport = "auto"  # client for remote data
    split_config: str = SPLIT_CONFIG  # file in ``.nv-meta`` with the split parts; single datasets only
    dataset_config: str = DATASET_CONFIG  # file there that describes the samples; single datasets only
    # Range of the samples; of a metadataset, share of each dataset.
    subset: Subset = field(default_factory=Subset)
    multiplier: int | None = 1  # ``shuffle_over_epochs_multiplier`` of all datasets
    through: StoreLayer | None = None  # layer between the readers and remote stores, such as the disk cache
    declared: DeclaredSamples | None = None  # the user's declaration of the samples; single datasets only
    subflavors: Mapping[str, Any] = field(default_factory=dict)  # put on each sample
    retry_deadline: float | None = None  # seconds for which failing requests are tried again; None: the usual
    limits: Limits = field(default_factory=Limits.from_environment)  # what the data may cost
    # Prefixes of URLs that metadatasets in stores may name beside their own store; None asks the environment.
    allow_urls: Sequence[str] | None = None
    view: View | None = None  # which of the samples are used; single datasets only

    @property
    def is_metadataset(self) -> bool:
        """True for a metadataset, which names other datasets."""
        return not isinstance(self.root, str) or dataset_kind(self.root) == "metadataset"

    def read(self, function: Callable[[], T], *, forks: bool) -> T:
        """Call a function that reads metadata of the location.

        A process that may fork workers later (``forks``) must not start a client of its own, so a short-lived
        child process reads.
        """
        # A metadataset may name remote datasets; that is not known before it is read.
        local = not self.is_metadataset and is_local(str(self.root))
        with thread_errors(self.root if isinstance(self.root, str) else None):
            return run_forkable(function) if forks and not local else function()

    def files(self) -> MetadatasetFiles:
        """Return the reader of the metadataset files."""
        allowed = allowed_urls(self.allow_urls)
        return MetadatasetFiles(
            self.storage_options,
            self.transport,
            self.through,
            self.retry_deadline,
            self.limits,
            allowed,
        )

    def items(self) -> list[MixtureItem]:
        """Read the metadataset files, and return the datasets that they name. The datasets are not touched.

        Raises ConfigError if an option is only for single datasets, and what :meth:`MetadatasetFiles.items`
        raises.
        """
        files = self.files()
        return files.items(self._reference(files))

    def _reference(self, files: MetadatasetFiles) -> Reference:
        names = self.split_config, self.dataset_config
        declared = self.declared is not None and not self.declared.typing_only
        if self.is_metadataset and (
            names != (SPLIT_CONFIG, DATASET_CONFIG) or self.subset.in_samples or declared or self.view
        ):
            raise ConfigError(
                "split_config, dataset_config, sample_type, views and sample numbers are for single datasets",
                hint="set them in the metadataset, where the dataset is named",
            )
        if not isinstance(self.root, str):
            content = files.document(self.root).split(self.split_part)
            return inherit(content, self.subflavors, self.subset, self.multiplier)
        inherited: dict[str, Any] = {
            "subflavors": self.subflavors,
            "subset": self.subset,
            "multiplier": self.multiplier,
        }
        if self.is_metadataset:
            spec = files.spec(self.root)
            return MetadatasetRef(spec, self.split_part, **inherited)
        return LeafRef(
            StoreSpec(self.root, self.storage_options, self.transport, self.through, self.retry_deadline),
            self.split_part,
            *names,
            declared=self.declared,
            view=self.view,
            **inherited,
        )


def root_of(path: PathOption) -> str | Mapping[str, Any]:
    """Return a path as text, and a parsed metadataset unchanged."""
    return path if isinstance(path, Mapping) else os.fspath(path)
