"""The dataset of one leaf of a mixture, with what programs for Megatron-Energon ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.plugins import load_plugin
from energon_stream.schedule import RepeatPlan

if TYPE_CHECKING:
    from energon_stream.media import FileStore


class LeafDataset(ReaderDataset):
    """Reads the samples of one leaf.

    In Megatron-Energon, ``dataset.build()`` makes such a dataset of a description. Here the dataset is its
    own description, which repeats in training, and :meth:`build` returns one pass over its samples.
    """

    def build(self, worker_rotation_offset: int = 0) -> ReaderDataset:
        """Return a dataset with one pass over the samples, for ``build_train_datasets`` to repeat and to
        blend.

        Args:
            worker_rotation_offset: Any number; the plan deals samples to workers evenly by itself.
        """
        plan = self.plan.child if isinstance(self.plan, RepeatPlan) else self.plan
        return ReaderDataset(self.leaves, plan, worker_config=self.worker_config, options=self.options)

    @property
    def subflavors(self) -> dict[str, Any]:
        """Subflavors of each sample."""
        return self.leaves[0].subflavors or {}

    @property
    def paths(self) -> list[Any]:
        """Paths of the dataset, or of the joined datasets, as ``EPath``."""
        leaf = self.leaves[0]
        members = getattr(leaf, "members", (leaf,))
        make_path = load_plugin("path_class")
        return [make_path(member.index.spec.url) for member in members]

    @property
    def path(self) -> Any:
        """Path of the dataset, or of the first joined dataset, as ``EPath``."""
        return self.paths[0]

    def as_file_store(self) -> FileStore[Any]:
        """Return the dataset as a file store, in which cookers look up parts by name.

        Raises:
            ConfigError: Its parts cannot be looked up: it is no prepared folder of tars.
        """
        store = self.leaves[0].stores.primary
        if store is None:
            raise ConfigError(
                "only prepared folders of tars can be file stores",
                where=str(self.path),
                hint="prepare the dataset",
            )
        return store
