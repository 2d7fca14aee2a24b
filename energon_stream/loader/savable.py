"""The loader that saves its position and restores it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar, get_args

from energon_stream.agreement import Occasion, agree, group_of, waits
from energon_stream.errors import ConfigError, EnergonStreamError, StateInUseError
from energon_stream.lineage.recorder import RunRecorder
from energon_stream.lineage.tracker import Tracker
from energon_stream.loader.agreements import (
    RESTORE,
    START,
    check_step,
    common,
    even_out,
    global_index,
    job_pass,
)
from energon_stream.loader.loader import BasicDataLoader, counts_of
from energon_stream.loader.loader_position import LoaderPosition, check_streams, copied, with_inputs
from energon_stream.loader.mixture_control import check_changes, is_live, steps_of
from energon_stream.loader.ranks import broadcast_states, gather_states
from energon_stream.logs import warn_deprecated
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.pipeline.stream_runner import Step
from energon_stream.schedule.pack_spec import EARLIER
from energon_stream.state import (
    ChangeReport,
    check_rank_state,
    deal_state,
    join_streams,
    make_rank_state,
    read_rank_state,
    split_streams,
    with_digest,
)
from energon_stream.state.change import continue_state
from energon_stream.state.description import Description, describe, plan_as
from energon_stream.state.rank import peek_streams
from energon_stream.state.streams import peek_streams_of
from energon_stream.worker import WorkerConfig

T = TypeVar("T")
P = ParamSpec("P")
L = TypeVar("L", bound="SavableDataLoader[Any]")
OnChange: TypeAlias = Literal["error", "continue"]

_log = logging.getLogger(__name__)


def _agreed(restore: Callable[Concatenate[L, P], None]) -> Callable[Concatenate[L, P], None]:
    """Let a restore fail on all ranks if it fails on one, and leave the loaders of all as they were."""

    @wraps(restore)
    def call(self: L, /, *args: P.args, **options: P.kwargs) -> None:
        if self._is_restoring or not (self.dataset.training or waits()[1]):  # ranks may validate alone
            return restore(self, *args, **options)
        position, unlisted, config, plans = self._position, self._unlisted, self.worker_config, self._plans
        problem: Exception | None = None
        self._is_restoring = True
        try:
            restore(self, *args, **options)
        except Exception as error:
            problem = error
        finally:
            self._is_restoring = False
        try:
            self._agree(RESTORE, problem)
        except EnergonStreamError:
            if problem is None:
                self._set_config(config)
                self._plan_as(plans)
                self._position, self._unlisted, self.restore_report = position, unlisted, None
                if self._recorder is not None:
                    self._recorder.restore(None, position.states)
            raise

    return call


class SavableDataLoader(BasicDataLoader[T]):
    """A loader whose position can be saved and restored exactly.

    A stream's state travels with each of its batches. So saving asks no worker: the main process has all
    states, even while workers are busy or dead.

    The class implements ``torch.distributed.checkpoint.stateful.Stateful`` with one entry a stream, so that
    ``torch.distributed.checkpoint`` deals the states to any number of ranks that divides the streams.

    Args:
        dataset: The dataset to iterate.
        checkpoint_every_sec: Not needed, like the next two: nothing is replayed by a restore.
        checkpoint_every_min_n_samples: Not needed.
        n_checkpoints: Not needed.
        run: As for ``get_savable_loader``, like the next one.
        run_storage_options: Options of the run's file system.
        **options: Those of :class:`BasicDataLoader`.

    Attributes:
        on_change: Default of the argument of the same name of :meth:`restore_state_rank`.
        before_restore: Called with a state to restore and the configuration; returns what is restored.
        restore_report: Changes of the dataset since the state that was restored last; None if there were
            none.

    Example:
        >>> from energon_stream import SavableDataLoader
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> loader = SavableDataLoader(NumbersDataset(5))
        >>> numbers = iter(loader)
        >>> next(numbers), next(numbers)
        (0, 1)
        >>> resumed = SavableDataLoader(NumbersDataset(5))
        >>> resumed.restore_state_rank(loader.save_state_rank())
        >>> list(resumed)
        [2, 3, 4]
    """

    _log_names = ("SavableDataLoader", "SavableLoader")

    on_change: OnChange = "error"
    before_restore: Callable[[Any, WorkerConfig], Any] | None = None
    restore_report: ChangeReport | None = None

    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        checkpoint_every_sec: float | None = 60,
        checkpoint_every_min_n_samples: int | None = None,
        n_checkpoints: int | None = None,
        run: str | os.PathLike[str] | None = None,
        run_storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, **options)
        self._given_config = dataset.worker_config
        self._has_agreed = self._is_restoring = self._was_restored = False
        self._plans: int | None = None  # version of plans that a state has; None for the newest
        self._recorder: RunRecorder | None = None
        if run is not None:
            self._recorder = RunRecorder(dataset, os.fspath(run), run_storage_options, self._bad)
            tracker = partial(Tracker, dataset, *self._recorder.plan)
            self._options = replace(self._options, tracker=tracker)

    def _agree(self, occasion: Occasion, problem: Exception | None = None) -> None:
        """Raise the same error on all ranks if one has a problem, or another dataset, program or step."""
        config, has, at = self.worker_config, {}, None
        if problem is None and group_of(config) is not None:
            begun = any(state is not None for state in self._position.states.values())
            given = begun or self._was_restored
            prints = dict(self._description.prints) if given or occasion is START else {}
            if occasion is not START:  # what the ranks restore was compared with it already
                prints.pop("content", None)
            # Early on, no stream of a rank may have begun: then it is where it would be without a state.
            has = common(self.dataset, begun if begun == given else None, prints)
            at = global_index(self._position.rotation, config, job_pass(self.dataset))
        indices = agree(replace(occasion, key=str(self.dataset.training)), config, problem, has, at)
        check_step(indices, config)
        self._has_agreed = True

    @cached_property
    def _description(self) -> Description:
        return describe(self.dataset)

    def _begin_session(self) -> None:
        self._plan_as(self._plans)  # another loader of the dataset may have restored an earlier state
        super()._begin_session()

    def _prepare(self) -> None:
        if waits()[1] and not self._has_agreed:
            self._agree(START)
        _ = self._description  # takes a while for large mixtures, and saving should not
        if self._recorder is not None:
            self._recorder.begin(self._position.rotation, self._position.states, self._position.changes)

    def _record(self, position: LoaderPosition, step: Step) -> None:
        if self._recorder is not None:
            self._recorder.add(position.rotation, position.states, step)

    def close(self) -> None:
        """End workers, and write what was recorded of the run."""
        if self._session is not None and self._recorder is not None:
            self._recorder.close(self._position.states)
        super().close()

    def set_weights(self, weights: Mapping[str, float], *, at_step: int | None = None) -> None:
        """Mix with other weights from a step on, as :meth:`BasicDataLoader.set_weights` says."""
        super().set_weights(weights, at_step=at_step)
        if self._recorder is not None:
            self._recorder.weigh(self._position.changes)

    def save_state_rank(self) -> dict[str, Any]:
        """Return the position of this rank after the last batch, in built-in types only."""
        position = self._position
        if self._session is not None:
            check_streams(self.worker_config, self.dataset.worker_config, self.dataset.worker_config.dealt_to)
        states = copied(position.states)
        steps = steps_of(self.dataset, position) if is_live(self.dataset) else None
        state = make_rank_state(
            self._description,
            self.worker_config,
            position.rotation,
            states,
            position.changes,
            steps,
            position.resumed,
        )
        if self._recorder is None:
            return state
        self._recorder.flush(position.states)
        return with_digest({**state, "run": self._recorder.saved(position.states)})

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let this rank restore in the block without the others, which then do not wait for it.

        Example:
            >>> from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
            >>> dataset = get_train_dataset("texts", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
            >>> loader = get_savable_loader(dataset)
            >>> with loader.alone():
            ...     loader.restore_state_rank(None)
        """
        before, self._is_restoring = self._is_restoring, True
        try:
            yield
        finally:
            self._is_restoring = before

    @_agreed
    def restore_state_rank(
        self, state: dict[str, Any] | bytes | None, *, on_change: OnChange | None = None
    ) -> None:
        """Continue from a saved state; before the first iteration only.

        Args:
            state: The state that :meth:`save_state_rank` returned, or its msgpack bytes; None for the start.
            on_change: ``"error"`` requires the dataset to be as it was when the state was saved.
                ``"continue"`` also accepts appended shards, other weights, and other datasets in a blend:
                the same datasets go on, the others begin anew. :attr:`restore_report`, which is logged,
                tells the consequences. None takes :attr:`on_change`.

        Raises:
            StateInUseError: Iteration has begun.
            StateError: The state does not fit this dataset or topology, on this rank or on another.
            ConfigError: ``on_change`` has another value.
        """
        if self._session is not None:
            raise StateInUseError(
                "the loader is being iterated", hint="restore before the first iteration, or in a new loader"
            )
        chosen = self.on_change if on_change is None else on_change
        if chosen not in get_args(OnChange):
            raise ConfigError(f"on_change is {chosen!r}", hint=f"use one of {', '.join(get_args(OnChange))}")
        self.restore_report = None
        self._was_restored = state is not None
        if state is None:
            self._set_config(self._given_config)
            self._plan_as(None)
            self._position, self._unlisted = LoaderPosition.start(self.dataset), 0
            if self._recorder is not None:
                self._recorder.restore(None, {})
            return
        if self.before_restore is not None:
            state = self.before_restore(state, self.worker_config)
        before, plans = self.worker_config, self._plans
        num_streams, dealt_to = peek_streams(state)
        streams = self._streams_of(num_streams)
        try:
            if (streams, dealt_to) != (before.num_streams, before.dealt_to):
                self._set_config(self._given_config.with_streams(streams, dealt_to))
            self._restore(state, chosen)
        except BaseException:
            self._set_config(before)
            self._plan_as(plans)
            raise

    def _streams_of(self, saved: int) -> int:
        """Return the number of streams to go on with: the saved one, where the program named none."""
        config, now = self._given_config, self.dataset.worker_config.num_streams
        if (
            saved in (0, now)
            or saved % config.world_size
            or config.names_streams
            or any("is_in_use" in vars(dataset) for dataset in with_inputs(self.dataset))
        ):
            return now
        if any(reader.packing for _, reader in find_readers(self.dataset)):
            return now  # packs are planned for a number of streams
        _log.info("the state has %d streams, and the loader goes on with them, in place of %d", saved, now)
        return saved

    def _set_config(self, config: WorkerConfig) -> None:
        """Give the datasets another configuration, inner ones first."""
        for dataset in reversed(with_inputs(self.dataset)):
            dataset.set_config(config)
        self.worker_config = config

    def _plan_as(self, version: int | None) -> None:
        """Plan packs and draws as a version did; None for the newest way."""
        self._plans = version
        if plan_as(self.dataset, version):
            vars(self).pop("_description", None)

    def _restore(self, state: dict[str, Any] | bytes, chosen: OnChange) -> None:
        report: ChangeReport | None = None
        self._plan_as(None)
        self._description = describe(self.dataset, again=chosen == "continue")
        saved = read_rank_state(state)["fingerprint"]
        version = self._description.earlier_version(saved)
        begins_anew = chosen == "continue" and saved.get("weights") != self._description.prints["weights"]
        if version in EARLIER or (version is not None and not begins_anew):  # it is still planned as it was
            self._plan_as(version)
            self._description = describe(self.dataset, again=chosen == "continue")
        if chosen == "continue":
            state, report = continue_state(state, self.dataset, self._description)
        rotation, streams, changes, begun, index = check_rank_state(
            state, self._description, self.worker_config, self.dataset.pass_length
        )
        check_changes(self.dataset, changes)
        states = copied({stream: streams.get(stream) for stream in rotation.streams})
        resumed = even_out(index, self.dataset, rotation)
        self._position = LoaderPosition(rotation, states, changes=changes, begun=begun, resumed=resumed)
        if self._recorder is not None:
            self._recorder.restore(read_rank_state(state).get("run"), self._position.states)
        self._unlisted = max(0, counts_of(self._position)[1] - self._bad.count)
        self.restore_report = report
        if report is not None:
            _log.warning("%s", report)

    def save_state_global(
        self, global_dst_rank: int | None = None, *, dst_rank: int | None = None
    ) -> list[dict[str, Any]] | None:
        """Gather the states of all ranks in one process. All ranks must call this, after the same step.

        Args:
            global_dst_rank: Global rank of that process in ``torch.distributed``; default 0.
            dst_rank: Another name of the same argument.

        Returns:
            The list of states in that process, None in the others.

        Raises:
            ConfigError: There is no process group of all ranks, or two destinations.
        """
        if global_dst_rank is not None and dst_rank is not None and global_dst_rank != dst_rank:
            raise ConfigError(
                f"global_dst_rank is {global_dst_rank} and dst_rank is {dst_rank}", hint="pass one of them"
            )
        chosen = global_dst_rank if global_dst_rank is not None else dst_rank or 0
        return gather_states(self.save_state_rank(), self.worker_config, chosen)

    @_agreed
    def restore_state_global(
        self,
        state: Sequence[Any] | None,
        *,
        src_rank: int | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        """Continue from the states of all ranks, with any number of ranks that divides the streams.

        Args:
            state: The list that :meth:`save_state_global` returned, or the states of all ranks in a list;
                None for the start.
            src_rank: The rank of the data-parallel group that has the states, if the others pass None; all
                ranks must then call this. None if every rank passes the list.
            on_change: As in :meth:`restore_state_rank`.

        Raises:
            StateInUseError: Iteration has begun.
            StateError: The states do not fit each other, this dataset or this number of ranks.
            ConfigError: ``src_rank`` is given and there is no process group of all ranks.
        """
        config = self.worker_config
        if src_rank is not None:
            state = broadcast_states(state, config, src_rank)
        own = None if state is None else deal_state(state, config.rank, config.world_size)
        self.restore_state_rank(own, on_change=on_change)

    def with_restored_state_rank(self, state: dict[str, Any] | bytes | None) -> Self:
        """Return this loader, after :meth:`restore_state_rank`."""
        self.restore_state_rank(state)
        return self

    def with_restored_state_global(self, state: Sequence[Any] | None, src_rank: int | None = None) -> Self:
        """Return this loader, after :meth:`restore_state_global`."""
        self.restore_state_global(state, src_rank=src_rank)
        return self

    def save_state(self, dst_rank: int) -> list[dict[str, Any]] | None:
        """Gather the states of all ranks; the older name of :meth:`save_state_global`."""
        warn_deprecated("save_state", "save_state_global")
        return self.save_state_global(dst_rank)

    def restore_state(self, state: Sequence[Any] | None) -> None:
        """Continue from the states of all ranks; the older name of :meth:`restore_state_global`."""
        warn_deprecated("restore_state", "restore_state_global")
        self.restore_state_global(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this rank, with one entry (of bytes) for each of its streams."""
        return split_streams(self.save_state_rank())

    @_agreed
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state dict; before the first iteration only.

        To continue on a dataset that changed, set :attr:`on_change` to ``"continue"`` before.

        Args:
            state_dict: The dict that :meth:`state_dict` returned on this rank, or the entries of this rank's
                streams, whichever ranks saved them.

        Raises:
            StateInUseError: Iteration has begun.
            StateError: The state does not fit this dataset or topology.
        """
        config = self.worker_config
        streams = self._streams_of(peek_streams_of(state_dict))
        state = join_streams(state_dict, config.rank, config.world_size, streams)
        self.restore_state_rank(state)
